"""Made-up regression sets in the regimes that the iterative Hessian mixing paper discusses."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["REGIMES", "regime_rows"]

_NUM_ROWS, _NUM_COLUMNS = 5000, 10

REGIMES = {
    "synthetic-clipping": "a few labels far out, so that the labels' bound clips residuals often after scaling",
    "synthetic-residuals": "residuals larger than the signal",
    "synthetic-conditioned": "X well conditioned, [X y] badly: nearly no residual",
    "synthetic-small-theta": "coefficients near zero",
}


def regime_rows(name: str) -> NDArray[np.float64]:
    """Return the rows of a regime, shape (5000, 11), the response last; the same in every call.

    Raises
    ------
    KeyError
        If there is no such regime.
    """
    rng = np.random.default_rng(list(REGIMES).index(name) if name in REGIMES else _missing(name))
    features = rng.uniform(-1.0, 1.0, (_NUM_ROWS, _NUM_COLUMNS))
    theta = rng.standard_normal(_NUM_COLUMNS) / np.sqrt(_NUM_COLUMNS)
    signal = features @ theta
    noise = rng.standard_normal(_NUM_ROWS)
    if name == "synthetic-clipping":
        label = signal + 0.3 * noise * np.where(rng.random(_NUM_ROWS) < 0.02, 20.0, 1.0)
    elif name == "synthetic-residuals":
        label = signal + 2.0 * noise
    elif name == "synthetic-conditioned":
        label = signal + 0.01 * noise
    else:
        label = 0.02 * signal + 0.3 * noise
    return np.column_stack([features, label])


def _missing(name: str) -> int:
    raise KeyError(name)
