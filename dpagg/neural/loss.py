"""The loss of a network on bags of which only one weighted, noisy label sum is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


class Bags(NamedTuple):
    """Some bags, labels in half widths of their declared bounds about the middle; arrays of numpy or jax.

    Attributes
    ----------
    features : array, shape (b, k, d)
        Encoded features of each row.
    weights : array, shape (b, k)
        Weight of each row.
    sums : array, shape (b,)
        Weighted sum of the labels.
    precision : array, shape (b,)
        1 / variance of the sum given features and weights; 0 leaves a bag out.
    """

    features: NDArray[np.float32] | jax.Array
    weights: NDArray[np.float32] | jax.Array
    sums: NDArray[np.float32] | jax.Array
    precision: NDArray[np.float32] | jax.Array


def bag_loss(network: Callable[[jax.Array], jax.Array], bags: Bags) -> jax.Array:
    """Return the sum over bags of ``(sum_i w_i f(x_i) - y)^2 / variance``.

    A bag's share is about 1 where its noise is all that the network does not explain.

    Parameters
    ----------
    network : callable
        From features, shape (b, k, d), to outputs, shape (b, k).
    bags : Bags
        Of any number b and size k; rows by themselves are bags of one row.
    """
    deviation = jnp.sum(bags.weights * network(jnp.asarray(bags.features)), axis=-1) - bags.sums
    return jnp.sum(jnp.square(deviation) * bags.precision)
