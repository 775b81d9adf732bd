"""Disjoint bags of exactly k rows on Spark: one pass that counts, then one shuffle.

The first pass ranks every row by a keyed hash of its key, the release's secret being the key, and counts ranks by
their leading bits: half a megabyte a task, whatever the number of rows. From the counts follows which rows are in a
bag at all and which task makes which bags, so that only those rows are shuffled, once. Spark sorts them by rank within
a task (it spills what does not fit), and a task holds some bags at a time. Whatever runs again finds the same bags in
the same order: bags depend on keys, the secret and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import StorageLevel, TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpagg.kernels.bag_batches import leverages_of, noisy_labels_of, weighted_sums_of
from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking, RankPass, key_bytes
from dpagg.kernels.encoding import encode_features
from dpagg.kernels.rows import Block
from dpagg.kernels.schema import Numeric, Schema
from dpagg.spark.engines import map_in_arrow, spark_faults, tree_merge
from dpagg.spark.names import quoted

_KEY, _KNOWN, _PLACED, _TASK = "__dpagg_key", "__dpagg_known", "__dpagg_placed", "__dpagg_task"
_PLACE = "tasks array<int>, rank bigint, tie bigint"
_WEIGHTED = "bag_id bigint, features array<double>, label double, noise double, leverage double"
_LEVERAGES = "bag_id bigint, leverage double"
_NOISY = "bag_id bigint, features array<array<double>>, weights array<double>, label double"


def rank_pass(df: DataFrame, ranking: Ranking) -> RankPass:
    """Count the ranks of the rows that take part; labels are not read, and may be absent."""

    def count(batches: Iterator[pa.RecordBatch]) -> RankPass:
        total = RankPass.of(np.zeros((0, 2), dtype=np.int64), 0)
        for batch in batches:
            kept, ranks = _keep(batch, ranking)
            total = total.merge(RankPass.of(ranks, len(kept) - len(ranks)))
        return total

    return tree_merge(df.select(*_ranked_by(df, ranking)), count)


def routed_rows(df: DataFrame, ranking: Ranking, layout: BagLayout, *, with_label: bool) -> DataFrame:
    """Return the rows of all bags, each where its bag is made and in order of rank: the one shuffle.

    Columns are the number of the task and the features, and the label if it is asked for, as they were. Only what ranks
    a row goes to Python before the shuffle, so that a row in no bag costs little.
    """

    def place(rows: pa.Array) -> pa.Array:
        try:
            kept, ranks = _keep(pa.RecordBatch.from_struct_array(rows), ranking)
            positions, tasks = layout.route(ranks)
            counts = np.zeros(len(kept) + 1, dtype=np.int32)
            counts[1:][kept] = np.bincount(positions, minlength=len(ranks))
            full = np.zeros((len(kept), 2), dtype=np.int64)
            full[kept] = ranks
            lists = pa.ListArray.from_arrays(pa.array(np.cumsum(counts, dtype=np.int32)), pa.array(tasks, pa.int32()))
            return pa.StructArray.from_arrays(
                [lists, pa.array(full[:, 0]), pa.array(full[:, 1])], names=["tasks", "rank", "tie"]
            )
        except Exception as error:  # any exception text may quote a cell
            raise RuntimeError(f"ranking rows failed with {type(error).__name__}") from None

    schema = ranking.rule.schema
    names = [feature.name for feature in schema.features] + ([schema.label.name] if with_label else [])
    columns = [F.col(quoted(name)) for name in names]
    # Called indeterminate, it is not computed again for what the optimiser would infer from its result.
    ranked = cast(Any, F).arrow_udf(place, _PLACE).asNondeterministic()
    placed = df.select(*columns, ranked(F.struct(*_ranked_by(df, ranking))).alias(_PLACED))
    routed = placed.select(F.explode(f"{_PLACED}.tasks").alias(_TASK), f"{_PLACED}.rank", f"{_PLACED}.tie", *columns)
    there = routed.repartitionById(layout.num_tasks, F.col(_TASK))
    return there.sortWithinPartitions("rank", "tie").select(_TASK, *columns)


def bag_leverages(df: DataFrame, ranking: Ranking, layout: BagLayout) -> DataFrame:
    """Return the largest leverage within each bag: columns bag_id and leverage. No label is read."""
    routed = routed_rows(df, ranking, layout, with_label=False)
    return _bagwise(routed, layout, ranking.rule.features, leverages_of, _LEVERAGES)


def weighted_bag_sums(df: DataFrame, ranking: Ranking, layout: BagLayout) -> DataFrame:
    """Return one weighted sum a bag (Sampled-WTD-FLAG).

    Columns: bag_id, features, label, a standard normal to be scaled and added to the label, and the largest leverage
    within the bag. The label has its centre back but no noise yet: it is NOT private as it is.
    """
    routed = routed_rows(df, ranking, layout, with_label=True)
    return _bagwise(routed, layout, ranking.rule.labelled, partial(weighted_sums_of, ranking), _WEIGHTED)


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
    routed = routed_rows(df, ranking, layout, with_label=True)
    return _bagwise(routed, layout, ranking.rule.labelled, partial(noisy_labels_of, ranking, labels), _NOISY)


def _keep(batch: pa.RecordBatch, ranking: Ranking) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return which rows of a batch of `_ranked_by` take part, shape (k,), and the ranks, shape (j, 2), of these."""
    kept = np.array(batch.column(_KNOWN).to_numpy(zero_copy_only=False), dtype=np.bool_)
    judged = _judged_in_python(ranking.rule.schema)
    if judged is not None:
        kept &= encode_features(batch, judged)[1]
    return kept, ranking.secret.ranks(ranking.release_id, key_bytes(batch.column(_KEY).filter(pa.array(kept))))


def _ranked_by(df: DataFrame, ranking: Ranking) -> list[Column]:
    """What decides whether a row takes part, and its rank: key, whether its numbers are known, and other features.

    A row takes part as `encode_features` decides; were this a different decision, the tasks' counts would tell.
    """
    kind, key = df.schema[ranking.row_id].dataType, F.col(quoted(ranking.row_id))
    if isinstance(kind, T.IntegralType):
        key = key.cast("bigint")
    elif not isinstance(kind, T.StringType | T.BinaryType):
        key = key.cast("string")
    # Of a finite number 0 times it is 0, of NaN or an infinite one NaN, of null null: one sum judges all of them.
    judged_here = [
        each for each in ranking.rule.schema.features if isinstance(each, Numeric) and each.missing == "drop"
    ]
    zero = sum((F.col(quoted(feature.name)) * F.lit(0.0) for feature in judged_here), F.lit(0.0))
    known = F.coalesce(zero == F.lit(0.0), F.lit(False))
    judged = _judged_in_python(ranking.rule.schema)
    others = [] if judged is None else [F.col(quoted(feature.name)) for feature in judged.features]
    return [key.alias(_KEY), known.alias(_KNOWN), *others]


def _judged_in_python(schema: Schema) -> Schema | None:
    """The features whose missing values leave a row out and that Spark does not judge; None if there are none."""
    found = tuple(each for each in schema.features if not isinstance(each, Numeric) and each.missing == "drop")
    return Schema(found, schema.label) if found else None


def _bagwise(
    routed: DataFrame,
    layout: BagLayout,
    encode: Callable[[pa.RecordBatch], Block],
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
                if not bool((np.asarray(batch.column(_TASK)) == task).all()):
                    raise RuntimeError("a row came to a task that does not make its bag")
                yield encode(batch).rows

        for bags, rows in layout.bags(task, blocks()):
            yield make(bags, rows)

    return map_in_arrow(routed, _guarded(cut), schema)


def _guarded(
    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Let no value that a task met reach a log: Spark writes a task's exception to disk."""

    def quiet(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from function(batches)
        except Exception as error:  # any exception text may quote a cell
            raise RuntimeError(f"making bags failed with {type(error).__name__}") from None

    return quiet
