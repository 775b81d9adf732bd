"""The label-DP experiments on Spark: the same releases as the runs make, judged as the evaluation defines losses."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.experiments.evaluation import evaluate
from dpagg.experiments.label_dp.cases import find_cases
from dpagg.experiments.label_dp.lab import Lab
from dpagg.experiments.label_dp.prepared import identity_of, prepare
from dpagg.experiments.label_dp.shared import SharedRows
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.runs.aggregate import draw_release, run_aggregate
from dpagg.runs.plan import make_plan

SCHEMA = {
    "features": [
        {"name": "price", "type": "numeric", "lower": -2, "upper": 2},
        {"name": "shop", "type": "categorical", "categories": ["a", "b"], "other": True},
    ],
    "label": {"name": "sale", "lower": -4, "upper": 6, "missing": {"constant": 0}},
}


def table(labels_of, rows=1500):
    rng = np.random.default_rng(3)
    price, shop = rng.normal(size=rows), rng.choice(["a", "b", "c"], rows)
    signal = 1.5 * price + (shop == "b")
    return pd.DataFrame({"key": np.arange(rows), "price": price, "shop": shop, "sale": labels_of(signal, rng)})


def configured(folder, frame):
    folder.mkdir()
    frame.to_parquet(folder / "rows.parquet")
    config = {
        "input": {"path": str(folder / "rows.parquet"), "format": "parquet", "row_id": "key"},
        "schema": SCHEMA,
        "mechanism": {"name": "wtd-flag"},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "output": {"path": "nowhere"},
    }
    (folder / "mine.yaml").write_text(yaml.safe_dump(config))
    (case,) = find_cases(folder / "mine.yaml", folder / "scratch").cases
    return case


@pytest.fixture(scope="module")
def lab(spark, tmp_path_factory):
    case = configured(tmp_path_factory.mktemp("lab") / "data", table(lambda s, rng: s + rng.normal(size=len(s))))
    folder = tmp_path_factory.mktemp("lab") / "scratch"
    return Lab(spark, prepare(spark, case, folder, identity_of(spark, case)))


def rows_of(lab, part):
    frame = pd.read_parquet(lab.prepared.rows_path(part))
    schema = lab.prepared.case.config.encoding
    import pyarrow as pa

    batch = pa.RecordBatch.from_pandas(frame, preserve_index=False)
    features, keep = encode_features(batch, schema)
    return frame, features[keep], encode_label(batch.column("sale"), schema.label)[keep]


def test_losses_are_those_of_the_evaluation_on_the_rows(lab):
    _, features, labels = rows_of(lab, "train")
    _, test_features, test_labels = rows_of(lab, "test")
    facts, model = lab.facts(), np.array([0.3, 1.0, -0.5, 0.2])
    expected = evaluate(features, labels, model)
    found = lab.judge.evaluation(model)
    assert found.mse == pytest.approx(expected.mse) and found.excess_share == pytest.approx(expected.excess_share)
    assert lab.test_judge.mse(model) == pytest.approx(np.mean((test_labels - test_features @ model) ** 2))
    assert facts["num_rows"] + facts["num_test_rows"] == 1500 and facts["num_test_rows"] == len(test_labels)
    assert facts["least_squares"]["train_mse"] == pytest.approx(expected.least_squares_mse)
    assert facts["constant"]["test_mse"] == pytest.approx(np.mean((test_labels - labels.mean()) ** 2))
    assert facts["mean_squared_residual"] == pytest.approx(expected.least_squares_mse)  # no row is over the cap


def test_releases_have_the_certificate_of_the_run_itself(lab, spark, tmp_path):
    shared = lab.plan({"name": "wtd-flag"}, {"epsilon": 2.0})
    config = lab.prepared.aggregate({"name": "wtd-flag"}, {"epsilon": 2.0}, output=str(tmp_path / "release"))
    alone = make_plan(spark, config)
    assert shared.calibrated == alone.calibrated and shared.summary.num_rows == alone.summary.num_rows
    assert isinstance(shared.rows, SharedRows)
    from dpagg.kernels.streams import Secret

    certificates = [draw_release(plan, config, Secret.insecure(1), "one").certificate for plan in (shared, alone)] + [
        run_aggregate(spark, config, insecure_seed=1).certificate
    ]
    for name in ("event", "num_bags", "num_rows", "label_noise_variance", "delta_at_epsilon", "leverage", "private"):
        assert certificates[0][name] == certificates[1][name] == certificates[2][name]
    assert certificates[0]["private"] is False


def test_losses_fall_with_epsilon_and_repeat(lab):
    small, large = lab.wtd_flag(0.5, 1), lab.wtd_flag(8.0, 1)
    assert large["excess_share"] < small["excess_share"] and lab.wtd_flag(8.0, 1) == large
    assert lab.wtd_flag(8.0, 2) != large and large["private"] is False
    bags = lab.sampled_wtd_flag(8.0, 1, 30)
    assert bags["num_bags"] == lab.facts()["num_rows"] // 30 and bags["excess_share"] > 0
    lab.forget_bags()
    with lab.label_gaussian() as fitted:
        assert fitted(8.0, 1)["excess_share"] < fitted(0.5, 1)["excess_share"]


def test_noise_on_each_label_is_least_squares_on_noisy_labels(lab):
    found = lab.label_noise(2.0, 1)
    _, features, labels = rows_of(lab, "train")
    assert found["num_bags"] == len(labels)
    expected = found["label_noise_std"] ** 2 * features.shape[1] / len(labels)
    rng, excess = np.random.default_rng(0), []
    for _ in range(200):
        noisy = labels + found["label_noise_std"] * rng.normal(size=len(labels))
        model = np.linalg.lstsq(features, noisy, rcond=None)[0]
        excess.append(np.mean((labels - features @ model) ** 2) - lab.facts()["least_squares"]["train_mse"])
    assert np.mean(excess) == pytest.approx(expected, rel=0.2)
    here = found["train_mse"] - lab.facts()["least_squares"]["train_mse"]
    assert min(excess) / 3 < here < 3 * max(excess)


def test_no_label_decides_which_rows_are_for_the_test(lab, spark, tmp_path):
    case = configured(tmp_path / "other", table(lambda s, rng: -s * rng.exponential(size=len(s))))
    other = Lab(spark, prepare(spark, case, tmp_path / "scratch", identity_of(spark, case)))
    keys = [set(rows_of(each, "test")[0]["key"]) for each in (lab, other)]
    assert keys[0] == keys[1] and 200 < len(keys[0]) < 400
