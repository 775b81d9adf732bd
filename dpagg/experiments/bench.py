"""Speed of the engines against Spark SQL, MLlib and numpy: each ratio from one run over the same uncached Parquet.

Sides of a ratio take turns, and medians are compared, so that a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.config import AggregateConfig, parse_config
from dpagg.experiments.measuring import PeakMemory
from dpagg.experiments.numpy_limit import numpy_limit
from dpagg.kernels.leverage import subspace
from dpagg.kernels.passes import FactorPass
from dpagg.kernels.rows import RowRule
from dpagg.kernels.streams import Secret
from dpagg.runs.aggregate import run_aggregate
from dpagg.spark.engines import weighted_sums_pass
from dpagg.spark.mllib import mllib_gram, mllib_least_squares, sql_sums
from dpagg.spark.plain_files import plain_files
from dpagg.spark.reading import normalise
from dpagg.spark.rows import SparkRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["BenchSizes", "run_bench"]


@dataclass(frozen=True)
class BenchSizes:
    """How much is measured.

    Attributes
    ----------
    num_rows, num_columns : int
        Of the table that most ratios are about.
    num_bags : int
        Of the engine ``rows`` and of the smaller whole release; the larger one has 1,000 times as many.
    widths : tuple of int
        Further numbers of columns, on tables with as many values as the first.
    rounds : int
        How often a pass is timed; what takes longer is timed three times.
    """

    num_rows: int = 2_000_000
    num_columns: int = 20
    num_bags: int = 1_000
    widths: tuple[int, ...] = (10, 50, 200)
    rounds: int = 7

    @classmethod
    def quick(cls) -> BenchSizes:
        """Return sizes that show that everything runs; their figures mean nothing."""
        return cls(num_rows=3_200, num_columns=4, num_bags=4, widths=(3,), rounds=1)


@dataclass(frozen=True)
class _Table:
    """A Parquet folder of uniform numbers with a key and a label."""

    spark: SparkSession
    path: Path
    num_rows: int
    num_columns: int

    @classmethod
    def write(cls, spark: SparkSession, path: Path, num_rows: int, num_columns: int, num_files: int) -> _Table:
        columns = [f"rand({i}) AS x{i}" for i in range(num_columns)]
        drawn = spark.range(0, num_rows, 1, num_files).selectExpr("id", *columns, "rand(-1) + rand(-2) AS y")
        drawn.write.parquet(str(path))
        return cls(spark, path, num_rows, num_columns)

    @property
    def names(self) -> list[str]:
        return [f"x{i}" for i in range(self.num_columns)]

    def read(self) -> DataFrame:
        return self.spark.read.parquet(str(self.path))

    def config(self, out: Path, num_bags: int) -> AggregateConfig:
        features = [{"name": name, "type": "numeric", "lower": 0, "upper": 1} for name in self.names]
        return parse_config(
            {
                "input": {"path": str(self.path), "format": "parquet", "row_id": "id"},
                "schema": {
                    "features": features,
                    "label": {"name": "y", "lower": 0, "upper": 2, "missing": {"constant": 0}},
                },
                "mechanism": {"name": "wtd-flag", "num_bags": num_bags},
                "privacy": {"epsilon": 1.0, "delta": 1e-11},
                "output": {"path": str(out)},
            },
            "aggregate",
        )

    def factor(self) -> FactorPass:
        schema = self.config(self.path, 1).encoding
        df = self.read()
        return SparkRows.of(df, schema, files=plain_files(df)).feature_pass(RowRule(schema))

    def sides(self) -> dict[str, Callable[[], object]]:
        """The pass for R and what it is compared with."""
        return {
            "sql_scan": lambda: sql_sums(self.read(), self.names),
            "factor": self.factor,
            "rowmatrix": lambda: mllib_gram(self.read(), self.names),
            "mllib_normal": lambda: mllib_least_squares(self.read(), self.names, "y"),
        }


def run_bench(spark: SparkSession, directory: Path, sizes: BenchSizes, *, progress: bool = False) -> dict[str, Any]:
    """Measure everything.

    Parameters
    ----------
    spark : SparkSession
        Made by `dpagg.spark.session.spark_session`; nothing else should run in it.
    directory : Path
        Existing and empty; takes 4 GB at the default sizes. The caller removes it.
    sizes : BenchSizes
        How much is measured.
    progress : bool
        Whether to say on standard error what is measured.

    Returns
    -------
    dict
        Plain JSON values: the ratios, ``seconds`` (medians), ``peak_rss_mb``, ``by_columns`` and what they were
        measured on.
    """
    rounds, few = sizes.rounds, min(sizes.rounds, 3)
    cores = spark.sparkContext.defaultParallelism
    load = os.getloadavg()
    seconds: dict[str, float] = {}

    def say(what: str) -> None:
        if progress:
            sys.stderr.write(f"{what}\n")

    say("the pass for R, a scan, MLlib")
    table = _Table.write(spark, directory / "table", sizes.num_rows, sizes.num_columns, 8)
    seconds |= _take_turns(table.sides(), rounds)

    say("whole releases")
    releases = _Releases(table, directory)
    many = 1_000 * sizes.num_bags
    turns = {"sql_scan": table.sides()["sql_scan"], "few": releases.of(sizes.num_bags), "many": releases.of(many)}
    whole = _take_turns(turns, few)
    seconds |= {"aggregate": whole["few"], "aggregate_m1000": whole["many"]}

    say("the engine rows, and numpy's limit")
    rows = _rows_engine(table, sizes.num_bags, few, cores)
    seconds |= rows["seconds"]

    say("16 times the rows")
    growth = _growth(spark, directory, 10 * sizes.num_rows, sizes.num_columns, rounds)
    seconds |= growth["seconds"]

    by_columns = []
    for width in sorted({*sizes.widths, sizes.num_columns}):
        say(f"{width} columns")
        if width == sizes.num_columns:
            found = {name: seconds[name] for name in table.sides()}
            by_columns.append(_row(width, sizes.num_rows, found))
            continue
        other_rows = sizes.num_rows * sizes.num_columns // (2 * width)
        other = _Table.write(spark, directory / f"columns{width}", other_rows, width, 8)
        by_columns.append(_row(width, other_rows, _take_turns(other.sides(), few)))

    return {
        "rows": sizes.num_rows,
        "columns": sizes.num_columns,
        "bags": sizes.num_bags,
        "cores": cores,
        "load_average": [round(value, 2) for value in load],
        **_ratios(seconds),
        "aggregate_vs_scan": round(whole["few"] / whole["sql_scan"], 3),
        "rows_vs_limit": rows["rows_vs_limit"],
        "limit_vs_model": rows["limit_vs_model"],
        "draw_ns": rows["draw_ns"],
        "multiply_ns": rows["multiply_ns"],
        "growth_n16": growth["growth_n16"],
        "growth_rows": growth["rows"],
        "growth_m1000": round(whole["many"] / whole["few"], 3),
        "peak_rss_mb": {**growth["peak_rss_mb"], **rows["peak_rss_mb"]},
        "seconds": {name: round(value, 6) for name, value in seconds.items()},
        "by_columns": by_columns,
    }


def _take_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Return the median seconds of each side, once each has run without being timed."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1 if rounds <= 3 else -2, rounds):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            if turn >= 0:
                found[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in found.items()}


def _ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    sides = {"factor_vs_sql_scan": "sql_scan", "factor_vs_mllib_normal": "mllib_normal"}
    sides["factor_vs_rowmatrix"] = "rowmatrix"
    return {name: round(seconds["factor"] / seconds[side], 3) for name, side in sides.items()}


def _row(num_columns: int, num_rows: int, seconds: Mapping[str, float]) -> dict[str, Any]:
    shown = {name: round(value, 6) for name, value in seconds.items()}
    return {"columns": num_columns, "rows": num_rows, "seconds": shown, **_ratios(seconds)}


class _Releases:
    """Whole runs of `aggregate`, each to a path of its own."""

    def __init__(self, table: _Table, directory: Path) -> None:
        self._table, self._directory, self._count = table, directory, 0

    def of(self, num_bags: int) -> Callable[[], object]:
        def run() -> object:
            self._count += 1
            out = self._directory / f"release{self._count}"
            return run_aggregate(self._table.spark, self._table.config(out, num_bags))

        return run


def _rows_engine(table: _Table, num_bags: int, rounds: int, cores: int) -> dict[str, Any]:
    """Time the engine ``rows`` and, in turns, the same draws and products without Spark."""
    schema = table.config(table.path, num_bags).encoding
    rule = RowRule(schema, released=subspace(table.factor().factor.canonical()))
    width = rule.num_coordinates + 1
    limits, engine, peak = [], [], {"jvm": 0, "worker": 0}
    for _ in range(rounds):
        limits.append(numpy_limit(table.num_rows * num_bags, width, cores))
        with PeakMemory() as memory:
            begun = time.perf_counter()
            weighted_sums_pass(
                normalise(table.read(), schema, "id"),
                rule,
                row_id="id",
                num_bags=num_bags,
                num_partitions=2 * cores,
                secret=Secret.fresh(),
                release_id="bench",
            )
            engine.append(time.perf_counter() - begun)
        peak = {"jvm": max(peak["jvm"], memory.jvm), "worker": max(peak["worker"], memory.worker)}
    seconds = {"rows": statistics.median(engine), "limit": statistics.median(each.seconds for each in limits)}
    return {
        "seconds": seconds,
        "rows_vs_limit": round(seconds["rows"] / seconds["limit"], 3),
        "limit_vs_model": round(statistics.median(each.seconds / each.modelled_seconds for each in limits), 3),
        "draw_ns": round(statistics.median(each.draw_ns for each in limits), 2),
        "multiply_ns": round(statistics.median(each.multiply_ns for each in limits), 2),
        "peak_rss_mb": {"rows_jvm": peak["jvm"] >> 20, "rows_worker": peak["worker"] >> 20},
    }


def _growth(spark: SparkSession, directory: Path, num_rows: int, num_columns: int, rounds: int) -> dict[str, Any]:
    """Time the pass for R over n/16 and over n rows, without what it takes over hardly any."""
    sizes = {"start_up": 16, "factor_n": num_rows // 16, "factor_n16": num_rows // 16 * 16}
    tables = {
        name: _Table.write(spark, directory / name, size, num_columns, max(1, math.ceil(16 * size / num_rows)) * 2)
        for name, size in sizes.items()
    }
    seconds = _take_turns({name: table.factor for name, table in tables.items()}, rounds)
    peaks: dict[str, int] = {}
    for name in ("factor_n", "factor_n16"):
        with PeakMemory() as memory:
            tables[name].factor()
        peaks |= {f"{name}_jvm": memory.jvm >> 20, f"{name}_worker": memory.worker >> 20}
    start_up = seconds["start_up"]
    # On hardly any rows the difference is noise, and may be none.
    less = max(seconds["factor_n"] - start_up, 1e-9)
    return {
        "rows": [sizes["factor_n"], sizes["factor_n16"]],
        "seconds": seconds,
        "growth_n16": round((seconds["factor_n16"] - start_up) / less, 3),
        "peak_rss_mb": peaks,
    }


def headline(result: Mapping[str, Any]) -> Sequence[tuple[str, str, Any]]:
    """Return the name, meaning and value of each ratio."""
    n, m = f"{result['rows']:,}", f"{result['bags']:,}"
    small, large = (f"{size:,}" for size in result["growth_rows"])
    meaning = {
        "factor_vs_sql_scan": "pass for the factor / Spark SQL scan that sums each column",
        "factor_vs_mllib_normal": "pass for the factor / MLlib `LinearRegression`, solver `normal`",
        "factor_vs_rowmatrix": "pass for the factor / MLlib `RowMatrix.computeGramianMatrix`",
        "aggregate_vs_scan": f"whole `dpagg aggregate`, {m} bags, key check included / the same scan",
        "rows_vs_limit": f"engine `rows`, {n} × {m} weights / numpy on all cores",
        "limit_vs_model": "that limit / weights × (draw + multiply) / cores, both measured",
        "growth_n16": f"pass over {large} rows / over {small}, start-up taken out",
        "growth_m1000": f"whole release of {1000 * result['bags']:,} bags / of {m}",
    }
    return [(name, text, result[name]) for name, text in meaning.items()]
