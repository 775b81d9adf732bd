"""How much a model loses against least squares on the original rows: an evaluation, not a release.

Everything here reads labels without any noise. Its numbers are for demonstrations, tests and papers, on
data whose labels may be seen; they are covered by no certificate and must not be published beside one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluation", "evaluate", "excess_share"]


@dataclass(frozen=True)
class Evaluation:
    """Losses of a linear model on the original rows. NOT private.

    Attributes
    ----------
    mse : float
        Mean squared error of the model.
    least_squares_mse : float
        That of least squares on the same rows: no linear model has a smaller one.
    constant_mse : float
        That of the best constant: the variance of the labels.
    """

    mse: float
    least_squares_mse: float
    constant_mse: float

    @property
    def r_squared(self) -> float:
        """Share of the labels' variance that the model explains; NaN if the labels do not vary."""
        return _ratio(self.constant_mse - self.mse, self.constant_mse)

    @property
    def least_squares_r_squared(self) -> float:
        """Share of the labels' variance that least squares explains; NaN if the labels do not vary."""
        return _ratio(self.constant_mse - self.least_squares_mse, self.constant_mse)

    @property
    def excess_share(self) -> float:
        """Share of what least squares gains over the best constant that the model gives away.

        0 for least squares itself, 1 for the best constant; NaN if least squares gains nothing.
        """
        return _ratio(self.mse - self.least_squares_mse, self.constant_mse - self.least_squares_mse)


def evaluate(
    features: NDArray[np.float64], labels: NDArray[np.float64], coefficients: NDArray[np.float64]
) -> Evaluation:
    """Compare a linear model with least squares and with the best constant. NOT private.

    Parameters
    ----------
    features : ndarray (n, d)
        All original rows, encoded; rows that a leverage cap kept out of the release included.
    labels : ndarray (n,)
        Labels clipped to their declared bounds, in the user's units.
    coefficients : ndarray (d,)
        The model, in encoded units.

    Raises
    ------
    ValueError
        If shapes do not fit or there is no row.
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or coefficients.shape != features.shape[1:]:
        raise ValueError(
            f"shapes do not fit: features {features.shape}, labels {labels.shape}, coefficients {coefficients.shape}"
        )
    if labels.size == 0:
        raise ValueError("there is no row to evaluate on")
    best = np.linalg.lstsq(features, labels, rcond=None)[0]
    return Evaluation(
        mse=_mean_square(labels - features @ coefficients),
        least_squares_mse=_mean_square(labels - features @ best),
        constant_mse=_mean_square(labels - labels.mean()),
    )


def excess_share(
    features: NDArray[np.float64], labels: NDArray[np.float64], coefficients: NDArray[np.float64]
) -> float:
    """Share of least squares' gain over the best constant that a model gives away. NOT private.

    ``(MSE(model) - MSE(least squares)) / (MSE(best constant) - MSE(least squares))`` on the original rows.
    Parameters as in `evaluate`.
    """
    return evaluate(features, labels, coefficients).excess_share


def _mean_square(values: NDArray[np.float64]) -> float:
    return float(values @ values) / values.size


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else float("nan")
