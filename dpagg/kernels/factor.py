"""The triangular factor of a tall matrix, block by block (TSQR)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# Up to 60 columns or so a tile and its factor stay in the second-level cache; a table in one piece is up to nine times
# slower. Of more columns smaller tiles lose more by their shape than they gain.
TILE_ROWS = 2048


class Factor:
    """Upper-triangular R with ``R.T @ R == A.T @ A`` for all rows added so far: a commutative monoid.

    QR works on the rows themselves, so small directions keep their relative accuracy, which a Gram matrix would
    square away (leverages depend on it). Neither R nor the Gram matrix is private: it lives in memory only.

    Parameters
    ----------
    triangle : ndarray of float64, shape (width, width)
        Upper triangular, signs arbitrary.
    num_rows : int
        Rows added so far.

    References
    ----------
    Demmel, Grigori, Hoemmen, Langou (2012), Communication-optimal parallel and sequential QR, section 3.
    """

    __slots__ = ("num_rows", "triangle")

    def __init__(self, triangle: NDArray[np.float64], num_rows: int) -> None:
        self.triangle = triangle
        self.num_rows = num_rows

    @classmethod
    def zero(cls, width: int) -> Factor:
        """Return the factor of no rows."""
        return cls(np.zeros((width, width)), 0)

    def add(self, block: NDArray[np.float64]) -> Factor:
        """Return the factor with the rows of `block`, shape (k, width), added."""
        if len(block) == 0:
            return self
        width = self.triangle.shape[0]
        whole = len(block) // TILE_ROWS * TILE_ROWS if width < TILE_ROWS else 0
        parts = [self.triangle, *(_reduced(block[i : i + TILE_ROWS]) for i in range(0, whole, TILE_ROWS))]
        if whole < len(block):
            parts.append(block[whole:])
        return Factor(_reduced(np.concatenate(parts)), self.num_rows + len(block))

    def merge(self, other: Factor) -> Factor:
        """Return the factor of both sets of rows."""
        if other.num_rows == 0:
            return self
        if self.num_rows == 0:
            return other
        return Factor(_reduced(np.concatenate([self.triangle, other.triangle])), self.num_rows + other.num_rows)

    def canonical(self) -> NDArray[np.float64]:
        """Return R with a diagonal that is not negative, shape (width, width).

        With full column rank it is the one such factor, whatever the order in which rows came, up to rounding.
        """
        signs = np.where(np.diag(self.triangle) < 0, -1.0, 1.0)
        return self.triangle * signs[:, None]


def _reduced(stacked: NDArray[np.float64]) -> NDArray[np.float64]:
    """R of a stack of rows, padded with zero rows to a square."""
    width = stacked.shape[1]
    triangle: NDArray[np.float64] = np.asarray(np.linalg.qr(stacked, mode="r"))
    if len(triangle) < width:
        triangle = np.concatenate([triangle, np.zeros((width - len(triangle), width))])
    return triangle
