"""A residual floor that the data supply themselves, through a private release of the residual norm."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from scipy import stats

from dpagg.accounting.calibration import LabelEvent, largest_gaussian_mu, with_least_label_noise
from dpagg.accounting.event import require


@dataclass(frozen=True, kw_only=True)
class PrivateFloor:
    """How the residual norm r is released, and what noise the bags still need afterwards.

    r, the distance of the labels from the span of X, moves by at most `sensitivity` between neighbours (a projection
    shortens no vector less than it must), so r + N(0, noise_std^2) is a Gaussian release. With probability
    1 - failure_probability it exceeds r by less than noise_std z; then both neighbours have at least
    released - noise_std z - sensitivity, whichever of them is the real one. The target floor is fixed beforehand, and
    noise supplies what is missing to it, so that what follows has the same guarantee whatever was released.

    Attributes
    ----------
    noise_std : float
        Of the release of r, in units of the label.
    sensitivity : float
        D for one label, D sqrt(g) for a user with g rows.
    failure_probability : float
        Part of delta.
    target : float
        Residual sum of squares and label noise together, squared units of the label.
    """

    noise_std: float
    sensitivity: float
    failure_probability: float
    target: float

    def supplied(self, released: float) -> float:
        """Return the residual sum of squares that the data supply, given the released norm; at most the target."""
        norm = released - self.sensitivity - self.noise_std * float(stats.norm.isf(self.failure_probability))
        return min(max(0.0, norm) ** 2, self.target)

    def settle(self, event: LabelEvent, released: float) -> LabelEvent:
        """Return the event with the floor and the noise that belong to a released norm."""
        supplied = self.supplied(released)
        return dataclasses.replace(  # type: ignore[type-var]
            event, residual_floor=supplied, label_noise_variance=self.target - supplied
        )


def calibrate_private_floor(
    event: LabelEvent, *, epsilon: float, delta: float, sensitivity: float, budget_share: float, failure_share: float
) -> tuple[LabelEvent, PrivateFloor]:
    """Split (epsilon, delta) between the release of the residual norm and the bags.

    Parameters
    ----------
    event
        Of a label mechanism without floor or noise.
    epsilon, delta
        Target for both releases together.
    sensitivity
        Of the residual norm, in units of the label.
    budget_share
        Share of mu^2, of the largest Gaussian release within the target, for the residual norm; in (0, 1).
    failure_share
        Share of delta for the chance that the released norm is far too large; in (0, 1).

    Returns
    -------
    tuple
        The event with the whole target floor as noise (what a plan shows), and the private floor.

    Raises
    ------
    ValueError
        If a share or the target is out of range.
    """
    require(0 < budget_share < 1, f"budget_share must lie in (0, 1), got {budget_share}")
    require(0 < failure_share < 1, f"failure_share must lie in (0, 1), got {failure_share}")
    failure = failure_share * delta
    mu = math.sqrt(budget_share) * largest_gaussian_mu(epsilon=epsilon, delta=delta - failure)
    beside = dataclasses.replace(event, gaussian_mu=mu, failure_probability=failure)  # type: ignore[type-var]
    noised = with_least_label_noise(beside, epsilon=epsilon, delta=delta)
    # sensitivity / noise_std must not exceed mu after rounding.
    std = math.nextafter(sensitivity / mu, math.inf)
    floor = PrivateFloor(
        noise_std=std, sensitivity=sensitivity, failure_probability=failure, target=noised.label_noise_variance
    )
    return noised, floor
