"""Worst case over a curve of variance ratios: one label changes under Gaussian-weighted sums of all rows.

Notation of the package README: residual sums of squares ``r^2 <= r'^2`` of the two data sets, ``s = r'^2/r^2
- 1`` and ``q = Delta^2 h / r^2``. Each bag compares ``(g, u) ~ N(0, I)`` with ``u = sqrt(q) g + sqrt(1 + s)
z``, whose covariance has determinant ``1 + s`` and trace ``2 + s + q``; with eigenvalues ``1 + x`` that is

    x^2 - (s + q) x - q = 0,   x1 = [(s + q) + sqrt((s + q)^2 + 4 q)] / 2,   x2 = -q / x1.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.divergence import FloatArray, log_divergence, loss_steepness
from dpagg.accounting.event import Event

_TOLERANCE = 1e-9  # an interval whose bound passes the best exact value by less needs no further look
_MOST_INTERVALS = 1500  # evaluations per epsilon; the bound returned is certified whenever work stops
_FIRST_CUTS = np.array([0.0, 0.3, 1.0])


@np.errstate(over="ignore", invalid="ignore")  # a ratio that overflows counts as infinite: delta 1
def variance_excess(s: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``nu - 1`` and ``1/nu - 1`` of the two directions, shape (..., 2), without cancellation."""
    total = s + q
    first = (total + np.sqrt(total * total + 4 * q)) / 2
    second = -np.divide(q, first, out=np.zeros_like(first), where=first > 0)
    # nu1 nu2 = 1 + s, so 1/nu2 = nu1 / (1 + s): nu2 itself may be too close to 0 to be inverted.
    inverse_first = -first / (1 + first)
    inverse_second = -second * (1 + first) / (1 + s)
    return np.stack([first, second], -1), np.stack([inverse_first, inverse_second], -1)


@dataclass(frozen=True, kw_only=True)
class LabelChange:
    """``rows`` bags with ``s`` anywhere in ``[0, spread]`` and ``q`` at most ``shift``, beside a Gaussian.

    Attributes
    ----------
    rows
        Number of bags; need not be whole (calibration searches over the reals).
    spread, shift
        Bounds on ``s`` and ``q`` as the module explains.
    mu
        A Gaussian release beside the bags: sensitivity over standard deviation.
    """

    rows: float
    spread: float
    shift: float
    mu: float = 0.0

    def __post_init__(self) -> None:
        for name in ("rows", "spread", "shift", "mu"):  # whole numbers would make integer arrays below
            object.__setattr__(self, name, float(getattr(self, name)))

    def log_delta(self, epsilon: FloatArray) -> FloatArray:
        """Certified ``ln delta`` at every epsilon >= 0 (shape (k,)), the larger of both directions.

        On ``s`` in ``[a, b]`` both ``nu`` grow with ``s``, so ``nu1(b)`` and ``nu2(a)`` are outer ratios and
        their divergence bounds the interval (README, "Monotone in each ratio"). Intervals are cut until none
        passes the best exact value by more than 1e-9 relative, or delta is seen to be monotone on them, or
        work runs out; the largest bound is returned.
        """
        corner = self._corner(epsilon)
        best = np.broadcast_to(corner.max(0), corner.shape)
        return np.asarray(self._certified(epsilon, best).max(0), dtype=float)

    def log_deltas(self, epsilon: FloatArray) -> FloatArray:
        """Certified ``ln delta`` of each direction, shape (2, k): first from the smaller residual sum."""
        return self._certified(epsilon, self._corner(epsilon))

    def log_delta_at_corner(self, epsilon: FloatArray) -> FloatArray:
        """``ln delta`` at ``s = spread`` for epsilon >= 0: nearly always the maximum, but not certified."""
        return np.asarray(self._corner(epsilon).max(0), dtype=float)

    def _corner(self, epsilon: FloatArray) -> FloatArray:
        if not np.isfinite(self.spread) or not np.isfinite(self.shift):
            return np.zeros((2, epsilon.size))
        end = np.full(2 * epsilon.size, self.spread)
        backward = np.repeat([False, True], epsilon.size)
        return self._evaluate(np.tile(epsilon, 2), end, end, backward).reshape(2, -1)

    def _evaluate(
        self, epsilon: FloatArray, low: FloatArray, high: FloatArray, backward: NDArray[np.bool_]
    ) -> FloatArray:
        outer_up, outer_down = variance_excess(high, np.full_like(high, self.shift))
        inner_up, inner_down = variance_excess(low, np.full_like(low, self.shift))
        up = np.stack([outer_up[:, 0], inner_up[:, 1]], -1)
        down = np.stack([outer_down[:, 0], inner_down[:, 1]], -1)
        if not (np.isfinite(up).all() and np.isfinite(down).all()):
            return np.zeros_like(epsilon)
        flip = backward[:, None]
        return log_divergence(
            epsilon,
            rows=self.rows,
            excess=np.where(flip, down, up),
            inverse_excess=np.where(flip, up, down),
            mu=self.mu,
        )

    def _certified(self, epsilon: FloatArray, best: FloatArray) -> FloatArray:
        """Bounds of both directions, shape (2, k), no closer than need be to values under ``best``."""
        if not self.spread or not self.shift or not np.isfinite(self.spread) or not np.isfinite(self.shift):
            return best  # with shift 0 there is one ratio, 1 + s, and the largest is the worst
        best = best.ravel().copy()
        bound = best.copy()  # largest bound among intervals that are done
        # An interval of s = spread (1 - t) is kept as (near, far) in t, so that it may shrink towards t = 0.
        # A problem is one epsilon in one direction.
        cells = _FIRST_CUTS.size - 1
        near, far = (np.tile(cuts, best.size) for cuts in (_FIRST_CUTS[:-1], _FIRST_CUTS[1:]))
        which = np.repeat(np.arange(best.size), cells)
        epsilon = np.tile(epsilon, 2)
        backward = which >= best.size // 2
        spent = np.zeros(best.size, dtype=int)
        fresh = far  # ends whose exact value isn't known yet
        while which.size:
            low, high = self.spread * (1 - far), self.spread * (1 - near)
            at = self.spread * (1 - fresh)
            exact = self._evaluate(epsilon[which], at, at, backward)
            np.maximum.at(best, which, exact)
            value = self._evaluate(epsilon[which], low, high, backward)
            spent += np.bincount(which, minlength=best.size)
            left = value > best[which] + _TOLERANCE
            if left.any():
                index = np.flatnonzero(left)
                steady = self._monotone(epsilon[which[index]], low[index], high[index], backward[index])
                left[index[steady]] = False
                value[index[steady]] = -np.inf  # the larger end has it, and both ends are in `best`
            halt = left & ((far - near < 1e-15) | (spent[which] > _MOST_INTERVALS))
            np.maximum.at(bound, which[~left | halt], value[~left | halt])
            left &= ~halt
            which, near, far, backward = which[left], near[left], far[left], backward[left]
            middle = _split(near, far)
            which, backward = np.tile(which, 2), np.tile(backward, 2)
            near, far = np.concatenate([near, middle]), np.concatenate([middle, far])
            fresh = np.tile(middle, 2)
        return np.minimum(np.maximum(bound, best), 0.0).reshape(2, -1)

    def _monotone(
        self, epsilon: FloatArray, low: FloatArray, high: FloatArray, backward: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Whether delta provably only grows or only falls while ``s`` goes from ``low`` to ``high``.

        README, "Along the curve": with ``f`` the density of the loss of ``rows + 2`` bags and ``tau =
        -f'/f``, the sign of d delta / ds is that of ``s/q - 1 - tau`` forward and of ``s/q + tau`` backward.
        ``tau`` is bounded over the interval because ``f`` is log-concave and its parts are ordered in
        likelihood ratio.
        """
        q = np.full_like(low, self.shift)
        sign = np.where(backward, 1.0, -1.0)
        known = np.zeros(low.shape, dtype=bool)
        for grows in (True, False):
            scales, place = (high, low) if grows else (low, high)
            up, down = variance_excess(scales, q)
            y = epsilon + sign * self.rows / 2 * np.log1p(place)
            inverse = np.where(backward[:, None], up, down)
            inside = (inverse > 0).any(-1) | (y < 0) | (self.mu > 0)
            inside &= np.isfinite(inverse).all(-1) & np.isfinite(y)
            y, inverse = np.where(inside, y, -1.0), np.where(inside[:, None], inverse, [-1.0, 1.0])
            tau, error = loss_steepness(y, rows=self.rows + 2, inverse_excess=inverse, mu=self.mu)
            error = error + 1e-8 * (1 + np.abs(tau))
            if grows:
                forward_ok, backward_ok = low / q - 1 - tau > error, low / q + tau > error
            else:
                forward_ok, backward_ok = high / q - 1 - tau < -error, high / q + tau < -error
            known |= inside & np.where(backward, backward_ok, forward_ok)
        return known


class _LabelEvent(Event):
    """An event whose worst case lies on one curve of ratios."""

    label_range: float

    @property
    @abc.abstractmethod
    def _change(self) -> LabelChange:
        """The curve."""

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        return self._change.log_deltas(epsilon)

    def _log_delta(self, epsilon: FloatArray) -> FloatArray:
        return self._change.log_delta(epsilon)

    def _log_delta_guess(self, epsilon: FloatArray) -> FloatArray:
        return self._change.log_delta_at_corner(epsilon)

    @property
    def _failure(self) -> float:
        # A label that cannot change makes both data sets equal whatever else holds.
        return super()._failure if self.label_range > 0 else 0.0


def _split(near: FloatArray, far: FloatArray) -> FloatArray:
    """Cut geometrically towards whichever end of [0, 1] is closer."""
    towards_zero = np.where(near > 0, np.sqrt(near * far), far / 64)
    left = 1 - far
    towards_one = 1 - np.where(left > 0, np.sqrt(left * (1 - near)), (1 - near) / 16)
    middle = np.where(near < 0.5, towards_zero, towards_one)
    return np.where((middle > near) & (middle < far), middle, (near + far) / 2)
