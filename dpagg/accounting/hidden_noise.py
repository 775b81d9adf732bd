"""WTD-FLAG with label noise of a level that nobody knows: what the level hides need not be paid bag by bag.

m bags show the variance r^2 + tau^2 of their labels about the plane to a relative error of sqrt(2 / m), so with a
known tau^2 the change of r^2 decides the noise as soon as m is large. Here tau^2 is drawn once, from a normal with mean
c and standard deviation v that is kept only if it is at least F. Let S = r^2 + tau^2.

Give S itself to the attacker, which can only help. Between neighbours S is a normal moved by at most G, the largest
change of r^2, so it is a Gaussian release with mu = G / v. Given the same S, labels have the same variance in both
worlds and only the conditional mean differs: section 0 with rho = 1 and q <= D^2 h / F, since S >= F. The kept part of
the normal has probability Z, the same in both worlds, and every likelihood ratio inside both supports is that of the
whole normals; an S that only one world can produce has tau^2 < F + G there. Hence

    delta(eps) <= delta_[mu, q](eps) / Z + P(tau^2 < F + G | kept),

which is what `failure_probability` adds up to. Noise of mean c = F + G + z v costs accuracy as F alone does, F being
what the best additive-noise mechanism needs, and G + z v does not grow with m.
"""

from __future__ import annotations

import abc
import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import optimize, stats

from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import require, require_count, require_nonnegative
from dpagg.accounting.label_change import LabelChange, _LabelEvent
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation, label_change

# Share of delta for the chance that the level comes out at the edge. Its logarithm decides z only.
_FAILURE_SHARE = 0.01
# Shares of mu^2, of the largest Gaussian release within the target, between which the level's part is sought.
_SMALLEST_SHARE, _LARGEST_SHARE = 1e-5, 0.9


@dataclass(frozen=True, kw_only=True)
class _HiddenNoise(_LabelEvent):
    """A label mechanism over all rows with label noise of a hidden level; see the module."""

    num_bags: int
    label_range: float
    noise_floor: float
    noise_mean: float
    noise_std: float
    gaussian_mu: float = 0.0

    def __post_init__(self) -> None:
        require_count("num_bags", self.num_bags)
        require_nonnegative(label_range=self.label_range, noise_floor=self.noise_floor, gaussian_mu=self.gaussian_mu)
        require(
            self.noise_floor > 0 and self.noise_std > 0, "noise_floor and noise_std must be positive: use a known level"
        )
        require(self.noise_floor <= self.noise_mean < math.inf, "noise_mean must be finite and over the floor")

    @abc.abstractmethod
    def _at_floor(self) -> WeightedAggregation | UserAggregation:
        """The same mechanism with a known level, the floor."""

    @property
    def label_noise_variance(self) -> float:
        """Mean of the level before the floor, squared units of the label."""
        return self.noise_mean

    @functools.cached_property
    def _known(self) -> LabelChange:
        return self._at_floor()._change

    @property
    def growth(self) -> float:
        """G, the largest change of the residual sum of squares."""
        return self._known.spread * self.noise_floor

    @property
    def failure_probability(self) -> float:
        """Chance of a level that only one neighbour can have, and of the part of the normal that is not kept."""
        if self.label_range == 0:
            return 0.0
        kept = float(stats.norm.sf((self.noise_floor - self.noise_mean) / self.noise_std))
        edge = float(stats.norm.cdf((self.noise_floor + self.growth - self.noise_mean) / self.noise_std))
        return min(1.0, (edge + float(stats.norm.cdf((self.noise_floor - self.noise_mean) / self.noise_std))) / kept)

    @functools.cached_property
    def _change(self) -> LabelChange:
        mu = math.hypot(self.growth / self.noise_std, self.gaussian_mu)
        return LabelChange(rows=self.num_bags, spread=0.0, shift=self._known.shift, mu=mu)


@dataclass(frozen=True, kw_only=True)
class HiddenNoiseAggregation(_HiddenNoise):
    """``num_bags`` sums ``(X^T w, y^T w + tau z)`` with weights ``w ~ N(0, I)`` and a level tau^2 nobody knows.

    Guarantee: one label changes by at most ``label_range`` (adjacency ``change_one_label``); features, rows and their
    number are public; nothing is assumed about labels. Source: this module, on top of *Label Differential Privacy via
    Aggregation* (2023, arXiv 2310.10092).

    Parameters
    ----------
    num_bags, label_range, leverage, residual_bound, gaussian_mu
        As in :class:`WeightedAggregation`.
    noise_mean, noise_std, noise_floor
        The level is drawn from ``N(noise_mean, noise_std^2)`` until it is at least ``noise_floor``; squared units of
        the label. The level itself is never released.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_label"

    leverage: float | tuple[float, ...] | FloatArray
    residual_bound: float | tuple[float, ...] | FloatArray

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self._at_floor()
        object.__setattr__(self, "leverage", plain.leverage)
        object.__setattr__(self, "residual_bound", plain.residual_bound)

    def _at_floor(self) -> WeightedAggregation:
        return WeightedAggregation(
            num_bags=self.num_bags,
            label_range=self.label_range,
            leverage=self.leverage,
            residual_floor=0.0,
            residual_bound=self.residual_bound,
            label_noise_variance=self.noise_floor,
        )


@dataclass(frozen=True, kw_only=True)
class HiddenNoiseUserAggregation(_HiddenNoise):
    """:class:`HiddenNoiseAggregation` with all labels of one user as the unit (``change_one_user_labels``).

    Parameters
    ----------
    max_rows, leverage, residual_bound
        As in :class:`UserAggregation`; the others as in :class:`HiddenNoiseAggregation`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_user_labels"

    max_rows: int
    leverage: float
    residual_bound: float

    def _at_floor(self) -> UserAggregation:
        return UserAggregation(
            num_bags=self.num_bags,
            label_range=self.label_range,
            max_rows=self.max_rows,
            leverage=self.leverage,
            residual_floor=0.0,
            residual_bound=self.residual_bound,
            label_noise_variance=self.noise_floor,
        )


def can_hide(event: WeightedAggregation | UserAggregation) -> bool:
    """Return whether a hidden level has anything to hide: both the residual sum and the mean may move."""
    unit = _unit_change(event)
    return unit.spread > 0 and unit.shift > 0


def with_hidden_noise(
    event: WeightedAggregation | UserAggregation, *, epsilon: float, delta: float
) -> HiddenNoiseAggregation | HiddenNoiseUserAggregation:
    """Return the event with label noise of a hidden level: the least mean level found, rounded up.

    Parameters
    ----------
    event
        Without floor, noise or failure probability.
    epsilon, delta
        Target.

    Returns
    -------
    HiddenNoiseAggregation or HiddenNoiseUserAggregation
        ``delta(epsilon) <= delta`` has been checked.

    Raises
    ------
    ValueError
        If the target is out of range or cannot be reached, or the event has a floor or noise already.
    """
    require(
        event.residual_floor == 0 and event.label_noise_variance == 0 and event.failure_probability == 0,
        "the event must have no floor, noise or failure probability of its own",
    )
    require(can_hide(event), "a level hides nothing where residuals, or means, can't move: use a known level")
    unit = _unit_change(event)
    z = float(stats.norm.isf(_FAILURE_SHARE * delta / 2.5))
    budget = delta * (1 - _FAILURE_SHARE)
    most = largest_gaussian_mu(epsilon=epsilon, delta=budget)
    require(event.gaussian_mu < most, "what is released beside the bags overspends alone")
    at, target = np.array([epsilon]), math.log(budget)
    start = math.log(event.num_bags * unit.shift / most**2)

    def floor(mu: float) -> float:
        beside = math.hypot(mu, event.gaussian_mu)

        def gap(log_floor: float) -> float:
            shift = unit.shift / math.exp(log_floor)
            change = LabelChange(rows=event.num_bags, spread=0.0, shift=shift, mu=beside)
            return float(change.log_delta_at_corner(at)[0]) - target

        high = start
        while gap(high) > 0:
            high += 1.0
            require(high < start + 60, f"no label noise reaches epsilon {epsilon}, delta {delta}")
        low = high - 1.0
        while gap(low) <= 0:
            low -= 1.0
        return math.exp(float(optimize.brentq(gap, low, high, xtol=1e-10)))

    def mean(log_share: float) -> float:
        mu = math.sqrt(math.exp(log_share)) * math.sqrt(most**2 - event.gaussian_mu**2)
        return floor(mu) + unit.spread * (1 + z / mu)

    best = optimize.minimize_scalar(
        mean, bounds=(math.log(_SMALLEST_SHARE), math.log(_LARGEST_SHARE)), method="bounded", options={"xatol": 1e-2}
    )
    mu = math.sqrt(math.exp(float(best.x))) * math.sqrt(most**2 - event.gaussian_mu**2)
    return _certified(event, floor(mu), unit.spread, unit.spread / mu, z, epsilon, delta)


def _unit_change(event: WeightedAggregation | UserAggregation) -> LabelChange:
    """Energy D^2 h and growth G, as the bounds at a floor of 1."""
    if isinstance(event, UserAggregation):
        energy = event.max_rows * event.label_range**2 * min(event.leverage, 1.0)
        return LabelChange(rows=1, spread=2 * event.label_range * event.residual_bound, shift=energy)
    return label_change(
        rows=1, label_range=event.label_range, leverage=event.leverage, residual_bound=event.residual_bound, floor=1.0
    )


def _certified(
    event: WeightedAggregation | UserAggregation,
    floor: float,
    growth: float,
    std: float,
    z: float,
    epsilon: float,
    delta: float,
) -> HiddenNoiseAggregation | HiddenNoiseUserAggregation:
    """Raise the floor, and the mean with it, until the certified delta is met."""
    for step in range(60):
        raised = floor * (1.0 + (1e-12 * 4.0**step if step else 0.0))
        found: HiddenNoiseAggregation | HiddenNoiseUserAggregation
        if isinstance(event, UserAggregation):
            found = HiddenNoiseUserAggregation(
                num_bags=event.num_bags,
                label_range=event.label_range,
                max_rows=event.max_rows,
                leverage=event.leverage,
                residual_bound=event.residual_bound,
                noise_floor=raised,
                noise_mean=raised + growth + z * std,
                noise_std=std,
                gaussian_mu=event.gaussian_mu,
            )
        else:
            found = HiddenNoiseAggregation(
                num_bags=event.num_bags,
                label_range=event.label_range,
                leverage=event.leverage,
                residual_bound=event.residual_bound,
                noise_floor=raised,
                noise_mean=raised + growth + z * std,
                noise_std=std,
                gaussian_mu=event.gaussian_mu,
            )
        if found.delta(epsilon) <= delta:
            return found
    raise ValueError(f"no label noise reaches epsilon {epsilon}, delta {delta}")
