"""What is particular about fitting a release of disjoint bags."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dpagg.regression.least_squares import fit_least_squares
from dpagg.regression.model import LinearModel


class BagFactor(Protocol):
    """The factor of a release of noisy labels, wherever it is: `dpagg.spark.noisy_bags.noisy_bag_factor`."""

    def __call__(
        self, *, num_noised: int, noise_variance: float, row_variance: float
    ) -> tuple[NDArray[np.float64], int, float]:
        """Return factor, number of bags and mean share of the noised weights."""


def read_noisy_bags(bag_factor: BagFactor, certificate: Mapping[str, Any]) -> tuple[NDArray[np.float64], int, float]:
    """Return the factor of a Sampled-Noisy-WTD-LAg release, weighted by the variance of each bag's label sum.

    Given the weights that variance is ``sigma^2 sum over noised of w^2 + r^2 sum w^2``. The first part is known: sigma
    and which labels are noised (the first ones of each bag) are published. r^2, the variance of a row's residual, is
    not. Weighting by the known part alone would be nearly as good where noise outweighs residuals, but it has no
    finite variance with one or two noised labels a bag, whose weights may all be near 0, and gives bags with a large
    known part too little weight where residuals are the larger part. So r^2 is estimated from the release, which
    spends no privacy: a first fit weighted by 1 / sum w^2 leaves residuals of mean square
    ``r^2 + sigma^2 (sum over noised of w^2 / sum w^2)``. The second fit takes the estimate for the variance
    (feasible generalised least squares, Aitken 1935).

    Returns
    -------
    factor : ndarray, shape (d + 1, d + 1)
        Of features and label, each bag divided by its estimated standard deviation.
    num_bags : int
    row_variance : float
        The estimate of r^2, at least 0, in squared units of the label.
    """
    num_noised, noise = int(certificate["num_noised"]), float(certificate["label_noise_variance"])
    first, num_bags, share = bag_factor(num_noised=num_noised, noise_variance=0.0, row_variance=1.0)
    if num_bags == 0 or not np.isfinite(first).all():
        return first, num_bags, 0.0
    spread = fit_least_squares(first, num_bags).residual_variance
    row_variance = max(0.0, spread - noise * share) if math.isfinite(spread) else 0.0
    second, num_bags, _ = bag_factor(num_noised=num_noised, noise_variance=noise, row_variance=row_variance)
    return second, num_bags, row_variance


def of_disjoint_bags(model: LinearModel, row_variance: float) -> LinearModel:
    """Return a model of disjoint bags with the errors that are right for them.

    Each row is in one bag with a fresh weight, so that residuals of bags hold the randomness of the rows already: the
    errors are those about the population, and also, but for a share of 1/k, those about the rows.
    """
    spread = math.sqrt(row_variance) if math.isfinite(row_variance) else None
    return dataclasses.replace(
        model,
        population_standard_errors=model.standard_errors,
        fit={**model.fit, "row_residual_std": spread},
    )
