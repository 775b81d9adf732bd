"""One pass over rows as a loop over Arrow batches, and what it brings: wherever the batches come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.factor import Factor
from dpagg.kernels.moments import LabelMoments
from dpagg.kernels.rows import Block, RowRule, RowSummary
from dpagg.kernels.weights import WeightedSums, tiles_of_rows

__all__ = [
    "FactorPass",
    "MomentsPass",
    "SumsPass",
    "add_features",
    "add_labelled",
    "add_plain_sums",
    "add_released",
    "add_summary",
    "add_weighted_sums",
]


@dataclass(frozen=True)
class FactorPass:
    """Factor and summary of the rows seen: a commutative monoid."""

    factor: Factor
    summary: RowSummary

    def add(self, block: Block) -> FactorPass:
        """Return the pass with a block added."""
        return FactorPass(self.factor.add(block.rows), self.summary.add(block))

    def merge(self, other: FactorPass) -> FactorPass:
        """Return both passes together."""
        return FactorPass(self.factor.merge(other.factor), self.summary.merge(other.summary))


@dataclass(frozen=True)
class MomentsPass:
    """Label moments and summary of the rows seen: a commutative monoid."""

    moments: LabelMoments
    summary: RowSummary

    def merge(self, other: MomentsPass) -> MomentsPass:
        """Return both passes together."""
        return MomentsPass(self.moments.merge(other.moments), self.summary.merge(other.summary))


@dataclass(frozen=True)
class SumsPass:
    """Weighted (or plain) sums and summary of the rows seen: a commutative monoid."""

    sums: WeightedSums
    summary: RowSummary

    def merge(self, other: SumsPass) -> SumsPass:
        """Return both passes together."""
        return SumsPass(self.sums.merge(other.sums), self.summary.merge(other.summary))


def add_features(batches: Iterable[pa.RecordBatch], rule: RowRule) -> FactorPass:
    """Return the factor of X (width r) and a summary; no label is read."""
    state = FactorPass(Factor.zero(rule.num_coordinates), RowSummary())
    for batch in batches:
        state = state.add(rule.features(batch))
    return state


def add_summary(batches: Iterable[pa.RecordBatch], rule: RowRule) -> RowSummary:
    """Return counts and the largest leverage of the rows that take part; no label is read."""
    summary = RowSummary()
    for batch in batches:
        summary = summary.add(rule.features(batch))
    return summary


def add_labelled(batches: Iterable[pa.RecordBatch], rule: RowRule) -> MomentsPass:
    """Return what the factor engine needs of the labels. It isn't private: keep it in memory.

    Raises
    ------
    ValueError
        If it is not settled what is released.
    """
    space = rule.released
    if space is None:
        raise ValueError("labels are read once it is settled what is released")
    moments, summary = LabelMoments.zero(space.rank), RowSummary()
    for batch in batches:
        block = rule.labelled(batch)
        moments, summary = moments.add(block.rows, space), summary.add(block)
    return MomentsPass(moments, summary)


def add_weighted_sums(
    batches: Iterable[pa.RecordBatch], rule: RowRule, num_bags: int, stream: np.random.Generator
) -> SumsPass:
    """Return num_bags weighted sums of the rows of [X y], each row with its own weights from the stream.

    Rows have to come in the same order whenever they come.
    """
    sums, summary = WeightedSums.zero(num_bags, rule.num_coordinates + 1), RowSummary()
    pending: list[NDArray[np.float64]] = []
    for batch in batches:
        block = rule.labelled(batch)
        summary = summary.add(block)
        whole, pending = tiles_of_rows([*pending, block.rows])
        if whole is not None:
            sums = sums.add(whole, stream)
    for rest in pending:
        sums = sums.add(rest, stream)
    return SumsPass(sums, summary)


def add_plain_sums(batches: Iterable[pa.RecordBatch], rule: RowRule, num_bags: int, bag_column: str) -> SumsPass:
    """Return num_bags plain sums of the rows of [X y], a column saying which bag each row is in. Not private."""
    sums, summary = WeightedSums.zero(num_bags, rule.num_coordinates + 1), RowSummary()
    for batch in batches:
        block = rule.labelled(batch)
        summary = summary.add(block)
        np.add.at(sums.totals, np.asarray(batch.column(bag_column))[block.selected], block.rows)
    return SumsPass(sums, summary)


def add_released(batches: Iterable[pa.RecordBatch]) -> Factor:
    """Return the factor of released bags: a column of lists of equal length, and a column of numbers behind it."""
    factor: Factor | None = None
    for batch in batches:
        if batch.num_rows == 0:
            continue
        features = batch.column(0).flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1)
        rows = np.column_stack([features, batch.column(1).to_numpy(zero_copy_only=False)])
        factor = (factor or Factor.zero(rows.shape[1])).add(rows)
    return factor or Factor.zero(0)
