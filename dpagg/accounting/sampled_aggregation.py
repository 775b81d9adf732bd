"""Sampled-WTD-FLAG: one Gaussian-weighted sum of each disjoint bag, when one label changes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import require_count, require_nonnegative, require_probability
from dpagg.accounting.label_change import LabelChange, _LabelEvent
from dpagg.accounting.weighted_aggregation import label_change, undominated


@dataclass(frozen=True, kw_only=True)
class SampledAggregation(_LabelEvent):
    """One sum ``(X^T w, y^T w)`` a bag of ``bag_size`` rows, bags disjoint and chosen without labels.

    Guarantee: one label changes by at most ``label_range`` (adjacency ``change_one_label``); features and
    bags are public. A label touches one sum, so this is :class:`WeightedAggregation` with one bag, leverages
    and residuals taken within each bag. It holds for a row known to be in a bag: no amplification by sampling
    is claimed, since features may show which rows were sampled. Source: *Label Differential Privacy via
    Aggregation* (2023), Sampled-WTD-FLAG.

    Parameters
    ----------
    bag_size
        Rows k of a bag.
    label_range
        D, the declared upper minus lower label bound.
    leverage, residual_bound
        Leverage within its bag and largest absolute residual within its bag of the rows of all bags.
    residual_floor
        Least residual *sum* of squares within any bag, for both data sets.
    label_noise_variance
        Variance of a normal added to the label of every bag; it adds to the floor.
    gaussian_mu
        Sensitivity over standard deviation of a Gaussian release beside the bag.
    failure_probability
        Chance that the floor doesn't hold; added to delta.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_label"

    bag_size: int
    label_range: float
    leverage: float | tuple[float, ...] | FloatArray
    residual_floor: float
    residual_bound: float | tuple[float, ...] | FloatArray
    label_noise_variance: float = 0.0
    gaussian_mu: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        require_count("bag_size", self.bag_size)
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
            rows=1,
            label_range=self.label_range,
            leverage=self.leverage,
            residual_bound=self.residual_bound,
            floor=self.residual_floor + self.label_noise_variance,
            mu=self.gaussian_mu,
        )
