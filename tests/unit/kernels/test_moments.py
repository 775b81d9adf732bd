"""Label moments: the right root, and features in which no bit depends on a label."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import subspace
from dpagg.kernels.moments import LabelMoments
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import Finish, WeightedSums

RULE = RowRule(Schema((Numeric("a", -1, 1), Numeric("b", -1, 1)), Label("y", 0.0, 1.0, 0.0), intercept=False))


def _space(features):
    return subspace(Factor.zero(features.shape[1]).add(features).canonical())


def _moments(features, labels, space, splits=()):
    rows = np.column_stack([space.coordinates(features), labels])
    found = LabelMoments.zero(space.rank)
    for part in np.split(rows, splits):
        found = found.merge(LabelMoments.zero(space.rank).add(part, space))
    return found


@given(st.integers(3, 60), st.integers(0, 60), st.integers(0, 60), st.booleans())
def test_split_anywhere_gives_a_root_of_the_gram_matrix(num_rows, a, b, collinear):
    rng = np.random.default_rng(num_rows + 100 * a + 10_000 * b)
    features, labels = rng.normal(size=(num_rows, 3)), rng.normal(size=num_rows)
    if collinear:
        features[:, 2] = features[:, 0] - features[:, 1]
    space = _space(features)
    root = _moments(features, labels, space, sorted(min(x, num_rows) for x in (a, b))).root(space)
    rows = np.column_stack([space.coordinates(features), labels])
    np.testing.assert_allclose(root.T @ root, rows.T @ rows, atol=1e-8 * num_rows)
    assert space.rank == (2 if collinear else 3)


def test_residual_norm_is_that_of_least_squares():
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(200, 3)), rng.normal(size=200)
    squares = np.linalg.lstsq(features, labels, rcond=None)[1][0]
    assert _moments(features, labels, _space(features)).residual_norm == pytest.approx(np.sqrt(squares), rel=1e-12)
    exact = _moments(features, features @ [1.0, 2.0, 3.0], _space(features)).residual_norm
    assert exact < 1e-5  # and never the root of a negative number


def _label_vectors(num_rows):
    """Kinds of labels on which a factorisation takes other paths: all zero, one set, few, equal, any, tiny."""
    rng = np.random.default_rng(1)
    one, few = np.zeros(num_rows), np.zeros(num_rows)
    one[7], few[::97] = 1.0, 1.0
    return [np.zeros(num_rows), one, few, np.ones(num_rows), rng.uniform(size=num_rows), 5e-324 * one]


@pytest.mark.parametrize("num_rows", [300, 20_000])
def test_no_bit_of_a_released_feature_depends_on_labels(num_rows):
    features = np.random.default_rng(0).uniform(-1, 1, (num_rows, 2))
    space = _space(features)
    by_factor, by_rows = set(), set()
    for labels in _label_vectors(num_rows):
        root = _moments(features, labels, space, range(4096, num_rows, 4096)).root(space)
        finish = Finish(Secret.insecure(3), "release", 500, 10.0, RULE, root)
        by_factor.add(finish.chunk(0)[0].tobytes())
        rows = np.column_stack([features[:1000], labels[:1000]])
        sums = WeightedSums.zero(20, 3).add(rows, Secret.insecure(3).stream("release", "weights", 0)).totals
        finish = Finish(Secret.insecure(3), "release", 20, 10.0, RULE)
        by_rows.add(finish.chunk(0, sums)[0].tobytes())
    assert len(by_factor) == len(by_rows) == 1


def test_a_factor_of_features_and_labels_would_fail_that():
    """The fault that `LabelMoments` is there for still exists in the library below: keep the test honest."""
    features = np.random.default_rng(0).uniform(-1, 1, (20_000, 2))
    blocks = {
        Factor.zero(3).add(np.column_stack([features, labels])).canonical()[:2, :2].tobytes()
        for labels in _label_vectors(20_000)
    }
    assert len(blocks) > 1


@pytest.mark.parametrize("collinear", [False, True])
def test_the_last_bits_of_a_factor_do_not_turn_what_is_drawn(collinear):
    """Balanced one-hot columns have equal singular values, whose vectors turn freely."""
    features = np.eye(4)[np.arange(4000) % 4]
    if collinear:
        features = np.column_stack([np.ones(4000), features])
    factor = Factor.zero(features.shape[1]).add(features).canonical()
    stirred = factor * (1 + 1e-15 * np.random.default_rng(0).normal(size=factor.shape))
    first, second = subspace(factor), subspace(stirred)
    drawn = np.random.default_rng(1).normal(size=(5, 4))
    np.testing.assert_allclose(
        first.expand(drawn @ first.root), second.expand(drawn @ second.root), rtol=1e-9, atol=1e-9
    )
