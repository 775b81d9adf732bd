"""WTD-FLAG: Gaussian-weighted sums of all rows, when one label changes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import require, require_count, require_nonnegative, require_probability
from dpagg.accounting.label_change import LabelChange, _LabelEvent


def residual_bound_cauchy_schwarz(leverage: ArrayLike, num_rows: int, half_range: float) -> FloatArray:
    """Bound of each row's least-squares residual by its leverage alone.

    ``e_i = (1 - h_i) y_i - sum_{j != i} H_ij y_j`` with ``sum_{j != i} H_ij^2 = h_i (1 - h_i)``, so that
    ``|e_i| <= B (1 - h_i) + B sqrt((n - 1) h_i (1 - h_i))`` for labels in ``[-B, B]``.

    Parameters
    ----------
    leverage
        Diagonal of the hat matrix, shape (...), in ``[0, 1]``.
    num_rows
        Rows ``n`` that the leverages belong to.
    half_range
        ``B``: half the label range if a constant lies in the span of the features (residuals then don't
        change when all labels are shifted), else the largest absolute label bound.

    Returns
    -------
    ndarray
        Shape of ``leverage``, float64, in units of the label.

    Raises
    ------
    ValueError
        If a leverage lies outside ``[0, 1]`` or another argument is negative.
    """
    h = _leverages(leverage)
    require_count("num_rows", num_rows)
    require_nonnegative(half_range=half_range)
    rest = 1 - h
    return np.asarray(half_range * (rest + np.sqrt((num_rows - 1) * h * rest)), dtype=float)


def worst_label_shift(leverage: ArrayLike, residual_bound: ArrayLike, label_range: float) -> FloatArray:
    """Largest change of the residual sum of squares that a change of one label can make, row by row.

    With ``e`` before and ``e' = e + Delta (1 - h)`` after, the sum changes by ``Delta (e + e')``. Let the
    label move the way that makes it grow (the other way is the same pair exchanged): ``e' <= e_max``, so that
    the change is at most ``Delta (2 e_max - Delta (1 - h))``, largest at ``Delta = min(D, e_max / (1 - h))``.

    Parameters
    ----------
    leverage, residual_bound
        ``h`` and ``e_max`` of the rows, broadcastable.
    label_range
        ``D``.

    Returns
    -------
    ndarray
        ``max over 0 <= Delta <= D of Delta (2 e_max - Delta (1 - h))``, float64, squared units of the label.

    Raises
    ------
    ValueError
        If a leverage lies outside ``[0, 1]``, or a bound is negative or not finite.
    """
    rest = 1 - _leverages(leverage)
    bound = np.asarray(residual_bound, dtype=float)
    require(bool(np.all(np.isfinite(bound) & (bound >= 0))), "residual_bound must be finite and at least 0")
    require_nonnegative(label_range=label_range)
    rest, bound = np.broadcast_arrays(rest, bound)
    inner = bound < rest * label_range  # the best Delta lies inside
    peak = np.divide(bound * bound, rest, out=np.zeros(rest.shape), where=inner)
    return np.where(inner, peak, label_range * (2 * bound - label_range * rest))


@dataclass(frozen=True, kw_only=True)
class WeightedAggregation(_LabelEvent):
    """``num_bags`` sums ``(X^T w, y^T w)`` of all rows with secret weights ``w ~ N(0, I)``.

    Guarantee: one label changes by at most ``label_range`` (adjacency ``change_one_label``); features, rows
    and their number are public. Both residual sums of squares of the pair must be at least
    ``residual_floor``, except with ``failure_probability``. Source: *Label Differential Privacy via
    Aggregation* (2023, arXiv 2310.10092), mechanism WTD-FLAG; the accounting is exact for the worst pair
    within these bounds (README, "WTD-FLAG").

    Parameters
    ----------
    num_bags
        Number of bags m.
    label_range
        D, the declared upper minus lower label bound.
    leverage
        Leverage of the rows: a number or one a row.
    residual_floor
        Least residual *sum* of squares that is assumed or established for both data sets.
    residual_bound
        Largest possible absolute residual of the rows: a number or one a row. Only rows that no other row
        dominates in both leverage and residual bound are kept.
    label_noise_variance
        Variance of a normal added to the label of every bag; it adds to the floor.
    gaussian_mu
        Sensitivity over standard deviation of a Gaussian release beside the bags.
    failure_probability
        Chance that the floor doesn't hold; added to delta.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_label"

    num_bags: int
    label_range: float
    leverage: float | tuple[float, ...] | FloatArray
    residual_floor: float
    residual_bound: float | tuple[float, ...] | FloatArray
    label_noise_variance: float = 0.0
    gaussian_mu: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        require_count("num_bags", self.num_bags)
        require_nonnegative(
            label_range=self.label_range,
            residual_floor=self.residual_floor,
            label_noise_variance=self.label_noise_variance,
            gaussian_mu=self.gaussian_mu,
        )
        require_probability(failure_probability=self.failure_probability)
        leverage, bound = undominated(self.leverage, self.residual_bound)
        object.__setattr__(self, "leverage", leverage)
        object.__setattr__(self, "residual_bound", bound)

    @functools.cached_property
    def _change(self) -> LabelChange:
        return label_change(
            rows=self.num_bags,
            label_range=self.label_range,
            leverage=self.leverage,
            residual_bound=self.residual_bound,
            floor=self.residual_floor + self.label_noise_variance,
            mu=self.gaussian_mu,
        )


def label_change(
    *,
    rows: float,
    label_range: float,
    leverage: ArrayLike,
    residual_bound: ArrayLike,
    floor: float,
    mu: float = 0.0,
) -> LabelChange:
    """Bounds of the curve of ratios: ``q <= D^2 h_max / F`` and ``s <= G / F``, infinite at ``F = 0``."""
    if label_range == 0:
        return LabelChange(rows=rows, spread=0.0, shift=0.0, mu=mu)
    energy = label_range**2 * float(np.max(_leverages(leverage)))
    growth = float(np.max(worst_label_shift(leverage, residual_bound, label_range)))
    if floor == 0:
        # A pair without a floor: nothing bounds the ratio, unless the change is provably none.
        none = energy == 0 and growth == 0
        return LabelChange(rows=rows, spread=0.0 if none else math.inf, shift=0.0 if none else math.inf, mu=mu)
    return LabelChange(rows=rows, spread=growth / floor, shift=energy / floor, mu=mu)


def undominated(
    leverage: ArrayLike, residual_bound: ArrayLike
) -> tuple[float | tuple[float, ...], float | tuple[float, ...]]:
    """Rows that no other row exceeds in both: the worst change grows with either, for any label range."""
    h, e = np.broadcast_arrays(_leverages(leverage), np.asarray(residual_bound, dtype=float))
    h, e = h.ravel(), e.ravel()
    require(h.size > 0, "leverage needs at least one row")
    require(bool(np.all(np.isfinite(e) & (e >= 0))), "residual_bound must be finite and at least 0")
    order = np.lexsort((-e, -h))
    h, e = h[order], e[order]
    keep = np.concatenate([[True], e[1:] > np.maximum.accumulate(e)[:-1]])
    h, e = h[keep], e[keep]
    if h.size == 1:
        return float(h[0]), float(e[0])
    return tuple(map(float, h)), tuple(map(float, e))


def _leverages(leverage: ArrayLike) -> FloatArray:
    h = np.asarray(leverage, dtype=float)
    require(bool(np.all((h >= 0) & (h <= 1 + 1e-9))), "leverage must lie in [0, 1]")
    return np.asarray(np.minimum(h, 1.0), dtype=float)
