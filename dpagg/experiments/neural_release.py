"""The made-up table through the whole path: a private release by Spark, a network trained on it, predictions by Spark.

``python -m dpagg.experiments.neural_release --out DIRECTORY`` prints one JSON object with times and test losses.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.config import parse_config
from dpagg.experiments.neural_tables import synthetic_table
from dpagg.runs.aggregate import run_aggregate
from dpagg.runs.predict import run_predict
from dpagg.runs.train import run_train
from dpagg.spark.session import spark_session

_TEST_ROWS = 100_000


def release_and_train(out: Path, *, num_rows: int, epsilon: float, bag_size: int) -> dict[str, Any]:
    """Return times and losses of one release of the made-up table; its last rows are for the test alone."""
    out.mkdir(parents=True, exist_ok=True)
    whole = synthetic_table(num_rows + _TEST_ROWS)
    train, test = whole[:num_rows], whole[num_rows:]
    train.to_parquet(out / "train.parquet", row_group_size=100_000)
    test.drop(columns="y").to_parquet(out / "test.parquet")
    features = [{"name": name, "type": "numeric", "lower": -1, "upper": 1} for name in whole.columns[:-2]]
    aggregate = parse_config(
        {
            "input": {"path": str(out / "train.parquet"), "format": "parquet", "row_id": "key"},
            "schema": {
                "features": features,
                "label": {"name": "y", "lower": -1, "upper": 1, "missing": {"constant": 0}},
            },
            "mechanism": {"name": "sampled-noisy-wtd-lag", "bag_size": bag_size, "noised_fraction": 1.0},
            "privacy": {"epsilon": epsilon, "delta": 1e-7},
            "output": {"path": str(out / "bags")},
        },
        "aggregate",
    )
    training = parse_config(
        {
            "release": {"path": str(out / "bags")},
            "network": {"lipschitz": "none"},
            "training": {"max_epochs": 10, "learning_rate": 3e-3},
            "output": {"path": str(out / "network")},
        },
        "train",
    )
    spark = spark_session()
    times, began = {}, time.monotonic()
    run_aggregate(spark, aggregate)
    times["aggregate"] = time.monotonic() - began
    trained = run_train(training, spark)
    times["train"] = time.monotonic() - began - times["aggregate"]
    run_predict(spark, out / "network", str(out / "test.parquet"), str(out / "predictions"), row_id="key")
    times["predict"] = time.monotonic() - began - times["aggregate"] - times["train"]
    predicted = spark.read.format("delta").load(str(out / "predictions")).toPandas().sort_values("key")
    mse = float(np.mean(np.square(predicted["prediction"].to_numpy() - test["y"].to_numpy())))
    return {
        "num_rows": num_rows,
        "epsilon": epsilon,
        "delta": aggregate.privacy.delta,
        "bag_size": bag_size,
        "mse": mse,
        "constant_mse": float(np.var(test["y"])),
        "epochs": trained.model.training["epochs"],
        "seconds": {name: round(value, 1) for name, value in times.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(
        prog="dpagg.experiments.neural_release", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="new directory for tables, release and network")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--bag-size", type=int, default=8)
    given = parser.parse_args(arguments)
    found = release_and_train(given.out, num_rows=given.rows, epsilon=given.epsilon, bag_size=given.bag_size)
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
