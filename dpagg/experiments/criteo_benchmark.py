"""Speed on the whole of Criteo's log: load, encode, WTD-FLAG and fit, beside plain Spark with MLlib on the same file.

Run with ``python -m dpagg.experiments.criteo_benchmark --scratch DIRECTORY``; 16,000,000 synthetic rows (6.2 GB) unless
told otherwise, kept in the directory for the next time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.config import FitConfig, parse_config, validated
from dpagg.experiments.label_tables.criteo import COLUMNS, criteo_config
from dpagg.experiments.label_tables.stand_ins import write_criteo
from dpagg.experiments.measuring import PeakMemory, processor_seconds
from dpagg.runs.aggregate import run_aggregate
from dpagg.runs.fit import run_fit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_ROWS = 16_000_000
_WARM_UP_ROWS = 20_000
_BAGS = 100_000
_SEED = 2018


def run_benchmark(scratch: Path, *, rows: int, rounds: int, heap: str, num_bags: int) -> dict[str, Any]:
    """Return seconds, rows a second, processor seconds, memory and ratios, as plain JSON values.

    Parameters
    ----------
    scratch : Path
        A directory for files.
    rows : int
        Of the synthetic log.
    rounds : int
        How many times each side runs, in turns; medians are returned.
    heap : str
        Of the JVM, which both sides share.
    num_bags : int
        Of the release.
    """
    from dpagg.spark.session import SessionSettings, spark_session

    begun = time.perf_counter()
    data = _log_file(scratch, rows)
    small = _log_file(scratch, _WARM_UP_ROWS)
    made = time.perf_counter() - begun
    spark = spark_session(SessionSettings(app_name="dpagg-criteo-benchmark", driver_memory=heap, local_dir=scratch))
    sides: dict[str, Callable[[Path], dict[str, float]]] = {
        "dpagg": lambda file: _ours(spark, file, scratch / "release", num_bags),
        "mllib": lambda file: _plain(spark, file),
    }
    for side in sides.values():
        side(small)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for turn in range(rounds):
        # Each side first in turn.
        for name in list(sides)[:: 1 if turn % 2 == 0 else -1]:
            _LOG.info("round %d of %d: %s", turn + 1, rounds, name)
            measured[name].append(_measured(sides[name], data))
            _LOG.info("%s", json.dumps(measured[name][-1]))
    found = {name: _medians(each) for name, each in measured.items()}
    ours, plain = found["dpagg"], found["mllib"]
    return {
        "rows": rows,
        "bytes": data.stat().st_size,
        "bags": num_bags,
        "columns": parse_config(_config(data, scratch / "release", num_bags), "aggregate").encoding.num_columns,
        "heap": heap,
        "cores": os.cpu_count(),
        "rounds": rounds,
        "generation_seconds": round(made, 1),
        "dpagg": ours,
        "mllib": plain,
        "rows_per_second": {name: round(rows / each["seconds"]) for name, each in found.items()},
        "seconds_vs_mllib": round(ours["seconds"] / plain["seconds"], 3),
        "processor_seconds_vs_mllib": round(ours["processor_seconds"] / plain["processor_seconds"], 3),
    }


def _log_file(scratch: Path, rows: int) -> Path:
    folder = scratch / f"criteo-{rows}"
    found = folder / "criteo-synthetic.tsv"
    return found if found.is_file() else write_criteo(folder, rows, _SEED)


def _config(file: Path, release: Path, num_bags: int) -> dict[str, Any]:
    return criteo_config(
        str(file),
        str(release),
        mechanism={"name": "wtd-flag", "num_bags": num_bags},
        privacy={"epsilon": 1.0, "delta": 1e-12},
    )


def _ours(spark: SparkSession, file: Path, release: Path, num_bags: int) -> dict[str, float]:
    """Aggregate and fit, as a user runs them."""
    shutil.rmtree(release, ignore_errors=True)
    model = release.with_suffix(".json")
    model.unlink(missing_ok=True)
    begun = time.perf_counter()
    run_aggregate(spark, parse_config(_config(file, release, num_bags), "aggregate"))
    aggregated = time.perf_counter()
    fit = validated({"release": {"path": str(release)}, "output": {"path": str(model)}}, FitConfig)
    run_fit(fit, spark)
    return {"aggregate_seconds": aggregated - begun, "fit_seconds": time.perf_counter() - aggregated}


def _plain(spark: SparkSession, file: Path) -> dict[str, float]:
    """The same columns and the same file by Spark's own means."""
    from dpagg.spark.mllib import mllib_encoded_least_squares, mllib_table

    schema = parse_config(_config(file, file, 1), "aggregate").encoding
    mllib_encoded_least_squares(mllib_table(spark, str(file), COLUMNS, schema, "-1"), schema)
    return {}


def _measured(side: Callable[[Path], dict[str, float]], data: Path) -> dict[str, float]:
    load, used, begun = os.getloadavg()[0], processor_seconds(), time.perf_counter()
    with PeakMemory() as memory:
        parts = side(data)
    seconds = time.perf_counter() - begun
    return {
        "seconds": seconds,
        "processor_seconds": processor_seconds() - used,
        **parts,
        "peak_rss_mb_jvm": memory.jvm >> 20,
        "peak_rss_mb_worker": memory.worker >> 20,
        "load_before": load,
        "load_after": os.getloadavg()[0],
    }


def _medians(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in each), 1) for name in each[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its result as JSON."""
    parser = argparse.ArgumentParser(prog="criteo_benchmark", description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True, help="directory for files; 7 GB free")
    parser.add_argument("--rows", type=int, default=_ROWS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bags", type=int, default=_BAGS)
    parser.add_argument("--heap", default="3g", help="of the JVM, such as 3g")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    given.scratch.mkdir(parents=True, exist_ok=True)
    result = run_benchmark(
        given.scratch.resolve(), rows=given.rows, rounds=given.rounds, heap=given.heap, num_bags=given.bags
    )
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
