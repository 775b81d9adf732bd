"""The papers' own sufficient conditions, for comparison only: no certificate rests on them.

Bounds whose constants the papers hide in O() take them as 1 and show a shape only; they say so below.
"""

from __future__ import annotations

import math

from scipy import optimize

from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.accounting.event import require, require_count, require_nonnegative
from dpagg.accounting.gaussian_release import AdaSSP


def weighted_flag_num_bags(*, mean_squared_residual: float, num_rows: int, label_bound: float, delta: float) -> int:
    """Return WTD-FLAG's number of bags ``gamma n / (B^2 ln(1/delta))``, shape only.

    The constant in the paper's O() is taken as 1.

    Source: *Label Differential Privacy via Aggregation* (2023, arXiv 2310.10092), theorem on WTD-FLAG; it
    doesn't depend on epsilon, which the paper takes as at most a constant.

    Parameters
    ----------
    mean_squared_residual
        gamma, a lower bound of the mean squared residual of least squares.
    num_rows
        n.
    label_bound
        B, the largest absolute label.
    delta
        Target, in ``(0, 1)``.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    require_nonnegative(mean_squared_residual=mean_squared_residual)
    require_count("num_rows", num_rows)
    _check(label_bound, delta)
    return math.floor(mean_squared_residual * num_rows / (label_bound**2 * math.log(1 / delta)))


def sheffet_num_bags(*, least_singular_value: float, label_bound: float, epsilon: float, delta: float) -> int:
    """Return the rows that Sheffet's Gaussian sketch allows: ``q^2 / (2 ln(8/delta))``, 0 where ``q <= 0``.

    ``q = sigma^2 epsilon / (8 B^2) - 2 ln(8/delta)`` with ``sigma`` the least singular value of ``[X y]``.
    Source: Sheffet, *Old Techniques in Differentially Private Linear Regression* (2019), as the label-DP
    paper compares with it; there a norm bound of whole rows stands for ``B``.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    require_nonnegative(least_singular_value=least_singular_value, epsilon=epsilon)
    _check(label_bound, delta)
    log_term = math.log(8 / delta)
    q = least_singular_value**2 * epsilon / (8 * label_bound**2) - 2 * log_term
    return math.floor(q * q / (2 * log_term)) if q > 0 else 0


def sampled_flag_bag_size(*, epsilon: float, delta: float) -> int:
    """Return Sampled-WTD-FLAG's bag size ``(ln(1/delta) / epsilon)^2``, shape only.

    The constant in the paper's O() is taken as 1.

    Source: *Label Differential Privacy via Aggregation* (2023), theorem on Sampled-WTD-FLAG.
    """
    _check(1.0, delta)
    require(epsilon > 0, f"epsilon must be positive, got {epsilon}")
    return math.ceil((math.log(1 / delta) / epsilon) ** 2)


def sampled_noisy_bag_size(*, epsilon: float, label_bound: float, noised_fraction: float) -> int:
    """Return Sampled-Noisy-WTD-LAg's bag size ``B^2 / (rho epsilon^2)``, shape only.

    The constant in the paper's O() is taken as 1.

    Source: *Label Differential Privacy via Aggregation* (2023), theorem on Sampled-Noisy-WTD-LAg.
    """
    require(epsilon > 0, f"epsilon must be positive, got {epsilon}")
    require(0 < noised_fraction <= 1, f"noised_fraction must lie in (0, 1], got {noised_fraction}")
    require(label_bound > 0, f"label_bound must be positive, got {label_bound}")
    return math.ceil(label_bound**2 / (noised_fraction * epsilon**2))


def hessian_mixing_rdp(
    *, epsilon: float, delta: float, sketch_size: int, num_iterations: int, residual_clip: float = 1.0
) -> tuple[float, float]:
    """Return eigenvalue floor and gradient noise of iterative Hessian mixing by the authors' calibration.

    Half of epsilon goes to the sketches and the least eigenvalue, half to the gradients, a quarter of delta to
    each of four parts. Source: *Near-Optimal Private Linear Regression via Iterative Hessian Mixing* (2026, arXiv
    2601.07545), as its published code calibrates.

    Parameters
    ----------
    epsilon, delta
        Target.
    sketch_size, num_iterations
        k and T.
    residual_clip
        C.

    Returns
    -------
    tuple of float
        gamma, the least eigenvalue to ensure, and sigma, the standard deviation on each gradient.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    require_count("num_iterations", num_iterations)
    floor = _sketch_floor(epsilon / 2, delta / 4, sketch_size, num_iterations)
    sigma = residual_clip * math.sqrt(num_iterations) / largest_gaussian_mu(epsilon=epsilon / 2, delta=delta / 4)
    return floor, sigma


def linear_mixing_rdp(*, epsilon: float, delta: float, sketch_size: int, label_bound: float = 1.0) -> float:
    """Return the eigenvalue floor of linear mixing by the same Renyi bound, for one sketch and all of epsilon.

    Rows of ``[X y]`` have squared norm at most ``1 + label_bound^2``, by which the floor is scaled. A third of
    delta goes to each of the sketch's conversion, the least eigenvalue's release and its failure. That split is
    read off :func:`hessian_mixing_rdp`, not taken from Lev et al. (2025), whose own constants may differ.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    require(label_bound >= 0, f"label_bound must be at least 0, got {label_bound}")
    return (1 + label_bound**2) * _sketch_floor(epsilon, delta / 3, sketch_size, 1)


def adassp_thirds(*, epsilon: float, delta: float, label_bound: float = 1.0) -> AdaSSP:
    """Return AdaSSP with its paper's split: a third of epsilon and of delta to each of three Gaussian releases.

    Source: Wang (2018), algorithm 2, with the analytic Gaussian mechanism in each third.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    std = 1 / largest_gaussian_mu(epsilon=epsilon / 3, delta=delta / 3)
    return AdaSSP(
        label_bound=label_bound,
        eigenvalue_noise_std=std,
        gram_noise_std=std,
        xty_noise_std=label_bound * std,
    )


def _sketch_floor(budget: float, share: float, sketch_size: int, num_sketches: int) -> float:
    """Least gamma for which Renyi sketches and the least eigenvalue's release stay within ``budget``."""
    require_count("sketch_size", sketch_size)
    require(budget > 0, f"epsilon must be positive, got {budget}")
    require(0 < share < 1, f"delta must lie in (0, 1), got {share}")
    k = sketch_size

    def renyi(alpha: float, gamma: float) -> float:
        moment = k * alpha / (2 * (alpha - 1)) * math.log1p(-1 / gamma)
        moment -= k / (2 * (alpha - 1)) * math.log1p(-alpha / gamma)
        return num_sketches * moment + math.log1p(-1 / alpha) - math.log(alpha * share) / (alpha - 1)

    def spent(gamma: float) -> float:
        # The order runs over (1, gamma); u maps it to the reals so that both ends can be approached.
        result = optimize.minimize_scalar(
            lambda u: renyi(1 + (gamma - 1) / (1 + math.exp(-u)), gamma),
            bounds=(-25.0, 20.0),
            method="bounded",
            options={"xatol": 1e-10},
        )
        return float(result.fun) + math.sqrt(2 * math.log(1.25 / share)) * math.sqrt(k) / gamma

    root = optimize.brentq(lambda v: spent(math.exp(v)) - budget, math.log(1.01), math.log(1e12), xtol=1e-13)
    return math.exp(root)


def _check(label_bound: float, delta: float) -> None:
    require(math.isfinite(label_bound) and label_bound > 0, f"label_bound must be positive, got {label_bound}")
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
