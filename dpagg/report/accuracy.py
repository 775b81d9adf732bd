"""What the sums of a release are worth for least squares, beside what the paper's own bounds would allow."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpagg.accounting.paper_bounds import sampled_flag_bag_size, sampled_noisy_bag_size, weighted_flag_num_bags
from dpagg.regression.planning import relative_excess_loss

# Standard deviations of residuals to show, as shares of the range of the label: nobody may look at the labels here.
_SUPPOSED = (0.05, 0.1, 0.2, 0.4)


@dataclass(frozen=True)
class Outlook:
    """Expected loss at one standard deviation of the residuals.

    Attributes
    ----------
    residual_std : float
        In the label's units.
    share_of_range : float
        The same over the range of the label.
    is_estimate : bool
        Whether it was estimated from the release, not supposed.
    excess : float or None
        Expected excess loss of least squares on the release, relative to the residual variance; None if the release
        has too few bags for a fit.
    paper_num_bags : int or None
        Bags that the paper's bound allows with its constant taken as 1; None where it bounds something else.
    paper_excess : float or None
        Expected relative excess loss with that many bags and without noise.
    """

    residual_std: float
    share_of_range: float
    is_estimate: bool
    excess: float | None
    paper_num_bags: int | None
    paper_excess: float | None


@dataclass(frozen=True)
class Accuracy:
    """How good a fit on the release is expected to be.

    Attributes
    ----------
    num_bags, num_rows, rank : int
        m, n, and the dimension of the features that are summed.
    bag_size : int or None
        k of disjoint bags.
    noise_std : float
        tau: of the noise that is added, in the label's units: on each sum, or on each noised label.
    noise_per_label : float
        The same spread over the labels of a bag: deviation of independent noise on every label with that sum.
    paper_bag_size : int or None
        Bag size that the paper's bound asks for, its constant taken as 1.
    outlooks : tuple of Outlook
        By standard deviation of the residuals.
    """

    num_bags: int
    num_rows: int
    rank: int
    bag_size: int | None
    noise_std: float
    noise_per_label: float
    paper_bag_size: int | None
    outlooks: tuple[Outlook, ...]


def accuracy(certificate: Mapping[str, Any], estimated_residual_std: float | None = None) -> Accuracy | None:
    """Return what to expect of least squares on a release; None for what is no release of weighted sums.

    Parameters
    ----------
    certificate : mapping
        Of the release. Nothing else is looked at.
    estimated_residual_std : float, optional
        Of a fit on this release, which is post-processing.
    """
    mechanism = certificate["mechanism"]
    if mechanism not in ("wtd-flag", "sampled-wtd-flag", "sampled-noisy-wtd-lag") or "solver" in certificate:
        return None
    label, m, n = certificate["label"], int(certificate["num_bags"]), int(certificate["num_rows"])
    variance = float(certificate["label_noise_variance"])
    spread, delta = label["upper"] - label["lower"], float(certificate["delta"])
    size = None if mechanism == "wtd-flag" else int(certificate["bag_size"])
    rank = int(certificate.get("rank", len(certificate["columns"])))
    # With an intercept labels are summed about the middle of their bounds.
    bound = spread / 2 if certificate["schema"]["intercept"] else max(abs(label["lower"]), abs(label["upper"]))
    if size is None:
        noise, paper_size = variance / n, None
    elif mechanism == "sampled-wtd-flag":
        noise = variance / size
        paper_size = sampled_flag_bag_size(epsilon=float(certificate["epsilon"]), delta=delta)
    else:
        fraction = int(certificate["num_noised"]) / size
        noise = fraction * variance
        paper_size = sampled_noisy_bag_size(
            epsilon=float(certificate["epsilon"]), label_bound=bound, noised_fraction=fraction
        )
    supposed = [(share * spread, False) for share in _SUPPOSED]
    if estimated_residual_std is not None and estimated_residual_std > 0:
        supposed = sorted([*supposed, (float(estimated_residual_std), True)])
    outlooks = []
    for std, is_estimate in supposed:
        paper_bags, paper_excess = None, None
        if mechanism == "wtd-flag":
            paper_bags = weighted_flag_num_bags(
                mean_squared_residual=std**2, num_rows=n, label_bound=bound, delta=delta
            )
            paper_excess = relative_excess_loss(rank, paper_bags, 0.0)
        outlooks.append(
            Outlook(
                residual_std=std,
                share_of_range=std / spread,
                is_estimate=is_estimate,
                excess=relative_excess_loss(rank, m, noise / std**2),
                paper_num_bags=paper_bags,
                paper_excess=paper_excess,
            )
        )
    return Accuracy(m, n, rank, size, math.sqrt(variance), math.sqrt(noise), paper_size, tuple(outlooks))
