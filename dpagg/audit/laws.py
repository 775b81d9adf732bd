"""Laws of releases as the mechanisms' definitions give them: likelihood ratios and exact divergences of one pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.divergence import divergence

FloatArray = NDArray[np.float64]

_SAME = 1e-12  # a ratio this close to 1 tells nothing


@dataclass(frozen=True, eq=False)
class RowsLaw:
    """`count` iid rows of N(0, first) against N(0, second).

    Attributes
    ----------
    count : int
        Rows of a release.
    first, second : ndarray, shape (w, w)
        Positive definite.
    """

    count: int
    first: FloatArray
    second: FloatArray

    @cached_property
    def _axes(self) -> tuple[FloatArray, FloatArray]:
        """Ratios nu of the second variance to the first, and the map to the axes on which they are."""
        root = np.linalg.inv(np.linalg.cholesky(self.first))
        ratios, directions = np.linalg.eigh(root @ self.second @ root.T)
        told = np.abs(ratios - 1.0) > _SAME
        return ratios[told], (directions.T @ root)[told]

    def log_ratio(self, rows: FloatArray) -> FloatArray:
        """Return ``ln p / q`` of releases of shape (k, count, w), shape (k,)."""
        ratios, axes = self._axes
        squares = np.square(rows.reshape(-1, rows.shape[-1]) @ axes.T).reshape(*rows.shape[:-1], -1).sum(1)
        return np.asarray(0.5 * (self.count * np.log(ratios).sum() + squares @ (1.0 / ratios - 1.0)))

    def log_ratio_of_grams(self, grams: FloatArray) -> FloatArray:
        """Return `log_ratio` of rows given by their Gram matrices, shape (k, w, w)."""
        ratios, axes = self._axes
        squares = np.einsum("ij,kjl,il->ki", axes, grams, axes)
        return np.asarray(0.5 * (self.count * np.log(ratios).sum() + squares @ (1.0 / ratios - 1.0)))

    def deltas(self, epsilons: FloatArray, mu: float = 0.0) -> FloatArray:
        """Return delta at any real epsilons of both directions, shape (2, k), beside a shift of `mu`."""
        ratios, _ = self._axes
        if not len(ratios):
            ratios = np.ones(1)
        up, down = ratios - 1.0, 1.0 / ratios - 1.0
        eps = np.asarray(epsilons, dtype=float)[None]
        excess, inverse = np.stack([up, down])[:, None], np.stack([down, up])[:, None]
        return divergence(eps, rows=float(self.count), excess=excess, inverse_excess=inverse, mu=mu)

    def exact_delta(self, mu: float = 0.0) -> Callable[[FloatArray], FloatArray]:
        """Return the curve of the pair: the larger of both directions."""
        return lambda epsilons: np.asarray(self.deltas(epsilons, mu).max(0))


def shift_log_ratio(values: FloatArray, first: FloatArray, second: FloatArray, std: float) -> FloatArray:
    """Return ``ln p / q`` of values, shape (k, w), under N(first, std^2 I) and N(second, std^2 I)."""
    middle = values - (first + second) / 2
    return np.asarray(middle @ (first - second) / std**2)


def shift_delta(mu: float) -> Callable[[FloatArray], FloatArray]:
    """Return the curve of two normals of unit variance whose means differ by `mu`."""

    def curve(epsilons: FloatArray) -> FloatArray:
        return divergence(epsilons, rows=np.ones(1), excess=np.zeros(1), inverse_excess=np.zeros(1), mu=mu)

    return curve
