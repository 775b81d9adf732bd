"""What a private solver returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from dpagg.regression.least_squares import fit_bounded_least_squares

__all__ = ["EstimateStatus", "PrivateEstimate"]

Array = NDArray[np.float64]


class EstimateStatus(StrEnum):
    """What became of a private fit, judged by released quantities alone."""

    OK = "ok"
    NOISE_DOMINATES = "noise_dominates"
    BOUND_ACTIVE = "bound_active"


@dataclass(frozen=True, eq=False)
class PrivateEstimate:
    """Coefficients from releases, and what the releases say about their error.

    Attributes
    ----------
    coefficients : ndarray (d,)
        In the units of `Data`.
    noise_covariance : ndarray (d, d) or None
        Of the coefficients about least squares on the same rows, as far as released quantities give it (the noise for
        privacy and what it leaves undecided, not the bias of clipping); None if they do not.
    sampling_covariance : ndarray (d, d) or None
        Estimated covariance of least squares itself about the population, to be added.
    status : EstimateStatus
        Outcome.
    message : str
        The outcome in words: cause and remedy.
    """

    coefficients: Array
    noise_covariance: Array | None
    sampling_covariance: Array | None
    status: EstimateStatus
    message: str

    @property
    def standard_errors(self) -> Array:
        """Of the coefficients about least squares on the same rows, (d,); NaN where unknown."""
        if self.noise_covariance is None:
            return np.full(self.coefficients.shape, np.nan)
        return np.sqrt(np.diag(self.noise_covariance))

    @property
    def population_standard_errors(self) -> Array:
        """Of the coefficients about the population's, (d,); NaN where unknown."""
        if self.noise_covariance is None or self.sampling_covariance is None:
            return np.full(self.coefficients.shape, np.nan)
        return np.sqrt(np.diag(self.noise_covariance + self.sampling_covariance))


def plain_estimate(coefficients: Array) -> PrivateEstimate:
    """Return an estimate about whose error the releases say nothing."""
    return PrivateEstimate(coefficients, None, None, EstimateStatus.OK, "The fit ran as planned.")


def held_in_ball(coefficients: Array, metric_root: Array, norm_bound: float) -> Array:
    """Return the point of the ball that is nearest in ``|metric_root (theta - coefficients)|``, shape (d,)."""
    if not np.linalg.norm(coefficients) > norm_bound:
        return coefficients
    width = len(coefficients) + 1
    stacked = np.column_stack([metric_root, metric_root @ coefficients])
    factor: Array = np.asarray(np.linalg.qr(np.vstack([stacked, np.zeros((width, width))]), mode="r"))
    return fit_bounded_least_squares(factor, width + 1, norm_bound).coefficients
