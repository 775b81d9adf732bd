"""From an Arrow batch to the rows that a mechanism sums: encoded, selected, projected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.kernels.leverage import Subspace
from dpagg.kernels.schema import Schema

# Rows alike in every feature have leverages that agree to rounding only; the cap is moved off the round numbers at
# which such ties sit, so that every pass over the data selects the same rows.
TIE_MARGIN = 1e-9

# A column that marks lines of text that could not be cut into cells; their rows take no part.
MALFORMED = "__dpagg_malformed"


@dataclass(frozen=True)
class Block:
    """Rows of one batch.

    Attributes
    ----------
    rows : ndarray, shape (k, r) or (k, r + 1)
        Coordinates of the features (all d of them where no direction was removed), and the label behind them if it
        was asked for.
    leverages : ndarray, shape (k,)
        Of `rows` in the released subspace, else in that of the selection; empty if there is neither.
    selected : ndarray of bool
        Which rows of the batch these are.
    num_missing, num_over_cap : int
        Rows left out for a missing feature, and for a leverage over the cap: functions of features alone.
    num_malformed : int
        Rows left out because their line of text is malformed.
    """

    rows: NDArray[np.float64]
    leverages: NDArray[np.float64]
    selected: NDArray[np.bool_]
    num_missing: int
    num_over_cap: int
    num_malformed: int = 0


@dataclass(frozen=True)
class RowRule:
    """Which rows take part and in which subspace: decided by features alone, the same in every pass.

    Attributes
    ----------
    schema : Schema
        How columns become numbers.
    selection : Subspace or None
        Where leverages are compared with the cap; None selects every row.
    cap : float
        Rows of a larger leverage are left out.
    released : Subspace or None
        Where the selected rows are summed, and where their leverages count; a subspace of `selection`.
    """

    schema: Schema
    selection: Subspace | None = None
    cap: float = np.inf
    released: Subspace | None = None

    @property
    def num_coordinates(self) -> int:
        """Width of the rows that are summed, r."""
        last = self.released or self.selection
        return len(self.schema.columns) if last is None else last.rank

    def expand(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return sums of coordinates, shape (k, r), as sums of encoded features, shape (k, d)."""
        for space in (self.released, self.selection):
            if space is not None:
                coordinates = space.expand(coordinates)
        return coordinates

    @property
    def label_center(self) -> float:
        """What is subtracted from labels while they are summed.

        With an intercept the middle of the label's bounds: |y| is then at most half the label range, exactly and
        whatever the span of X, and adding `label_center` times the released intercept column afterwards is
        post-processing. Without an intercept 0.
        """
        label = self.schema.label
        return label.lower / 2 + label.upper / 2 if self.schema.intercept else 0.0

    @property
    def label_magnitude(self) -> float:
        """Largest size of a label as it is summed (B)."""
        label = self.schema.label
        return label.range / 2 if self.schema.intercept else max(abs(label.lower), abs(label.upper))

    def features(self, batch: pa.RecordBatch) -> Block:
        """Return the encoded features of a batch; the label column isn't touched, and may be absent."""
        return self._block(batch, with_label=False)

    def labelled(self, batch: pa.RecordBatch) -> Block:
        """Return features and clipped label of a batch."""
        return self._block(batch, with_label=True)

    def _block(self, batch: pa.RecordBatch, *, with_label: bool) -> Block:
        rows, keep = encode_features(batch, self.schema)
        malformed = malformed_rows(batch)
        num_malformed = 0 if malformed is None else int(malformed.sum())
        if malformed is not None:
            keep &= ~malformed
        num_missing = len(keep) - int(keep.sum()) - num_malformed
        num_over_cap = 0
        leverages = np.zeros(0)
        if num_missing or num_malformed:
            rows = rows[keep]
        if self.selection is not None:
            rows = self.selection.coordinates(rows)
            leverages = self.selection.leverages(rows)
            under = leverages <= self.cap * (1.0 + TIE_MARGIN)
            num_over_cap = len(under) - int(under.sum())
            if num_over_cap:
                rows, leverages = rows[under], leverages[under]
                keep[keep] = under
        if self.released is not None:
            rows = self.released.coordinates(rows)
            leverages = self.released.leverages(rows)
        if with_label:
            label = encode_label(batch.column(self.schema.label.name), self.schema.label)[keep] - self.label_center
            rows = np.concatenate([rows, label[:, None]], axis=1)
        return Block(rows, leverages, keep, num_missing, num_over_cap, num_malformed)


def malformed_rows(batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
    """Return which rows are of malformed lines, if the batch tells of any."""
    position = batch.schema.get_field_index(MALFORMED)
    if position < 0:
        return None
    return np.asarray(batch.column(position).to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass(frozen=True)
class RowSummary:
    """What a pass saw, from features alone: a commutative monoid.

    Attributes
    ----------
    num_rows : int
        Rows that take part.
    num_missing, num_over_cap, num_malformed : int
        Rows left out, as in `Block`.
    largest_leverage : float
        Over the rows that take part.
    """

    num_rows: int = 0
    num_missing: int = 0
    num_over_cap: int = 0
    largest_leverage: float = 0.0
    num_malformed: int = 0

    def add(self, block: Block) -> RowSummary:
        """Return the summary with a block added."""
        largest = float(block.leverages.max()) if len(block.leverages) else 0.0
        return self.merge(
            RowSummary(len(block.rows), block.num_missing, block.num_over_cap, largest, block.num_malformed)
        )

    def merge(self, other: RowSummary) -> RowSummary:
        """Return the summary of both sets of rows."""
        return RowSummary(
            self.num_rows + other.num_rows,
            self.num_missing + other.num_missing,
            self.num_over_cap + other.num_over_cap,
            max(self.largest_leverage, other.largest_leverage),
            self.num_malformed + other.num_malformed,
        )
