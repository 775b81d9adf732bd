"""Gaussian sketches under full DP: iterative Hessian mixing and linear mixing.

A sketch row is ``N(0, G)`` with ``G`` the Gram matrix of all rows plus what is added to its diagonal, least
eigenvalue at least ``gamma`` for the data set that has the row. Without a row ``x``, ``G - x x^T`` has,
relative to ``G``, all eigenvalues 1 but one, ``1 - x^T G^-1 x >= 1 - |x|^2 / gamma``. So every sketch row
compares variances whose ratio is at least that, and the largest change of the ratio is the worst (README,
"Monotone in each ratio").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpagg.accounting.event import (
    Pair,
    _PairEvent,
    require,
    require_count,
    require_nonnegative,
    require_probability,
)


@dataclass(frozen=True, kw_only=True)
class HessianMixing(_PairEvent):
    """Sketches of X for the Hessian, beside Gaussian releases (gradients, the least eigenvalue).

    Guarantee: one row is zeroed out (adjacency ``zero_out_one_row``), rows have norm at most 1. Source:
    *Near-Optimal Private Linear Regression via Iterative Hessian Mixing* (2026, arXiv 2601.07545); exact
    instead of its RDP bound, and without splitting the budget (README, "Sketches").

    Parameters
    ----------
    sketch_size
        Rows k of a sketch.
    num_sketches
        Sketches T that are released: 1 if one is kept for all rounds.
    eigenvalue_floor
        gamma, least eigenvalue of ``X^T X + eta^2 I`` for the larger data set.
    gaussian_mu
        Square root of the summed squares of (sensitivity / standard deviation) of all Gaussian releases: each
        of T gradients ``C / sigma``, the least eigenvalue ``1 / sigma_lambda``.
    failure_probability
        Chance that the floor doesn't hold; added to delta.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "zero_out_one_row"

    sketch_size: int
    num_sketches: int
    eigenvalue_floor: float
    gaussian_mu: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        require_count("sketch_size", self.sketch_size)
        require_count("num_sketches", self.num_sketches)
        require_nonnegative(eigenvalue_floor=self.eigenvalue_floor, gaussian_mu=self.gaussian_mu)
        require_probability(failure_probability=self.failure_probability)

    def _pair(self) -> Pair:
        return sketch_pair(self.sketch_size * self.num_sketches, self.eigenvalue_floor, 1.0, self.gaussian_mu)


@dataclass(frozen=True, kw_only=True)
class LinearMixing(_PairEvent):
    """One sketch of ``[X y]``, beside Gaussian releases (its least eigenvalue).

    Guarantee: one row is zeroed out (adjacency ``zero_out_one_row``), rows of X have norm at most 1 and
    labels size at most ``label_bound``, so that rows of ``[X y]`` have squared norm at most ``1 +
    label_bound^2``, which is also the sensitivity of the least eigenvalue. Source: Lev et al. (2025), as the
    iterative Hessian mixing paper describes it.

    Parameters
    ----------
    sketch_size
        Rows k of the sketch.
    eigenvalue_floor
        gamma, least eigenvalue of the Gram matrix of ``[X y]`` plus what is added, for the larger data set.
    label_bound
        C_Y, largest absolute label.
    gaussian_mu, failure_probability
        As in :class:`HessianMixing`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "zero_out_one_row"

    sketch_size: int
    eigenvalue_floor: float
    label_bound: float
    gaussian_mu: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        require_count("sketch_size", self.sketch_size)
        require_nonnegative(
            eigenvalue_floor=self.eigenvalue_floor, label_bound=self.label_bound, gaussian_mu=self.gaussian_mu
        )
        require_probability(failure_probability=self.failure_probability)

    def _pair(self) -> Pair:
        return sketch_pair(self.sketch_size, self.eigenvalue_floor, 1 + self.label_bound**2, self.gaussian_mu)


def sketch_pair(rows: float, eigenvalue_floor: float, row_energy: float, mu: float) -> Pair:
    """Pair of ``rows`` sketch rows with the row (first) and without it; infinite below the row's energy."""
    require(row_energy > 0, "row_energy must be positive")
    rest = eigenvalue_floor - row_energy
    if rest <= 0:
        return Pair(rows=(rows,), excess=(-1.0,), inverse_excess=(math.inf,), mu=mu)
    return Pair(rows=(rows,), excess=(-row_energy / eigenvalue_floor,), inverse_excess=(row_energy / rest,), mu=mu)
