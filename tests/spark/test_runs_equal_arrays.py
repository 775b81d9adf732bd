"""Whole runs publish what the array kernels draw under the same streams: audits of kernels are audits of runs."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.cli import run
from dpagg.kernels.factor import Factor
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import Finish, WeightedSums, hidden_level

NUM_ROWS, NUM_BAGS, NUM_PARTITIONS, SEED = 700, 300, 3, 11
SCHEMA = Schema((Numeric("price", 0, 100), Categorical("device", ("mobile", "desktop"))), Label("sale", 0, 50, 0.0))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    price = rng.uniform(0, 100, NUM_ROWS)
    return pd.DataFrame(
        {
            "key": rng.permutation(10 * NUM_ROWS)[:NUM_ROWS],
            "price": price,
            "device": rng.choice(["mobile", "desktop"], NUM_ROWS),
            "sale": np.clip(0.3 * price + rng.normal(0, 9, NUM_ROWS), 0, 50),
        }
    )


def published(tmp_path, table, engine, level):
    """Run, and return the release and its certificate as they are on disk."""
    table.to_parquet(tmp_path / "table.parquet")
    settings = {
        "input": {"path": str(tmp_path / "table.parquet"), "format": "parquet", "row_id": "key"},
        "schema": {
            "intercept": True,
            "features": [
                {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
                {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
            ],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "wtd-flag", "num_bags": NUM_BAGS},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "floor": {"kind": "noise", "level": level}},
        "output": {"path": str(tmp_path / "out")},
        "performance": {"engine": engine, "num_partitions": NUM_PARTITIONS},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(settings))
    assert run(["aggregate", str(tmp_path / "run.yaml"), "--json", "--insecure-seed", str(SEED)]) == 0
    found = pd.read_parquet(tmp_path / "out").sort_values("bag_id")
    promise = json.loads((tmp_path / "out" / "_certificate.json").read_text())
    assert promise["num_rows"] == NUM_ROWS and promise["rank"] == 3
    return np.column_stack([np.stack(found["features"].to_numpy()), found["label"].to_numpy()]), promise


def rows_of(table):
    """[X y] encoded by hand, label about the middle of its bounds."""
    columns = [np.ones(len(table)), (table.price - 50) / 50, table.device == "desktop", table.sale - 25]
    return np.column_stack([np.asarray(column, dtype=float) for column in columns])


def from_arrays(spark, table, engine, promise):
    """The same release by the kernels alone."""
    secret, release = Secret.insecure(SEED), promise["release_id"]
    factor = sums = None
    if engine == "factor":
        factor = Factor.zero(4).add(rows_of(table)).canonical()
    else:
        # Spark's own hash says which partition, hence which stream, has a row.
        keys = spark.createDataFrame(table[["key"]]).selectExpr("key", f"pmod(hash(key), {NUM_PARTITIONS}) AS p")
        place = table["key"].map({row.key: row.p for row in keys.collect()})
        total = WeightedSums.zero(NUM_BAGS, 4)
        for partition in range(NUM_PARTITIONS):
            inside = table[place == partition].sort_values("key")
            total = total.add(rows_of(inside), secret.stream(release, "weights", partition))
        sums = total.totals
    event = promise["event"]
    if event["event"] == "HiddenNoiseAggregation":
        variance = hidden_level(
            secret.stream(release, "noise-level", 0),
            mean=event["noise_mean"],
            std=event["noise_std"],
            floor=event["noise_floor"],
        )
    else:
        variance = event["label_noise_variance"]
    finish = Finish(secret, release, NUM_BAGS, np.sqrt(variance), RowRule(SCHEMA), factor)
    return np.column_stack(finish.chunk(0, sums))


@pytest.mark.parametrize("level", ["known", "hidden"])
@pytest.mark.parametrize("engine", ["factor", "rows"])
def test_a_run_publishes_what_the_kernels_draw(spark, tmp_path, table, capfd, engine, level):
    found, promise = published(tmp_path, table, engine, level)
    assert promise["engine"] == engine
    expected = from_arrays(spark, table, engine, promise)
    assert found.shape == expected.shape == (NUM_BAGS, 4)
    # Sums of rows come in another order, so what cancels in a sum is no measure: a column's size is.
    assert (np.abs(found - expected).max(axis=0) <= 1e-12 * np.abs(expected).max(axis=0)).all()
    # The comparison sees as little as one row's last digits.
    other = table.copy()
    other.loc[5, "sale"] += 1e-6
    changed = from_arrays(spark, other, engine, promise)
    assert np.abs(found - changed).max() > 1e-9
    assert run(["certificate", "verify", str(tmp_path / "out"), "--json"]) == 0
    assert promise["private"] is False
