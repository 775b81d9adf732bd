"""Least noise, most bags, least floor: searches whose answer is certified before it is returned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from dpagg.accounting.event import require, require_nonnegative
from dpagg.accounting.gaussian_release import GaussianRelease
from dpagg.accounting.hessian_mixing import HessianMixing
from dpagg.accounting.label_change import LabelChange
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation

_FAR = 1e300


def calibrate_label_noise(
    *,
    epsilon: float,
    delta: float,
    num_bags: int,
    label_range: float,
    leverage: ArrayLike,
    residual_bound: ArrayLike,
    residual_floor: float = 0.0,
    gaussian_mu: float = 0.0,
    failure_probability: float = 0.0,
) -> float:
    """Return the least label-noise variance with which WTD-FLAG is (epsilon, delta)-private, rounded up.

    Parameters
    ----------
    epsilon, delta
        Target; ``delta`` includes ``failure_probability``.
    num_bags, label_range, leverage, residual_bound, residual_floor, gaussian_mu, failure_probability
        As in :class:`WeightedAggregation`.

    Returns
    -------
    float
        Variance of the normal to add to the label of each bag, squared units of the label; 0 if none is
        needed. ``WeightedAggregation(..., label_noise_variance=answer).delta(epsilon) <= delta`` has been
        checked.

    Raises
    ------
    ValueError
        If the target is out of range, or no variance reaches it (the Gaussian release beside it, or the
        failure probability, overspends alone).
    """
    event = WeightedAggregation(
        num_bags=num_bags,
        label_range=label_range,
        leverage=np.asarray(leverage, dtype=float),
        residual_floor=residual_floor,
        residual_bound=np.asarray(residual_bound, dtype=float),
        gaussian_mu=gaussian_mu,
        failure_probability=failure_probability,
    )
    return with_least_label_noise(event, epsilon=epsilon, delta=delta).label_noise_variance


class _LabelEvent(Protocol):
    @property
    def label_noise_variance(self) -> float: ...


LabelEvent = TypeVar("LabelEvent", bound=_LabelEvent)


def with_least_label_noise(event: LabelEvent, *, epsilon: float, delta: float) -> LabelEvent:
    """Return the event with the least label noise that makes it (epsilon, delta)-private, rounded up.

    Parameters
    ----------
    event
        Of a label mechanism without label noise: one bag or many, one label or a user's.
    epsilon, delta
        Target; ``delta`` includes the event's failure probability.

    Returns
    -------
    Event
        Like `event`, with ``label_noise_variance`` set; ``delta(epsilon) <= delta`` has been checked.

    Raises
    ------
    ValueError
        If the target is out of range, or no variance reaches it (the Gaussian release beside it, or the failure
        probability, overspends alone).
    """
    _check_target(epsilon, delta)
    template: Any = event

    def noised(variance: float) -> Any:
        return dataclasses.replace(template, label_noise_variance=variance)

    if noised(0.0).delta(epsilon) <= delta:
        return cast(LabelEvent, noised(0.0))
    failure, mu = template.failure_probability, template.gaussian_mu
    target = math.log(delta - failure) if delta > failure else -math.inf
    at = np.array([epsilon])
    require(
        LabelChange(rows=1, spread=0, shift=0, mu=mu).log_delta(at)[0] < target,
        f"no label noise reaches epsilon {epsilon}, delta {delta}: what is released beside the bags overspends alone",
    )
    start = 2.0 * math.log(template.label_range)
    found = math.exp(_crossing(lambda v: float(noised(math.exp(v))._log_delta_guess(at)[0]) - target, start))
    if noised(found * (1 + 1e-6)).delta(epsilon) > delta:
        # The worst ratio isn't at the end of the curve: search on the certified value itself.
        found = math.exp(_crossing(lambda v: float(noised(math.exp(v))._log_delta(at)[0]) - target, start))
    variance = _raise_until(lambda grow: found * (1 + grow), lambda v: noised(v).delta(epsilon) <= delta)
    return cast(LabelEvent, noised(variance))


def calibrate_num_bags(
    *,
    epsilon: float,
    delta: float,
    label_range: float,
    leverage: ArrayLike,
    residual_floor: float,
    residual_bound: ArrayLike,
    label_noise_variance: float = 0.0,
    gaussian_mu: float = 0.0,
    failure_probability: float = 0.0,
    most: int = 10**12,
) -> int:
    """Return the largest number of bags with which WTD-FLAG is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta
        Target; ``delta`` includes ``failure_probability``.
    label_range, leverage, residual_floor, residual_bound, label_noise_variance, gaussian_mu,
    failure_probability
        As in :class:`WeightedAggregation`.
    most
        Largest answer.

    Returns
    -------
    int
        The number of bags, at most ``most``; 0 if not even one bag is allowed.

    Raises
    ------
    ValueError
        If the target is out of range.
    """
    event = WeightedAggregation(
        num_bags=1,
        label_range=label_range,
        leverage=np.asarray(leverage, dtype=float),
        residual_floor=residual_floor,
        residual_bound=np.asarray(residual_bound, dtype=float),
        label_noise_variance=label_noise_variance,
        gaussian_mu=gaussian_mu,
        failure_probability=failure_probability,
    )
    return largest_num_bags(event, epsilon=epsilon, delta=delta, most=most)


def largest_num_bags(
    template: WeightedAggregation | UserAggregation, *, epsilon: float, delta: float, most: int = 10**12
) -> int:
    """Return the largest number of bags with which an event like `template` is (epsilon, delta)-private.

    Parameters
    ----------
    template
        Its own number of bags doesn't matter.
    epsilon, delta
        Target; ``delta`` includes the failure probability.
    most
        Largest answer.

    Returns
    -------
    int
        The number of bags, at most ``most``; 0 if not even one bag is allowed.

    Raises
    ------
    ValueError
        If the target is out of range.
    """
    _check_target(epsilon, delta)
    at = np.array([epsilon])

    def event(bags: int) -> WeightedAggregation | UserAggregation:
        return dataclasses.replace(template, num_bags=bags)

    one = event(1)
    if one.delta(epsilon) > delta:
        return 0
    if event(most).delta(epsilon) <= delta:
        return most
    target = math.log(delta - one._failure)
    bounds = one._change

    def gap(log_rows: float) -> float:
        change = LabelChange(rows=math.exp(log_rows), spread=bounds.spread, shift=bounds.shift, mu=bounds.mu)
        return target - float(change.log_delta_at_corner(at)[0])

    top = math.log(most)
    guess = most if gap(top) >= 0 else 1 if gap(0.0) <= 0 else int(math.exp(optimize.brentq(gap, 0.0, top, xtol=1e-13)))
    # Largest whole number that the certified delta allows: step out from the guess, then bisect.
    allowed, refused, step = 1, most, 1
    while True:
        trial = min(max(guess, allowed), refused)
        if trial in (allowed, refused):
            break
        if event(trial).delta(epsilon) <= delta:
            allowed, guess = trial, trial + step
        else:
            refused, guess = trial, trial - step
        if allowed > 1 and refused < most:
            break
        step *= 4
    while refused - allowed > 1:
        middle = (allowed + refused) // 2
        if event(middle).delta(epsilon) <= delta:
            allowed = middle
        else:
            refused = middle
    return allowed


def calibrate_residual_floor(
    *,
    epsilon: float,
    delta: float,
    num_bags: int,
    label_range: float,
    leverage: ArrayLike,
    residual_bound: ArrayLike,
) -> float:
    """Return the least residual sum of squares with which WTD-FLAG without noise is (epsilon, delta)-private.

    A floor and label noise enter alike, so this is :func:`calibrate_label_noise` read as a floor.

    Raises
    ------
    ValueError
        If the target is out of range.
    """
    return calibrate_label_noise(
        epsilon=epsilon,
        delta=delta,
        num_bags=num_bags,
        label_range=label_range,
        leverage=leverage,
        residual_bound=residual_bound,
    )


def largest_gaussian_mu(*, epsilon: float, delta: float) -> float:
    """Return the largest sensitivity over standard deviation that is (epsilon, delta)-private, rounded down.

    Raises
    ------
    ValueError
        If the target is out of range.
    """
    _check_target(epsilon, delta)
    at, target = np.array([epsilon]), math.log(delta)
    require(delta < 1, "delta must be less than 1")
    root = _crossing(lambda v: target - float(GaussianRelease(mu=math.exp(v))._log_delta(at)[0]), 0.0)
    best = math.exp(root)
    return _raise_until(lambda grow: best / (1 + grow), lambda mu: GaussianRelease(mu=mu).delta(epsilon) <= delta)


def calibrate_eigenvalue_floor(
    *,
    epsilon: float,
    delta: float,
    sketch_size: int,
    num_sketches: int = 1,
    gaussian_mu: float = 0.0,
    failure_probability: float = 0.0,
    row_energy: float = 1.0,
) -> float:
    """Return the least eigenvalue floor of a Gaussian sketch that is (epsilon, delta)-private, rounded up.

    Parameters
    ----------
    epsilon, delta
        Target; ``delta`` includes ``failure_probability``.
    sketch_size, num_sketches, gaussian_mu, failure_probability
        As in :class:`HessianMixing`.
    row_energy
        Largest squared norm of a row of what is sketched: 1, or ``1 + label_bound^2`` for linear mixing.

    Returns
    -------
    float
        gamma; the delta at the answer has been checked.

    Raises
    ------
    ValueError
        If the target is out of range, or what stands beside the sketches overspends.
    """
    _check_target(epsilon, delta)
    require_nonnegative(row_energy=row_energy, gaussian_mu=gaussian_mu)
    require(
        GaussianRelease(mu=gaussian_mu).delta(epsilon) + failure_probability < delta,
        f"no floor reaches epsilon {epsilon}, delta {delta}: what stands beside the sketches overspends",
    )
    at, target = np.array([epsilon]), math.log(delta - failure_probability)

    def event(floor: float) -> HessianMixing:
        return HessianMixing(
            sketch_size=sketch_size,
            num_sketches=num_sketches,
            eigenvalue_floor=floor,
            gaussian_mu=gaussian_mu,
            failure_probability=failure_probability,
        )

    # In the excess over 1, where the floor may come as close to a row's energy as it likes.
    root = _crossing(
        lambda v: float(event(1 + math.exp(v))._log_delta(at)[0]) - target,
        math.log(max(1.0, math.sqrt(sketch_size * num_sketches))),
    )
    floor = _raise_until(
        lambda grow: 1 + math.exp(root) * (1 + grow), lambda gamma: event(gamma).delta(epsilon) <= delta
    )
    return floor * row_energy * (1 + (0 if row_energy == 1 else 4e-16))


def calibrate_bag_size(
    *,
    epsilon: float,
    delta: float,
    noised_fraction: float,
    noise_std: float,
    label_range: float,
    most: int = 10**9,
) -> int:
    """Return the least bag size with which Sampled-Noisy-WTD-LAg is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta
        Target.
    noised_fraction, noise_std, label_range
        As in :class:`NoisyLabelAggregation`.
    most
        Largest size tried.

    Raises
    ------
    ValueError
        If the target is out of range or not even bags of ``most`` rows reach it.
    """
    _check_target(epsilon, delta)

    def reaches(size: int) -> bool:
        event = NoisyLabelAggregation(
            bag_size=size, noised_fraction=noised_fraction, noise_std=noise_std, label_range=label_range
        )
        return event.delta(epsilon) <= delta

    require(reaches(most), f"no bag of up to {most:,} rows reaches epsilon {epsilon}, delta {delta}")
    refused, allowed = 0, 1
    while not reaches(allowed):
        refused, allowed = allowed, min(2 * allowed, most)
    while allowed - refused > 1:
        middle = (allowed + refused) // 2
        if reaches(middle):
            allowed = middle
        else:
            refused = middle
    return allowed


def _check_target(epsilon: float, delta: float) -> None:
    require_nonnegative(epsilon=epsilon)
    require(0 < delta <= 1, f"delta must lie in (0, 1], got {delta}")


def _crossing(gap: Callable[[float], float], start: float) -> float:
    """Zero of a falling function, from a starting point, by doubling steps and Brent's method."""
    low = high = start
    step = 0.5
    while gap(low) <= 0:
        low, high = low - step, low
        step *= 2
        require(low > -1000, "no finite answer below the search range")
    step = 0.5
    while gap(high) > 0:
        low, high = high, high + step
        step *= 2
        require(high < 700, "the target is out of reach")
    return float(optimize.brentq(gap, low, high, xtol=1e-13, rtol=1e-14))


def _raise_until(value: Callable[[float], float], ok: Callable[[float], bool]) -> float:
    """First of ``value(0), value(1e-14), value(8e-14), ...`` that passes, then bisected to 1e-10 relative."""
    refused, grow = -1.0, 0.0
    while not ok(value(grow)):
        refused, grow = grow, max(1e-14, 8 * grow)
        require(grow < _FAR, "the target is out of reach")
    while refused >= 0 and grow - refused > 1e-10:
        middle = (grow + refused) / 2
        if ok(value(middle)):
            grow = middle
        else:
            refused = middle
    return value(grow)
