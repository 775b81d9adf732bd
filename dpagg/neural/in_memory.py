"""Several trainings at once on bags of rows that are in memory: for experiments, by the same loss and steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from dpagg.kernels.network import Network
from dpagg.neural.loss import Bags, bag_loss
from dpagg.neural.networks import Architecture, make_regressor
from dpagg.neural.training import State, TrainingSettings, initial_state, optimiser, update

# Bags that are judged at once.
_JUDGED_ROWS = 1 << 15


@dataclass(frozen=True, eq=False)
class IndexedBags:
    """Bags of rows of one table; rows by themselves are bags of one row with weight 1.

    Attributes
    ----------
    members : ndarray of int, shape (m, k)
        Rows of each bag.
    weights : ndarray, shape (m, k)
    sums : ndarray, shape (m,)
        Weighted label sums in half widths of the label's bounds about the middle.
    precision : ndarray, shape (m,)
        1 / variance of a sum, in these units.
    """

    members: NDArray[np.int64]
    weights: NDArray[np.float64]
    sums: NDArray[np.float64]
    precision: NDArray[np.float64]


def train_in_memory(
    features: NDArray[np.float64],
    bags: IndexedBags,
    architecture: Architecture,
    settings: TrainingSettings,
    *,
    batch_rows: int,
    held_out: float,
) -> tuple[Network, list[float]]:
    """Train one network on bags, the last share of which is held out, and return it with its held-out losses.

    The steps are those of `dpagg.neural.training.train`; an epoch is one call of compiled code.

    Parameters
    ----------
    features : ndarray, shape (n, d)
        Encoded rows.
    bags : IndexedBags
        In an order that means nothing.
    architecture, settings
        What is trained, and how.
    batch_rows : int
        Rows of a batch; as many bags as hold them.
    held_out : float
        Share of the bags, in (0, 1).
    """
    count, size = bags.members.shape
    num_held_out = min(count - 1, max(1, round(held_out * count)))
    num_training = count - num_held_out
    batch = max(1, min(batch_rows // size, num_training))
    num_batches = num_training // batch
    run = _compiled(architecture, replace(settings, seed=0), batch, num_batches)  # the seed compiles nothing
    table = jnp.asarray(features, jnp.float32)
    held = tuple(
        jnp.asarray(each, jnp.int32 if each.dtype.kind == "i" else jnp.float32)
        for each in (bags.members, bags.weights, bags.sums, bags.precision)
    )
    state = initial_state(
        make_regressor(architecture, features.shape[1], settings.seed),
        optimiser(settings, settings.max_epochs * num_batches),
    )
    best, best_loss, losses = state.average, math.inf, []
    for epoch in range(settings.max_epochs):
        order = np.random.default_rng([settings.seed, epoch]).permutation(num_training)[: num_batches * batch]
        state = run.epoch(state, table, held, jnp.asarray(order.reshape(num_batches, batch), jnp.int32))
        losses.append(_judged(run, state, table, held, num_training, count, size))
        if losses[-1] < best_loss:
            best, best_loss = state.average, losses[-1]
        elif epoch - int(np.argmin(losses)) >= settings.patience:
            break
    return best.to_network(label_center=0.0, label_half_width=1.0), losses


@dataclass(frozen=True)
class _Compiled:
    epoch: Callable[..., State]
    judge: Callable[..., jax.Array]


@lru_cache(maxsize=64)
def _compiled(architecture: Architecture, settings: TrainingSettings, batch: int, num_batches: int) -> _Compiled:
    transform = optimiser(settings, settings.max_epochs * num_batches)

    def taken(table: jax.Array, held: Any, which: jax.Array) -> Bags:
        members, weights, sums, precision = held
        return Bags(table[members[which]], weights[which], sums[which], precision[which])

    def epoch(state: State, table: jax.Array, held: Any, order: jax.Array) -> State:
        def step(state: State, which: jax.Array) -> tuple[State, None]:
            return update(state, taken(table, held, which), transform, settings.averaging), None

        return jax.lax.scan(step, state, order)[0]

    def judge(network: Any, table: jax.Array, held: Any, which: jax.Array) -> jax.Array:
        return bag_loss(network, taken(table, held, which))

    return _Compiled(jax.jit(epoch), jax.jit(judge))


def _judged(run: _Compiled, state: State, table: jax.Array, held: Any, first: int, last: int, size: int) -> float:
    together = max(1, _JUDGED_ROWS // size)
    total = 0.0
    for start in range(first, last, together):
        which = np.arange(start, min(start + together, last), dtype=np.int32)
        total += float(run.judge(state.average, table, held, which))
    return total / (last - first)
