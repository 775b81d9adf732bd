"""Privacy curves as short tables, and the composition of a thousand of them in less than a second.

A table states upper bounds of delta at epsilons 0, step, 2 step, ... for both directions. The chords between them,
linear in exp(epsilon), bound the curve from above, because a curve is convex there; they are the curve of a pair of
discrete distributions, whose privacy losses compose by convolution (connect-the-dots: Doroshenko et al. 2022; Sommer et
al. 2019). A table is computed once, when its release is charged, and kept beside the event: certified curves of a
thousand mechanisms take minutes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import optimize

from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import Event, _PairEvent, require
from dpagg.accounting.gaussian_release import GaussianRelease

_STEPS = 128
_TAIL = 1e-18  # delta at which a table ends; it stays as a mass of infinite loss
_DIGITS = 7  # of a stored number, rounded up
_LATTICE = 0.08  # spacing of the common lattice, of the root mean square loss of a release
_HALF_WIDTH = 40.0  # logarithm of the tilted mass that may lie outside the lattice, with opposite sign
_LARGEST_LATTICE = 1 << 21
_LARGEST_TILT = 1e6


@dataclass(frozen=True)
class CurveTable:
    """Upper bounds of delta on equally spaced epsilons, for both directions and with failures.

    Parameters
    ----------
    step : float
        Spacing of the epsilons, positive.
    deltas : tuple of float
        At ``0, step, 2 step, ...``; at least 2, falling, in [0, 1]. Beyond the last one delta stays as it is.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    step: float
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        require(0 < self.step < math.inf, f"step must be positive, got {self.step}")
        values = np.asarray(self.deltas, dtype=float)
        require(values.ndim == 1 and values.size > 1, "a table needs at least two deltas")
        require(
            bool(np.all((values >= 0) & (values <= 1)) and np.all(np.diff(values) <= 0)), "deltas must fall in [0, 1]"
        )

    @classmethod
    def of(cls, event: Event) -> CurveTable:
        """Tabulate the certified curve of an event, rounded up."""
        reach = _reach(event)
        step = float(f"{reach / _STEPS:.6g}")
        up = np.array([_rounded_up(float(value)) for value in event.curve(step * np.arange(_STEPS + 1))])
        # The bounds may rise by rounding; the largest one to the right is a bound too.
        falling = np.maximum.accumulate(np.minimum(up, 1.0)[::-1])[::-1]
        return cls(step, tuple(map(float, falling)))

    def delta(self, epsilon: float) -> float:
        """Return the bound of delta at an epsilon of at least 0."""
        return float(np.interp(math.exp(min(epsilon, 700.0)), *self._chords))

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 at which the bound is at most `delta`; inf if there is none."""
        x, bound = self._chords
        if bound[-1] > delta:
            return math.inf
        if bound[0] <= delta:
            return 0.0
        last = int(np.flatnonzero(bound > delta)[-1])
        share = (bound[last] - delta) / (bound[last] - bound[last + 1])
        return float(math.log(x[last] + share * (x[last + 1] - x[last])) * (1 + 1e-12))

    @functools.cached_property
    def _chords(self) -> tuple[FloatArray, FloatArray]:
        """Lower convex envelope, at exp(epsilon): the true curve is convex and under the points, so under it too."""
        x = np.exp(np.minimum(self.step * np.arange(len(self.deltas)), 700.0))
        y = np.asarray(self.deltas, dtype=float)
        hull: list[int] = []
        for i in range(x.size):
            while len(hull) > 1 and _slope(x, y, hull[-2], hull[-1]) > _slope(x, y, hull[-1], i):
                hull.pop()
            hull.append(i)
        return x[hull], y[hull]

    @functools.cached_property
    def _masses(self) -> tuple[FloatArray, FloatArray, float]:
        """Positive losses, their probabilities, and the probability of an infinite loss.

        The curve of both directions is one, so a loss of -l has exp(-l) times the probability of l, and what is left
        is at 0.
        """
        x, y = self._chords
        slopes = np.append(np.diff(y) / np.diff(x), 0.0)
        losses = np.log(x)
        return losses[1:], np.maximum(x[1:] * np.diff(slopes), 0.0), float(y[-1])


class Curve(Protocol):
    """What is asked of several releases together."""

    def delta(self, epsilon: float) -> float:
        """Return the least delta for an epsilon, rounded up."""

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 for a delta, rounded up; inf if there is none."""


def composed(events: Sequence[Event], tables: Sequence[CurveTable], delta: float) -> Curve:
    """Return the curve of releases on the same rows: exact for one, and for Gaussian ones; else from their tables.

    Raises
    ------
    ValueError
        As `ComposedCurve`.
    """
    if len(events) == 1:
        return events[0]
    shifts = [_gaussian_shift(event) for event in events]
    known = [shift for shift in shifts if shift is not None]
    if events and len(known) == len(shifts):
        return GaussianRelease(mu=math.hypot(*known))
    return ComposedCurve(tables, delta)


def _gaussian_shift(event: Event) -> float | None:
    """Sensitivity over standard deviation of an event that is a Gaussian release and nothing else."""
    if not isinstance(event, _PairEvent) or event._failure > 0:
        return None
    pair = event._pair()
    is_plain = not any(pair.excess) and not any(pair.inverse_excess) and math.isfinite(pair.mu)
    return pair.mu if is_plain else None


class ComposedCurve:
    """Releases on the same rows, later ones chosen by what came out before, from their tables.

    Only *which values are released* may depend on earlier outputs, as in `dpagg.accounting.Composition`. Losses are
    moved to a common lattice so that both sums of a chord stay (which only raises the curve), tilted towards the delta
    that is asked for, and convolved by FFT: the error of the convolution is then relative to that delta. It, and what
    lies outside of the lattice, are bounded and added.

    Parameters
    ----------
    tables : sequence of CurveTable
        At least one, of any adjacency that they share.
    delta : float
        Where the curve has to be accurate, in (0, 1).

    Raises
    ------
    ValueError
        If there is no table or delta is out of range.
    """

    def __init__(self, tables: Sequence[CurveTable], delta: float) -> None:
        require(len(tables) > 0, "a composition needs at least one table")
        require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
        self._infinite = min(1.0, math.fsum(table._masses[2] for table in tables))
        self._spread = _Spread(tables)
        self._target = delta
        if self._spread.is_trivial or self._infinite >= 1:
            self._losses = np.zeros(0)
            return
        self._tilt = self._spread.tilt(delta)
        self._cumulant = self._spread.cumulant(self._tilt)
        self._losses, self._tilted, self._error = self._spread.convolved(self._tilt)

    def delta(self, epsilon: float) -> float:
        """Return an upper bound of delta at an epsilon of at least 0."""
        if self._infinite >= 1:
            return 1.0
        if not self._losses.size:
            return self._infinite
        above = self._losses > epsilon
        losses = self._losses[above]
        terms = self._tilted[above] * np.exp(self._cumulant - self._tilt * losses) * -np.expm1(epsilon - losses)
        bound = self._error * math.exp(min(700.0, self._cumulant - self._tilt * epsilon))
        return min(1.0, self._infinite + (float(terms.sum()) + bound) * (1 + 1e-12))

    def epsilon(self, delta: float) -> float:
        """Return an epsilon >= 0 with ``self.delta(epsilon) <= delta``, the least to 1e-9; inf if there is none."""
        if self.delta(0.0) <= delta:
            return 0.0
        if not self._losses.size or self._infinite >= delta:
            return math.inf
        high = float(self._losses[-1])
        if self.delta(high) > delta:
            return math.inf
        found = float(optimize.brentq(lambda e: self.delta(e) - delta, 0.0, high, xtol=1e-12, rtol=1e-12))
        while self.delta(found) > delta:
            found += 1e-10 * (1 + found)
        return found


class _Spread:
    """Tables on one lattice: whole multiples of the spacing and probabilities, flat, a table after the other."""

    def __init__(self, tables: Sequence[CurveTable]) -> None:
        losses = np.concatenate([table._masses[0] for table in tables])
        mass = np.concatenate([table._masses[1] for table in tables])
        owner = np.repeat(np.arange(len(tables)), [table._masses[0].size for table in tables])
        variance = float(np.sum(mass * losses**2 * (1 + np.exp(-losses))))
        self.count = len(tables)
        self.is_trivial = not variance > 0
        if self.is_trivial:
            return
        self.spacing = _LATTICE * math.sqrt(variance / self.count)
        low = np.floor(losses / self.spacing)
        # Keeps probability and exp(-loss) times it, hence both sums of the chord.
        share = np.expm1(-(losses - low * self.spacing)) / math.expm1(-self.spacing)
        step = np.concatenate([low, low + 1])
        mass = np.concatenate([mass * (1 - share), mass * share])
        owner = np.tile(owner, 2)
        self.steps = np.concatenate([step, -step]).astype(np.int64)
        self.mass = np.concatenate([mass, mass * np.exp(-step * self.spacing)])
        self.owner = np.tile(owner, 2)
        total = np.bincount(self.owner, self.mass, self.count)
        infinite = np.array([table._masses[2] for table in tables])
        self.steps = np.concatenate([self.steps, np.zeros(self.count, dtype=np.int64)])
        self.mass = np.concatenate([self.mass, np.maximum(1 - infinite - total, 0.0)])
        self.owner = np.concatenate([self.owner, np.arange(self.count)])

    def cumulant(self, tilt: float) -> float:
        """Logarithm of the mean of exp(tilt * total loss)."""
        exponent = np.asarray(tilt * self.spacing * self.steps, dtype=float)
        top = self._largest(exponent)
        weighted = self.mass * np.exp(np.minimum(exponent - top[self.owner], 600.0))
        return float(np.sum(np.log(np.bincount(self.owner, weighted, self.count)) + top))

    def _largest(self, exponent: FloatArray) -> FloatArray:
        """Largest exponent of each table where exp might be no number, else 0."""
        top = np.zeros(self.count)
        if float(np.abs(exponent).max()) > 600.0:
            top[:] = -np.inf
            np.maximum.at(top, self.owner[self.mass > 0], exponent[self.mass > 0])
        return top

    def tilt(self, delta: float) -> float:
        """Return the tilt under which a loss with about that delta is an ordinary one."""

        def reached(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            value = (self.cumulant(tilt) - math.log(delta)) / tilt
            return value if math.isfinite(value) else 1e300

        widest = math.log(_LARGEST_TILT)
        found = optimize.minimize_scalar(reached, bounds=(-7.0, widest), method="bounded", options={"xatol": 1e-3})
        return math.exp(float(found.x))

    def convolved(self, tilt: float) -> tuple[FloatArray, FloatArray, float]:
        """Return losses, the tilted distribution of their sum, and a bound of its error, whatever of it is summed."""
        exponent = np.asarray(tilt * self.spacing * self.steps, dtype=float)
        weighted = self.mass * np.exp(np.minimum(exponent - self._largest(exponent)[self.owner], 600.0))
        weighted /= np.bincount(self.owner, weighted, self.count)[self.owner]
        mean = float(np.sum(weighted * self.steps)) * self.spacing
        high, low = (self._edge(tilt, mean, side) for side in (1.0, -1.0))
        first = math.floor((mean - low) / self.spacing)
        size = min(_LARGEST_LATTICE, 1 << math.ceil(math.log2((high + low) / self.spacing + 2)))
        outside = 2 * math.exp(-_HALF_WIDTH) if (high + low) / self.spacing + 2 <= size else 1.0
        spectrum = np.ones(size // 2 + 1, dtype=complex)
        for part in np.array_split(np.arange(self.count), math.ceil(self.count * size / 4e6)):
            chosen = (self.owner >= part[0]) & (self.owner <= part[-1])
            # A circle: what is outside of the lattice comes back in, and is in the bound.
            place = (self.owner[chosen] - part[0]) * size + self.steps[chosen] % size
            dense = np.bincount(place, weighted[chosen], part.size * size).reshape(part.size, size)
            spectrum *= np.prod(np.fft.rfft(dense, axis=1), axis=0)
        circle = np.fft.irfft(spectrum, size)
        losses = self.spacing * (first + np.arange(size))
        tilted = np.maximum(circle[(first + np.arange(size)) % size], 0.0)
        # Each factor of the spectrum is off by a few units in the last place times the depth of the transform.
        off = np.finfo(float).eps * (8 * self.count + 16 * math.log2(size)) * float(np.mean(np.abs(spectrum)))
        fading = -math.expm1(-tilt * self.spacing)
        return (
            np.asarray(losses, dtype=float),
            np.asarray(tilted, dtype=float),
            outside + float(off * min(size, 1 / fading)),
        )

    def _edge(self, tilt: float, mean: float, side: float) -> float:
        """Distance from the mean beyond which the tilted sum lies with a chance below exp(-_HALF_WIDTH) (Chernoff)."""
        here = self.cumulant(tilt)

        def needed(log_step: float) -> float:
            step = math.exp(log_step)
            value = (self.cumulant(tilt + side * step) - here + _HALF_WIDTH) / step - side * mean
            return value if math.isfinite(value) else 1e300

        found = optimize.minimize_scalar(needed, bounds=(-7.0, math.log(_LARGEST_TILT)), method="bounded")
        return max(float(found.fun), self.spacing)


def _slope(x: FloatArray, y: FloatArray, first: int, second: int) -> float:
    return float((y[second] - y[first]) / (x[second] - x[first]))


def _reach(event: Event) -> float:
    """Epsilon at which the curve without failures has come down to `_TAIL`; at most 300."""
    low, high = 0.0, 1e-6
    while high < 300.0 and not _is_low(event, high):
        low, high = high, 2 * high
    if high >= 300.0:
        return 300.0
    for _ in range(6):
        middle = (low + high) / 2
        low, high = (low, middle) if _is_low(event, middle) else (middle, high)
    return high


def _is_low(event: Event, epsilon: float) -> bool:
    return bool(event._log_delta_guess(np.array([epsilon]))[0] <= math.log(_TAIL))


def _rounded_up(value: float) -> float:
    if value <= 0:
        return 0.0
    short = float(f"{value:.{_DIGITS - 1}e}")
    return short if short >= value else float(f"{value * (1 + 10.0 ** (1 - _DIGITS)):.{_DIGITS - 1}e}")
