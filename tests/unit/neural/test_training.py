"""Training: it learns, stops by held-out bags, and goes on bit by bit after kill -9."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.neural.networks import Architecture, make_regressor
from dpagg.neural.streaming import BagLaw, BagStream
from dpagg.neural.training import CheckpointRule, TrainingSettings, train
from tests.unit.neural.bag_files import made_bags, write_bags

LAW = BagLaw(bag_size=4, num_columns=3, num_noised=2, noise_variance=0.09, label_center=5.0, label_half_width=4.0,
             row_variance=0.01)  # fmt: skip
NETWORK = Architecture((16,), lipschitz=4.0, output_bound=1.0)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_bags(tmp_path_factory.mktemp("bags") / "bags.parquet", *made_bags(num_bags=2000), row_group_size=300)


def stream_of(file, **options):
    return BagStream([file], LAW, **({"batch_size": 50, "held_out": 0.1, "seed": 1} | options))


def arrays(network):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(network)]


def test_it_learns_the_labels_from_their_sums(file):
    found = train(stream_of(file), NETWORK, TrainingSettings(max_epochs=15, learning_rate=1e-2))
    rows = np.random.default_rng(9).uniform(-1, 1, (4000, 3))
    labels = 5.0 + 2.0 * np.tanh(2 * rows[:, 0]) * rows[:, 1]
    predicted = found.network.to_network(label_center=5.0, label_half_width=4.0)(rows)
    assert np.mean((predicted - labels) ** 2) < 0.1 * labels.var()
    losses = found.position.training_loss
    assert losses[-1] < 0.2 * losses[0]


def test_it_stops_when_bags_held_out_no_longer_gain_and_keeps_the_best(file):
    settings = TrainingSettings(max_epochs=60, learning_rate=3e-2, patience=3, averaging=0.0)
    found = train(stream_of(file, batch_size=20), NETWORK, settings)
    losses = found.position.held_out_loss
    assert found.stopped_early and len(losses) < 60
    assert len(losses) - 1 - int(np.argmin(losses)) == 3 and found.position.best_epoch == int(np.argmin(losses))
    # The weights that are kept have the loss of the best epoch, and not of the last one.
    from dpagg.neural.loss import bag_loss

    stream = stream_of(file, batch_size=20)
    loss = sum(float(bag_loss(found.network, bags)) for bags in stream.held_out_batches()) / stream.num_held_out
    assert np.isclose(loss, min(losses), rtol=1e-5) and min(losses) < losses[-1]


# It ends itself, so that no slow reader of a pipe lets it go on to the next epoch; 20 batches take over 0.2 s.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from tests.unit.neural import test_training as t
from dpagg.neural.training import CheckpointRule, TrainingSettings, train
file, checkpoint = sys.argv[1:]
def slowly(position, num_batches):
    if (position.epoch, position.batch) >= (1, 20):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)
train(t.stream_of(file), t.NETWORK, TrainingSettings(max_epochs=3),
      CheckpointRule(Path(checkpoint), "this", every_seconds=0.05), slowly)
"""


def test_killed_in_the_middle_of_an_epoch_it_ends_with_the_same_network(file, tmp_path):
    checkpoint = tmp_path / "checkpoint.eqx"
    root = str(Path(__file__).resolve().parents[3])
    # In the second epoch, some batches after a checkpoint within it.
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, file, str(checkpoint)], check=False, env=os.environ | {"PYTHONPATH": root}
    )
    assert killed.returncode == -signal.SIGKILL
    from dpagg.neural.checkpoints import read_checkpoint
    from dpagg.neural.training import Position, initial_state, optimiser

    empty = initial_state(make_regressor(NETWORK, 3, 0), optimiser(TrainingSettings(), 10))
    _, there = read_checkpoint(checkpoint, "this", empty, Position())
    assert there.epoch == 1 and there.batch > 0  # it was killed within an epoch, after a checkpoint within it
    settings, seen = TrainingSettings(max_epochs=3), []
    resumed = train(
        stream_of(file),
        NETWORK,
        settings,
        CheckpointRule(checkpoint, "this"),
        lambda p, _: seen.append((p.epoch, p.batch)),
    )
    assert seen[0] == (1, there.batch + 1)
    whole = train(stream_of(file), NETWORK, settings)
    assert resumed.position == whole.position
    for once, again in zip(arrays(whole.network), arrays(resumed.network), strict=True):
        np.testing.assert_array_equal(once, again)


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(file, tmp_path):
    rule = CheckpointRule(tmp_path / "c.eqx", "this")
    settings = TrainingSettings(max_epochs=1)
    train(stream_of(file), NETWORK, settings, rule)
    with pytest.raises(DataError, match="another training"):
        train(stream_of(file), NETWORK, settings, CheckpointRule(rule.file, "that"))
    whole = rule.file.read_bytes()
    one_bit = bytearray(whole)
    one_bit[len(whole) // 2] ^= 1
    for damaged in (whole[:-100], whole[:20], b"", bytes(one_bit)):
        rule.file.write_bytes(damaged)
        with pytest.raises(DataError, match="damaged"):
            train(stream_of(file), NETWORK, settings, rule)
    assert [each.name for each in tmp_path.iterdir()] == ["c.eqx"]


def test_a_loss_that_is_no_number_ends_it(file, tmp_path):
    settings = TrainingSettings(max_epochs=5, learning_rate=1e30)
    with pytest.raises(ConfigError, match="diverged") as caught:
        train(stream_of(file), Architecture((16,), None, None), settings)
    assert caught.value.path == "training.learning_rate"


@pytest.mark.filterwarnings("ignore:overflow")  # of the rate itself
@pytest.mark.parametrize("held_out", [0.0, 0.1])
def test_weights_that_the_last_step_spoilt_are_not_kept(file, held_out):
    # The only step has a finite loss: of the first weights.
    stream = stream_of(file, batch_size=10_000, held_out=held_out)
    with pytest.raises(ConfigError, match="diverged"):
        train(stream, Architecture((16,), None, None), TrainingSettings(max_epochs=1, learning_rate=1e39))


def test_one_step_is_a_step(file):
    settings = TrainingSettings(max_epochs=1, averaging=0.0)
    found = train(stream_of(file, batch_size=10_000, held_out=0.0), NETWORK, settings)
    assert found.position.batch == 0 and found.position.epoch == 1
    for before, after in zip(arrays(make_regressor(NETWORK, 3, settings.seed)), arrays(found.network), strict=True):
        assert not np.array_equal(before, after)


def test_without_bags_held_out_the_last_epoch_is_kept(file, tmp_path):
    rule = CheckpointRule(tmp_path / "c.eqx", "this")
    found = train(stream_of(file, held_out=0.0), NETWORK, TrainingSettings(max_epochs=2), rule)
    assert found.position.best_epoch == 1 and not found.stopped_early
    assert np.isnan(found.position.held_out_loss).all()
    again = train(stream_of(file, held_out=0.0), NETWORK, TrainingSettings(max_epochs=2), rule)  # nothing is left to do
    for one, other in zip(arrays(found.network), arrays(again.network), strict=True):
        np.testing.assert_array_equal(one, other)
