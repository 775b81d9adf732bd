"""Gradient descent on clipped residuals with noisy full gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpagg.accounting import NoisyGradientDescent
from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.errors import ConfigError
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import PrivateEstimate, plain_estimate
from dpagg.regression.planning import Target

__all__ = ["GradientDescentPlan", "plan_gradient_descent"]


@dataclass(frozen=True)
class GradientDescentPlan:
    """A calibrated run of gradient descent from zero.

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee (adjacency ``zero_out_one_row``, rows of norm at most 1), checked.
    event : NoisyGradientDescent
        T clipped full gradients.
    step_size : float
        Of the gradient of half the sum of squares; 1/n cannot diverge, as no eigenvalue of X^T X exceeds n.
    """

    target: Target
    event: NoisyGradientDescent
    step_size: float

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the releases and return the mean of the second half of the iterates; one pass a round.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        event, d = self.event, self.target.num_columns
        theta, total, counted = np.zeros(d), np.zeros(d), 0
        for t in range(event.num_iterations):
            sums = data.residual_sums(ResidualQuery(theta, RowShape(None, 1.0), event.residual_clip))
            noise = event.noise_std * secret.stream(release_id, "dp-gd", t).standard_normal(d)
            theta = theta + self.step_size * (sums.gradient + noise)
            if t >= event.num_iterations // 2:
                total, counted = total + theta, counted + 1
        return plain_estimate(total / counted)


def plan_gradient_descent(
    target: Target,
    *,
    num_iterations: int = 20,
    residual_clip: float | None = None,
    step_size: float | None = None,
) -> GradientDescentPlan:
    """Calibrate gradient descent, exactly: T Gaussian releases are one.

    Parameters
    ----------
    target
        The data and the guarantee.
    num_iterations
        Rounds T.
    residual_clip
        C, the label bound by default.
    step_size
        1/n by default.

    Raises
    ------
    ConfigError
        If a parameter is out of range.
    PrivacyError
        If the target cannot be met.
    """
    clip = target.label_bound if residual_clip is None else residual_clip
    step = 1 / target.num_rows if step_size is None else step_size
    if num_iterations < 1 or not 0 < clip < math.inf or not 0 < step < math.inf:
        raise ConfigError(f"rounds, clip and step must be positive, got {num_iterations}, {clip}, {step}")
    mu = largest_gaussian_mu(epsilon=target.epsilon, delta=target.delta) * (1 - 1e-12)
    std = clip * math.sqrt(num_iterations) / mu
    event = NoisyGradientDescent(num_iterations=num_iterations, residual_clip=clip, noise_std=std)
    target.check_met(event)
    return GradientDescentPlan(target, event, step)
