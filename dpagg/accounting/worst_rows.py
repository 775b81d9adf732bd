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


def worst_user(largest_leverage: float, max_rows: int, num_rows: int, half_range: float, label_range: float) -> float:
    """Return a bound of the change of the residual sum of squares by one user, over 2 D.

    The smallest of three bounds for a user with rows S, at most g, labels that change by Delta, residuals e' in the
    data set of the larger sum, and ``l = lambda_max(H_SS)``, which the sum H of the rows' leverages bounds.

    - The change is ``2 Delta^T e' - Delta^T (I - H_SS) Delta``, so at most 2 D times the sum of the rows' bounds. The
      Cauchy-Schwarz bound e(h) of one row is concave, grows up to ``h = (1 - 1 / sqrt(n)) / 2`` and isn't negative:
      the sum is at most g e(H / g), and rows that a user lacks only add to it.
    - The quadratic part is at least ``(1 - l) |Delta|^2``. A row adds at most ``t (2 e - t (1 - l))``, 0 <= t <= D,
      hence at most ``2 D max(e, c) - D^2 (1 - l)`` with ``c = D (1 - l)``. If j rows have e over c, their sum is at
      most ``j e(H / j)``, and that of the others ``(g - j) c``; the largest over j is taken. The sum is concave in j.
    - With M = I - H the change is ``y'^T M y' - y^T M y``, in which rows outside S meet Delta only:
      ``y_S'^T M_SS y_S' - y_S^T M_SS y_S - 2 Delta^T H_SR y_R``. The first term is at most ``g B^2``, the second is not
      positive, and as ``H_SR H_RS = H_SS - H_SS^2`` the third is at most
      ``2 D sqrt(g) B sqrt(n - g) sqrt(l (1 - l))``.

    Parameters
    ----------
    largest_leverage : float
        Largest sum of the leverages of a user's rows.
    max_rows : int
        g, most rows a user holds.
    num_rows : int
        n.
    half_range : float
        B, the largest size of a label as it is summed; at least half of `label_range`.
    label_range : float
        D.

    Returns
    -------
    float
        In units of the label; what `UserAggregation` takes as its residual bound.
    """
    peak = 0.5 * (1.0 - 1.0 / math.sqrt(num_rows))
    eigenvalue = min(largest_leverage, 1.0)
    max_rows = min(max_rows, num_rows)

    def rows_sum(over: int) -> float:
        share = min(largest_leverage / over, peak)
        return over * float(residual_bound_cauchy_schwarz(share, num_rows, half_range))

    least = label_range * (1.0 - eigenvalue)
    # max_rows may be in the billions, so the best j is found by bisection: the step to one more row falls with j.
    low, high = 1, max_rows
    while low < high:
        middle = (low + high) // 2
        if rows_sum(middle + 1) - rows_sum(middle) > least:
            low = middle + 1
        else:
            high = middle
    largest = max(rows_sum(low) + (max_rows - low) * least, max_rows * least)
    block = min(eigenvalue, 0.5)
    rows = min(max_rows, num_rows / 2)
    across = half_range * math.sqrt(rows * (num_rows - rows) * block * (1.0 - block))
    whole = max_rows * half_range**2 / (2.0 * label_range) + across if label_range > 0 else math.inf
    return min(rows_sum(max_rows), largest - max_rows * least / 2.0, whole)
