"""Time of a ledger after a thousand releases: what ``dpagg ledger show`` and the charge of a release take.

``python -m dpagg.experiments.ledger_benchmark --folder DIR`` makes a Delta ledger in DIR of 1,000 releases of three
commits each (what is there already is kept; the rest takes a quarter of an hour), and then takes turns, each in a
process of its own: reading the ledger, and three whole releases of 20,000 rows that are charged to it, of which the
first pays for what Java loads. All releases are of the same rows, so that each charge composes all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.accounting import WeightedAggregation
from dpagg.config import parse_config
from dpagg.experiments.measuring import processor_seconds
from dpagg.ledger import Ledger, Request
from dpagg.runs.aggregate import run_aggregate
from dpagg.runs.ledgers import show_ledger
from dpagg.runs.monitoring import Monitor
from dpagg.spark.ledger_store import DeltaStore
from dpagg.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The sum of the claims of 1,000 releases is within it, that of more is not: those are composed.
_BUDGET = {"epsilon": 50.01, "delta": 1e-5}
_CLAIM = {"epsilon": 0.05, "delta": 1e-10}
_ROWS = 20_000


class _Clock(Monitor):
    """A monitor that knows the processor seconds of each stage too."""

    def __init__(self) -> None:
        super().__init__()
        self.processor: dict[str, float] = {}
        self._used = processor_seconds()

    def enter(self, stage: str) -> None:
        """See `Monitor.enter`."""
        now = processor_seconds()
        self.processor[self.stage] = self.processor.get(self.stage, 0.0) + now - self._used
        self._used = now
        super().enter(stage)


def build(spark: SparkSession, path: str, num_releases: int) -> None:
    """Charge, publish and settle releases until there are so many."""
    ledger = Ledger(DeltaStore(spark, path))
    for number in range(len(ledger.book().charges("ads")), num_releases):
        receipt = ledger.charge(
            Request(
                dataset="ads",
                partition="all",
                release_id=f"{number:064x}",
                event=_event(number),
                unit="one label",
                adjacency="change_one_label",
                budget_epsilon=_BUDGET["epsilon"],
                budget_delta=_BUDGET["delta"],
                disjoint=False,
                **_CLAIM,
            )
        )
        ledger.publishing(receipt)
        ledger.settle(receipt)
        if (number + 1) % 50 == 0:
            sys.stderr.write(f"{number + 1} releases\n")


def _event(number: int) -> WeightedAggregation:
    """Return a release whose largest leverage differs a little from day to day."""
    return WeightedAggregation(
        num_bags=10_000,
        label_range=1.0,
        leverage=1e-4 * (1 + 0.005 * (number % 20)),
        residual_floor=18_000.0,
        residual_bound=1.0,
    )


def _read(folder: Path) -> dict[str, Any]:
    spark, found = _started()
    for name in ("show", "show_again"):
        found[name] = _timed(lambda: show_ledger(spark, str(folder / "ledger")))
    return found


def _charge(folder: Path) -> dict[str, Any]:
    spark, found = _started()
    table = folder / "table.parquet"
    if not table.exists():
        spark.range(_ROWS).selectExpr("id", "rand(1) AS x", "rand(2) AS z", "rand(3) AS y").coalesce(1).write.parquet(
            str(table)
        )
    for name in ("first", "second", "third"):
        clock = _Clock()
        where = f"{os.getpid()}-{name}"
        run_aggregate(spark, parse_config(_settings(folder, where), "aggregate"), monitor=clock)
        found[name] = {
            stage: {"seconds": round(clock.seconds[stage], 2), "processor": round(clock.processor[stage], 2)}
            for stage in clock.seconds
        }
    return found


def _settings(folder: Path, name: str) -> dict[str, Any]:
    features = [{"name": column, "type": "numeric", "lower": 0, "upper": 1} for column in ("x", "z")]
    return {
        "input": {"path": str(folder / "table.parquet"), "format": "parquet"},
        "schema": {"features": features, "label": {"name": "y", "lower": 0, "upper": 1, "missing": {"constant": 0}}},
        "mechanism": {"name": "wtd-flag", "num_bags": 100},
        "privacy": _CLAIM,
        "output": {"path": str(folder / "out" / name)},
        "ledger": {"path": str(folder / "ledger"), "dataset": "ads", "partition": "all"},
    }


def _started() -> tuple[SparkSession, dict[str, Any]]:
    begun, used = time.perf_counter(), processor_seconds()
    spark = spark_session()
    return spark, {"start": _since(begun, used)}


def _timed(run: Callable[[], object]) -> dict[str, float]:
    begun, used = time.perf_counter(), processor_seconds()
    run()
    return _since(begun, used)


def _since(begun: float, used: float) -> dict[str, float]:
    return {
        "seconds": round(time.perf_counter() - begun, 2),
        "processor": round(processor_seconds() - used, 2),
    }


def main() -> None:
    """Build what is missing and print the times as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the ledger and what is released")
    parser.add_argument("--releases", type=int, default=1000, help="that the ledger holds before anything is timed")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind")
    parser.add_argument("--part", choices=("build", "read", "charge"), help="one part, in this process")
    given = parser.parse_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.part == "build":
        build(spark_session(), str(folder / "ledger"), given.releases)
        return
    if given.part is not None:
        sys.stdout.write(json.dumps({"read": _read, "charge": _charge}[given.part](folder)) + "\n")
        return
    own = [sys.executable, "-m", "dpagg.experiments.ledger_benchmark", "--folder", str(folder)]
    subprocess.run([*own, "--releases", str(given.releases), "--part", "build"], check=True)
    for _ in range(given.rounds):
        for part in ("read", "charge"):
            load = os.getloadavg()[0]
            done = subprocess.run([*own, "--part", part], check=True, stdout=subprocess.PIPE, text=True)
            sys.stdout.write(json.dumps({"part": part, "load": round(load, 2)} | json.loads(done.stdout)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
