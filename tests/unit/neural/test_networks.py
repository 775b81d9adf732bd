"""Networks: bounds that hold, and the same numbers from jax and from plain matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpagg.kernels.network import Network
from dpagg.neural.networks import Architecture, Regressor, make_regressor, spectral_bound


def grown(architecture, scale, seed, num_columns=5):
    """A network with weights far from the first ones."""
    network = make_regressor(architecture, num_columns, seed)
    rng = np.random.default_rng(seed)
    return Regressor(
        weights=tuple(scale * each for each in network.weights),
        biases=tuple(jnp.asarray(scale * rng.standard_normal(each.shape), jnp.float32) for each in network.biases),
        lipschitz=network.lipschitz,
        output_bound=network.output_bound,
    )


OUTPUTS = jax.jit(lambda network, features: network(features))
# Each new shape is compiled, so a few have to do; the first example of a shape takes as long as that.
compiling = settings(deadline=None, max_examples=40)


@compiling
@given(st.integers(0, 2**20), st.floats(0.01, 100.0), st.sampled_from([(), (7,), (16, 3)]))
def test_a_bounded_network_moves_no_faster_and_no_further(seed, scale, hidden):
    network = grown(Architecture(hidden, lipschitz=2.5, output_bound=1.5), scale, seed)
    plain = network.to_network(label_center=-3.0, label_half_width=4.0)
    rng = np.random.default_rng(seed)
    here = rng.uniform(-1, 1, (50, 5))
    there = here + rng.standard_normal((50, 5)) * 10.0 ** rng.uniform(-4, 1, (50, 1))
    moved = np.abs(plain(here) - plain(there))
    assert (moved <= 4.0 * 2.5 * np.linalg.norm(here - there, axis=1) * (1 + 1e-9) + 1e-12).all()
    assert (np.abs(plain(there) + 3.0) <= 4.0 * 1.5).all()
    assert plain.lipschitz_bound() <= 4.0 * 2.5 * (1 + 1e-12)
    # In single precision, as in training.
    outputs = np.asarray(OUTPUTS(network, jnp.asarray(here, jnp.float32)))
    np.testing.assert_allclose(-3.0 + 4.0 * outputs, plain(here), atol=1e-3)


def test_a_network_can_move_about_as_fast_as_its_bound():
    """A bound that is never nearly met would hold for a network that learns nothing."""
    network = Regressor(
        weights=(jnp.array([[9.0, 0.0]]), jnp.array([[7.0]])),
        biases=(jnp.zeros(1), jnp.zeros(1)),
        lipschitz=2.0,
        output_bound=None,
    )
    plain = network.to_network(label_center=0.0, label_half_width=1.0)
    assert plain(np.array([[1.0, 0.0]]))[0] == pytest.approx(2.0, rel=1e-5)


BOUND = jax.jit(spectral_bound)


@compiling
@given(st.sampled_from([(1, 1), (64, 64), (70, 9), (9, 70)]), st.integers(0, 1000), st.floats(1e-3, 1e3))
def test_spectral_bound_is_above_and_close(shape, seed, scale):
    matrix = scale * np.random.default_rng(seed).standard_normal(shape)
    exact = np.linalg.norm(matrix, 2)
    found = float(BOUND(jnp.asarray(matrix, jnp.float32)))
    assert exact * (1 - 1e-5) <= found <= exact * 1.034


def test_spectral_bound_of_equal_singular_values_and_of_nothing():
    assert float(BOUND(jnp.eye(64))) == pytest.approx(64 ** (1 / 128), rel=1e-4)
    assert float(BOUND(jnp.zeros((3, 4)))) < 1e-6
    assert np.isfinite(np.asarray(jax.jit(jax.grad(spectral_bound))(jnp.zeros((3, 4))))).all()


def test_free_network_against_dense_arithmetic():
    network = grown(Architecture((4,), None, None), 1.0, 3)
    first, second = (np.asarray(each, dtype=float) for each in network.weights)
    inner, outer = (np.asarray(each, dtype=float) for each in network.biases)
    features = np.random.default_rng(0).standard_normal((6, 5))
    expected = [
        2.0 + 10.0 * (sum(second[0, j] * max(0.0, first[j] @ row + inner[j]) for j in range(4)) + outer[0])
        for row in features
    ]
    plain = network.to_network(label_center=2.0, label_half_width=10.0)
    np.testing.assert_allclose(plain(features), expected, rtol=1e-12)
    assert plain(np.empty((0, 5))).shape == (0,)


@pytest.mark.parametrize(
    ("weights", "biases"),
    [
        ((), ()),
        ((np.ones((2, 3)),), (np.ones(2),)),
        ((np.ones((2, 3)), np.ones((1, 3))), (np.ones(2), np.ones(1))),
        ((np.ones((1, 3)),), (np.ones(2),)),
        ((np.full((1, 3), np.nan),), (np.ones(1),)),
    ],
)
def test_what_is_no_network(weights, biases):
    with pytest.raises(ValueError, match="network"):
        Network(weights, biases, 0.0, 1.0)
