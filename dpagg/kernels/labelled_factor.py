"""The factor of ``[X y]`` whose part for X is computed from X alone, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.kernels.factor import TILE_ROWS

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LabelledFactor:
    """R, ``Q^T y`` and ``|y - Q Q^T y|^2`` of ``X = Q R``: a commutative monoid, in one pass.

    A QR of ``[X y]`` would do in real arithmetic, but LAPACK takes another path where a tile's labels are all zero, and
    then the low bits of R depend on labels. Under label-DP what follows from R is published. Not private otherwise.

    Attributes
    ----------
    triangle : ndarray of float64, shape (d, d)
        R, upper triangular, signs arbitrary.
    projection : ndarray of float64, shape (d,)
        ``Q^T y``.
    residual : float
        Sum of squares of the labels' part outside the span of X.
    """

    triangle: Array
    projection: Array
    residual: float

    @classmethod
    def zero(cls, width: int) -> LabelledFactor:
        """Return the factor of no rows."""
        return cls(np.zeros((width, width)), np.zeros(width), 0.0)

    @classmethod
    def of(cls, rows: Array, labels: Array) -> LabelledFactor:
        """Return the factor of a block of rows, shape (k, d), and labels, shape (k,)."""
        total = cls.zero(rows.shape[1])
        for low in range(0, len(rows), TILE_ROWS):
            tile = slice(low, low + TILE_ROWS)
            total = total.merge(_reduced(rows[tile], labels[tile]))
        return total

    def merge(self, other: LabelledFactor) -> LabelledFactor:
        """Return the factor of both sets of rows."""
        both = _reduced(
            np.concatenate([self.triangle, other.triangle]), np.concatenate([self.projection, other.projection])
        )
        return LabelledFactor(both.triangle, both.projection, both.residual + self.residual + other.residual)

    def canonical(self) -> Array:
        """Return upper-triangular F, shape (d + 1, d + 1), of a diagonal that is not negative: that of ``[X y]``."""
        width = len(self.triangle)
        signs = np.where(np.diag(self.triangle) < 0, -1.0, 1.0)
        whole = np.zeros((width + 1, width + 1))
        whole[:width, :width] = self.triangle * signs[:, None]
        whole[:width, width] = self.projection * signs
        whole[width, width] = np.sqrt(self.residual)
        return whole


def _reduced(rows: Array, labels: Array) -> LabelledFactor:
    width = rows.shape[1]
    basis, triangle = np.linalg.qr(rows)
    projection = labels @ basis
    rest = labels - basis @ projection
    if len(triangle) < width:
        missing = width - len(triangle)
        triangle = np.concatenate([triangle, np.zeros((missing, width))])
        projection = np.concatenate([projection, np.zeros(missing)])
    return LabelledFactor(triangle, projection, float(rest @ rest))
