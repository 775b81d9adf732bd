"""From a configuration and public facts of the rows to the event of a release: how many bags, how much noise."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from dpagg.accounting.calibration import largest_num_bags, with_least_label_noise
from dpagg.accounting.event import Event
from dpagg.accounting.hidden_noise import (
    HiddenNoiseAggregation,
    HiddenNoiseUserAggregation,
    can_hide,
    with_hidden_noise,
)
from dpagg.accounting.private_floor import PrivateFloor, calibrate_private_floor
from dpagg.accounting.unweighted_sums import UnweightedSums
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation
from dpagg.accounting.worst_rows import worst_rows, worst_user
from dpagg.config import AggregateConfig, AssumedFloorConfig, PrivateFloorConfig, UnweightedSumsConfig
from dpagg.errors import PrivacyError
from dpagg.kernels.rows import RowRule, RowSummary


@dataclass(frozen=True)
class Calibrated:
    """What will be accounted.

    Attributes
    ----------
    num_bags : int
        m.
    event : Event
        The release; with a private floor, as if the data supplied nothing.
    floor : PrivateFloor or None
        How the residual norm is released first, if it is.
    """

    num_bags: int
    event: Event
    floor: PrivateFloor | None = None

    @property
    def noise_variance(self) -> float:
        """Variance of the noise on a bag's label, squared units of the label.

        With a private floor the largest possible one, of a hidden level the mean.
        """
        return float(getattr(self.event, "label_noise_variance", 0.0))

    @property
    def hidden(self) -> HiddenNoiseAggregation | HiddenNoiseUserAggregation | None:
        """The event if the level of its noise is hidden."""
        event = self.event
        return event if isinstance(event, HiddenNoiseAggregation | HiddenNoiseUserAggregation) else None

    def settle(self, residual_norm: float) -> Calibrated:
        """Return what is accounted once the private floor has released a residual norm."""
        if self.floor is None:
            raise ValueError("there is no private floor")
        event: Any = self.event
        return dataclasses.replace(self, event=self.floor.settle(event, residual_norm))


def calibrated(config: AggregateConfig, rule: RowRule, summary: RowSummary, largest_unit: float) -> Calibrated:
    """Choose bags and noise for the rows of a table.

    Parameters
    ----------
    config : AggregateConfig
        Of the run.
    rule : RowRule
        Which rows take part.
    summary : RowSummary
        What the passes over the features saw.
    largest_unit : float
        Largest sum of the leverages of one unit's rows; ignored where one label is protected.

    Raises
    ------
    PrivacyError
        If delta is too large for the number of rows, or the number of bags too large for an assumed floor.
    """
    n, privacy = summary.num_rows, config.privacy
    if privacy.delta >= 1.0 / n:
        raise PrivacyError(
            f"{privacy.delta:g} is given for {n:,} rows, expected less than 1/n = {1.0 / n:.3g}",
            path="privacy.delta",
            remedy="A delta of 1/n allows a mechanism that publishes one row; take 1/n^1.5 or less.",
        )
    if isinstance(config.mechanism, UnweightedSumsConfig):
        return Calibrated(config.mechanism.num_bags, UnweightedSums())
    asked = config.mechanism.num_bags
    bare = _bare_event(config, rule, summary, largest_unit)
    if isinstance(privacy.floor, AssumedFloorConfig):
        require_possible(privacy.floor.mean_squared_residual, rule.label_magnitude)
        floored = dataclasses.replace(bare, residual_floor=privacy.floor.mean_squared_residual * n)
        allowed = largest_num_bags(floored, epsilon=privacy.epsilon, delta=privacy.delta)
        if allowed == 0 or (asked != "auto" and asked > allowed):
            raise PrivacyError(
                f"{'one bag' if asked == 'auto' else f'{asked:,} bags'} at epsilon {privacy.epsilon:g}, delta "
                f"{privacy.delta:g}: the assumed floor allows {allowed:,}",
                path="mechanism.num_bags",
                remedy="Take num_bags: auto, a larger epsilon, or floor: {kind: noise}.",
            )
        num_bags = min(allowed, n) if asked == "auto" else asked
        return Calibrated(num_bags, dataclasses.replace(floored, num_bags=num_bags))
    num_bags = n if asked == "auto" else asked
    bare = dataclasses.replace(bare, num_bags=num_bags)
    if isinstance(privacy.floor, PrivateFloorConfig):
        event, floor = calibrate_private_floor(
            bare,
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            sensitivity=bare.label_range * math.sqrt(privacy.unit.max_rows if privacy.unit is not None else 1),
            budget_share=privacy.floor.budget_share,
            failure_share=privacy.floor.failure_share,
        )
        return Calibrated(num_bags, event, floor)
    return Calibrated(num_bags, _noised(bare, privacy.floor.level, privacy.epsilon, privacy.delta))


def require_possible(mean_squared_residual: float, label_magnitude: float) -> None:
    """Refuse a floor that no labels within the bounds can have: the promise would rest on a false statement.

    Raises
    ------
    PrivacyError
        If it is over the square of the largest label as it is summed.
    """
    if mean_squared_residual > label_magnitude**2:
        raise PrivacyError(
            f"a mean squared residual of {mean_squared_residual:g} is assumed, but labels within the declared bounds "
            f"cannot have more than {label_magnitude**2:g}",
            path="privacy.floor.mean_squared_residual",
            remedy="State what is known to hold, or use floor: {kind: noise}, which assumes nothing.",
        )


def _noised(bare: WeightedAggregation | UserAggregation, level: str, epsilon: float, delta: float) -> Event:
    """Noise of a known or a hidden level; the choice depends on public numbers only."""
    if level == "known" or not can_hide(bare):
        return with_least_label_noise(bare, epsilon=epsilon, delta=delta)
    hidden = with_hidden_noise(bare, epsilon=epsilon, delta=delta)
    if level == "hidden":
        return hidden
    known = with_least_label_noise(bare, epsilon=epsilon, delta=delta)
    return hidden if hidden.noise_mean < known.label_noise_variance else known


def _bare_event(
    config: AggregateConfig, rule: RowRule, summary: RowSummary, largest_unit: float
) -> WeightedAggregation | UserAggregation:
    """One bag, without floor or noise."""
    label_range, unit = rule.schema.label.range, config.privacy.unit
    if unit is None:
        leverage, bound = worst_rows(summary.largest_leverage, summary.num_rows, rule.label_magnitude, label_range)
        return WeightedAggregation(
            num_bags=1, label_range=label_range, leverage=leverage, residual_floor=0.0, residual_bound=bound
        )
    return UserAggregation(
        num_bags=1,
        label_range=label_range,
        max_rows=unit.max_rows,
        leverage=largest_unit,
        residual_floor=0.0,
        residual_bound=worst_user(largest_unit, unit.max_rows, summary.num_rows, rule.label_magnitude, label_range),
    )
