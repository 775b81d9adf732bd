"""Sums over rows whose every term has a known bound: what full-DP regression asks of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def clip_rows(rows: Array, norm_bound: float) -> Array:
    """Return the rows, shape (k, d), each scaled down to Euclidean norm `norm_bound` if it is longer.

    Parameters
    ----------
    rows : ndarray of float64, shape (k, d)
        Finite.
    norm_bound : float
        At least 0; ``inf`` leaves the rows as they are.
    """
    if not np.isfinite(norm_bound):
        return rows
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    # One rounding towards the inside, so that the norm of what is summed does not exceed the bound by it.
    inside = norm_bound * (1.0 - 1e-14)
    scaled: Array = rows * np.minimum(1.0, inside / np.maximum(norms, 1e-300))[:, None]
    return scaled


@dataclass(frozen=True, eq=False)
class RowShape:
    """How a row enters a sum: mapped by a released matrix, then clipped.

    Attributes
    ----------
    transform : ndarray of float64, shape (d, p), or None
        Row x becomes ``x @ transform``; None leaves it.
    norm_bound : float
        Bound on the norm of the row that is summed.
    """

    transform: Array | None
    norm_bound: float

    def apply(self, rows: Array) -> Array:
        """Return the rows, shape (k, p), as they are summed."""
        return clip_rows(rows if self.transform is None else rows @ self.transform, self.norm_bound)

    def gram(self, rows: Array) -> Array:
        """Return ``Z^T Z`` of the shaped rows Z, shape (p, p).

        Setting a row to zero changes it by at most ``norm_bound**2`` in the Frobenius norm.
        """
        shaped = self.apply(rows)
        product: Array = shaped.T @ shaped
        return product


@dataclass(frozen=True, eq=False)
class ResidualQuery:
    """Which residuals are summed, and how each term is bounded.

    Attributes
    ----------
    coefficients : ndarray of float64, shape (d,)
        Residuals are ``y - X coefficients``.
    shape : RowShape
        Of the rows that multiply the residuals.
    residual_clip : float
        Residuals are clipped to within this bound of zero.
    """

    coefficients: Array
    shape: RowShape
    residual_clip: float

    def sums(self, rows: Array, labels: Array) -> ResidualSums:
        """Return the sums over a block of rows, shape (k, d), and labels, shape (k,)."""
        residuals = np.clip(labels - rows @ self.coefficients, -self.residual_clip, self.residual_clip)
        return ResidualSums(self.shape.apply(rows).T @ residuals, float(residuals @ residuals))


@dataclass(frozen=True, eq=False)
class ResidualSums:
    """Sums over clipped residuals r and shaped rows z: a commutative monoid.

    Attributes
    ----------
    gradient : ndarray of float64, shape (p,)
        Sum of ``r z``. Setting a row to zero changes it by at most ``residual_clip * norm_bound``; changing a label
        within a range D by at most ``min(2 residual_clip, D) * norm_bound``.
    squares : float
        Sum of ``r**2``. Either changes it by at most ``residual_clip**2``.
    """

    gradient: Array
    squares: float

    @classmethod
    def zero(cls, width: int) -> ResidualSums:
        """Return the sums over no rows."""
        return cls(np.zeros(width), 0.0)

    def merge(self, other: ResidualSums) -> ResidualSums:
        """Return the sums over both sets of rows."""
        return ResidualSums(self.gradient + other.gradient, self.squares + other.squares)


@dataclass(frozen=True)
class Energies:
    """Sums of squares of rows and labels: a commutative monoid.

    Attributes
    ----------
    rows : float
        Sum of squared row norms; changed by at most 1 by setting a row of norm at most 1 to zero.
    labels : float
        Sum of squared labels; changed by at most the square of the label bound.
    """

    rows: float = 0.0
    labels: float = 0.0

    @classmethod
    def of(cls, rows: Array, labels: Array) -> Energies:
        """Return the sums over a block."""
        return cls(float(np.einsum("ij,ij->", rows, rows)), float(labels @ labels))

    def merge(self, other: Energies) -> Energies:
        """Return the sums over both sets of rows."""
        return Energies(self.rows + other.rows, self.labels + other.labels)
