"""Disjoint bags of exactly k rows on Spark: one pass that counts, then one shuffle.

The first pass ranks every row by a keyed hash of its key, the release's secret being the key, and counts ranks by
their leading bits: half a megabyte a task, whatever the number of rows. From the counts follows which rows are in a
bag at all and which task makes which bags, so that only those rows are shuffled, once. Spark sorts them by rank within
a task (it spills what does not fit), and a task holds some bags at a time. Whatever runs again finds the same bags in
the same order: bags depend on keys, the secret and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpagg.kernels.bags import (
    NUM_BUCKETS,
    BagLayout,
    NoisyLabels,
    bag_spaces,
    bag_streams,
    bucket_of,
    key_bytes,
    weighted_bags,
)
from dpagg.kernels.rows import Block, RowRule, RowSummary
from dpagg.kernels.streams import Secret
from dpagg.spark.engines import spark_faults, tree_merge
from dpagg.spark.reading import quoted

_KEY = "__dpagg_key"
_ROUTED = "task int, rank bigint, tie bigint, row binary"
_WEIGHTED = "bag_id bigint, features array<double>, label double, noise double, leverage double"
_LEVERAGES = "bag_id bigint, leverage double"
_NOISY = "bag_id bigint, features array<array<double>>, weights array<double>, label double"


@dataclass(frozen=True, eq=False)
class RankPass:
    """Ranks counted by bucket, and a summary of the rows: a commutative monoid."""

    counts: NDArray[np.int64]
    summary: RowSummary

    def merge(self, other: RankPass) -> RankPass:
        """Return both passes together."""
        return RankPass(self.counts + other.counts, self.summary.merge(other.summary))


@dataclass(frozen=True)
class Ranking:
    """How the rows of a release are ranked: by what only the release's secret tells.

    Attributes
    ----------
    rule : RowRule
        Which rows take part, by features alone.
    row_id : str
        Name of the row key.
    secret : Secret
        Of the release. It travels in the closures of tasks, never in an expression that a plan would show.
    release_id : str
        Names the release's streams.
    """

    rule: RowRule
    row_id: str
    secret: Secret
    release_id: str

    def ranks(self, batch: pa.RecordBatch, block: Block) -> NDArray[np.int64]:
        """Return the ranks, shape (k, 2), of the rows of a block."""
        return self.secret.ranks(self.release_id, key_bytes(batch.column(_KEY).filter(pa.array(block.selected))))


def rank_pass(df: DataFrame, ranking: Ranking) -> RankPass:
    """Count the ranks of the rows that take part; labels are not read, and may be absent."""
    rule = ranking.rule

    def partial(batches: Iterator[pa.RecordBatch]) -> RankPass:
        counts, summary = np.zeros(NUM_BUCKETS, dtype=np.int64), RowSummary()
        for batch in batches:
            block = rule.features(batch)
            summary = summary.add(block)
            counts += np.bincount(bucket_of(ranking.ranks(batch, block)), minlength=NUM_BUCKETS)
        return RankPass(counts, summary)

    return tree_merge(_keyed(df, ranking, with_label=False), partial)


def routed_rows(df: DataFrame, ranking: Ranking, layout: BagLayout, *, with_label: bool) -> DataFrame:
    """Return the rows of all bags, each where its bag is made and in order of rank: the one shuffle.

    Columns are the number of the task and the encoded row, shape (d,) or (d + 1,), as the bytes of its float64.
    """
    rule = ranking.rule

    def route(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            block = rule.labelled(batch) if with_label else rule.features(batch)
            ranks = ranking.ranks(batch, block)
            positions, tasks = layout.route(ranks)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(tasks.astype(np.int32)),
                    pa.array(ranks[positions, 0]),
                    pa.array(ranks[positions, 1]),
                    _packed(block.rows[positions]),
                ],
                names=["task", "rank", "tie", "row"],
            )

    routed = _keyed(df, ranking, with_label=with_label).mapInArrow(_guarded(route), _ROUTED)
    placed = routed.repartitionById(layout.num_tasks, F.col("task"))
    return placed.sortWithinPartitions("rank", "tie").select("task", "row")


def bag_leverages(df: DataFrame, ranking: Ranking, layout: BagLayout) -> DataFrame:
    """Return the largest leverage within each bag: columns bag_id and leverage. No label is read."""

    def measure(bags: NDArray[np.int64], rows: NDArray[np.float64]) -> pa.RecordBatch:
        return _batch(_LEVERAGES, bags, bag_spaces(rows).leverages.max(axis=1))

    width = ranking.rule.num_coordinates
    return _bagwise(routed_rows(df, ranking, layout, with_label=False), layout, width, measure, _LEVERAGES)


def weighted_bag_sums(df: DataFrame, ranking: Ranking, layout: BagLayout) -> DataFrame:
    """Return one weighted sum a bag (Sampled-WTD-FLAG).

    Columns: bag_id, features, label, a standard normal to be scaled and added to the label, and the largest leverage
    within the bag. The label has its centre back but no noise yet: it is NOT private as it is.
    """
    secret, release_id, center = ranking.secret, ranking.release_id, ranking.rule.label_center

    def draw(bags: NDArray[np.int64], rows: NDArray[np.float64]) -> pa.RecordBatch:
        drawn = weighted_bags(rows, bag_streams(secret, release_id, bags))
        # Labels are summed about their centre only where the first column is an intercept.
        labels = drawn.labels + center * drawn.features[:, 0] if center else drawn.labels
        return _batch(_WEIGHTED, bags, _lists(drawn.features), labels, drawn.noise, drawn.leverages)

    width = ranking.rule.num_coordinates + 1
    return _bagwise(routed_rows(df, ranking, layout, with_label=True), layout, width, draw, _WEIGHTED)


def held_bags(bags: DataFrame) -> DataFrame:
    """Return bags that are made once and held, in memory or (encrypted) on local disk, until `released_bags`."""
    return bags.persist(StorageLevel.MEMORY_AND_DISK)


def released_bags(held: DataFrame) -> None:
    """Let go of held bags."""
    held.unpersist()


def leverage_summary(bags: DataFrame, cap: float) -> tuple[int, float]:
    """Return how many bags have no leverage over the cap, and the largest leverage within these."""
    under = F.col("leverage") <= F.lit(cap)
    with spark_faults():
        found = bags.where(under).agg(F.count(F.lit(1)), F.max("leverage")).first()
    return (0, 0.0) if found is None or not found[0] else (int(found[0]), float(found[1]))


def finished_bags(sums: DataFrame, cap: float, noise_std: float) -> DataFrame:
    """Return what is released of weighted sums: bags under the leverage cap, noise of this deviation on each label."""
    noisy = F.col("label") + F.lit(noise_std) * F.col("noise")
    return sums.where(F.col("leverage") <= F.lit(cap)).select("bag_id", "features", noisy.alias("label"))


def noisy_label_bags(df: DataFrame, ranking: Ranking, layout: BagLayout, labels: NoisyLabels) -> DataFrame:
    """Return features, weights and the noisy weighted label sum of each bag (Sampled-Noisy-WTD-LAg).

    Columns: bag_id, features (k lists of d), weights (k), label. The first labels.num_noised rows are the noised ones.
    """
    secret, release_id, center = ranking.secret, ranking.release_id, ranking.rule.label_center

    def draw(bags: NDArray[np.int64], rows: NDArray[np.float64]) -> pa.RecordBatch:
        weights, sums = labels.draw(rows[:, :, -1] + center, bag_streams(secret, release_id, bags))
        return _batch(_NOISY, bags, _lists(rows[:, :, :-1]), _lists(weights), sums)

    width = ranking.rule.num_coordinates + 1
    return _bagwise(routed_rows(df, ranking, layout, with_label=True), layout, width, draw, _NOISY)


def _keyed(df: DataFrame, ranking: Ranking, *, with_label: bool) -> DataFrame:
    """The columns that a pass needs, the row key in a type whose values have one spelling as bytes."""
    name, schema = ranking.row_id, ranking.rule.schema
    kind, key = df.schema[name].dataType, F.col(quoted(name))
    if isinstance(kind, T.IntegralType):
        key = key.cast("bigint")
    elif not isinstance(kind, T.StringType | T.BinaryType):
        key = key.cast("string")
    columns = [feature.name for feature in schema.features] + ([schema.label.name] if with_label else [])
    return df.select(key.alias(_KEY), *(F.col(quoted(column)) for column in columns))


def _bagwise(
    routed: DataFrame,
    layout: BagLayout,
    width: int,
    make: Callable[[NDArray[np.int64], NDArray[np.float64]], pa.RecordBatch],
    schema: str,
) -> DataFrame:
    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise RuntimeError("bags are made inside a Spark task only")
        task = context.partitionId()

        def blocks() -> Iterator[NDArray[np.float64]]:
            for batch in batches:
                if not bool((np.asarray(batch.column(0)) == task).all()):
                    raise RuntimeError("a row came to a task that does not make its bag")
                yield _unpacked(batch.column(1), width)

        for bags, rows in layout.bags(task, blocks()):
            yield make(bags, rows)

    return routed.mapInArrow(_guarded(cut), schema)


def _guarded(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Let no value that a task met reach a log: Spark writes a task's exception to disk."""

    def quiet(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from function(iter(batches))
        except Exception as error:  # any exception text may quote a cell
            raise RuntimeError(f"making bags failed with {type(error).__name__}") from None

    return quiet


def _packed(rows: NDArray[np.float64]) -> pa.Array:
    """Rows as one binary cell each: Spark carries them faster than columns, and their width is no matter."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(8 * width)
    data = pa.py_buffer(np.ascontiguousarray(rows, dtype="<f8"))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), data])


def _unpacked(cells: pa.Array, width: int) -> NDArray[np.float64]:
    """Undo `_packed`."""
    _, offsets, data = cells.buffers()
    if len(cells) == 0:
        return np.zeros((0, width))
    kind = np.int64 if pa.types.is_large_binary(cells.type) else np.int32
    start = int(np.frombuffer(offsets, dtype=kind)[cells.offset])
    return np.frombuffer(data, dtype="<f8", count=len(cells) * width, offset=start).reshape(len(cells), width)


def _lists(values: NDArray[np.float64]) -> pa.Array:
    """An array of any shape as (nested) lists along its first axis."""
    found: pa.Array = pa.array(np.ascontiguousarray(values).ravel())
    for axis in range(values.ndim - 1, 0, -1):
        count, width = int(np.prod(values.shape[:axis])), values.shape[axis]
        found = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(width)), found)
    return found


def _batch(schema: str, *columns: Any) -> pa.RecordBatch:
    names = [field.split(" ")[0] for field in schema.split(", ")]
    arrays = [pa.array(column) if isinstance(column, np.ndarray) else cast(pa.Array, column) for column in columns]
    return pa.RecordBatch.from_arrays(arrays, names=names)
