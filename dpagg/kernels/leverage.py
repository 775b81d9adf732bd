"""Leverages of rows, and the subspace in which they are computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Singular values below this share of the largest one are rounding error of QR on a few million rows, or so close to
# it that a leverage in their direction could not be trusted. They are removed from X itself, never from the leverage
# alone: a column of 1e-9 times an indicator has leverage 1 as long as it is released.
_RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class Subspace:
    """The row space of X in which it is released, with the map that whitens it.

    Rows are summed by their r coordinates and only the sums are turned back into d columns. So a direction that was
    removed is really gone: turned back row by row, its rounding error would be a direction with a leverage of its own.

    Attributes
    ----------
    basis : ndarray, shape (d, r), or None
        Orthonormal columns; None if X has full column rank and rows are their own coordinates.
    whitener : ndarray, shape (r, r)
        Coordinates of a row times this have a squared norm equal to the leverage of the row.
    root : ndarray, shape (r, r)
        Its inverse: root^T root is the Gram matrix of the coordinates. Features are public, but it is kept in memory.
    slack : float
        Relative bound on the rounding error of a whitened row; leverages are raised by it.
    """

    basis: NDArray[np.float64] | None
    whitener: NDArray[np.float64]
    root: NDArray[np.float64]
    slack: float

    @property
    def rank(self) -> int:
        """Number of directions kept, r."""
        return int(self.whitener.shape[0])

    def coordinates(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the rows, shape (k, d), by their coordinates, shape (k, r)."""
        return rows if self.basis is None else rows @ self.basis

    def expand(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return coordinates, shape (k, r), as rows, shape (k, d)."""
        return coordinates if self.basis is None else coordinates @ self.basis.T

    def whiten(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return whitened rows, shape (k, r): over all rows their Gram matrix is the identity."""
        return coordinates @ self.whitener

    def leverages(self, coordinates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound on the leverage of each row, shape (k,), tight to rounding.

        The leverage of row i is z_i^T (Z^T Z)^-1 z_i for coordinates Z. It depends on features only, which label-DP
        takes as public.
        """
        whitened = self.whiten(coordinates)
        squares: NDArray[np.float64] = np.einsum("ij,ij->i", whitened, whitened)
        bounds: NDArray[np.float64] = np.minimum(squares * (1.0 + self.slack) ** 2, 1.0)
        return bounds


def subspace(factor: NDArray[np.float64]) -> Subspace:
    """Return the subspace of a matrix X from its triangular factor.

    Parameters
    ----------
    factor : ndarray, shape (d, d)
        R with R^T R = X^T X.

    Returns
    -------
    Subspace
        Of the numerical rank of X; of rank 0 if X is zero.
    """
    _, singular, right = np.linalg.svd(factor)
    kept = singular > _RANK_TOLERANCE * singular[0]
    if not kept.any():
        return Subspace(np.zeros((len(factor), 0)), np.zeros((0, 0)), np.zeros((0, 0)), 0.0)
    slack = 100.0 * float(np.finfo(float).eps) * float(singular[kept][0] / singular[kept][-1])
    basis = None if kept.all() else _canonical_basis(factor, right[kept].T)
    root = _triangle(factor if basis is None else factor @ basis)
    return Subspace(basis, np.asarray(np.linalg.inv(root), dtype=np.float64), root, slack)


def _canonical_basis(factor: NDArray[np.float64], directions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn any basis of the row space into one that is the same whatever the last bits of the factor.

    Singular vectors of equal singular values turn freely with rounding, and with them all that is drawn from a seed.
    The projection on the space does not; its columns for the first independent columns of X do for a basis.
    """
    rank = directions.shape[1]
    pivots = np.abs(np.diag(_triangle(factor)))
    independent = np.sort(np.argsort(-pivots, kind="stable")[:rank])
    orthogonal, triangle = np.linalg.qr(directions @ directions[independent].T)
    return np.asarray(orthogonal * np.where(np.diag(triangle) < 0, -1.0, 1.0))


def _triangle(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """R of a matrix, with a diagonal that is not negative: unique for full column rank."""
    triangle = np.asarray(np.linalg.qr(matrix, mode="r"))
    return np.asarray(triangle * np.where(np.diag(triangle) < 0, -1.0, 1.0)[:, None])
