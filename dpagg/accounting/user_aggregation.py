"""WTD-FLAG when all labels of one user change together."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

from dpagg.accounting.event import require_count, require_nonnegative, require_probability
from dpagg.accounting.label_change import LabelChange, _LabelEvent


@dataclass(frozen=True, kw_only=True)
class UserAggregation(_LabelEvent):
    """WTD-FLAG with all labels of one user as the protected unit (adjacency ``change_one_user_labels``).

    A user holds at most ``max_rows`` rows S; their labels change by Delta, ``|Delta_j| <= D``. Then
    ``r'^2 - r^2 = Delta^T (e_S + e_S') <= 2 D sum_S e_max`` and the conditional mean moves by a normal of
    variance ``Delta^T H_SS Delta <= g D^2 lambda_max(H_SS)``; the rest is :class:`WeightedAggregation`
    (README, "Users").

    Parameters
    ----------
    num_bags
        Number of bags m.
    label_range
        D, the declared upper minus lower label bound.
    max_rows
        g, most rows a user may hold; rows beyond are dropped by a rule that ignores labels.
    leverage
        Largest ``lambda_max(H_SS)`` over users; the largest sum of a user's leverages bounds it. At most 1 is
        used.
    residual_floor
        Least residual sum of squares for both data sets.
    residual_bound
        Largest change of the residual sum of squares, over 2 D: the sum over a user's rows of the rows' residual
        bounds, or less where :func:`dpagg.accounting.worst_rows.worst_user` can show it.
    label_noise_variance, gaussian_mu, failure_probability
        As in :class:`WeightedAggregation`.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_user_labels"

    num_bags: int
    label_range: float
    max_rows: int
    leverage: float
    residual_floor: float
    residual_bound: float
    label_noise_variance: float = 0.0
    gaussian_mu: float = 0.0
    failure_probability: float = 0.0

    def __post_init__(self) -> None:
        require_count("num_bags", self.num_bags)
        require_count("max_rows", self.max_rows)
        require_nonnegative(
            label_range=self.label_range,
            leverage=self.leverage,
            residual_floor=self.residual_floor,
            residual_bound=self.residual_bound,
            label_noise_variance=self.label_noise_variance,
            gaussian_mu=self.gaussian_mu,
        )
        require_probability(failure_probability=self.failure_probability)

    @functools.cached_property
    def _change(self) -> LabelChange:
        # H_SS is a block of a projection, so no eigenvalue passes 1 whatever the sum of leverages.
        energy = self.max_rows * self.label_range**2 * min(self.leverage, 1.0)
        growth = 2 * self.label_range * self.residual_bound
        floor = self.residual_floor + self.label_noise_variance
        if floor == 0:
            spread = shift = math.inf if energy + growth > 0 else 0.0
        else:
            spread, shift = growth / floor, energy / floor
        return LabelChange(rows=self.num_bags, spread=spread, shift=shift, mu=self.gaussian_mu)
