"""What was released, as a frozen record that answers what it costs."""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from dpagg.accounting.divergence import FloatArray, log_divergence

PrivacyLossDistribution: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution

_LARGEST_EPSILON = 1e15
_PLD_TAIL = 1e-22  # delta beyond which a privacy-loss distribution keeps its mass at infinity
_PLD_CHANGE = 0.04  # change of ln delta from one support point of it to the next
_PLD_LARGEST_EPSILON = 300.0  # so that exp(epsilon) stays a number


class Event(abc.ABC):
    """One release, or several, with its exact privacy curve.

    Subclasses are frozen keyword-only dataclasses and are never redefined: a changed meaning is a new class,
    so that old certificates keep theirs. Every number is rounded towards more privacy loss and holds for both
    directions of the class's adjacency.
    """

    _kinds: ClassVar[dict[str, type[Event]]] = {}

    @property
    @abc.abstractmethod
    def adjacency(self) -> str:
        """Which pairs of data sets the guarantee is about."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__name__.startswith("_"):
            Event._kinds[cls.__name__] = cls

    @abc.abstractmethod
    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        """Certified ``ln delta`` of both directions (shape (2, k)) at epsilons >= 0, without failures.

        With adjacency ``zero_out_one_row`` the first direction is from the data set that has the row.
        """

    def _log_delta(self, epsilon: FloatArray) -> FloatArray:
        """Certified ``ln delta`` (shape (k,)) at epsilons >= 0, the larger of both directions."""
        return np.asarray(self._log_deltas(epsilon).max(0), dtype=float)

    def _log_delta_guess(self, epsilon: FloatArray) -> FloatArray:
        """Fast, nearly exact stand-in of ``_log_delta`` for searches."""
        return self._log_delta(epsilon)

    @property
    def _failure(self) -> float:
        """Chance that an assumption the curve rests on doesn't hold; added to delta."""
        return float(getattr(self, "failure_probability", 0.0))

    def delta(self, epsilon: float) -> float:
        """Return the least ``delta`` for which the release is (epsilon, delta)-private, rounded up.

        Parameters
        ----------
        epsilon
            Any real number; below zero the curve serves compositions.

        Raises
        ------
        ValueError
            If epsilon isn't a number.
        """
        return float(self.curve([epsilon])[0])

    def curve(self, epsilons: ArrayLike) -> FloatArray:
        """:meth:`delta` at many epsilons, float64, in the shape given."""
        asked = np.asarray(epsilons, dtype=float)
        if np.isnan(asked).any():
            raise ValueError("epsilon must be a number, not NaN")
        flat = asked.ravel()
        finite = np.isfinite(flat)
        out = np.ones(flat.shape)
        if (flat == np.inf).any():
            # The curve falls, so what is left at a large epsilon is an upper bound; exp(700) is still a number.
            far = float(np.exp(self._log_delta(np.array([700.0]))[0]))
            out[flat == np.inf] = far + self._failure
        if finite.any():
            folded = np.abs(flat[finite])
            value = np.minimum(np.exp(self._log_delta(folded)) + self._failure, 1.0)
            # delta_PQ(-e) = 1 - exp(-e) + exp(-e) delta_QP(e), and both directions are in `value`.
            out[finite] = np.where(flat[finite] < 0, -np.expm1(-folded) + np.exp(-folded) * value, value)
        return np.minimum(out, 1.0).reshape(asked.shape)

    def epsilon(self, delta: float) -> float:
        """Return the least ``epsilon >= 0`` with ``self.delta(epsilon) <= delta``, rounded up.

        Parameters
        ----------
        delta
            In ``[0, 1]``.

        Returns
        -------
        float
            ``inf`` if no epsilon serves.

        Raises
        ------
        ValueError
            If delta lies outside ``[0, 1]``.
        """
        if not 0 <= delta <= 1:
            raise ValueError(f"delta must lie in [0, 1], got {delta}")
        if self.delta(0.0) <= delta:
            return 0.0
        if delta <= self._failure or delta == 0:
            return math.inf
        target = math.log(delta)

        def gap(epsilon: float) -> float:
            at = np.array([epsilon])
            return math.log(max(math.exp(self._log_delta_guess(at)[0]) + self._failure, 1e-320)) - target

        low, high = 0.0, 1.0
        while gap(high) > 0:
            low, high = high, 4 * high
            if high > _LARGEST_EPSILON:
                return math.inf
        found = low if gap(low) <= 0 else optimize.brentq(gap, low, high, xtol=1e-14, rtol=1e-14)
        return self._verified(float(found), delta)

    def _verified(self, found: float, delta: float) -> float:
        """Raise ``found`` until the certified delta is met; never by more than needed (1e-11 relative)."""
        below, above, step = None, found, 1e-14 * (1 + found)
        while self.delta(above) > delta:
            below, above, step = above, found + step, 8 * step
            if step > _LARGEST_EPSILON:
                return math.inf
        while below is not None and above - below > 1e-11 * (1 + found):
            middle = (above + below) / 2
            if self.delta(middle) <= delta:
                above = middle
            else:
                below = middle
        return above

    def to_pld(self, *, discretization: float | None = None) -> PrivacyLossDistribution:
        """Return a pessimistic privacy-loss distribution for ``dp_accounting``, from exact deltas.

        Built by connect-the-dots (Doroshenko et al. 2022) on unevenly spaced multiples of the spacing. With
        adjacency ``zero_out_one_row`` REMOVE has the row under its first distribution; otherwise one curve
        bounds both directions, because a neighbour may take either of them in each release.

        Parameters
        ----------
        discretization
            Spacing of the lattice of losses; by default a 20000th of their range. They compose only on
            equal lattices.

        Raises
        ------
        ValueError
            If ``discretization`` isn't positive.
        """
        reach = self._loss_range()
        spacing = reach / 20000 if discretization is None else discretization
        require(spacing > 0, f"discretization must be positive, got {discretization}")
        steps, losses = self._support(reach, spacing)
        if self.adjacency == "zero_out_one_row":
            first, second = np.exp(self._log_deltas(losses)) + self._failure
        else:
            first = second = np.exp(self._log_delta(losses)) + self._failure
        return privacy_loss_distribution.PrivacyLossDistribution(*_mass_functions(steps, spacing, first, second))

    def _directed_pld(self, spacing: float) -> PrivacyLossDistribution:
        """Both directions as REMOVE and ADD, without the failure probability."""
        steps, losses = self._support(self._loss_range(), spacing)
        first, second = np.exp(self._log_deltas(losses))
        return privacy_loss_distribution.PrivacyLossDistribution(*_mass_functions(steps, spacing, first, second))

    def _loss_range(self) -> float:
        """Epsilon beyond which next to no delta is left."""
        high = 1e-9
        floor = math.log(_PLD_TAIL)
        while high < _PLD_LARGEST_EPSILON:
            if self._log_delta_guess(np.array([high]))[0] <= floor:
                return high
            high *= 1.25
        return _PLD_LARGEST_EPSILON

    def _support(self, reach: float, spacing: float) -> tuple[NDArray[np.int64], FloatArray]:
        """Whole numbers and their multiples of ``spacing``, from 0 past ``reach``, dense where delta bends.

        Between two points the curve is replaced by a chord, whose relative error is about an eighth of the
        square of the change of ``ln delta`` between them.
        """
        probe = reach * np.concatenate([[0.0], np.geomspace(1e-5, 1.0, 80)])
        value = np.maximum(self._log_delta_guess(probe), math.log(_PLD_TAIL))
        # The change of 1 - delta counts too where delta is close to 1.
        change = np.abs(np.diff(value)) + np.abs(np.diff(np.exp(value)))
        rate = change / _PLD_CHANGE + np.diff(probe) / reach * 100
        count = np.concatenate([[0.0], np.cumsum(rate)])
        wanted = np.interp(np.arange(0.0, count[-1] + 1), count, probe)
        last = max(1, math.ceil(reach / spacing))
        steps = np.unique(np.minimum(np.round(wanted / spacing).astype(np.int64), last))
        steps = np.unique(np.concatenate([[0], steps, [last]]))
        return steps, np.asarray(steps * spacing, dtype=float)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values: ``event`` (the class) and its parameters."""
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {"event": type(self).__name__, **{name: _plain(getattr(self, name)) for name in names}}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the event that :meth:`to_dict` wrote.

        Raises
        ------
        ValueError
            If the class is unknown or isn't ``cls``, or a parameter is unknown, missing or out of range.
        """
        kind = Event._kinds.get(str(values.get("event")))
        if kind is None or not issubclass(kind, cls):
            raise ValueError(f"unknown event {values.get('event')!r}; known: {', '.join(sorted(Event._kinds))}")
        arguments = {name: kind._revive(value) for name, value in values.items() if name != "event"}
        try:
            return kind(**arguments)
        except TypeError as error:
            raise ValueError(f"{kind.__name__}: {error}") from error

    @classmethod
    def _revive(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pair:
    """One pair of :mod:`dpagg.accounting.divergence`, a value a part, beside a shift ``mu``."""

    rows: tuple[float, ...]
    excess: tuple[float, ...]
    inverse_excess: tuple[float, ...]
    mu: float


class _PairEvent(Event):
    """An event whose worst case is a single pair for every epsilon."""

    @abc.abstractmethod
    def _pair(self) -> Pair:
        """Return the pair that dominates the release; ``P`` is its first direction."""

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        pair = self._pair()
        if not all(map(math.isfinite, (*pair.excess, *pair.inverse_excess, pair.mu))):
            return np.zeros((2, epsilon.size))
        up, down = np.array(pair.excess), np.array(pair.inverse_excess)
        return log_divergence(
            epsilon,
            rows=pair.rows,
            excess=np.stack([up, down])[:, None],
            inverse_excess=np.stack([down, up])[:, None],
            mu=pair.mu,
        )


def require(condition: bool, message: str) -> None:
    """Raise ``ValueError(message)`` unless the condition holds."""
    if not condition:
        raise ValueError(message)


def require_count(name: str, value: int) -> None:
    """Refuse anything that isn't a whole number of at least 1."""
    require(isinstance(value, int | np.integer) and not isinstance(value, bool) and value >= 1,
            f"{name} must be a whole number of at least 1, got {value!r}")  # fmt: skip


def require_nonnegative(**values: float) -> None:
    """Refuse negative or infinite numbers and NaN."""
    for name, value in values.items():
        require(
            math.isfinite(value) and value >= 0,
            f"{name} must be a finite number of at least 0, got {value!r}",
        )


def require_probability(**values: float) -> None:
    """Refuse numbers outside ``[0, 1)``."""
    for name, value in values.items():
        require(0 <= value < 1, f"{name} must lie in [0, 1), got {value!r}")


def _plain(value: Any) -> Any:
    if isinstance(value, Event):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _mass_functions(
    steps: NDArray[np.int64], spacing: float, first: FloatArray, second: FloatArray
) -> list[pld_pmf.PLDPmf]:
    """Connect-the-dots of both directions from their deltas at ``steps * spacing >= 0``."""
    out = []
    for here, there in ((first, second), (second, first)):
        mirrored = -steps[:0:-1]
        # delta_PQ(-e) = 1 - exp(-e) + exp(-e) delta_QP(e).
        negative = -np.expm1(mirrored * spacing) + np.exp(mirrored * spacing) * there[:0:-1]
        support = np.concatenate([mirrored, steps])
        deltas = np.minimum(np.concatenate([negative, here]), 1.0)
        deltas = _convex(support * spacing, np.maximum.accumulate(deltas[::-1])[::-1])
        out.append(pld_pmf.create_pmf_pessimistic_connect_dots(spacing, support, deltas))
    return out


def _convex(epsilon: FloatArray, delta: FloatArray) -> FloatArray:
    """Lower convex envelope in ``exp(epsilon)``; a true curve is convex there, so that it lies below too."""
    x = np.exp(epsilon)
    hull: list[int] = []
    for i in range(x.size):
        while len(hull) > 1 and _above(x, delta, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
    kept: NDArray[np.intp] = np.array(hull)
    out = np.interp(x, x[kept], delta[kept])
    out[kept] = delta[kept]
    return out


def _above(x: FloatArray, y: FloatArray, first: int, middle: int, last: int) -> bool:
    left = (y[middle] - y[first]) / (x[middle] - x[first])
    right = (y[last] - y[middle]) / (x[last] - x[middle])
    return bool(left > right)
