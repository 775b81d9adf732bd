"""Time and memory of a private fit, against MLlib's least squares on the same Parquet.

``python -m dpagg.experiments.fit_benchmark`` makes 10,000,000 rows of 20 features and a label as Parquet in a temporary
directory, and takes turns: MLlib's ``LinearRegression`` with the solver ``normal``, then a whole private fit by the
default solver, each reading the files anew. It prints seconds, their ratio, and the largest resident memory of the
driver's Python, the JVM and a Python worker.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.config import PrivateFitConfig, parse_config
from dpagg.experiments.measuring import PeakMemory
from dpagg.runs.private_fit import run_private_fit
from dpagg.spark.mllib import mllib_least_squares
from dpagg.spark.session import SessionSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def settings(table: Path, out: Path, num_rows: int, num_columns: int) -> dict[str, Any]:
    """Return the configuration of the fit."""
    features = [{"name": f"x{i}", "type": "numeric", "lower": 0, "upper": 1} for i in range(num_columns)]
    label = {"name": "y", "lower": 0, "upper": num_columns / 2, "missing": {"constant": 0}}
    return {
        "input": {"path": str(table), "format": "parquet"},
        "schema": {"features": features, "label": label},
        "mechanism": {"name": "ihm"},
        "privacy": {"epsilon": 1.0, "delta": 1e-12, "adjacency": "zero_out_one_row", "num_rows": num_rows},
        "output": {"path": str(out)},
    }


def benchmark(spark: SparkSession, directory: Path, *, num_rows: int, num_columns: int, rounds: int) -> dict[str, Any]:
    """Return seconds of both fits in each round, the ratio of the best ones, and memory."""
    table = directory / "table.parquet"
    names = [f"x{i}" for i in range(num_columns)]
    label = " + ".join(f"{(i % 5) / 10:.1f} * {name}" for i, name in enumerate(names))
    drawn = spark.range(num_rows).selectExpr(*(f"rand({i}) AS x{i}" for i in range(num_columns)))
    drawn.selectExpr("*", f"{label} + rand(99) AS y").write.parquet(str(table))
    seconds: dict[str, list[float]] = {"mllib": [], "private_fit": []}
    peak = {"jvm": 0, "worker": 0}
    furthest = 0.0
    for number in range(rounds):
        begun = time.perf_counter()
        _, slopes = mllib_least_squares(spark.read.parquet(str(table)), names, "y")
        seconds["mllib"].append(time.perf_counter() - begun)
        config = parse_config(settings(table, directory / f"model{number}.json", num_rows, num_columns), "fit")
        if not isinstance(config, PrivateFitConfig):
            raise TypeError("the configuration is that of a fit of a table")
        with PeakMemory() as memory:
            begun = time.perf_counter()
            result = run_private_fit(spark, config)
            seconds["private_fit"].append(time.perf_counter() - begun)
        peak = {"jvm": max(peak["jvm"], memory.jvm), "worker": max(peak["worker"], memory.worker)}
        private = [row["coefficient"] for row in result.coefficients()[1:]]
        furthest = max(abs(a - b) for a, b in zip(private, slopes, strict=True))
        sys.stderr.write(f"{ {name: round(values[-1], 1) for name, values in seconds.items()} }\n")
    return {
        "rows": num_rows,
        "columns": num_columns,
        "cores": spark.sparkContext.defaultParallelism,
        "load_average": os.getloadavg(),
        "seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "ratio_of_best": round(min(seconds["private_fit"]) / min(seconds["mllib"]), 2),
        "largest_difference_of_a_slope": furthest,
        "peak_driver_python_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "peak_jvm_mib": peak["jvm"] >> 20,
        "peak_python_worker_mib": peak["worker"] >> 20,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its result as JSON."""
    parser = argparse.ArgumentParser(prog="dpagg.experiments.fit_benchmark", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--driver-memory", default="2g", help="heap of the JVM")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        spark = spark_session(
            SessionSettings("dpagg-fit-benchmark", driver_memory=given.driver_memory, local_dir=Path(directory))
        )
        result = benchmark(spark, Path(directory), num_rows=given.rows, num_columns=given.columns, rounds=given.rounds)
        spark.stop()
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
