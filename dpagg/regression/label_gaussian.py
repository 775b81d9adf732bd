"""Label-DP least squares: normal noise on the whitened statistics ``R^-T X^T y``; features are public."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting import LabelGaussian
from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import EstimateStatus, PrivateEstimate
from dpagg.regression.planning import Target

__all__ = ["LabelGaussianPlan", "plan_label_gaussian", "public_whitener"]

Array = NDArray[np.float64]

_RANK_TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class LabelGaussianPlan:
    """A calibrated run for one set of features.

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee (adjacency ``change_one_label``), checked.
    event : LabelGaussian
        The release; sensitivity ``label_range * sqrt(leverage)``.
    whitener : ndarray, shape (d, r)
        From features alone: ``X @ whitener`` has orthonormal columns.
    """

    target: Target
    event: LabelGaussian
    whitener: Array

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the release and return the fit; 1 pass over the data.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        d = self.target.num_columns
        factor = data.factor()
        whitened = self.whitener.T @ (factor[:d, :d].T @ factor[:d, d])
        noise = self.event.noise_std * secret.stream(release_id, "label-gaussian", 0).standard_normal(len(whitened))
        coefficients = self.whitener @ (whitened + noise)
        covariance = self.event.noise_std**2 * (self.whitener @ self.whitener.T)
        return PrivateEstimate(coefficients, covariance, None, EstimateStatus.OK, "The fit ran as planned.")


def plan_label_gaussian(target: Target, data: Data) -> LabelGaussianPlan:
    """Calibrate to the largest leverage, from the features of `data` alone.

    Raises
    ------
    DataError
        If the data are not those of the target.
    PrivacyError
        If the target cannot be met.
    """
    target.check_fits(data)
    whitener = public_whitener(data)
    leverage = min(1.0, data.largest_norm(whitener) ** 2 * (1 + 1e-9)) if whitener.size else 0.0
    mu = largest_gaussian_mu(epsilon=target.epsilon, delta=target.delta) * (1 - 1e-12)
    label_range = 2 * target.label_bound
    event = LabelGaussian(label_range=label_range, leverage=leverage, noise_std=label_range * math.sqrt(leverage) / mu)
    target.check_met(event)
    return LabelGaussianPlan(target, event, whitener)


def public_whitener(data: Data) -> Array:
    """Return W, shape (d, r), with ``X @ W`` orthonormal: from features alone, without directions that have no rows."""
    d = data.num_columns
    # Of the factor of [X y] the first d columns are the factor of X, whatever the labels are.
    _, values, right = np.linalg.svd(data.factor()[:d, :d])
    kept = values > _RANK_TOLERANCE * max(float(values.max()), 1e-300)
    whitener: Array = right.T[:, kept] / values[kept]
    return whitener
