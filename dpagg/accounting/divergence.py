"""The hockey-stick divergence behind every certificate: Gaussians of unequal variance beside a shift.

``P`` and ``Q`` are products of independent parts: for each part ``i``, ``rows_i`` iid pairs of zero-mean
normals with variance 1 under ``P`` and ``nu_i`` under ``Q``; and one unit normal whose mean differs by
``mu``. The privacy loss ``L = ln dP/dQ`` under ``P`` is

    L = sum_i [rows_i ln nu_i - a_i A_i] / 2 + mu^2 / 2 + mu z,    a_i = 1 - 1/nu_i,  A_i ~ chi2(rows_i),

and the divergence is ``delta(eps) = E_P[(1 - exp(eps - L))+]``.

Method. For any ``c > 0`` with ``E exp(c L)`` finite, Mellin inversion of ``(1 - exp(eps - l))+`` gives

    delta(eps) = 1/(2 pi i) * integral over Re s = c of  E[exp(s L)] exp(-s eps) / (s (s + 1)) ds,
    E[exp(s L)] = exp(mu^2 s (s+1) / 2) * prod_i nu_i^(s rows_i / 2) (1 + s a_i)^(-rows_i / 2),

one integral whatever the number of parts. It is taken through its saddle point along a hyperbola
``s(u) = c + b [i cos(t) sinh u - sin(t) (cosh u - 1)]`` by the trapezoid rule, which converges exponentially
there. On a contour through the saddle point the integrand hardly cancels, so the *relative* accuracy holds
however small delta is. The README of this package has the derivation and the error budget.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

# Bends of the contour (radians from the vertical) that are tried. Below pi/4 so that exp(mu^2 s^2 / 2)
# decays.
_BENDS = np.array([0.0, -0.3, 0.3, -0.6, 0.6])
_PROBE = np.arange(0.0, 36.0, 0.6)  # where the decay along each candidate contour is looked at
_CUT = 46.0  # the integrand is followed until it is exp(-46) = 1e-20 of its value at the saddle point
_FIRST_NODES = 96
_MOST_NODES = 6144
_TOLERANCE = 1e-11  # relative change on halving the step at which refinement stops
_FAR = -2000.0  # where exp underflows by far, Chernoff's bound is enough
_TINY = 1e-60
_ULP = float(np.finfo(float).eps)
_BLOCK = 256  # problems treated at a time, to bound memory
_SERIES = 1.0 / np.arange(23.0, 2.0, -2.0)  # 1/23, 1/21, ..., 1/3


@np.errstate(all="ignore")  # what overflows ends as "no number", which counts as delta 1
def log_divergence(
    epsilon: ArrayLike,
    *,
    rows: ArrayLike,
    excess: ArrayLike,
    inverse_excess: ArrayLike,
    mu: ArrayLike = 0.0,
) -> FloatArray:
    """Natural logarithm of the divergence of ``P`` from ``Q``, rounded up; one direction.

    The other direction is the same call with ``excess`` and ``inverse_excess`` exchanged.

    Parameters
    ----------
    epsilon
        Any finite reals, shape (...). Negative ones are reduced to the positive side by
        ``delta_PQ(eps) = 1 - e^eps + e^eps delta_QP(-eps)``.
    rows
        Positive numbers of iid pairs, shape (..., parts) or broadcastable to it.
    excess, inverse_excess
        ``nu - 1`` and ``1/nu - 1`` of each part, shape (..., parts). Both are asked for, because each loses
        its digits where the other keeps them.
    mu
        Shift of the unit normal in standard deviations, shape (...).

    Returns
    -------
    ndarray
        ``ln delta``, float64, shape (...); ``-inf`` where the divergence is exactly zero.

    Raises
    ------
    ValueError
        If an input isn't finite, a ratio isn't positive or ``rows`` isn't positive.
    """
    eps = np.asarray(epsilon, dtype=float)
    shift = np.abs(np.asarray(mu, dtype=float))
    count, up, down = np.broadcast_arrays(
        np.asarray(rows, dtype=float),
        np.asarray(excess, dtype=float),
        np.asarray(inverse_excess, dtype=float),
    )
    for values, name in (
        (eps, "epsilon"),
        (shift, "mu"),
        (count, "rows"),
        (up, "excess"),
        (down, "inverse_excess"),
    ):
        if not np.all(np.isfinite(values)):
            raise ValueError(f"{name} must be finite")
    if count.ndim == 0 or np.any(count <= 0):
        raise ValueError("rows must be positive numbers, one a part on the last axis")
    product = (1 + up) * (1 + down) - 1
    if np.any(up < -1) or np.any(down < -1) or np.any(np.abs(product) > 1e-3 * (1 + 1e-12 * (2 + up + down))):
        raise ValueError("excess and inverse_excess must be nu - 1 and 1/nu - 1 of one positive ratio nu")
    # Smaller differences round up to what squares without underflow; the divergence grows with each.
    up, down, shift = (np.where(v == 0, 0.0, np.sign(v) * np.maximum(np.abs(v), _TINY)) for v in (up, down, shift))
    shape = np.broadcast_shapes(eps.shape, shift.shape, count.shape[:-1])
    parts = count.shape[-1]
    flat_eps = np.broadcast_to(eps, shape).ravel()
    flat_mu = np.broadcast_to(shift, shape).ravel()
    flat = [np.broadcast_to(v, (*shape, parts)).reshape(-1, parts) for v in (count, up, down)]
    out = np.empty(flat_eps.size)
    for start in range(0, flat_eps.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = _signed(flat_eps[block], flat_mu[block], *(v[block] for v in flat))
    return out.reshape(shape)


def divergence(
    epsilon: ArrayLike,
    *,
    rows: ArrayLike,
    excess: ArrayLike,
    inverse_excess: ArrayLike,
    mu: ArrayLike = 0.0,
) -> FloatArray:
    """``exp`` of :func:`log_divergence`, within ``[max(0, 1 - e^eps), 1]``."""
    return np.exp(log_divergence(epsilon, rows=rows, excess=excess, inverse_excess=inverse_excess, mu=mu))


def _signed(eps: FloatArray, mu: FloatArray, rows: FloatArray, up: FloatArray, down: FloatArray) -> FloatArray:
    negative = eps < 0
    if not negative.any():
        return _positive(eps, mu, rows, up, down)
    flip = negative[:, None]
    value = _positive(np.abs(eps), mu, rows, np.where(flip, down, up), np.where(flip, up, down))
    trivial = -np.expm1(-np.abs(eps))
    return np.where(negative, np.log(np.minimum(1.0, trivial + np.exp(eps + value))), value)


def _positive(eps: FloatArray, mu: FloatArray, rows: FloatArray, up: FloatArray, down: FloatArray) -> FloatArray:
    """``ln delta`` for eps >= 0."""
    a = -down  # 1 - 1/nu: the loss falls with A where a > 0 and rises where a < 0
    log_ratio = np.where(np.abs(up) < np.abs(down), np.log1p(up), -np.log1p(down))
    top = 0.5 * (rows * log_ratio).sum(-1) - eps  # the largest value of L - eps, if it has one
    void = (a >= 0).all(-1) & (mu == 0) & (top <= 0)
    out = np.full(eps.shape, -np.inf)
    if void.all():
        return out
    small = np.abs(a) < 0.25
    # E[L] = rows (ln nu - a) / 2 + mu^2 / 2, and ln nu - a = -log1pmx(-a) where it would cancel.
    gap = np.where(small, -_log1pmx(np.where(small, -a, 0.0)).real, log_ratio - a)
    drift = (rows / 2 * gap).sum(-1) + mu * mu / 2 - eps
    live = ~void
    problem = _Inversion(a[live], rows[live] / 2, mu[live] ** 2, drift[live], top[live], poles=True)
    out[live] = problem.log_integral()
    return out


@np.errstate(all="ignore")
def loss_steepness(
    at: ArrayLike, *, rows: ArrayLike, inverse_excess: ArrayLike, mu: ArrayLike = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Steepness ``-f'/f`` of the density ``f`` of ``X = sum_i (1/nu_i - 1) A_i / 2 + mu^2/2 + mu z``.

    ``X`` is the loss without its constant. With all ``rows`` at least 2 its density is log-concave.

    Parameters
    ----------
    at
        Where, shape (...); inside the support of ``X``.
    rows, inverse_excess, mu
        As in :func:`log_divergence`.

    Returns
    -------
    tuple of ndarray
        The steepness and a bound on its numerical error, shape (...).
    """
    where = np.asarray(at, dtype=float)
    count, down = np.broadcast_arrays(np.asarray(rows, dtype=float), np.asarray(inverse_excess, dtype=float))
    shape = np.broadcast_shapes(where.shape, np.shape(mu), count.shape[:-1])
    parts = count.shape[-1]
    y = np.broadcast_to(where, shape).ravel()
    variance = np.broadcast_to(np.asarray(mu, dtype=float), shape).ravel() ** 2
    half = np.broadcast_to(count, (*shape, parts)).reshape(-1, parts) / 2
    a = -np.broadcast_to(down, (*shape, parts)).reshape(-1, parts)
    middle = variance / 2 - (half * a).sum(-1)
    # Mirrored so that the point lies above the mean and the saddle point is positive.
    sign = np.where(middle > y, -1.0, 1.0)
    drift = -np.maximum(np.abs(middle - y), 1e-14 * np.sqrt((half * a * a).sum(-1) + variance))
    a = sign[:, None] * a
    problem = _Inversion(a, half, variance, drift, drift + (half * a).sum(-1), poles=False)
    slope, error = problem.slope()
    # A few ulp of the point's parts, times the steepness's own slope (the inverse variance of the tilted
    # loss).
    error = error + 32 * _ULP * (np.abs(y) + variance + (half * np.abs(a)).sum(-1)) * problem.scale**2
    return (sign * slope).reshape(shape), error.reshape(shape)


class _Inversion:
    """A batch of inversion integrals, taken through saddle points on the positive half-axis.

    ``poles``: the integrand has the factor ``1 / (s (s + 1))`` of the divergence; without, it is the
    density's.
    """

    def __init__(
        self,
        a: FloatArray,
        half: FloatArray,
        variance: FloatArray,
        drift: FloatArray,
        top: FloatArray,
        *,
        poles: bool,
    ) -> None:
        self.a, self.half, self.variance, self.drift, self.top = a, half, variance, drift, top
        self.poles = poles
        self.wall = np.maximum(-a, 0.0).max(-1)  # 1 / (end of the strip of convergence)
        self.sure = self._certain() if poles else np.zeros(drift.shape, dtype=bool)
        self.centre, self.scale = self._saddle()
        self.peak = self.exponent(self.centre[:, None].astype(complex))[:, 0].real
        self.bend, self.reach, self.usable = self._contour()

    def exponent(self, s: ComplexArray) -> ComplexArray:
        """Return ``ln E[exp(s (L - eps))]`` at points of shape (batch, nodes)."""
        total = s * self.drift[:, None] + (self.variance / 2)[:, None] * s * s
        for j in range(self.a.shape[-1]):
            total -= self.half[:, j, None] * _log1pmx(s * self.a[:, j, None])
        return total

    def _certain(self) -> NDArray[np.bool_]:
        """Whether ``1 - delta <= E exp(-s (L - eps)) < 1e-20`` for one ``s`` in ``(0, 1]``."""
        spread = (self.half * self.a**2).sum(-1) + self.variance
        end = np.minimum(1.0, 0.9 / np.maximum(self.a.max(-1), 0.9))
        s = -np.clip(self.drift / np.maximum(spread, 1e-300), 0.0, end)
        return np.asarray(self.exponent(s[:, None].astype(complex))[:, 0].real < -_CUT)

    def log_integral(self) -> FloatArray:
        """``ln`` of the divergence; discretisation, truncation and rounding errors added."""

        def estimate(part: _Inversion, nodes: int) -> tuple[FloatArray, NDArray[np.bool_]]:
            step, _, value, slack = part._terms(nodes)
            total = step * value.real.sum(-1)
            error = np.abs(total - 2 * step * value.real[:, ::2].sum(-1))
            front = part.peak - np.log(part.centre) - np.log1p(part.centre)
            out = front + np.log(np.maximum(total, 0.0) + error + slack)
            # Chernoff's bound E[(1 - exp(-x))+] <= E[exp(c x)] holds whatever befalls the integral.
            chernoff = np.where(part.sure, 0.0, part.peak + 1e-9 * np.abs(part.peak))
            good = part.usable & (error <= _TOLERANCE * total)
            near = chernoff > _FAR
            trusted = near & part.usable & ~part.sure & (out < chernoff) & (good | (nodes < _MOST_NODES))
            return np.where(trusted, out, chernoff)[None], np.asarray(good | ~near | part.sure)

        return np.asarray(np.minimum(self._refine(estimate)[0], 0.0), dtype=float)

    def slope(self) -> tuple[FloatArray, FloatArray]:
        """``-f'/f`` of the density and a bound on its error."""

        def estimate(part: _Inversion, nodes: int) -> tuple[FloatArray, NDArray[np.bool_]]:
            step, s, value, slack = part._terms(nodes)
            rises = (value * s).real
            fine, fine_rise = step * value.real.sum(-1), step * rises.sum(-1)
            coarse, coarse_rise = 2 * step * value.real[:, ::2].sum(-1), 2 * step * rises[:, ::2].sum(-1)
            spread = np.abs(fine - coarse) + slack
            slope = fine_rise / fine
            error = (np.abs(fine_rise - coarse_rise) + slack * np.abs(s).max(-1) + np.abs(slope) * spread) / fine
            error = np.where(part.usable & (fine > 2 * spread), 2 * error, np.inf)
            return np.stack([slope, error]), np.asarray(error <= 1e-9 * np.abs(slope))

        slope, error = self._refine(estimate)
        return slope, error

    def _refine(self, estimate: Callable[[_Inversion, int], tuple[FloatArray, NDArray[np.bool_]]]) -> FloatArray:
        """Double the nodes of the problems whose two sums still differ; estimates have shape (..., batch)."""
        out, good = estimate(self, _FIRST_NODES)
        todo, nodes = np.flatnonzero(~good), 2 * _FIRST_NODES
        while todo.size and nodes <= _MOST_NODES:
            out[..., todo], good = estimate(self._subset(todo), nodes)
            todo, nodes = todo[~good], 2 * nodes
        return out

    def _subset(self, index: NDArray[np.intp]) -> _Inversion:
        part = object.__new__(_Inversion)
        part.poles = self.poles
        for name in (
            "a",
            "half",
            "variance",
            "drift",
            "top",
            "wall",
            "centre",
            "scale",
            "peak",
            "bend",
            "reach",
            "usable",
            "sure",
        ):
            setattr(part, name, getattr(self, name)[index])
        return part

    def _saddle(self) -> tuple[FloatArray, FloatArray]:
        """Saddle point on the positive half-axis, and the scale of the integrand there."""
        pole = 1.0 if self.poles else 0.0
        gain, loss = np.maximum(self.drift, 0.0), np.maximum(-self.drift, 0.0)
        spread = (self.half * self.a**2).sum(-1) + self.variance
        # s = 1/(wall + e^-v): v runs over the reals. With the positive and negative terms of s psi'(s) apart,
        # ln(positive) - ln(negative) is nearly linear in v, which is what makes Newton's steps safe.
        root = np.sqrt(self.drift**2 + 6 * pole * spread)
        start = np.where(self.drift > 0, 3 / (self.drift + root), (root + loss) / np.maximum(2 * spread, 1e-300))
        start = np.clip(start, 1e-290, 1e290)
        v = np.log(np.minimum(start, 0.5 / np.maximum(self.wall, 1e-300)))
        # No closer to the wall than 1e-12 of it: nearer, 1 + s a is rounding error (and delta is 0 to any purpose).
        low, high = np.full_like(v, -690.0), np.minimum(690.0, 27.0 - np.log(self.wall))
        v = np.minimum(v, high)
        for _ in range(80):
            away = np.exp(-v)
            s = 1 / (self.wall + away)
            room = self._room(s, away)
            pull = (self.half * self.a**2 / room).sum(-1) + self.variance
            slope = -(self.half * self.a**3 / room**2).sum(-1)
            plus = gain * s + s * s * pull
            minus = pole * (1 + s / (1 + s)) + loss * s
            miss = np.log(plus / minus)
            rate = (gain + 2 * s * pull + s * s * slope) / plus - (pole / (1 + s) ** 2 + loss) / minus
            low, high = np.where(miss < 0, v, low), np.where(miss >= 0, v, high)
            ahead = v - miss / (s * s * away * rate)
            ahead = np.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
            done = np.abs(ahead - v) < 1e-3
            v = ahead
            if done.all():
                break
        away = np.exp(-v)
        s = 1 / (self.wall + away)
        curvature = (self.half * (self.a / self._room(s, away)) ** 2).sum(-1) + self.variance
        curvature += pole * (1 / s**2 + 1 / (1 + s) ** 2)
        return s, 1 / np.sqrt(curvature)

    def _room(self, s: FloatArray, away: FloatArray) -> FloatArray:
        """``1 + s a``, exact next to the wall."""
        at_wall = (self.a < 0) & (-self.a >= self.wall[:, None])
        return np.where(at_wall, (s * away)[:, None], 1 + s[:, None] * self.a)

    def _contour(self) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
        """Choose for each problem the bend that cancels least and turns slowest, and where to cut it."""
        sine, cosine = np.sin(_BENDS)[:, None], np.cos(_BENDS)[:, None]
        path = (1j * cosine * np.sinh(_PROBE) - sine * (np.cosh(_PROBE) - 1)).reshape(-1)
        speed = np.abs(cosine * np.cosh(_PROBE) + 1j * sine * np.sinh(_PROBE)).reshape(-1)
        s = self.centre[:, None] + self.scale[:, None] * path
        exponent = self.exponent(s)
        level = exponent.real - self.peak[:, None] + np.log(speed)
        if self.poles:
            level -= np.log(np.abs(s * (1 + s)) / (self.centre * (1 + self.centre))[:, None])
        shape = (self.centre.size, _BENDS.size, _PROBE.size)
        level = np.where(np.isnan(level), np.inf, level).reshape(shape)
        # A cut is allowed from the first probe after which the contour stays below the cut up to some probe
        # where the vertical line is below it too: Cauchy's theorem then closes the contour through negligible
        # values.
        below = level < -_CUT
        both = below & below[:, :1]
        index = np.arange(_PROBE.size)
        last = np.where(both.any(-1), _PROBE.size - 1 - both[..., ::-1].argmax(-1), 0)
        closed = both.any(-1)
        cut = _after_last(~below & (index <= last[..., None]))
        # A contour bent towards falling exp(s top), or any with a Gaussian part, decays all the way by
        # itself.
        own = (self.top[:, None] * np.sign(_BENDS) > 0) | (self.variance > 0)[:, None]
        own_cut = _after_last(~below)
        own &= own_cut < _PROBE.size
        cut = np.minimum(np.where(closed, cut, np.where(own, own_cut, _PROBE.size - 1)), _PROBE.size - 1)
        # Cost: the absolute integral (cancellation) times the nodes that resolve the phase where it still
        # matters.
        within = index <= cut[..., None]
        size = np.where(within, np.exp(np.minimum(level, 600.0)), 0.0).sum(-1)
        turn = np.abs(np.diff(exponent.imag.reshape(shape), axis=-1)) / _PROBE[1]
        turn = np.where(within[..., 1:] & (level[..., 1:] > -30) & np.isfinite(turn), turn, 0.0).max(-1)
        cost = np.where(closed | own, size * (6 + turn) * (1 + cut), np.inf)
        best = np.argmin(cost, axis=-1)
        which = np.arange(best.size)
        return _BENDS[best], _PROBE[cut[which, best]], np.isfinite(cost[which, best])

    def _terms(self, nodes: int) -> tuple[FloatArray, ComplexArray, ComplexArray, FloatArray]:
        """Step, points and terms of the trapezoid sum over exp(peak), and a bound on cut and rounding."""
        step = self.reach / nodes
        u = step[:, None] * np.arange(nodes + 1)
        sinh, cosh = np.sinh(u), np.cosh(u)
        sine, cosine = (self.scale * np.sin(self.bend))[:, None], (self.scale * np.cos(self.bend))[:, None]
        s = np.asarray(self.centre[:, None] + 1j * cosine * sinh - sine * (cosh - 1), dtype=np.complex128)
        exponent = self.exponent(s) - self.peak[:, None]
        factor = np.asarray((cosine * cosh + 1j * sine * sinh) / np.pi, dtype=np.complex128)
        if self.poles:
            factor = factor * ((self.centre * (1 + self.centre))[:, None] / (s * (1 + s)))
        value: ComplexArray = factor * np.exp(exponent)
        value[:, 0] /= 2
        size = np.abs(value)
        # Every term carries a few ulp of the parts of its exponent; what is cut off decays at least as e^-u.
        slack = 4 * _ULP * step * (size * (4 + np.abs(exponent) + np.abs(self.peak)[:, None])).sum(-1)
        return step, s, value, np.asarray(slack + 2 * size[:, -1], dtype=float)


def _after_last(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Index after the last true element along the last axis, 0 if there is none."""
    size = mask.shape[-1]
    return np.where(mask.any(-1), size - mask[..., ::-1].argmax(-1), 0)


def _log1pmx(values: ComplexArray | FloatArray) -> ComplexArray:
    """``log(1 + z) - z`` of each value, principal branch, with relative accuracy also for small values."""
    z: ComplexArray = np.asarray(values, dtype=np.complex128)
    small = np.abs(z) < 0.35
    if small.all():
        return _log1pmx_series(z)
    out = np.log(1 + z) - z
    if small.any():
        out[small] = _log1pmx_series(z[small])
    return out


def _log1pmx_series(z: ComplexArray) -> ComplexArray:
    """``2 artanh(w) - z`` with ``w = z/(2+z)``, whose first term is ``-z w``."""
    w = z / (2 + z)
    square = w * w
    tail = np.full_like(w, _SERIES[0])
    for coefficient in _SERIES[1:]:
        tail = tail * square + coefficient
    return 2 * w * square * tail - z * w
