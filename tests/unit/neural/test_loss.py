"""The bag loss and its gradient against dense numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from dpagg.neural.loss import Bags, bag_loss
from dpagg.neural.networks import Architecture, make_regressor
from dpagg.neural.streaming import BagLaw
from tests.unit.neural.bag_files import made_bags

LAW = BagLaw(
    bag_size=4, num_columns=3, num_noised=2, noise_variance=0.09, label_center=5.0, label_half_width=4.0,
    row_variance=0.5,
)  # fmt: skip


LOSS = jax.jit(bag_loss)


def dense_loss(plain, features, weights, sums):
    """Bag by bag, in the label's units."""
    total = 0.0
    for rows, scale, label in zip(features, weights, sums, strict=True):
        variance = 0.09 * (scale[0] ** 2 + scale[1] ** 2) + 0.5 * float(scale @ scale)
        total += (float(scale @ plain(rows)) - label) ** 2 / variance
    return total


def test_loss_is_that_of_dense_arithmetic_in_the_labels_units():
    network = make_regressor(Architecture((8,), 3.0, 1.0), 3, 1)
    features, weights, sums = made_bags()
    plain = network.to_network(label_center=5.0, label_half_width=4.0)
    expected = dense_loss(plain, features, weights, sums)
    assert np.isclose(float(LOSS(network, LAW.bags(features, weights, sums))), expected, rtol=1e-4)


def test_a_bag_of_precision_0_counts_nothing():
    network = make_regressor(Architecture((8,), None, None), 3, 1)
    bags = LAW.bags(*made_bags())
    kept = np.arange(60) < 40
    part = Bags(*(each[kept] for each in bags))
    masked = bags._replace(precision=np.where(kept, bags.precision, 0).astype(np.float32))
    assert np.isclose(float(LOSS(network, masked)), float(LOSS(network, part)), rtol=1e-5)


def test_gradient_against_finite_differences():
    network = make_regressor(Architecture((6,), 3.0, 0.7), 3, 2)
    features, weights, sums = made_bags(num_bags=20, seed=3)
    gradient = jax.jit(jax.grad(bag_loss))(network, LAW.bags(features, weights, sums))
    rng = np.random.default_rng(0)
    leaves, tree = jax.tree.flatten(network)
    direction = [rng.standard_normal(leaf.shape) for leaf in leaves]
    step = 3e-3

    def loss(sign):
        moved = [jnp.asarray(leaf + sign * step * way) for leaf, way in zip(leaves, direction, strict=True)]
        plain = jax.tree.unflatten(tree, moved).to_network(label_center=5.0, label_half_width=4.0)
        return dense_loss(plain, features, weights, sums)

    slope = (loss(1) - loss(-1)) / (2 * step)
    found = sum(float(np.vdot(np.asarray(g), way)) for g, way in zip(jax.tree.leaves(gradient), direction, strict=True))
    # Normalisation in double precision is by the norm, in training by a bound up to 3 % above it.
    assert np.isclose(found, slope, rtol=0.05), (found, slope)


def test_rows_by_themselves_are_bags_of_one():
    """Weighted squared errors, the plain loss of regression on noisy labels."""
    network = make_regressor(Architecture((8,), None, 1.0), 3, 4)
    rng = np.random.default_rng(5)
    rows, labels = rng.uniform(-1, 1, (30, 3)), rng.standard_normal(30)
    bags = Bags(
        rows[:, None, :].astype(np.float32),
        np.ones((30, 1), np.float32),
        labels.astype(np.float32),
        np.full(30, 2.0, np.float32),
    )
    outputs = network.to_network(label_center=0.0, label_half_width=1.0)(rows)
    assert np.isclose(float(LOSS(network, bags)), 2 * ((outputs - labels) ** 2).sum(), rtol=1e-4)
