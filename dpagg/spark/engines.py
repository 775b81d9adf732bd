"""Passes over a Spark table: a kernel a partition, merged up a tree.

Nothing here knows a formula. Each pass ships a function of Arrow batches to the data and merges what comes back.
Factors and sums travel through Spark's (encrypted) shuffle and memory only.
"""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Protocol, Self, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import RDD, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dpagg.errors import DataError, DpaggError, EnvironmentFault
from dpagg.kernels.passes import (
    FactorPass,
    MomentsPass,
    SumsPass,
    add_features,
    add_labelled,
    add_plain_sums,
    add_released,
    add_summary,
    add_weighted_sums,
)
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.streams import Secret
from dpagg.spark.names import quoted
from dpagg.spark.plain_files import Piece, PlainTable, largest_task, read_pieces
from dpagg.spark.reading import UNIT_COLUMN

# Above this size the sums of one task would crowd out the task itself; the factor engine has no such term.
_LARGEST_SUMS_BYTES = 1 << 30
# States that the driver may hold at once.
_DRIVER_BYTES = 32 << 20
# A state without arrays.
_SUMMARY_BYTES = 1 << 10
_BAG = "__dpagg_bag"


class _Mergeable(Protocol):
    def merge(self, other: Self, /) -> Self: ...


# From batches as they are stored to batches of the declared columns.
Cut: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

M = TypeVar("M", bound=_Mergeable)
S = TypeVar("S")
T = TypeVar("T")
U = TypeVar("U")


def feature_pass(df: DataFrame, rule: RowRule, plain: PlainTable | None = None, cut: Cut = iter) -> FactorPass:
    """Return the factor of X (width r) and a summary; no label is read.

    `plain` is the same table, where tasks may read its files without Spark's reader; `cut` makes columns of what is
    stored.
    """
    width = rule.num_coordinates
    return tree_merge(df, lambda batches: add_features(cut(batches), rule), _SUMMARY_BYTES + 8 * width**2, plain)


def summary_pass(df: DataFrame, rule: RowRule, plain: PlainTable | None = None, cut: Cut = iter) -> RowSummary:
    """Return counts and the largest leverage of the rows that take part; no label is read."""
    return tree_merge(df, lambda batches: add_summary(cut(batches), rule), _SUMMARY_BYTES, plain)


def unit_pass(df: DataFrame, rule: RowRule) -> float:
    """Return the largest sum of the leverages of one unit's rows; no label is read."""

    def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            block = rule.features(batch)
            owner = batch.column(UNIT_COLUMN).filter(pa.array(block.selected))
            yield pa.RecordBatch.from_arrays([owner, pa.array(block.leverages)], names=["unit", "leverage"])

    with spark_faults():
        owner_type = df.schema[UNIT_COLUMN].dataType.simpleString()
        leverages = map_in_arrow(df, rows_of, f"unit {owner_type}, leverage double")
        largest = leverages.groupBy("unit").agg(F.sum("leverage").alias("sum")).agg(F.max("sum")).first()
    # Sums of floats depend on their order in the last bits.
    return 0.0 if largest is None or largest[0] is None else float(largest[0]) * (1.0 + 1e-12)


def labelled_pass(df: DataFrame, rule: RowRule, plain: PlainTable | None = None, cut: Cut = iter) -> MomentsPass:
    """Return what the factor engine needs of the labels. It isn't private: keep it in memory."""
    rank = rule.num_coordinates
    return tree_merge(df, lambda batches: add_labelled(cut(batches), rule), _SUMMARY_BYTES + 8 * rank, plain)


def weighted_sums_pass(
    df: DataFrame, rule: RowRule, *, row_id: str, num_bags: int, num_partitions: int, secret: Secret, release_id: str
) -> SumsPass:
    """Return num_bags weighted sums of the rows of [X y], each row with its own weights from its partition's stream.

    Rows are placed by hash of their key and ordered by it, so that a retried or speculative task meets the same rows
    in the same order and draws the same weights for them.

    Raises
    ------
    EnvironmentFault
        If the sums of one task would not fit in memory.
    """
    width = rule.num_coordinates + 1
    if num_bags * width * 8 > _LARGEST_SUMS_BYTES:
        raise EnvironmentFault(
            f"{num_bags:,} bags of {width} columns take {num_bags * width * 8 / 2**30:.1f} GiB in every task of the "
            "rows engine",
            path="performance.engine",
            remedy="Use engine factor (equal in distribution) or fewer bags.",
        )
    key = F.col(quoted(row_id))
    placed = df.repartition(num_partitions, key).sortWithinPartitions(key)

    def partial(batches: Iterator[pa.RecordBatch]) -> SumsPass:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("weights are drawn inside a Spark task only")
        return add_weighted_sums(batches, rule, num_bags, secret.stream(release_id, "weights", context.partitionId()))

    return tree_merge(placed, partial, _SUMMARY_BYTES + 8 * num_bags * width)


def plain_sums_pass(df: DataFrame, rule: RowRule, *, row_id: str, num_bags: int) -> SumsPass:
    """Return num_bags plain sums of the rows of [X y], a row's bag being a public hash of its key. Not private."""
    bags = F.pmod(F.xxhash64(F.col(quoted(row_id))), F.lit(num_bags)).alias(_BAG)
    return tree_merge(df.select("*", bags), lambda batches: add_plain_sums(batches, rule, num_bags, _BAG))


def table_factor(
    df: DataFrame, array_column: str = "features", scalar_column: str = "label"
) -> tuple[NDArray[np.float64], int]:
    """Return the canonical factor of [array, scalar] over a table of any size, and its number of rows."""
    selected = df.select(array_column, scalar_column)

    factor = tree_merge(selected, add_released)
    return factor.canonical(), factor.num_rows


def map_in_arrow(
    df: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """Return ``df.mapInArrow(function, schema)`` for any names of columns: Spark's own stumbles over a dot in one.

    Columns of doubles travel as one array a row, which the function does not see: Spark moves a cell of a column at
    several times the cost of an element of an array.
    """
    names = df.columns
    numbers = [position for position, (_, kind) in enumerate(df.dtypes) if kind == "double"]
    plain = df.toDF(*(f"c{position}" for position in range(len(names))))
    if len(numbers) > 1:
        others = [f"c{position}" for position in range(len(names)) if position not in numbers]
        plain = plain.select(*others, F.array(*(f"c{position}" for position in numbers)).alias("numbers"))
    else:
        numbers = []

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        _spare_collector()
        return function(_unpacked(batch, names, numbers) for batch in batches)

    return plain.mapInArrow(cast(Any, renamed), schema)


def _spare_collector() -> None:
    """Take what a worker has loaded so far out of the garbage collector's sight.

    PySpark collects after each task, and searched 80,000 objects of modules for it, for 40 milliseconds.
    """
    if not gc.get_freeze_count():
        gc.freeze()


def _unpacked(batch: pa.RecordBatch, names: list[str], numbers: list[int]) -> pa.RecordBatch:
    """Take the last column apart into those at the positions of `numbers`."""
    if not numbers:
        return batch.rename_columns(names)
    cells = batch.column(batch.num_columns - 1).flatten()
    by_column = np.ascontiguousarray(cells.to_numpy(zero_copy_only=False).reshape(-1, len(numbers)).T)
    missing = None
    if cells.null_count:
        missing = cells.is_null().to_numpy(zero_copy_only=False).reshape(-1, len(numbers)).T
    columns = batch.columns[:-1]
    for number, position in enumerate(numbers):
        column = pa.array(by_column[number], mask=None if missing is None else missing[number])
        columns.insert(position, column)
    return pa.RecordBatch.from_arrays(columns, names=names)


def tree_merge(
    df: DataFrame,
    partial: Callable[[Iterator[pa.RecordBatch]], M],
    state_bytes: int = _LARGEST_SUMS_BYTES,
    plain: PlainTable | None = None,
) -> M:
    """Run `partial` once a partition and merge the results: any commutative monoid of kernels.

    Where all states together are small, by `state_bytes` for one of them, the driver merges them in the order of the
    partitions: it spares a pass through other Python workers, most of the start-up of a pass. Else they go up a tree.
    `plain` is the same table as `df`, where its files may be read without Spark's reader.
    """
    if plain is not None:
        found_plain = _merge_plain(df, partial, state_bytes, plain)
        if found_plain is not None:
            return found_plain

    def states(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"state": [pickle.dumps(guarded(partial, iter(batches)))]})

    merged: M | None
    with spark_faults():
        found = map_in_arrow(df, states, "state binary")
        rdd = found.rdd
        if rdd.getNumPartitions() * state_bytes <= _DRIVER_BYTES:
            merged = None
            for row in found.collect():
                state = pickle.loads(row.state)
                merged = state if merged is None else merged.merge(state)
        else:
            merged = merge_up(rdd.map(lambda row: pickle.loads(row.state)), lambda left, right: left.merge(right))
    return merged if merged is not None else partial(iter(()))


def _merge_plain(
    df: DataFrame, partial: Callable[[Iterator[pa.RecordBatch]], M], state_bytes: int, plain: PlainTable
) -> M | None:
    """Run `partial` once a task over files that the tasks read themselves; None if Spark has to read them."""
    context = df.sparkSession.sparkContext
    if not plain.files.are_usable:
        return None
    with spark_faults():
        tasks = plain.files.tasks(context.defaultParallelism, largest_task(df.sparkSession))
    if len(tasks) * state_bytes > _DRIVER_BYTES:
        return None
    columns = plain.columns

    def states(given: Iterable[list[Piece]]) -> Iterator[bytes]:
        _spare_collector()
        for pieces in given:
            try:
                yield pickle.dumps(partial(read_pieces(pieces, columns)))
            except Exception:  # Spark's reader finds out what it is, and its text is dealt with
                yield b""

    found: list[bytes] = []
    # A file may end the process that reads it, too. Where it is Spark that fails, its reader meets that again.
    with suppress(EnvironmentFault), spark_faults():
        found = context.parallelize(tasks, len(tasks)).mapPartitions(states).collect()
    if not found or not all(found):
        plain.files.are_usable = False
        return None
    merged: M = pickle.loads(found[0])
    for state in found[1:]:
        merged = merged.merge(pickle.loads(state))
    return merged


def merge_up(states: RDD[S], merge: Callable[[S, S], S]) -> S | None:
    """Merge states up a tree; None if there are none."""

    def merge_found(left: S | None, right: S | None) -> S | None:
        if left is None or right is None:
            return right if left is None else left
        return merge(left, right)

    with spark_faults():
        merged: S | None = states.treeAggregate(None, merge_found, merge_found)
    return merged


def guarded(kernel: Callable[[T], U], given: T) -> U:
    """Run a kernel so that no value it met reaches a log: Spark writes a task's exception to disk."""
    try:
        return kernel(given)
    except Exception as error:  # any exception text may quote a cell
        raise RuntimeError(f"a pass over the rows failed with {type(error).__name__}") from None


class spark_faults:
    """Turn what Spark raises into an `EnvironmentFault` without its text, which may quote rows.

    Parameters
    ----------
    when : str
        What was being done.
    path : str, optional
        Setting concerned.
    """

    def __init__(self, when: str = "in the middle of a pass", path: str | None = None) -> None:
        self._when, self._path = when, path

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Replace an exception of Spark or of its gateway."""
        if error is None or isinstance(error, DpaggError) or not isinstance(error, Exception):
            return
        if not (isinstance(error, PySparkException) or type(error).__module__.startswith("py4j")):
            return
        # The text is searched for what Spark itself says, and never shown.
        text = str(error)
        if any(word in text for word in _UNREADABLE):
            raise DataError(
                f"an input file can't be read {self._when}",
                path="input.path",
                remedy="Was it replaced or removed meanwhile, or is it cut short or damaged? Nothing was published.",
            ) from None
        if any(word in text for word in _WRONG_PYTHON):
            raise EnvironmentFault(
                "the executors' Python lacks a package that dpagg needs, or is of another version than the driver's",
                remedy="Give executors the packed environment of `make pack`: see jobs/README.md.",
            ) from None
        full = "No space left on device" in text
        raise EnvironmentFault(
            f"no space is left on a disk {self._when}" if full else f"Spark stopped {self._when} ({_kind(error)})",
            path=self._path,
            remedy="Free some and run again."
            if full
            else "Its text is withheld because it may quote rows. Look for a lost executor, a full disk, a folder that "
            "can't be written or too little memory in the Spark UI, then run again.",
        ) from None


# What Spark, Hadoop and Parquet say of a damaged file.
_UNREADABLE = ("FAILED_READ_FILE", "CANNOT_READ_FILE_FOOTER", "Unexpected end of input stream", "ZipException")

# What Python and PySpark say where the worker isn't made as the driver is.
_WRONG_PYTHON = ("ModuleNotFoundError: ", "PACKAGE_NOT_INSTALLED", "PYTHON_VERSION_MISMATCH")


def _kind(error: Exception) -> str:
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    return condition or type(error).__name__
