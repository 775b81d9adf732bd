"""Ordinary least squares without any privacy: the oracle that experiments compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dpagg.regression.data import Data

__all__ = ["oracle"]


def oracle(data: Data) -> NDArray[np.float64]:
    """Return the least-squares coefficients, shape (d,), of least norm where there is a choice. NOT private."""
    factor = data.factor()
    solution: NDArray[np.float64] = np.linalg.lstsq(factor[:, :-1], factor[:, -1], rcond=None)[0].astype(np.float64)
    return solution
