"""Multilayer perceptrons: free, or with a bound on how fast and how far the output moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from dpagg.kernels.network import Network

# After s squarings the bound is at most rank^(1 / 2^(s + 2)) too large: 64^(1/128) = 1.03.
_SQUARINGS = 5
_TINY = 1e-30


@dataclass(frozen=True)
class Architecture:
    """What a network looks like.

    Attributes
    ----------
    hidden : tuple of int
        Width of each hidden layer; none is a linear model.
    lipschitz : float or None
        The output, in half widths of the label's bounds, moves by at most this a unit of encoded features (Euclidean
        norm); None leaves the network free.
    output_bound : float or None
        The output stays within this many half widths of the middle of the label's bounds; None leaves it free.
    """

    hidden: tuple[int, ...] = (64, 64)
    lipschitz: float | None = None
    output_bound: float | None = 1.0


class Regressor(eqx.Module):
    """A multilayer perceptron with rectified units, in single precision.

    With a Lipschitz bound L each matrix is divided by its spectral norm where that is above 1, and the last layer is
    multiplied by L (spectral normalisation, Miyato et al. 2018). Rectified units and tanh move no faster than their
    input, so the whole moves no faster than L.
    """

    weights: tuple[jax.Array, ...]
    biases: tuple[jax.Array, ...]
    lipschitz: float | None = eqx.field(static=True)
    output_bound: float | None = eqx.field(static=True)

    def matrices(self) -> tuple[jax.Array, ...]:
        """Return the matrices that act on the features, normalised where the network is bounded."""
        if self.lipschitz is None:
            return self.weights
        return tuple(weight / jnp.maximum(1.0, spectral_bound(weight)) for weight in self.weights)

    def __call__(self, features: jax.Array) -> jax.Array:
        """Return outputs, shape (...), in half widths of the label's bounds, from features of shape (..., d)."""
        return forward(self.matrices(), self.biases, features, self.lipschitz, self.output_bound)

    def to_network(self, *, label_center: float, label_half_width: float) -> Network:
        """Return the network as plain matrices in double precision that keep the bound to its last digits."""
        weights = [np.asarray(each, dtype=np.float64) for each in self.weights]
        biases = [np.asarray(each, dtype=np.float64) for each in self.biases]
        if self.lipschitz is not None:
            used = [np.asarray(each, dtype=np.float64) for each in jax.jit(Regressor.matrices)(self)]
            # Single precision may leave a norm of 1.000001.
            weights = [each / max(1.0, float(np.linalg.norm(each, 2))) for each in used]
            weights[-1], biases[-1] = self.lipschitz * weights[-1], self.lipschitz * biases[-1]
        return Network(tuple(weights), tuple(biases), label_center, label_half_width, self.output_bound)


def forward(
    matrices: Sequence[jax.Array],
    biases: Sequence[jax.Array],
    features: jax.Array,
    lipschitz: float | None,
    output_bound: float | None,
) -> jax.Array:
    """Return outputs, shape (...), of layers applied to features of shape (..., d)."""
    value = features
    for matrix, bias in zip(matrices[:-1], biases[:-1], strict=True):
        value = jax.nn.relu(value @ matrix.T + bias)
    last = (value @ matrices[-1].T + biases[-1])[..., 0]
    if lipschitz is not None:
        last = lipschitz * last
    return last if output_bound is None else output_bound * jnp.tanh(last / output_bound)


def spectral_bound(matrix: jax.Array) -> jax.Array:
    """Return an upper bound of the largest singular value, at most a few per cent above it, by matrix products alone.

    ``sigma^(2p) <= ||(W W^T)^p||_F`` for p a power of 2, reached by squaring; scaled at each step (Gram iteration,
    Delattre et al. 2023). Unlike power iteration it never comes out too low, and needs no state.
    """
    gram = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    logarithm = jnp.zeros(())
    for squaring in range(_SQUARINGS):
        norm = jnp.sqrt(jnp.sum(jnp.square(gram)) + _TINY)
        logarithm += jnp.log(norm) / 2**squaring
        scaled = gram / norm
        gram = scaled @ scaled
    norm = jnp.sqrt(jnp.sum(jnp.square(gram)) + _TINY)
    logarithm += jnp.log(norm) / 2**_SQUARINGS
    return jnp.exp(logarithm / 2)


def make_regressor(architecture: Architecture, num_columns: int, seed: int) -> Regressor:
    """Return a network with random weights (He et al. 2015) and an output that is near 0 everywhere."""
    widths = (num_columns, *architecture.hidden, 1)
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal((after, before)) * np.sqrt(2.0 / before) for before, after in pairwise(widths)]
    # Labels carry far more noise than signal, so a first guess away from 0 would have to be unlearned.
    weights[-1] = 0.1 * weights[-1]
    return Regressor(
        weights=tuple(jnp.asarray(weight, jnp.float32) for weight in weights),
        biases=tuple(jnp.zeros(after, jnp.float32) for after in widths[1:]),
        lipschitz=architecture.lipschitz,
        output_bound=architecture.output_bound,
    )
