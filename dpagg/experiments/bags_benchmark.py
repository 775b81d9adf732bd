"""Time and memory of making disjoint bags, against Spark's own repartition and sort of the same table.

``python -m dpagg.experiments.bags_benchmark`` makes 10,000,000 rows of 20 features, a key and a label as Parquet in a
temporary directory, and takes turns: Spark's ``repartition`` by key with ``sortWithinPartitions``, then 50,000 bags of
100 rows (both passes), then a whole release. It prints seconds, ratios, and the largest resident memory of the JVM and
of a Python worker. On a busy machine compare processor seconds: batches that go to and fro between two processes wait
for each turn, which Spark alone does not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.config import parse_config
from dpagg.experiments.measuring import PeakMemory, processor_seconds
from dpagg.kernels.bags import BagLayout, Ranking
from dpagg.kernels.rows import RowRule
from dpagg.kernels.streams import Secret
from dpagg.runs.aggregate import run_aggregate
from dpagg.spark.bagging import rank_pass, routed_rows
from dpagg.spark.session import SessionSettings, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def settings(table: Path, out: Path, num_columns: int, bag_size: int, num_bags: int) -> dict[str, Any]:
    """Return the configuration of the release."""
    features = [{"name": f"x{i}", "type": "numeric", "lower": 0, "upper": 1} for i in range(num_columns)]
    return {
        "input": {"path": str(table), "format": "parquet", "row_id": "id"},
        "schema": {
            "features": features,
            "label": {"name": "y", "lower": 0, "upper": 2, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "sampled-wtd-flag", "bag_size": bag_size, "num_bags": num_bags},
        "privacy": {"epsilon": 1.0, "delta": 1e-11, "leverage_cap_factor": "none"},
        "output": {"path": str(out)},
    }


def benchmark(
    spark: SparkSession, directory: Path, *, num_rows: int, num_columns: int, bag_size: int, num_bags: int, rounds: int
) -> dict[str, Any]:
    """Return seconds of each step in each round, and ratios of the best ones."""
    table = directory / "table.parquet"
    columns = [f"rand({i}) AS x{i}" for i in range(num_columns)]
    spark.range(num_rows).selectExpr("id", *columns, "rand(99) + rand(98) AS y").write.parquet(str(table))
    config = parse_config(settings(table, directory / "out", num_columns, bag_size, num_bags), "aggregate")
    tasks = 2 * spark.sparkContext.defaultParallelism
    by_size = -(-num_bags * bag_size * 8 * (num_columns + 2) // (256 << 20))
    tasks = max(tasks, by_size)
    seconds: dict[str, list[float]] = {}
    processor: dict[str, list[float]] = {}
    memory: dict[str, list[int]] = {}

    def read() -> DataFrame:
        return spark.read.parquet(str(table))

    def measure(name: str, run: Callable[[], object]) -> None:
        with PeakMemory() as peak:
            begun, used = time.perf_counter(), processor_seconds()
            run()
            seconds.setdefault(name, []).append(time.perf_counter() - begun)
            processor.setdefault(name, []).append(processor_seconds() - used)
        memory[name] = [max(a, b) for a, b in zip(memory.get(name, [0, 0]), (peak.jvm, peak.worker), strict=True)]
        sys.stderr.write(f"{name}: {seconds[name][-1]:.1f} s, processor {processor[name][-1]:.1f} s, {memory[name]}\n")

    def sort() -> None:
        df = read().repartition(tasks, "id").sortWithinPartitions("id")
        df.write.format("noop").mode("overwrite").save()

    def bags() -> None:
        ranking = Ranking(RowRule(config.encoding), "id", Secret.fresh(), "benchmark")
        counted = rank_pass(read(), ranking)
        layout = BagLayout.of(counted.counts, bag_size=bag_size, num_bags=num_bags, num_tasks=tasks)
        routed_rows(read(), ranking, layout, with_label=True).write.format("noop").mode("overwrite").save()

    for number in range(rounds):
        out = {"path": str(directory / f"out{number}")}
        this = config.model_copy(update={"output": config.output.model_copy(update=out)})
        measure("spark_repartition_and_sort", sort)
        measure("bags", bags)
        measure("whole_release", partial(run_aggregate, spark, this))
    base = "spark_repartition_and_sort"
    return {
        "rows": num_rows,
        "columns": num_columns,
        "bag_size": bag_size,
        "num_bags": num_bags,
        "tasks": tasks,
        "seconds": {name: [round(value, 2) for value in values] for name, values in seconds.items()},
        "ratio_of_best": {name: round(min(values) / min(seconds[base]), 2) for name, values in seconds.items()},
        "processor_seconds": {name: [round(value, 2) for value in values] for name, values in processor.items()},
        "processor_ratio_of_best": {
            name: round(min(values) / min(processor[base]), 2) for name, values in processor.items()
        },
        "peak_jvm_mib": {name: sizes[0] >> 20 for name, sizes in memory.items()},
        "peak_python_worker_mib": {name: sizes[1] >> 20 for name, sizes in memory.items()},
    }


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark and print its result as JSON."""
    parser = argparse.ArgumentParser(
        prog="dpagg.experiments.bags_benchmark", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--bag-size", type=int, default=100)
    parser.add_argument("--bags", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        spark = spark_session(SessionSettings(app_name="dpagg-bags-benchmark", local_dir=Path(directory)))
        result = benchmark(
            spark,
            Path(directory),
            num_rows=given.rows,
            num_columns=given.columns,
            bag_size=given.bag_size,
            num_bags=given.bags,
            rounds=given.rounds,
        )
        spark.stop()
    sys.stdout.write(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
