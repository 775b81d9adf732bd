"""A trained network as plain matrices: what predicts on an executor, without the library that trained it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Hidden values held at once, as numbers: little enough for any executor.
_HELD = 1 << 22


@dataclass(frozen=True, eq=False)
class Network:
    """A multilayer perceptron with rectified hidden units, from encoded features to the label's units.

    ``label_center + label_half_width * u(x)``, where u is the last layer's value z or, with an output bound B,
    ``B tanh(z / B)``.

    Attributes
    ----------
    weights : tuple of ndarray, shapes (width_1, d), (width_2, width_1), ..., (1, width_L)
        One matrix a layer.
    biases : tuple of ndarray, shapes (width_1,), ..., (1,)
        One vector a layer.
    label_center, label_half_width : float
        Middle and half the width of the label's declared bounds.
    output_bound : float or None
        B, in half widths of the label's bounds.

    Raises
    ------
    ValueError
        If shapes do not fit, or a number is not finite.
    """

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    label_center: float
    label_half_width: float
    output_bound: float | None = None

    def __post_init__(self) -> None:
        weights = tuple(np.array(each, dtype=np.float64, ndmin=2) for each in self.weights)
        biases = tuple(np.array(each, dtype=np.float64, ndmin=1) for each in self.biases)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "biases", biases)
        if not weights or len(weights) != len(biases) or weights[-1].shape[0] != 1:
            raise ValueError("a network has a matrix and a vector for each layer, and one output")
        for before, after in pairwise(weights):
            if after.shape[1] != before.shape[0]:
                raise ValueError("the layers of the network do not fit each other")
        if any(bias.shape != (weight.shape[0],) for weight, bias in zip(weights, biases, strict=True)):
            raise ValueError("the vectors of the network do not fit its matrices")
        if not all(np.isfinite(each).all() for each in (*weights, *biases)):
            raise ValueError("the network holds numbers that are not finite")

    @property
    def num_columns(self) -> int:
        """Encoded features d that it takes."""
        return int(self.weights[0].shape[1])

    def __call__(self, features: Array) -> Array:
        """Predict labels, shape (k,) in the user's units, from encoded features (k, d)."""
        given = np.asarray(features, dtype=np.float64)
        together = max(1, _HELD // max(each.shape[0] for each in self.weights))
        parts = [self._predict(given[first : first + together]) for first in range(0, len(given), together)]
        return np.concatenate(parts) if parts else np.empty(0)

    def lipschitz_bound(self) -> float:
        """Return a bound on how far the prediction moves, in the label's units, a unit of encoded features (L2)."""
        # Rectification and tanh contract, so that the norms of the matrices multiply.
        return self.label_half_width * float(np.prod([np.linalg.norm(each, 2) for each in self.weights]))

    def _predict(self, features: Array) -> Array:
        value = features
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            value = np.maximum(value @ weight.T + bias, 0.0)
        last = (value @ self.weights[-1].T + self.biases[-1])[:, 0]
        if self.output_bound is not None:
            last = self.output_bound * np.tanh(last / self.output_bound)
        return np.asarray(self.label_center + self.label_half_width * last)
