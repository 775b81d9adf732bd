"""The rows of a table as private regression asks of them: encoded once, kept packed, summed a pass a question."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dpagg.errors import EnvironmentFault
from dpagg.kernels.bounded_rows import BoundedRows, pack, unpack
from dpagg.kernels.clipping import Energies, ResidualQuery, ResidualSums, RowShape
from dpagg.kernels.encoding import Schema
from dpagg.kernels.labelled_factor import LabelledFactor
from dpagg.kernels.sketches import sketch_rows, sketch_share
from dpagg.kernels.streams import Secret
from dpagg.spark.engines import guarded, map_in_arrow, merge_up, spark_faults

__all__ = ["SparkData", "packed_rows"]

Array = NDArray[np.float64]
S = TypeVar("S")

_ROWS_A_BLOCK = 16_384
_BLOCK_BYTES = 4 << 20


class SparkData:
    """`dpagg.regression.data.Data` over packed blocks of bounded rows; made by `packed_rows`.

    Every question is one pass and merges its sums up a tree, in the order in which they arrive: answers agree with
    those of arrays to rounding. Nothing here is private; answers stay in memory.

    Parameters
    ----------
    blocks : RDD of bytes
        As `dpagg.kernels.bounded_rows.pack` makes them.
    num_columns : int
        d.
    num_rows : int or None
        n; None to count the rows, masked ones included, which is a pass and tells how many there are.
    """

    def __init__(self, blocks: RDD[bytes], num_columns: int, num_rows: int | None) -> None:
        self.blocks = blocks
        self._num_columns = num_columns
        self._num_rows = num_rows
        self._factor: Array | None = None

    @property
    def num_rows(self) -> int:
        """n, declared, or counted if it was not."""
        if self._num_rows is None:
            self._num_rows = self._total(lambda rows, _: len(rows), operator.add)
        return self._num_rows

    @property
    def num_columns(self) -> int:
        """Number of encoded columns, the intercept included."""
        return self._num_columns

    @property
    def label_bound(self) -> float:
        """Bound on the size of a label: 1, they are scaled."""
        return 1.0

    def factor(self) -> Array:
        """Return upper-triangular F with ``F.T @ F == [X y].T @ [X y]``; its part for X does not depend on labels."""
        if self._factor is None:
            self._factor = self._total(LabelledFactor.of, LabelledFactor.merge).canonical()
        return self._factor

    def energies(self) -> Energies:
        """Return the sums of squares of rows and labels."""
        return self._total(Energies.of, Energies.merge)

    def gram(self, shape: RowShape) -> Array:
        """Return the Gram matrix of the shaped rows."""
        return self._total(lambda rows, _: shape.gram(rows), operator.add)

    def residual_sums(self, query: ResidualQuery) -> ResidualSums:
        """Return the sums over clipped residuals."""
        return self._total(query.sums, ResidualSums.merge)

    def largest_norm(self, transform: Array) -> float:
        """Return the largest norm of a row of ``X @ transform``."""

        def largest(rows: Array, _: Array) -> float:
            mapped = rows @ transform
            return float(np.sqrt(np.einsum("ij,ij->i", mapped, mapped).max(initial=0.0)))

        return self._total(largest, max)

    def weighted_sketch(self, secret: Secret, release_id: str, purpose: str, sketch_size: int) -> Array:
        """Return ``S X``, shape (m, d), each row with its own weights, summed over executors.

        A partition has one stream, and meets the same rows in the same order whenever it is computed.
        """
        width = self._num_columns

        def share(index: int, blocks: Iterable[bytes]) -> Iterator[Array]:
            def drawn(packed: Iterable[bytes]) -> Array:
                stream = secret.stream(release_id, f"{purpose}/weights", index)
                total = np.zeros((sketch_size, width))
                for block in packed:
                    total += sketch_share(stream, unpack(block, width)[0], sketch_size)
                return total

            yield guarded(drawn, blocks)

        total = merge_up(self.blocks.mapPartitionsWithIndex(share), operator.add)
        return total if total is not None else np.zeros((sketch_size, width))

    def owned_sketch_gram(
        self, factor: Array, secret: Secret, release_id: str, purpose: str, sketch_size: int
    ) -> Array:
        """Return the Gram matrix of ``Z F``, shape (d, d): executors own sketch rows and add their Gram matrices.

        Equal in distribution to that of `weighted_sketch` if ``F.T @ F == X.T @ X``. (Sketches of each partition's own
        rows, whose Gram matrices are added, would be another mechanism.)
        """
        context = self.blocks.context
        tasks = min(sketch_size, context.defaultParallelism)
        bounds = np.linspace(0, sketch_size, tasks + 1).astype(int)

        def gram(index: int) -> Array:
            stream = secret.stream(release_id, f"{purpose}/rows", index)
            rows = sketch_rows(stream, factor, int(bounds[index + 1] - bounds[index]))
            product: Array = rows.T @ rows
            return product

        owned = context.parallelize(range(tasks), tasks).map(lambda index: guarded(gram, index))
        total = merge_up(owned, operator.add)
        return total if total is not None else np.zeros((factor.shape[1],) * 2)

    def _total(self, of_block: Callable[[Array, Array], S], merge: Callable[[S, S], S]) -> S:
        width = self._num_columns

        def partial(packed: Iterable[bytes]) -> S | None:
            total: S | None = None
            for block in packed:
                found = of_block(*unpack(block, width))
                total = found if total is None else merge(total, found)
            return total

        def states(packed: Iterable[bytes]) -> Iterator[S]:
            total = guarded(partial, packed)
            if total is not None:
                yield total

        total = merge_up(self.blocks.mapPartitions(states), merge)
        return total if total is not None else of_block(np.zeros((0, width)), np.zeros(0))


def unlabelled(df: DataFrame, schema: Schema) -> DataFrame:
    """Return a table that `normalise` left without labels, with the least label in every row, to plan from features."""
    return df.withColumn(schema.label.name, F.lit(schema.label.lower).cast("double"))


@contextmanager
def packed_rows(
    df: DataFrame, rule: BoundedRows, *, num_rows: int | None = None, rows_a_block: int | None = None
) -> Iterator[SparkData]:
    """Encode a normalised table once, keep it in Spark's (encrypted) scratch, and release it at the end.

    Nothing is read before the first question.

    Parameters
    ----------
    df : DataFrame
        As `dpagg.spark.reading.normalise` returns it.
    rule : BoundedRows
        How a row is encoded and bounded.
    num_rows : int, optional
        Declared number of rows. It is compared with nothing: under ``zero_out_one_row`` it is what the guarantee and
        the noise are for. None counts the rows.
    rows_a_block : int, optional
        Rows in one block; 16,384 by default, fewer where a block would take more than 4 MiB.
    """
    width = rule.schema.num_columns
    size = rows_a_block or min(_ROWS_A_BLOCK, max(1, _BLOCK_BYTES // (8 * (width + 1))))

    def blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows, labels, count = np.empty((size, width)), np.empty(size), 0
        for batch in batches:
            found, values = guarded(rule.encode, batch)
            used = 0
            while used < len(values):
                step = min(size - count, len(values) - used)
                rows[count : count + step] = found[used : used + step]
                labels[count : count + step] = values[used : used + step]
                count, used = count + step, used + step
                if count == size:
                    yield pa.RecordBatch.from_pydict({"block": [pack(rows, labels)]})
                    count = 0
        if count:
            yield pa.RecordBatch.from_pydict({"block": [pack(rows[:count], labels[:count])]})

    with spark_faults():
        # A closure for Arrow, bytes for everything after: a cached block reaches Python as it is.
        encoded = map_in_arrow(df, blocks, "block binary").rdd.map(lambda row: bytes(row.block))
        # Not on the heap: beside Parquet's row groups that would be too much for a small one, and large arrays scatter
        # it. What was just written is in the system's memory, as far as there is room.
        encoded.persist(StorageLevel.DISK_ONLY)
    try:
        yield SparkData(encoded, width, num_rows)
    finally:
        # Where this fails the JVM is gone: the next run removes its scratch, and the first fault is the telling one.
        with suppress(EnvironmentFault), spark_faults():
            encoded.unpersist(blocking=True)
