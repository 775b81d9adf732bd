"""AdaSSP: least squares on noisy sufficient statistics with an adaptive ridge (Wang 2018, algorithm 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting import AdaSSP
from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.accounting.paper_bounds import adassp_thirds
from dpagg.kernels.sketches import symmetric_noise
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import PrivateEstimate, plain_estimate
from dpagg.regression.planning import Accounting, Target

__all__ = ["AdaSSPPlan", "plan_adassp"]

Array = NDArray[np.float64]

# The failure probability of Wang's utility bound, which sets the ridge; privacy does not depend on it. The code of the
# Hessian mixing paper takes a tenth of delta instead.
_UTILITY_FAILURE = 0.05
_PAPER_FAILURE_SHARE = 0.1
# Of the budget's mu^2, if accounted for exactly: least eigenvalue, Gram matrix, X^T y.
_SHARES = (0.05, 0.45, 0.5)


@dataclass(frozen=True)
class AdaSSPPlan:
    """A calibrated run of AdaSSP.

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee (adjacency ``zero_out_one_row``, rows of norm at most 1), checked.
    event : AdaSSP
        The three releases: exactly one Gaussian mechanism.
    as_in_paper : bool
        Whether every entry of the Gram matrix gets the paper's noise (otherwise those off the diagonal get less by
        sqrt(2), which costs the same: `symmetric_noise`), and the ridge is that of the Hessian mixing paper's code.
    """

    target: Target
    event: AdaSSP
    as_in_paper: bool

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the releases and return the fit; 1 pass over the data.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        event, d = self.event, self.target.num_columns
        rng = secret.stream(release_id, "adassp", 0)
        factor = data.factor()
        features = factor[:d, :d]
        gram, xty = features.T @ features, features.T @ factor[:d, d]
        least = float(np.linalg.svd(features, compute_uv=False)[-1]) ** 2
        noise = symmetric_noise(rng, d, event.gram_noise_std)
        if self.as_in_paper:
            noise *= np.where(np.eye(d) > 0, 1.0, math.sqrt(2.0))
        shift = math.sqrt(math.log(6 / self.target.delta))
        floor = max(0.0, least + event.eigenvalue_noise_std * (float(rng.standard_normal()) - shift))
        failure = _PAPER_FAILURE_SHARE * self.target.delta if self.as_in_paper else _UTILITY_FAILURE
        ridge = max(0.0, event.gram_noise_std * math.sqrt(d * math.log(2 * d**2 / failure)) - floor)
        xty = xty + event.xty_noise_std * rng.standard_normal(d)
        theta: Array = np.linalg.lstsq(gram + noise + ridge * np.eye(d), xty, rcond=None)[0].astype(np.float64)
        return plain_estimate(theta)


def plan_adassp(target: Target, *, accounting: Accounting = "exact") -> AdaSSPPlan:
    """Calibrate AdaSSP.

    Parameters
    ----------
    target
        The data and the guarantee.
    accounting
        ``paper``: a third of epsilon and delta to each release; ``exact``: one Gaussian mechanism.

    Raises
    ------
    PrivacyError
        If the target cannot be met.
    """
    if accounting == "paper":
        event = adassp_thirds(epsilon=target.epsilon, delta=target.delta, label_bound=target.label_bound)
    else:
        mu = largest_gaussian_mu(epsilon=target.epsilon, delta=target.delta) * (1 - 1e-12)
        eigenvalue, gram, xty = (1 / (mu * math.sqrt(share)) for share in _SHARES)
        event = AdaSSP(
            label_bound=target.label_bound,
            eigenvalue_noise_std=eigenvalue,
            gram_noise_std=gram,
            xty_noise_std=target.label_bound * xty,
        )
    target.check_met(event)
    return AdaSSPPlan(target, event, accounting == "paper")
