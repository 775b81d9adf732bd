"""From a configuration to the event of a release of disjoint bags, and to the least bags that would do."""

from __future__ import annotations

import dataclasses
import math

from dpagg.accounting.calibration import calibrate_bag_size, with_least_label_noise
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.accounting.worst_rows import worst_rows
from dpagg.config import AggregateConfig, AssumedFloorConfig, SampledNoisyWtdLagConfig, SampledWtdFlagConfig
from dpagg.errors import ConfigError, PrivacyError
from dpagg.kernels.bags import AUTO_ACCEPTANCE, weight_acceptance, weight_cap_for
from dpagg.kernels.rows import RowRule
from dpagg.runs.calibrated import require_possible

_LARGEST_BAG = 10**9
# Weights that fewer draws than this meet would be waited for too long.
_LEAST_ACCEPTANCE = 1e-3


def flag_event(
    config: AggregateConfig, mechanism: SampledWtdFlagConfig, rule: RowRule, largest: float
) -> SampledAggregation:
    """Return the event of weighted sums of bags with this largest leverage: under the assumed floor, or with noise.

    Raises
    ------
    PrivacyError
        If the assumed floor does not meet the guarantee.
    """
    privacy, size = config.privacy, mechanism.bag_size
    bare = bare_flag_event(rule, size, largest)
    if not isinstance(privacy.floor, AssumedFloorConfig):
        return with_least_label_noise(bare, epsilon=privacy.epsilon, delta=privacy.delta)
    require_possible(privacy.floor.mean_squared_residual, rule.label_magnitude)
    event = bare_flag_event(rule, size, largest, residual_floor=privacy.floor.mean_squared_residual * size)
    reached = event.delta(privacy.epsilon)
    if reached > privacy.delta:
        raise PrivacyError(
            f"bags of {size:,} rows under the assumed floor have delta {reached:.3g} at epsilon {privacy.epsilon:g}, "
            f"expected at most {privacy.delta:g}",
            path="mechanism.bag_size",
            remedy="Take larger bags (dpagg plan tells the least size), a lower leverage cap, or floor: {kind: noise}.",
        )
    return event


def bare_flag_event(
    rule: RowRule, bag_size: int, largest: float, *, residual_floor: float = 0.0, noise_variance: float = 0.0
) -> SampledAggregation:
    """Return the event of weighted sums of bags, at a floor (a sum over a bag) and noise that are given."""
    label_range = rule.schema.label.range
    leverage, bound = worst_rows(largest, bag_size, rule.label_magnitude, label_range)
    return SampledAggregation(
        bag_size=bag_size,
        label_range=label_range,
        leverage=leverage,
        residual_floor=residual_floor,
        residual_bound=bound,
        label_noise_variance=noise_variance,
    )


def noisy_event(config: AggregateConfig, mechanism: SampledNoisyWtdLagConfig) -> NoisyLabelAggregation:
    """Return the event of noisy label sums: at the noise that was asked for, or at the least that will do.

    Raises
    ------
    ConfigError
        If no weights meet the cap.
    PrivacyError
        If the noise that was asked for does not meet the guarantee.
    """
    privacy, size = config.privacy, mechanism.bag_size
    bare = NoisyLabelAggregation(
        bag_size=size,
        noised_fraction=mechanism.noised_fraction,
        noise_std=0.0,
        label_range=config.encoding.label.range,
    )
    if mechanism.weight_cap != "none":
        likely = weight_cap_for(AUTO_ACCEPTANCE, bag_size=size, num_noised=bare.num_noised)
        cap = likely if mechanism.weight_cap == "auto" else mechanism.weight_cap
        if weight_acceptance(cap, bag_size=size, num_noised=bare.num_noised) < _LEAST_ACCEPTANCE:
            raise ConfigError(
                f"{cap:g} is given, which fewer than one set of weights in {1 / _LEAST_ACCEPTANCE:,.0f} meets",
                path="mechanism.weight_cap",
                remedy=f"One in {1 / AUTO_ACCEPTANCE:g} meets {likely:.3g}, which auto takes.",
            )
        bare = dataclasses.replace(bare, weight_cap=cap)
    if mechanism.noise_std == "auto":
        least = least_noise_std(bare, epsilon=privacy.epsilon, delta=privacy.delta)
        return dataclasses.replace(bare, noise_std=least)
    event = dataclasses.replace(bare, noise_std=mechanism.noise_std)
    reached = event.delta(privacy.epsilon)
    if reached > privacy.delta:
        least = least_noise_std(bare, epsilon=privacy.epsilon, delta=privacy.delta)
        raise PrivacyError(
            f"noise of {mechanism.noise_std:g} has delta {reached:.3g} at epsilon {privacy.epsilon:g}, expected at "
            f"most {privacy.delta:g}",
            path="mechanism.noise_std",
            remedy=f"At least {least:.6g} is needed for these bags; noise_std: auto takes it.",
        )
    return event


def least_noise_std(bare: NoisyLabelAggregation, *, epsilon: float, delta: float) -> float:
    """Return the least noise on labels that meets (epsilon, delta), from above, to seven digits.

    Parameters
    ----------
    bare : NoisyLabelAggregation
        The release; its own noise is ignored.
    epsilon, delta : float
        Target.

    Raises
    ------
    PrivacyError
        If no noise reaches it.
    """

    def meets(noise_std: float) -> bool:
        return dataclasses.replace(bare, noise_std=noise_std).delta(epsilon) <= delta

    high = bare.label_range
    while not meets(high):
        high *= 2.0
        if not math.isfinite(high):
            raise PrivacyError(
                "no noise on the labels meets the guarantee", path="privacy", remedy="Take a larger epsilon or delta."
            )
    low = high / 2.0
    while meets(low):
        low, high = low / 2.0, low
    while high / low > 1.0 + 1e-7:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high


def least_noisy_bag(config: AggregateConfig, event: NoisyLabelAggregation, noise_std: float) -> int | None:
    """Return the least k that meets the guarantee at this noise, weights drawn once; None if none does."""
    try:
        return calibrate_bag_size(
            epsilon=config.privacy.epsilon,
            delta=config.privacy.delta,
            noised_fraction=event.noised_fraction,
            noise_std=noise_std,
            label_range=event.label_range,
        )
    except ValueError:
        return None


def least_flag_bag(
    config: AggregateConfig, rule: RowRule, *, leverage_times_size: float, noise_std: float
) -> int | None:
    """Return the least k that meets the guarantee at this noise, searched by doubling; None if none up to 1e9 does.

    Leverages are supposed to fall as 1/k: the largest one is `leverage_times_size` / k.
    """
    privacy, share = config.privacy, leverage_times_size
    assumed = privacy.floor.mean_squared_residual if isinstance(privacy.floor, AssumedFloorConfig) else 0.0

    def meets(size: int) -> bool:
        event = bare_flag_event(
            rule, size, min(1.0, share / size), residual_floor=assumed * size, noise_variance=noise_std**2
        )
        return event.delta(privacy.epsilon) <= privacy.delta

    low, high = config.encoding.num_columns, config.encoding.num_columns + 1
    while not meets(high):
        low, high = high, 2 * high
        if high > _LARGEST_BAG:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if meets(middle) else (middle, high)
    return high
