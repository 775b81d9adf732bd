"""The papers' own sufficient conditions, for comparison only: no certificate rests on them.

Bounds whose constants the papers hide in O() take them as 1 and show a shape only; they say so below.
"""

from __future__ import annotations

import math

from dpagg.accounting.event import require, require_count, require_nonnegative


def weighted_flag_num_bags(
    *, mean_squared_residual: float, num_rows: int, label_bound: float, delta: float
) -> int:
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


def _check(label_bound: float, delta: float) -> None:
    require(
        math.isfinite(label_bound) and label_bound > 0, f"label_bound must be positive, got {label_bound}"
    )
    require(0 < delta < 1, f"delta must lie in (0, 1), got {delta}")
