"""Training a network on bags: averaged weights, early stopping on held-out bags, checkpoints that go on exactly."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpagg.errors import ConfigError
from dpagg.neural.checkpoints import read_checkpoint, write_checkpoint
from dpagg.neural.loss import Bags, bag_loss
from dpagg.neural.networks import Architecture, Regressor, make_regressor
from dpagg.neural.streaming import BagStream

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingSettings:
    """How a network is trained.

    Attributes
    ----------
    max_epochs : int
        Passes over the bags at most.
    learning_rate : float
        Of AdamW at its height; it rises over the first twentieth of all steps and falls along a cosine.
    weight_decay : float
        Of AdamW.
    averaging : float
        The network that is judged and kept is a running mean of weights that remembers about 1 / (1 - averaging)
        steps; 0 keeps the last weights.
    patience : int
        Epochs without a smaller loss on held-out bags before training ends.
    seed : int
        Of first weights and of the order of bags.
    """

    max_epochs: int = 50
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    averaging: float = 0.99
    patience: int = 5
    seed: int = 0


class State(eqx.Module):
    """Everything that training changes and that is an array: saved and read back bit by bit."""

    network: Regressor
    average: Regressor
    best: Regressor
    moments: optax.OptState
    step: jax.Array
    loss_sum: jax.Array


@dataclass(frozen=True)
class Position:
    """Where training is, and what has been seen so far.

    Attributes
    ----------
    epoch, batch : int
        The next batch.
    training_loss, held_out_loss : tuple of float
        Mean loss a bag of each epoch so far.
    best_epoch : int
        The one with the smallest loss on held-out bags, from 0; -1 before the first.
    """

    epoch: int = 0
    batch: int = 0
    training_loss: tuple[float, ...] = ()
    held_out_loss: tuple[float, ...] = ()
    best_epoch: int = -1

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return len(self.training_loss) - 1 - self.best_epoch


@dataclass(frozen=True)
class Trained:
    """A trained network and how it came about.

    Attributes
    ----------
    network : Regressor
        The averaged weights of the best epoch.
    position : Position
        With the losses of all epochs.
    stopped_early : bool
        Whether held-out bags ended it.
    bags_a_second : float
        In the steps of this process, held-out bags not counted.
    """

    network: Regressor
    position: Position
    stopped_early: bool
    bags_a_second: float


@dataclass(frozen=True)
class CheckpointRule:
    """Where and how often training is saved.

    Attributes
    ----------
    file : Path
        The checkpoint; replaced in one step each time.
    identity : str
        What is trained on what. A checkpoint of another identity is refused.
    every_seconds : float
        At least so long between two, but for one at the end of each epoch.
    """

    file: Path
    identity: str
    every_seconds: float = 30.0


@dataclass
class _Clock:
    saved: float = field(default_factory=time.monotonic)
    trained: float = 0.0
    bags: int = 0


def optimiser(settings: TrainingSettings, num_steps: int) -> optax.GradientTransformation:
    """Return AdamW with a rate that rises linearly and falls along a cosine over `num_steps` steps."""
    warmup = max(1, num_steps // 20)
    rate = optax.warmup_cosine_decay_schedule(
        settings.learning_rate / (warmup + 1), settings.learning_rate, warmup, max(num_steps, warmup + 1)
    )
    return optax.adamw(rate, weight_decay=settings.weight_decay)


def averaged(average: Regressor, network: Regressor, step: jax.Array, averaging: float) -> Regressor:
    """Return the running mean of weights after a step; early ones are forgotten sooner than later ones."""
    keep = jnp.minimum(averaging, (1.0 + step) / (10.0 + step)) if averaging > 0 else 0.0
    found: Regressor = jax.tree.map(lambda old, new: keep * old + (1.0 - keep) * new, average, network)
    return found


def update(state: State, bags: Bags, transform: optax.GradientTransformation, averaging: float) -> State:
    """Return the state after one step of gradient descent on the mean loss of some bags."""
    count = bags.sums.shape[0]
    loss, gradient = jax.value_and_grad(lambda network: bag_loss(network, bags) / count)(state.network)
    changes, moments = transform.update(gradient, state.moments, state.network)
    network: Regressor = optax.apply_updates(state.network, changes)
    return State(
        network=network,
        average=averaged(state.average, network, state.step, averaging),
        best=state.best,
        moments=moments,
        step=state.step + 1,
        loss_sum=state.loss_sum + loss,
    )


def initial_state(network: Regressor, transform: optax.GradientTransformation) -> State:
    """Return the state before the first step."""
    return State(network, network, network, transform.init(network), jnp.zeros((), jnp.int32), jnp.zeros(()))


def train(
    stream: BagStream,
    architecture: Architecture,
    settings: TrainingSettings,
    checkpoint: CheckpointRule | None = None,
    report: Callable[[Position, int], None] = lambda position, num_batches: None,
) -> Trained:
    """Train a network on a stream of bags; go on exactly where a checkpoint left off.

    The same stream, architecture and settings give the same network to the last bit, whether or not the process ended
    in between, on one machine with one version of the libraries.

    Parameters
    ----------
    stream : BagStream
        Bags to train on and bags held out; without held-out bags the last epoch is the best.
    architecture, settings
        What is trained, and how.
    checkpoint : CheckpointRule, optional
        Where training is saved, and found again.
    report : callable
        Called after each batch with the position and the number of batches of an epoch.

    Raises
    ------
    ConfigError
        If the loss is no longer a finite number.
    DataError
        If the checkpoint is damaged or of another training.
    """
    num_batches = stream.num_batches
    transform = optimiser(settings, settings.max_epochs * num_batches)
    first = make_regressor(architecture, stream.law.num_columns, settings.seed)
    state, position = initial_state(first, transform), Position()
    if checkpoint is not None and checkpoint.file.exists():
        state, position = read_checkpoint(checkpoint.file, checkpoint.identity, state, position)
        _LOG.info("training goes on at epoch %d, batch %d", position.epoch + 1, position.batch)
    step = jax.jit(lambda state, bags: update(state, bags, transform, settings.averaging))
    judge = jax.jit(bag_loss)
    clock = _Clock()
    while position.epoch < settings.max_epochs and not _is_over(position, settings):
        began = time.monotonic()
        for bags in stream.training_batches(position.epoch, position.batch):
            state = step(state, bags)
            position = replace(position, batch=position.batch + 1)
            clock.bags += stream.batch_size
            report(position, num_batches)
            if checkpoint is not None and time.monotonic() - clock.saved >= checkpoint.every_seconds:
                _require_finite(state.loss_sum, position)
                write_checkpoint(checkpoint.file, checkpoint.identity, state, asdict(position))
                clock.saved = time.monotonic()
        training_loss = _require_finite(state.loss_sum, position) / num_batches
        clock.trained += time.monotonic() - began
        held_out_loss = _held_out_loss(judge, state.average, stream)
        # No training loss has seen the weights after the last step.
        kept = all(bool(jnp.isfinite(each).all()) for each in jax.tree.leaves(state.average))
        if not kept or (stream.num_held_out > 0 and not math.isfinite(held_out_loss)):
            raise _diverged(position)
        state, position = _epoch_done(state, position, training_loss, held_out_loss)
        _LOG.info("epoch %d: loss %.6g, held out %.6g", position.epoch, training_loss, held_out_loss)
        if checkpoint is not None:
            write_checkpoint(checkpoint.file, checkpoint.identity, state, asdict(position))
            clock.saved = time.monotonic()
    rate = clock.bags / clock.trained if clock.trained > 0 else 0.0
    return Trained(state.best, position, position.epoch < settings.max_epochs, rate)


def _is_over(position: Position, settings: TrainingSettings) -> bool:
    return bool(position.training_loss) and position.waited >= settings.patience


def _held_out_loss(judge: Callable[[Regressor, Bags], jax.Array], network: Regressor, stream: BagStream) -> float:
    if stream.num_held_out == 0:
        return math.nan
    return float(np.sum([float(judge(network, bags)) for bags in stream.held_out_batches()])) / stream.num_held_out


def _epoch_done(state: State, position: Position, training_loss: float, held_out_loss: float) -> tuple[State, Position]:
    best = min(position.held_out_loss, default=math.inf)
    is_best = math.isnan(held_out_loss) or held_out_loss < best
    state = eqx.tree_at(lambda each: each.loss_sum, state, jnp.zeros(()))
    if is_best:
        state = eqx.tree_at(lambda each: each.best, state, state.average)
    return state, Position(
        epoch=position.epoch + 1,
        batch=0,
        training_loss=(*position.training_loss, training_loss),
        held_out_loss=(*position.held_out_loss, held_out_loss),
        best_epoch=position.epoch if is_best else position.best_epoch,
    )


def _require_finite(loss_sum: jax.Array, position: Position) -> float:
    found = float(loss_sum)
    if not math.isfinite(found):
        raise _diverged(position)
    return found


def _diverged(position: Position) -> ConfigError:
    return ConfigError(
        f"training diverged in epoch {position.epoch + 1}: the loss is not a finite number",
        path="training.learning_rate",
        remedy="Take a smaller rate, or a bounded network (network.lipschitz and network.output_bound).",
    )
