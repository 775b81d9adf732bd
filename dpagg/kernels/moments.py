"""What the factor engine needs to know of labels, so gathered that no bit of a released feature depends on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.kernels.leverage import Subspace


@dataclass(frozen=True, eq=False)
class LabelMoments:
    """Labels against whitened rows: a commutative monoid.

    A factor of [X y] by QR would do in real arithmetic. But LAPACK takes another path where a tile's labels are all
    zero, and then the low bits of the block that belongs to X, and so of every released feature, depend on labels. Here
    that block comes from a pass that reads no label.

    Attributes
    ----------
    projection : ndarray, shape (r,)
        U^T y for whitened rows U (U^T U = I). Not private.
    squares : float
        y^T y. Not private.
    """

    projection: NDArray[np.float64]
    squares: float

    @classmethod
    def zero(cls, rank: int) -> LabelMoments:
        """Return the moments of no rows."""
        return cls(np.zeros(rank), 0.0)

    def add(self, rows: NDArray[np.float64], space: Subspace) -> LabelMoments:
        """Return the moments with rows added: coordinates in `space` and the label behind them, shape (k, r + 1)."""
        labels = np.ascontiguousarray(rows[:, -1])
        return LabelMoments(
            self.projection + labels @ space.whiten(rows[:, :-1]), self.squares + float(labels @ labels)
        )

    def merge(self, other: LabelMoments) -> LabelMoments:
        """Return the moments of both sets of rows."""
        return LabelMoments(self.projection + other.projection, self.squares + other.squares)

    @property
    def residual_norm(self) -> float:
        """Distance of the labels from the span of the features. Not private."""
        return float(np.sqrt(max(0.0, self.squares - float(self.projection @ self.projection))))

    def root(self, space: Subspace) -> NDArray[np.float64]:
        """Return R with R^T R = [X y]^T [X y], shape (r + 1, r + 1), X by its coordinates in `space`. Not private.

        The features' columns are those of `space`, whatever the labels.
        """
        rank = space.rank
        root = np.zeros((rank + 1, rank + 1))
        root[:rank, :rank] = space.root
        root[:rank, rank] = self.projection
        root[rank, rank] = self.residual_norm
        return root
