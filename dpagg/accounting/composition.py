"""Several releases about the same rows."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf

from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import Event, Pair, PrivacyLossDistribution, _PairEvent, require

_TRUNCATION = 1e-18  # tail mass that a composition may move to infinity
_FOURIER_NOISE = 1e-15  # absolute error of a convolution by FFT, added to delta
_MOST_MIXTURES = 64  # assignments of directions that are composed one by one
_LARGEST_SIZE = 1_000_000  # lattice points of the composed distribution
_HOPELESS = 300.0


@dataclass(frozen=True, kw_only=True)
class Composition(Event):
    """All of ``events``, run one after the other on the same rows, later ones chosen by what came out before.

    Only *which values are released* may depend on earlier outputs: the parameters of all events are fixed
    before (README, "Adaptive choices"). Events whose worst case is one pair compose exactly, as one pair with
    more parts; the others by privacy-loss distributions (Sommer et al. 2019; connect-the-dots, Doroshenko et
    al. 2022), rounded up. Where a neighbour may take either direction of an event, every assignment of
    directions is covered.

    Parameters
    ----------
    events
        The releases, with one adjacency; :class:`GaussianRelease` goes with any.

    Raises
    ------
    ValueError
        If there is no event, or adjacencies differ.
    """

    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", tuple(self.events))
        require(len(self.events) > 0, "a composition needs at least one event")
        require(all(isinstance(event, Event) for event in self.events), "events must be events")
        kinds = {event.adjacency for event in self.events} - {"any"}
        require(len(kinds) <= 1, f"events of different adjacency don't compose: {', '.join(sorted(kinds))}")

    @property
    def adjacency(self) -> str:
        """Adjacency that the events share."""
        return next((event.adjacency for event in self.events if event.adjacency != "any"), "any")

    @property
    def _failure(self) -> float:
        # On the event that no assumption fails, the product pair dominates; the rest has at most this chance.
        return min(1.0, sum(event._failure for event in self.events))

    @functools.cached_property
    def _flat(self) -> tuple[Event, ...]:
        inner = [e._flat if isinstance(e, Composition) else (e,) for e in self.events]
        return tuple(itertools.chain.from_iterable(inner))

    @functools.cached_property
    def _pairs(self) -> Pair | None:
        """All events with a single worst pair as one pair."""
        pairs = [event._pair() for event in self._flat if isinstance(event, _PairEvent)]
        if not pairs:
            return None
        return Pair(
            rows=tuple(itertools.chain.from_iterable(p.rows for p in pairs)),
            excess=tuple(itertools.chain.from_iterable(p.excess for p in pairs)),
            inverse_excess=tuple(itertools.chain.from_iterable(p.inverse_excess for p in pairs)),
            mu=math.hypot(*(p.mu for p in pairs)),
        )

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        others = [event for event in self._flat if not isinstance(event, _PairEvent)]
        if not others and self._pairs is not None:
            return _MergedPair(pair=self._pairs)._log_deltas(epsilon)
        if len(self._flat) == 1:
            return self._flat[0]._log_deltas(epsilon)
        if any(event._log_delta(np.array([_HOPELESS]))[0] > -1e-9 for event in self._flat):
            return np.zeros((2, epsilon.size))
        noise = _FOURIER_NOISE * len(self._flat)
        sides = [np.max([tail.delta(epsilon) for tail in tails], axis=0) for tails in self._tails]
        return np.asarray(np.log(np.minimum(np.stack(sides) + noise, 1.0)), dtype=float)

    @functools.cached_property
    def _tails(self) -> tuple[list[_Tail], list[_Tail]]:
        plds = self._distributions
        return [_Tail(pld._pmf_remove) for pld in plds], [_Tail(pld._pmf_add) for pld in plds]

    @functools.cached_property
    def _distributions(self) -> list[PrivacyLossDistribution]:
        """Privacy-loss distributions of the whole, one for each assignment of directions."""
        counts = Counter(event for event in self._flat if not isinstance(event, _PairEvent))
        pair = self._pairs
        parts: list[Event] = list(counts)
        fixed = [] if pair is None else [_MergedPair(pair=pair)]
        reaches = [event._loss_range() for event in (*parts, *fixed)]
        total = sum(reach * counts.get(event, 1) for event, reach in zip((*parts, *fixed), reaches, strict=True))
        spacing = max(min(reaches) / 20000, 2 * total / _LARGEST_SIZE)
        plds = [event._directed_pld(spacing) for event in parts]
        start = [event._directed_pld(spacing) for event in fixed]
        aligned = self.adjacency == "zero_out_one_row"
        mixtures = math.prod(count + 1 for count in counts.values())
        if not aligned and mixtures > _MOST_MIXTURES:
            # Too many assignments: one curve over both directions of each event covers them all.
            plds = [_Symmetric(event=event)._directed_pld(spacing) for event in parts]
            aligned = True
        ranges = [[count] if aligned else range(count + 1) for count in counts.values()]
        out = []
        for forward in itertools.product(*ranges):
            chain = list(start)
            for pld, times, count in zip(plds, forward, counts.values(), strict=True):
                swapped = type(pld)(pld._pmf_add, pld._pmf_remove)
                for side, repeat in ((pld, times), (swapped, count - times)):
                    if repeat:
                        chain.append(side if repeat == 1 else side.self_compose(repeat, _TRUNCATION))
            out.append(functools.reduce(lambda one, two: one.compose(two, _TRUNCATION), chain))
        return out

    @classmethod
    def _revive(cls, value: Any) -> Any:
        if isinstance(value, list):
            return tuple(Event.from_dict(item) if isinstance(item, Mapping) else item for item in value)
        return value


class _Tail:
    """Positive losses of a discrete privacy-loss distribution, summed from above once for all epsilons."""

    def __init__(self, pmf: pld_pmf.PLDPmf) -> None:
        dense = pmf.to_dense_pmf()
        losses = (dense._lower_loss + np.arange(dense.size)) * dense._discretization
        kept = losses > 0
        self.losses = losses[kept]
        mass = np.maximum(dense._probs[kept], 0.0)
        self.beyond = dense._infinity_mass
        self.mass = _sums_from_above(mass)
        self.discounted = _sums_from_above(mass * np.exp(-self.losses))

    def delta(self, epsilon: FloatArray) -> FloatArray:
        """Return ``sum over losses above epsilon of p (1 - exp(epsilon - loss))`` for epsilon >= 0."""
        first = np.searchsorted(self.losses, epsilon, side="right")
        finite = self.mass[first] - np.exp(epsilon) * self.discounted[first]
        return np.asarray(np.where(self.mass[first] > 0, np.maximum(finite, 0.0), 0.0) + self.beyond, dtype=float)


def _sums_from_above(values: FloatArray) -> FloatArray:
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


@dataclass(frozen=True, kw_only=True)
class _MergedPair(_PairEvent):
    """Parts of several single-pair events as one."""

    pair: Pair

    @property
    def adjacency(self) -> str:
        return "any"

    def _pair(self) -> Pair:
        return self.pair


@dataclass(frozen=True, kw_only=True)
class _Symmetric(Event):
    """An event with the larger of its directions for both."""

    event: Event

    @property
    def adjacency(self) -> str:
        return self.event.adjacency

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        value = self.event._log_delta(epsilon)
        return np.stack([value, value])

    def _log_delta_guess(self, epsilon: FloatArray) -> FloatArray:
        return self.event._log_delta_guess(epsilon)
