"""Iterative Hessian mixing as in its paper: fresh Gaussian sketches of X as Hessians, clipped noisy gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpagg.accounting import HessianMixing
from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.accounting.paper_bounds import hessian_mixing_rdp
from dpagg.errors import ConfigError
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.sketches import wishart_gram
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import PrivateEstimate, plain_estimate
from dpagg.regression.planning import Accounting, Target

__all__ = ["HessianMixingPlan", "plan_hessian_mixing"]

Array = NDArray[np.float64]

# Of the budget's mu^2: gradients, and the least eigenvalue; sketches get what the exact curve leaves.
_GRADIENT_SHARE, _EIGENVALUE_SHARE = 0.85, 0.009
_FAILURE_SHARE = 0.1


@dataclass(frozen=True)
class HessianMixingPlan:
    """A calibrated run of the paper's algorithm.

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee (adjacency ``zero_out_one_row``, rows of norm at most 1), checked:
        ``event.delta(epsilon) <= delta`` by exact accounting, also if the noise is the paper's.
    event : HessianMixing
        T sketches of k rows beside T gradients and the least eigenvalue.
    residual_clip : float
        C.
    gradient_noise_std : float
        sigma, on each coordinate of each gradient; its sensitivity is C.
    eigenvalue_noise_std : float
        On the least eigenvalue, whose sensitivity is 1.
    eigenvalue_shift : float
        By how many of its standard deviations the released least eigenvalue is lowered.
    ridge_term : bool
        Whether gradients have the term ``- eta^2 theta``; the authors' published runs leave it out. It turns the limit
        into a ridge solution.
    """

    target: Target
    event: HessianMixing
    residual_clip: float
    gradient_noise_std: float
    eigenvalue_noise_std: float
    eigenvalue_shift: float
    ridge_term: bool

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the releases and return the fit; 1 pass over the data and one a round.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        event, d = self.event, self.target.num_columns

        def stream(purpose: str, index: int = 0) -> np.random.Generator:
            return secret.stream(release_id, f"hessian-mixing/{purpose}", index)

        factor = data.factor()[:d, :d]
        least = float(np.linalg.svd(factor, compute_uv=False)[-1]) ** 2
        noise = stream("eigenvalue").standard_normal() - self.eigenvalue_shift
        released = max(0.0, least + self.eigenvalue_noise_std * float(noise))
        added = max(0.0, event.eigenvalue_floor - released)
        mixed = np.vstack([factor, math.sqrt(added) * np.eye(d)])
        half: Array = np.asarray(np.linalg.qr(mixed, mode="r"))
        theta = np.zeros(d)
        whole_rows = RowShape(None, 1.0)
        for t in range(event.num_sketches):
            hessian = wishart_gram(stream("sketch", t), half, event.sketch_size) / event.sketch_size
            gradient = data.residual_sums(ResidualQuery(theta, whole_rows, self.residual_clip)).gradient
            gradient = gradient + self.gradient_noise_std * stream("gradient", t).standard_normal(d)
            if self.ridge_term:
                gradient = gradient - added * theta
            # The least-norm solution: a singular Hessian, possible only where the floor failed, must be no error.
            theta = theta + np.linalg.lstsq(hessian, gradient, rcond=None)[0]
        return plain_estimate(theta)


def plan_hessian_mixing(
    target: Target,
    *,
    accounting: Accounting = "exact",
    num_iterations: int = 3,
    sketch_size: int | None = None,
    residual_clip: float | None = None,
    ridge_term: bool = True,
) -> HessianMixingPlan:
    """Calibrate the paper's algorithm.

    Parameters
    ----------
    target
        The data and the guarantee.
    accounting
        ``paper``: the authors' Renyi bound, half of epsilon to the sketches and half to the gradients. ``exact``: all
        releases in one curve.
    num_iterations
        Rounds T.
    sketch_size
        Rows k of each sketch, at least d + 2; the paper's ``max(6 d, 6 ln(4 T / failure))`` by default, with failure
        a tenth of delta.
    residual_clip
        C, the label bound by default.
    ridge_term
        Whether gradients have the term ``- eta^2 theta``.

    Raises
    ------
    ConfigError
        If a parameter is out of range.
    PrivacyError
        If the target cannot be met.
    """
    epsilon, delta, d = target.epsilon, target.delta, target.num_columns
    if num_iterations < 1:
        raise ConfigError(f"expected at least one round, got {num_iterations}")
    failure = _FAILURE_SHARE * delta
    k = int(max(6 * d, 6 * math.log(4 * num_iterations / failure))) if sketch_size is None else sketch_size
    if k < d + 2:
        raise ConfigError(f"a sketch of {k} rows has no Hessian of {d} columns; expected at least d + 2")
    clip = target.label_bound if residual_clip is None else residual_clip
    if not 0 < clip < math.inf:
        raise ConfigError(f"the residual clip must be positive, got {clip}")
    if accounting == "paper":
        floor, gradient_std = hessian_mixing_rdp(
            epsilon=epsilon, delta=delta, sketch_size=k, num_iterations=num_iterations, residual_clip=clip
        )
        eigenvalue_std = floor / math.sqrt(k)
        shift = math.sqrt(2 * math.log(max(4 / delta, 4 / failure)))
        failure = float(stats.norm.sf(shift))
    else:
        mu = largest_gaussian_mu(epsilon=epsilon, delta=delta - failure)
        gradient_std = clip * math.sqrt(num_iterations) / (mu * math.sqrt(_GRADIENT_SHARE))
        eigenvalue_std = 1 / (mu * math.sqrt(_EIGENVALUE_SHARE))
        shift = float(stats.norm.isf(failure))
        floor = 0.0
    beside = math.hypot(clip * math.sqrt(num_iterations) / gradient_std, 1 / eigenvalue_std)
    if accounting == "exact":
        floor = calibrate_eigenvalue_floor(
            epsilon=epsilon,
            delta=delta,
            sketch_size=k,
            num_sketches=num_iterations,
            gaussian_mu=beside,
            failure_probability=failure,
        )
    event = HessianMixing(
        sketch_size=k,
        num_sketches=num_iterations,
        eigenvalue_floor=floor,
        gaussian_mu=beside,
        failure_probability=failure,
    )
    target.check_met(event)
    return HessianMixingPlan(target, event, clip, gradient_std, eigenvalue_std, shift, ridge_term)
