"""Private fits and predictions as a user runs them: every solver, reruns, refusals, and tables nobody wishes for."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from pyspark.sql import SparkSession

from dpagg.cli import run
from dpagg.config import PrivateFitConfig, parse_config
from dpagg.errors import ConfigError
from dpagg.kernels.streams import Secret
from dpagg.regression.model import LinearModel
from dpagg.runs.certificates import load_certificate, verify_certificate
from dpagg.runs.fit import run_fit
from dpagg.runs.private_fit import plan_solver

NUM_ROWS = 4000
SCHEMA: dict[str, Any] = {
    "features": [
        {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
        {"name": "device", "type": "categorical", "categories": ["a", "b"], "other": True},
    ],
    "label": {"name": "sale", "lower": 0, "upper": 60, "missing": {"constant": 0}},
}
SOLVERS = {
    "ihm": "zero_out_one_row",
    "ihm-paper": "zero_out_one_row",
    "linear-mixing": "zero_out_one_row",
    "adassp": "zero_out_one_row",
    "dp-gd": "zero_out_one_row",
    "label-gaussian": "change_one_label",
}


def made_up(num_rows: int = NUM_ROWS, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"key": np.arange(num_rows), "price": rng.uniform(0, 100, num_rows)})
    table["device"] = rng.choice(["a", "b", "c"], num_rows)
    table["sale"] = 10 + 0.2 * table.price + 8 * (table.device == "b") + rng.normal(0, 2, num_rows)
    return table


def settings(table: Path, out: Path, **changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "input": {"path": str(table), "format": "parquet"},
        "schema": SCHEMA,
        "mechanism": {"name": "ihm"},
        "privacy": {"epsilon": 2.0, "delta": 1e-7, "adjacency": "zero_out_one_row", "num_rows": NUM_ROWS},
        "output": {"path": str(out)},
    }
    return content | changes


def fit(spark: SparkSession, content: dict[str, Any], seed: int | None = None) -> tuple[LinearModel, dict[str, Any]]:
    """Fit, and return the model and its certificate as they are on disk."""
    run_fit(parse_config(content, "fit"), spark, insecure_seed=seed)
    document = json.loads(Path(content["output"]["path"]).read_text())
    return LinearModel.from_dict(document), document["certificate"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "table.parquet"
    made_up().to_parquet(path)
    return path


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_end_to_end(spark: SparkSession, stored: Path, tmp_path: Path, name: str) -> None:
    privacy = {"epsilon": 40.0, "delta": 1e-7, "adjacency": SOLVERS[name]}
    if SOLVERS[name] == "zero_out_one_row":
        privacy["num_rows"] = NUM_ROWS
    out = tmp_path / "model.json"
    model, promise = fit(spark, settings(stored, out, mechanism={"name": name}, privacy=privacy))
    table = made_up()
    design = np.column_stack([np.ones(NUM_ROWS), (table.price - 50) / 50, table.device == "b", table.device == "c"])
    truth = np.linalg.lstsq(design, np.clip(table.sale, 0, 60))[0]
    # At such an epsilon every solver comes near least squares; some clip, add a ridge or stop early.
    within = {"ihm": 0.5, "label-gaussian": 0.2}.get(name, 6.0)
    np.testing.assert_allclose(model.coefficients, truth, atol=within)
    assert promise["private"] and promise["adjacency"] == SOLVERS[name]
    assert promise["num_rows"] == NUM_ROWS and verify_certificate(load_certificate(out)).holds
    if name in ("ihm", "label-gaussian"):
        assert (np.abs(model.coefficients - truth) < 6 * model.standard_errors).all()
        assert model.to_dict()["user_units"]["intercept_standard_error"] > 0
    else:
        assert np.isnan(model.standard_errors).all()
    assert run(["certificate", "show", str(out)]) == 0
    page = (tmp_path / "model.html").read_text()
    assert ("nothing from which an honest interval" in page) is bool(np.isnan(model.standard_errors).all())
    assert promise["draw_id"] in page


def test_label_privacy_by_the_default_solver(spark: SparkSession, stored: Path, tmp_path: Path) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-7, "adjacency": "change_one_label"}
    model, promise = fit(spark, settings(stored, tmp_path / "m.json", privacy=privacy))
    assert promise["unit"] == "one label" and "Features are not protected" in promise["statement"]
    assert model.fit["num_rows"] == NUM_ROWS
    np.testing.assert_allclose(model.coefficients[1:], [10, 8, 0], atol=0.8)


def test_norm_and_row_bounds(spark: SparkSession, stored: Path, tmp_path: Path) -> None:
    for name in ("ihm", "adassp"):
        mechanism = {"name": name, "norm_bound": 6.0, "row_bound": 1.3}
        model, promise = fit(spark, settings(stored, tmp_path / f"{name}.json", mechanism=mechanism))
        # The intercept counts from the middle of the label's bounds.
        assert np.linalg.norm(model.coefficients - [30, 0, 0, 0]) == pytest.approx(6.0, rel=1e-6)
        assert model.fit["status"] == "bound_active" and promise["row_bound"] == pytest.approx(1.3)
        assert np.isnan(model.population_standard_errors).all()


def test_coverage_of_the_standard_errors(spark: SparkSession, stored: Path) -> None:
    # From arrays: the Spark path draws the same, and a hundred fits are quick here.
    import pyarrow as pa

    from dpagg.kernels.bounded_rows import BoundedRows
    from dpagg.regression.data import ArrayData

    config = parse_config(settings(stored, Path("unused.json")), "fit")
    assert isinstance(config, PrivateFitConfig)
    rule = BoundedRows(config.encoding)
    rows, labels = rule.encode(pa.RecordBatch.from_pandas(made_up()))
    data = ArrayData(rows, labels, 1.0)
    best = np.linalg.lstsq(rows, labels)[0]
    plan = plan_solver(config, rule, NUM_ROWS, data)
    scores = []
    for trial in range(100):
        found = plan.run(data, Secret.insecure(trial), "r")
        scores.append((found.coefficients - best) / found.standard_errors)
    spread = np.sqrt(np.mean(np.square(scores), axis=0))
    # Honest within a factor: clipping and shrinking add what the noise's covariance doesn't hold.
    assert (spread > 0.5).all() and (spread < 2.0).all(), spread


def test_rerun_finds_the_model_and_anything_else_is_refused(
    spark: SparkSession, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = settings(stored, tmp_path / "made" / "m.json")
    file = tmp_path / "fit.yaml"

    def outcome(**changes: Any) -> tuple[int, str]:
        file.write_text(yaml.safe_dump(content | changes))
        code = run(["fit", str(file), "--json"])
        said = capsys.readouterr()
        return code, said.out + said.err

    assert outcome()[0] == 0
    before = (tmp_path / "made" / "m.json").read_bytes()
    code, said = outcome()
    assert code == 0 and json.loads(said)["written"].startswith("earlier")
    assert outcome(performance={"rows_per_block": 100})[0] == 0
    code, said = outcome(privacy=content["privacy"] | {"epsilon": 3.0})
    assert code == 2 and "another model" in said
    assert (tmp_path / "made" / "m.json").read_bytes() == before
    (tmp_path / "junk.json").write_text("{}")
    assert outcome(output={"path": str(tmp_path / "junk.json")})[0] == 2
    # Refusals that the configuration or the table's columns decide.
    new = {"path": str(tmp_path / "new.json")}
    for changes, expected, words in (
        ({"privacy": content["privacy"] | {"delta": 0.01}}, 3, "privacy.delta"),
        ({"input": {"path": str(tmp_path / "none"), "format": "parquet"}}, 4, "input.path"),
        ({"schema": SCHEMA | {"features": [{"name": "prize", "type": "numeric", "lower": 0, "upper": 1}]}}, 4, "price"),
    ):
        code, said = outcome(output=new, **changes)
        assert (code, words in said) == (expected, True), said
    assert not (tmp_path / "new.json").exists()


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"mechanism": {"name": "adassp"}, "adjacency": "change_one_label"}, "privacy.adjacency"),
        ({"mechanism": {"name": "label-gaussian"}}, "privacy.adjacency"),
        ({"mechanism": {"name": "ihn"}}, "mechanism.name"),
        ({"mechanism": {"name": "ihm", "sketch_size": 5}}, "mechanism.sketch_size"),
        ({"num_rows": None}, "privacy.num_rows"),
        ({"release": {"path": "r"}}, "release"),
        ({"ledger": {"path": "r", "dataset": "d"}}, "ledger.partition"),
        ({"ledger": None}, "ledger"),
        ({"row_id": "key"}, "input.row_id"),
    ],
)
def test_configurations_that_are_refused(changes: dict[str, Any], path: str) -> None:
    content = settings(Path("t"), Path("m.json"))
    content["privacy"] |= {name: changes.pop(name) for name in ("adjacency", "num_rows") if name in changes}
    content["input"] |= {name: changes.pop(name) for name in ("row_id",) if name in changes}
    with pytest.raises(ConfigError) as refused:
        parse_config(content | changes, "fit")
    assert refused.value.path == path


def hostile(kind: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A table, and the schema it is declared with."""
    table = made_up(60)
    numeric = [{"name": name, "type": "numeric", "lower": -1, "upper": 1} for name in ("x", "z")]
    table["x"] = np.linspace(-1, 1, len(table))
    table["z"] = 0.5 * table.x if kind == "collinear" else 0.25
    if kind == "outlier":
        table.loc[7, ["x", "z", "sale"]] = 1e300, -np.inf, np.nan
    if kind == "equal labels":
        table["sale"] = 5.0
    if kind == "nothing but missing":
        table[["x", "z", "sale"]] = np.nan
    schema = SCHEMA | {"features": numeric}
    if kind == "one column":
        schema |= {"features": [], "intercept": True}
    if kind == "fewer rows than columns":
        table = table.head(2)
        schema |= {"features": [*numeric, {"name": "device", "type": "hashed", "buckets": 40}]}
    return table, schema


KINDS = (
    "collinear",
    "constant",
    "outlier",
    "equal labels",
    "nothing but missing",
    "one column",
    "fewer rows than columns",
)


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_decides_what_becomes_of_a_fit(
    spark: SparkSession, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table, schema = hostile(kind)
    table.to_parquet(tmp_path / "t.parquet")
    solvers = ("ihm", "ihm-paper") if kind in ("one column", "constant") else tuple(SOLVERS)[:-1]
    for name in solvers:
        content = settings(tmp_path / "t.parquet", tmp_path / f"{name}.json", mechanism={"name": name}, schema=schema)
        content["privacy"] |= {"num_rows": 60, "delta": 1e-4}
        (tmp_path / "fit.yaml").write_text(yaml.safe_dump(content))
        assert run(["fit", str(tmp_path / "fit.yaml"), "--json"]) == 0
        said = capsys.readouterr()
        found = json.loads(said.out)
        assert said.err == "" and np.isfinite([row["coefficient"] for row in found["coefficients"]]).all()
        assert found["fit"]["num_rows"] == 60 and found["release"]["private"] is True
    if kind in ("collinear", "constant", "fewer rows than columns"):
        # Features are public here, and a direction without rows is left out.
        privacy = {"epsilon": 50.0, "delta": 1e-4, "adjacency": "change_one_label"}
        for name in ("ihm", "label-gaussian"):
            out = tmp_path / f"{name}-labels.json"
            model, _ = fit(
                spark,
                settings(tmp_path / "t.parquet", out, mechanism={"name": name}, schema=schema, privacy=privacy),
            )
            assert np.isfinite(model.coefficients).all() and model.fit["num_rows"] == len(table)


def test_no_canary_in_model_certificate_or_log(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    table = made_up(500).astype({"price": str, "sale": str})
    table.loc[3, "price"], table.loc[4, "sale"], table.loc[5, "device"] = (
        "sparrow-price",
        "sparrow-sale",
        "sparrow-device",
    )
    table.loc[6, "price"], table.loc[7, "sale"] = "57.72156649015", "31.41592653589"
    table.to_csv(tmp_path / "t.csv", index=False)
    content = settings(
        tmp_path / "t.csv", tmp_path / "m.json", input={"path": str(tmp_path / "t.csv"), "format": "csv"}
    )
    content["privacy"]["num_rows"] = 500
    (tmp_path / "fit.yaml").write_text(yaml.safe_dump(content))
    seed = 20_261_130
    assert run(["fit", str(tmp_path / "fit.yaml"), "--verbose", "--insecure-seed", str(seed)]) == 0
    said = capfd.readouterr()
    durable = [(tmp_path / "m.json").read_text(), caplog.text, said.out, said.err]
    key = Secret.insecure(seed)._key
    # Digits enough that no drawn coefficient has them by chance.
    for canary in ("sparrow", "57.72156649", "31.41592653", key.hex(), repr(key)):
        assert not [text for text in durable if canary in text], canary
    assert "csv" in durable[0] and "CSV" in durable[0]  # the search sees the files
    assert json.loads(durable[0])["certificate"]["private"] is False


def test_predictions_of_a_table(
    spark: SparkSession, stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = fit(spark, settings(stored, tmp_path / "m.json"), seed=1)
    table = made_up(300, seed=5).drop(columns="sale")
    table.loc[0, "price"], table.loc[1, "price"], table.loc[2, "device"] = None, 1e9, None
    table.to_csv(tmp_path / "t.csv", index=False)
    spark.createDataFrame(table).write.format("delta").save(str(tmp_path / "t"))
    table.to_parquet(tmp_path / "t.parquet")
    design = np.column_stack(
        [np.ones(300), (np.clip(table.price, 0, 100) - 50) / 50, table.device == "b", table.device == "c"]
    ).astype(float)
    expected = design @ model.coefficients
    expected[[0, 2]] = np.nan  # a missing feature whose rule is drop
    for position, (name, stored_as) in enumerate((("t.csv", "parquet"), ("t", "delta"), ("t.parquet", "delta"))):
        out = tmp_path / f"out{position}"
        arguments = ["predict", str(tmp_path / "m.json"), str(tmp_path / name), str(out), "--row-id", "key"]
        assert run([*arguments, "--out-format", stored_as, "--json"]) == 0
        found = spark.read.format(stored_as).load(str(out)).toPandas().astype({"key": int}).sort_values("key")
        np.testing.assert_array_equal(found.key, table.key)
        np.testing.assert_allclose(found.prediction, expected, rtol=1e-12)
        assert json.loads(capsys.readouterr().out)["columns"] == ["key", "prediction"]
    assert not [path.name for path in tmp_path.iterdir() if "unfinished" in path.name]

    def refused(*arguments: Any) -> tuple[int, str]:
        code = run(["predict", *map(str, arguments)])
        return code, capsys.readouterr().err

    new, model_file = tmp_path / "new", tmp_path / "m.json"
    for arguments, code, words in (
        ((model_file, tmp_path / "t", tmp_path / "out0"), 2, "exists"),
        ((tmp_path / "none.json", tmp_path / "t", new), 4, "no model"),
        ((tmp_path / "t.csv", tmp_path / "t", new), 4, "not a model"),
        ((model_file, tmp_path / "none", new), 4, "does not exist"),
        ((model_file, tmp_path / "t", new, "--row-id", "kee"), 4, "key"),
        ((model_file, tmp_path / "t", new, "--row-id", "price"), 2, "feature"),
        ((model_file, tmp_path / "t", new, "--out-format", "csv"), 2, "delta or parquet"),
    ):
        assert (refused(*arguments)[0], words in refused(*arguments)[1]) == (code, True), arguments
    assert not new.exists()
    assert run(["predict", str(model_file), str(tmp_path / "t"), str(new), "--column", "sale in euro"]) == 0
    assert spark.read.format("delta").load(str(new)).columns == ["sale in euro"]


def test_paper_protocol_from_the_command_line(
    shared_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = ["reproduce", "ihm", "--data", str(shared_data)]
    arguments = [*first, "--sets", "airfoil", "--epsilons", "1", "--trials", "2"]
    assert run([*arguments, "--no-synthetic", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["set"] for cell in found["cells"]] == ["airfoil"] and found["geometric_mean_gain"] > 1
    assert run([*arguments, "--no-synthetic"]) == 0
    assert "airfoil" in capsys.readouterr().out
    assert run([*first, "--sets", "nothing"]) == 4
    assert run([*first, "--epsilons", "1,zero"]) == 2
