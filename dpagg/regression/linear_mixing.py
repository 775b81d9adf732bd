"""Linear mixing: least squares on one Gaussian sketch of ``[X y]``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpagg.accounting import LinearMixing
from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.accounting.paper_bounds import linear_mixing_rdp
from dpagg.errors import ConfigError
from dpagg.kernels.sketches import wishart_gram
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import PrivateEstimate, plain_estimate
from dpagg.regression.planning import Accounting, Target

__all__ = ["LinearMixingPlan", "plan_linear_mixing"]

Array = NDArray[np.float64]

_EIGENVALUE_SHARE = 0.02
_FAILURE_SHARE = 0.1


@dataclass(frozen=True)
class LinearMixingPlan:
    """A calibrated run of linear mixing (Lev et al. 2025).

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee (adjacency ``zero_out_one_row``; rows of ``[X y]`` have a squared norm of
        at most 1 + B^2), checked by exact accounting.
    event : LinearMixing
        The sketch beside the least eigenvalue.
    eigenvalue_noise_std : float
        On the least eigenvalue, whose sensitivity is 1 + B^2.
    eigenvalue_shift : float
        By how many of its standard deviations the released least eigenvalue is lowered.
    """

    target: Target
    event: LinearMixing
    eigenvalue_noise_std: float
    eigenvalue_shift: float

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the releases and return the fit; 1 pass over the data.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        factor = data.factor()
        least = float(np.linalg.svd(factor, compute_uv=False)[-1]) ** 2
        rng = secret.stream(release_id, "linear-mixing/eigenvalue", 0)
        released = max(0.0, least + self.eigenvalue_noise_std * (float(rng.standard_normal()) - self.eigenvalue_shift))
        added = max(0.0, self.event.eigenvalue_floor - released)
        half: Array = np.asarray(np.linalg.qr(np.vstack([factor, math.sqrt(added) * np.eye(len(factor))]), mode="r"))
        gram = wishart_gram(secret.stream(release_id, "linear-mixing/sketch", 0), half, self.event.sketch_size)
        theta: Array = np.linalg.lstsq(gram[:-1, :-1], gram[:-1, -1], rcond=None)[0].astype(np.float64)
        return plain_estimate(theta)


def plan_linear_mixing(
    target: Target, *, accounting: Accounting = "exact", sketch_size: int | None = None
) -> LinearMixingPlan:
    """Calibrate linear mixing.

    Parameters
    ----------
    target
        The data and the guarantee.
    accounting
        ``paper``: the Renyi bound and the noise of the authors' published code; ``exact``: sketch and least eigenvalue
        in one curve.
    sketch_size
        Rows k, at least d + 2; ``max(2.5 d, 2.5 ln(2 / failure))`` by default, with failure a tenth of delta.

    Raises
    ------
    ConfigError
        If a parameter is out of range.
    PrivacyError
        If the target cannot be met.
    """
    epsilon, delta, d = target.epsilon, target.delta, target.num_columns
    failure = _FAILURE_SHARE * delta
    k = int(max(2.5 * d, 2.5 * math.log(2 / failure))) if sketch_size is None else sketch_size
    if k < d + 2:
        raise ConfigError(f"a sketch of {k} rows determines no {d} coefficients; expected at least d + 2")
    energy = 1 + target.label_bound**2
    if accounting == "paper":
        floor = linear_mixing_rdp(epsilon=epsilon, delta=delta, sketch_size=k, label_bound=target.label_bound)
        mu = math.sqrt(energy * k) / floor
        shift = math.sqrt(2 * math.log(max(3 / delta, 2 / failure)))
        failure = float(stats.norm.sf(shift))
    else:
        mu = largest_gaussian_mu(epsilon=epsilon, delta=delta - failure) * math.sqrt(_EIGENVALUE_SHARE)
        shift = float(stats.norm.isf(failure))
        floor = calibrate_eigenvalue_floor(
            epsilon=epsilon,
            delta=delta,
            sketch_size=k,
            gaussian_mu=mu,
            failure_probability=failure,
            row_energy=energy,
        )
    event = LinearMixing(
        sketch_size=k,
        eigenvalue_floor=floor,
        label_bound=target.label_bound,
        gaussian_mu=mu,
        failure_probability=failure,
    )
    target.check_met(event)
    return LinearMixingPlan(target, event, energy / mu, shift)
