"""The rows, or the users, that decide the privacy of a release when only the largest leverage is known."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.weighted_aggregation import residual_bound_cauchy_schwarz


def worst_rows(
    largest_leverage: float, num_rows: int, half_range: float, label_range: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return leverage and residual bound of two rows that no row of the table exceeds.

    One has the largest leverage, which bounds the shift. The other has the leverage, at most that, at which the change
    of the residual sum of squares is largest under the Cauchy-Schwarz residual bound; it isn't the largest leverage
    once that is over about one half.

    With e(h) = B (1 - h) + B sqrt((n - 1) h (1 - h)) the change at Delta = D is
    D [-a h + b sqrt(h (1 - h))] plus a constant, a = 2 B - D, b = 2 B sqrt(n - 1). It is concave with its maximum at
    h = (1 - a / sqrt(a^2 + b^2)) / 2. Where a smaller Delta is the best one, e / (1 - h) < D, the change is
    e^2 / (1 - h) = B^2 (sqrt(1 - h) + sqrt((n - 1) h))^2, which grows with h up to (n - 1) / n; so the change rises to
    one maximum and falls after it, and the maximum over the leverages present is at most that over [0, h_max].

    Parameters
    ----------
    largest_leverage : float
        h_max, over the rows that take part.
    num_rows : int
        n.
    half_range : float
        B, the largest size of a label as it is summed; at least half of `label_range`.
    label_range : float
        D.

    Returns
    -------
    tuple of ndarray
        Leverages and residual bounds (units of the label), shape (2,) each.
    """
    a, b = 2.0 * half_range - label_range, 2.0 * half_range * math.sqrt(num_rows - 1)
    peak = 0.5 * (1.0 - a / math.hypot(a, b)) if b > 0 else largest_leverage
    leverage = np.array([largest_leverage, min(largest_leverage, peak)])
    return leverage, residual_bound_cauchy_schwarz(leverage, num_rows, half_range)


def worst_user(largest_leverage: float, max_rows: int, num_rows: int, half_range: float) -> float:
    """Return the largest sum of residual bounds over the rows of one user.

    The Cauchy-Schwarz bound e(h) is concave and not negative, so g rows with leverages that sum to H have a sum of at
    most g e(H / g), and rows that a user lacks only add to it. It grows up to h = (1 - 1 / sqrt(n)) / 2.

    Parameters
    ----------
    largest_leverage : float
        Largest sum of the leverages of a user's rows.
    max_rows : int
        g, most rows a user holds.
    num_rows : int
        n.
    half_range : float
        B, the largest size of a label as it is summed.

    Returns
    -------
    float
        In units of the label.
    """
    peak = 0.5 * (1.0 - 1.0 / math.sqrt(num_rows))
    leverage = min(largest_leverage / max_rows, peak)
    return max_rows * float(residual_bound_cauchy_schwarz(leverage, num_rows, half_range))
