"""The rows of a table in memory as runs ask of them (`dpagg.runs.rows.Rows`): one process, one thread, no shuffle."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dpagg.errors import EnvironmentFault
from dpagg.kernels.bag_batches import collapsed_bags, drawn_sums, leverages_of, noisy_labels_of, weighted_sums_of
from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking, RankPass, key_bytes
from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.encoding import encode_features
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
from dpagg.kernels.row_keys import refuse_faulty_key, refuse_unowned
from dpagg.kernels.rows import Block, RowRule, RowSummary
from dpagg.kernels.schema import Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import Finish
from dpagg.local.reading import UNIT_COLUMN, normalise
from dpagg.regression.data import ArrayData

__all__ = ["LocalRows", "drawn_table", "noisy_bag_factor", "released_factor"]

_BATCH_ROWS = 65_536
_LARGEST_SUMS_BYTES = 4 << 30
_BAG = "__dpagg_bag"


@dataclass(frozen=True)
class LocalBags:
    """Bags in memory."""

    held: pa.Table

    def leverage_summary(self, cap: float) -> tuple[int, float]:
        """Return how many bags have no leverage over the cap, and the largest leverage within these."""
        under = self.held.filter(pc.field("leverage") <= cap)
        return (under.num_rows, float(pc.max(under["leverage"]).as_py())) if under.num_rows else (0, 0.0)

    def finished(self, cap: float, noise_std: float) -> pa.Table:
        """Return what is released."""
        under = self.held.filter(pc.field("leverage") <= cap)
        noisy = under["label"].to_numpy() + noise_std * under["noise"].to_numpy()
        return pa.table({"bag_id": under["bag_id"], "features": under["features"], "label": noisy})

    def release(self) -> None:
        """Do nothing: memory is let go with the object."""


@dataclass(frozen=True)
class LocalRows:
    """Normalised rows of a table in memory.

    Attributes
    ----------
    table : pyarrow.Table
        As `dpagg.local.reading.normalise` returns it.
    schema : Schema
        Its declared columns.
    row_id : str or None
        Name of its row key.
    """

    table: pa.Table
    schema: Schema
    row_id: str | None

    @classmethod
    def of(
        cls, table: Any, schema: Schema, row_id: str | None = None, unit: str | None = None, *, with_label: bool = True
    ) -> LocalRows:
        """Settle the types of a table; raises as `dpagg.local.reading.normalise`."""
        return cls(normalise(table, schema, row_id, unit, with_label=with_label), schema, row_id)

    @property
    def num_tasks(self) -> int:
        """One."""
        return 1

    @cached_property
    def _keys(self) -> pa.ChunkedArray:
        if self.row_id is None:
            raise ValueError("these rows have no key")
        return self.table[self.row_id]

    @cached_property
    def _features(self) -> pa.Table:
        return self.table.select([name for name in self.table.column_names if name != self.schema.label.name])

    def check_key(self) -> None:
        """Refuse a row key that is null or comes twice."""
        known = len(self._keys) - self._keys.null_count
        distinct = pc.count_distinct(self._keys, mode="only_valid").as_py()
        refuse_faulty_key(str(self.row_id), rows=len(self._keys), known=known, distinct=distinct)

    def limited(self, max_rows: int) -> tuple[LocalRows, int]:
        """Keep at most that many rows of each unit, by a public hash of the row key (another one than Spark's)."""
        owners = self.table[UNIT_COLUMN]
        refuse_unowned(owners.null_count)
        codes = _codes(owners)
        order = np.lexsort((_public_hash(self._keys), codes))
        sorted_codes = codes[order]
        first = np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]])
        starts = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
        kept = np.zeros(len(order), dtype=np.bool_)
        kept[order] = np.arange(len(order)) - starts < max_rows
        rows = dataclasses.replace(self, table=self.table.filter(pa.array(kept)))
        return rows, int(len(kept) - kept.sum())

    def feature_pass(self, rule: RowRule) -> FactorPass:
        """Return the factor of X and a summary."""
        return add_features(_batches(self._features), rule)

    def summary_pass(self, rule: RowRule) -> RowSummary:
        """Return counts and the largest leverage."""
        return add_summary(_batches(self._features), rule)

    def unit_pass(self, rule: RowRule) -> float:
        """Return the largest sum of the leverages of one unit's rows."""
        codes, seen = _codes(self.table[UNIT_COLUMN]), 0
        sums = np.zeros(int(codes.max(initial=-1)) + 1)
        for batch in _batches(self._features):
            block = rule.features(batch)
            np.add.at(sums, codes[seen : seen + batch.num_rows][block.selected], block.leverages)
            seen += batch.num_rows
        # Sums of floats depend on their order in the last bits.
        return float(sums.max(initial=0.0)) * (1.0 + 1e-12)

    def labelled_pass(self, rule: RowRule) -> MomentsPass:
        """Return what the factor engine needs of the labels."""
        return add_labelled(_batches(self.table), rule)

    def weighted_sums_pass(
        self, rule: RowRule, *, num_bags: int, num_partitions: int | None, secret: Secret, release_id: str
    ) -> SumsPass:
        """Return num_bags weighted sums, each row with weights of its own; rows in order of their key, one stream.

        Raises
        ------
        EnvironmentFault
            If the sums would not fit in memory.
        """
        width = rule.num_coordinates + 1
        if num_bags * width * 8 > _LARGEST_SUMS_BYTES:
            raise EnvironmentFault(
                f"{num_bags:,} bags of {width} columns take {num_bags * width * 8 / 2**30:.1f} GiB in the rows engine",
                path="performance.engine",
                remedy="Use engine factor (equal in distribution) or fewer bags.",
            )
        ordered = self.table.take(pc.sort_indices(self._keys))
        return add_weighted_sums(_batches(ordered), rule, num_bags, secret.stream(release_id, "weights", 0))

    def plain_sums_pass(self, rule: RowRule, *, num_bags: int) -> SumsPass:
        """Return num_bags plain sums, a row's bag being a public hash of its key (another one than Spark's)."""
        bags = (_public_hash(self._keys) % np.uint64(num_bags)).astype(np.int64)
        return add_plain_sums(_batches(self.table.append_column(_BAG, pa.array(bags))), rule, num_bags, _BAG)

    def rank_pass(self, ranking: Ranking) -> RankPass:
        """Count the ranks of the rows that take part."""
        kept, ranks = self._ranked(ranking)
        return RankPass.of(ranks, len(kept) - len(ranks))

    def bag_leverages(self, ranking: Ranking, layout: BagLayout) -> LocalBags:
        """Return the largest leverage within each bag."""
        return LocalBags(self._bagwise(ranking, layout, self._features, ranking.rule.features, leverages_of))

    def weighted_bag_sums(self, ranking: Ranking, layout: BagLayout) -> LocalBags:
        """Return one weighted sum a bag."""
        draw = partial(weighted_sums_of, ranking)
        return LocalBags(self._bagwise(ranking, layout, self.table, ranking.rule.labelled, draw))

    def noisy_label_bags(self, ranking: Ranking, layout: BagLayout, labels: NoisyLabels) -> pa.Table:
        """Return features, weights and noisy label sums."""
        draw = partial(noisy_labels_of, ranking, labels)
        return self._bagwise(ranking, layout, self.table, ranking.rule.labelled, draw)

    def bounded(self, rule: BoundedRows, num_rows: int | None) -> ArrayData:
        """Return the rows as a private regression asks of them; `num_rows` is declared, and compared with nothing."""
        parts = [rule.encode(batch) for batch in _batches(self.table)]
        rows, labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        return ArrayData(rows, labels, 1.0, num_rows=num_rows)

    def predictions(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the prediction of each row, NaN where a feature to drop is missing."""
        found = []
        for batch in _batches(self.table):
            encoded, keep = encode_features(batch, self.schema)
            found.append(np.where(keep, encoded @ coefficients, np.nan))
        return np.concatenate(found)

    def _ranked(self, ranking: Ranking) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which rows take part, shape (n,), and the ranks, shape (j, 2), of these."""
        kept = np.concatenate([encode_features(batch, self.schema)[1] for batch in _batches(self._features)])
        keys = key_bytes(self._keys.filter(pa.array(kept)).combine_chunks())
        return kept, ranking.secret.ranks(ranking.release_id, keys)

    def _bagwise(
        self,
        ranking: Ranking,
        layout: BagLayout,
        table: pa.Table,
        encode: Callable[[pa.RecordBatch], Block],
        make: Callable[[NDArray[np.int64], NDArray[np.float64]], pa.RecordBatch],
    ) -> pa.Table:
        kept, ranks = self._ranked(ranking)
        order = np.lexsort((ranks[:, 1], ranks[:, 0]))
        positions, tasks = layout.route(ranks[order])
        ordered = table.take(pa.array(np.flatnonzero(kept)[order][positions]))
        made = []
        for task in range(layout.num_tasks):
            mine = ordered if layout.num_tasks == 1 else ordered.filter(pa.array(tasks == task))
            blocks = (encode(batch).rows for batch in _batches(mine))
            made += [make(bags, rows) for bags, rows in layout.bags(task, blocks)]
        return pa.Table.from_batches(made)


def drawn_table(finish: Finish, sums: NDArray[np.float64] | None) -> pa.Table:
    """Return the released rows (bag_id, features, label) of a release over the whole table."""
    chunks = [(chunk, finish.bags(chunk)) for chunk in range(finish.num_chunks)]
    return pa.Table.from_batches(
        [drawn_sums(finish, chunk, None if sums is None else sums[bags.start : bags.stop]) for chunk, bags in chunks]
    )


def released_factor(table: pa.Table) -> tuple[NDArray[np.float64], int]:
    """Return the canonical factor of the features and labels of a release, and its number of bags."""
    factor = add_released(_batches(table.select(["features", "label"])))
    return factor.canonical(), factor.num_rows


def noisy_bag_factor(
    table: pa.Table, *, num_noised: int, noise_variance: float, row_variance: float
) -> tuple[NDArray[np.float64], int, float]:
    """Return what `dpagg.spark.noisy_bags.noisy_bag_factor` returns, of a table in memory."""
    batches = _batches(table.select(["features", "weights", "label"]))
    collapse = partial(collapsed_bags, num_noised=num_noised, noise_variance=noise_variance, row_variance=row_variance)
    state = add_released(map(collapse, batches))
    factor, num_bags = state.canonical(), state.num_rows
    share = float(factor[:, -1] @ factor[:, -1]) / num_bags if num_bags else 0.0
    return factor[:-1, :-1], num_bags, share


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=_BATCH_ROWS)


def _codes(column: pa.ChunkedArray) -> NDArray[np.int64]:
    encoded = column.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices.cast(pa.int64()).to_numpy(zero_copy_only=False))


def _public_hash(keys: pa.ChunkedArray) -> NDArray[np.uint64]:
    """A hash of each row key that anybody can compute."""
    digests = b"".join(hashlib.blake2b(key, digest_size=8).digest() for key in key_bytes(keys.combine_chunks()))
    return np.frombuffer(digests, dtype="<u8")
