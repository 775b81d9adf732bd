"""What a private solver asks of the data: a handful of sums with known bounds, wherever the rows are."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpagg.errors import DataError
from dpagg.kernels.clipping import Energies, ResidualQuery, ResidualSums, RowShape, clip_rows
from dpagg.kernels.labelled_factor import LabelledFactor

__all__ = ["ArrayData", "Data"]

Array = NDArray[np.float64]


class Data(Protocol):
    """Rows x_i of norm at most 1 with labels of size at most `label_bound`, seen through sums only.

    Nothing here is private: a solver adds the noise. Rows longer than 1 and labels beyond the bound have been clipped
    before, row by row, so that the bounds hold for any data. An intercept is a column of X like any other and counts
    in the norm. Under adjacency ``zero_out_one_row`` the number of rows is public.
    """

    @property
    def num_rows(self) -> int:
        """n, the declared number of rows."""

    @property
    def num_columns(self) -> int:
        """Number of columns."""

    @property
    def label_bound(self) -> float:
        """B, bound on the size of a label."""

    def factor(self) -> Array:
        """Return upper-triangular F, shape (d + 1, d + 1), with ``F.T @ F == [X y].T @ [X y]``."""

    def energies(self) -> Energies:
        """Return the sums of squares of rows and labels."""

    def gram(self, shape: RowShape) -> Array:
        """Return the Gram matrix of the shaped rows."""

    def residual_sums(self, query: ResidualQuery) -> ResidualSums:
        """Return the sums over clipped residuals."""

    def largest_norm(self, transform: Array) -> float:
        """Return the largest norm of a row of ``X @ transform``: from features alone, public under label-DP only."""


class ArrayData:
    """`Data` over arrays in memory.

    Parameters
    ----------
    rows : ndarray, shape (n, d)
        Features in declared units; a row longer than 1 is scaled down to norm 1.
    labels : ndarray, shape (n,)
        Clipped to within `label_bound` of zero.
    label_bound : float
        B, declared, positive.
    num_rows : int, optional
        Declared number of rows, compared with nothing; that of the arrays by default.

    Raises
    ------
    DataError
        If shapes do not fit, there is no row or no column, a value is not a finite number, or the bound is not
        positive. (Whether values are finite is for the caller to ensure: an error about it would tell something.)
    """

    def __init__(self, rows: Array, labels: Array, label_bound: float, *, num_rows: int | None = None) -> None:
        if rows.ndim != 2 or labels.shape != rows.shape[:1] or not rows.size:
            raise DataError(f"shapes do not fit: rows {rows.shape}, labels {labels.shape}")
        if not (np.isfinite(label_bound) and label_bound > 0):
            raise DataError(f"the label bound must be positive, got {label_bound}")
        if not (np.isfinite(rows).all() and np.isfinite(labels).all()):
            raise DataError("rows and labels must be finite", remedy="Declare what a missing value becomes.")
        self._rows = np.ascontiguousarray(clip_rows(rows.astype(np.float64), 1.0))
        self._labels = np.clip(labels.astype(np.float64), -label_bound, label_bound)
        self._label_bound = float(label_bound)
        self._num_rows = len(rows) if num_rows is None else num_rows
        self._factor: Array | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows, as declared."""
        return self._num_rows

    @property
    def num_columns(self) -> int:
        """Number of columns."""
        return int(self._rows.shape[1])

    @property
    def label_bound(self) -> float:
        """Bound on the size of a label."""
        return self._label_bound

    def factor(self) -> Array:
        """Return the canonical factor of ``[X y]``."""
        if self._factor is None:
            self._factor = LabelledFactor.of(self._rows, self._labels).canonical()
        return self._factor

    def energies(self) -> Energies:
        """Return the sums of squares."""
        return Energies.of(self._rows, self._labels)

    def gram(self, shape: RowShape) -> Array:
        """Return the Gram matrix of the shaped rows."""
        return shape.gram(self._rows)

    def residual_sums(self, query: ResidualQuery) -> ResidualSums:
        """Return the sums over clipped residuals."""
        return query.sums(self._rows, self._labels)

    def largest_norm(self, transform: Array) -> float:
        """Return the largest norm of a row of ``X @ transform``."""
        mapped = self._rows @ transform
        return float(np.sqrt(np.einsum("ij,ij->i", mapped, mapped).max()))
