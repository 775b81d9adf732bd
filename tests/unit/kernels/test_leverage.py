"""Leverages: equal to the hat matrix where it exists, never too small where it hardly does."""

import numpy as np
import pytest

from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import subspace


def _of(rows):
    return subspace(Factor.zero(rows.shape[1]).add(rows).canonical())


def _leverages(rows):
    space = _of(rows)
    return space.leverages(space.coordinates(rows))


def test_equal_to_the_diagonal_of_the_hat_matrix():
    rows = np.random.default_rng(0).standard_normal((60, 5)) * [1, 10, 0.1, 1e-3, 1]
    hat = rows @ np.linalg.solve(rows.T @ rows, rows.T)
    found = _leverages(rows)
    np.testing.assert_allclose(found, np.diag(hat), rtol=1e-8)
    assert found.sum() == pytest.approx(5, rel=1e-9)


def test_a_column_of_1e9_times_an_indicator_has_leverage_1():
    rows = np.random.default_rng(1).standard_normal((1000, 3))
    rows[:, 2] = 0.0
    rows[17, 2] = 1e-7
    space = _of(rows)
    assert space.rank == 3
    assert _leverages(rows)[17] == pytest.approx(1.0, abs=1e-4)


def test_a_direction_below_rounding_leaves_x_itself():
    rows = np.random.default_rng(2).standard_normal((1000, 3))
    rows[:, 2] = rows[:, 1]
    rows[17, 2] += 1e-11
    space = _of(rows)
    assert space.rank == 2
    coordinates = space.coordinates(rows)
    assert coordinates.shape == (1000, 2)
    hat = coordinates @ np.linalg.pinv(coordinates)
    np.testing.assert_allclose(space.leverages(coordinates), np.diag(hat), rtol=1e-8)
    np.testing.assert_allclose(space.expand(coordinates), rows, atol=1e-10)


def test_collinear_dummies_and_a_constant_column():
    group = np.arange(300) % 3
    rows = np.column_stack([np.ones(300), np.eye(3)[group], np.full(300, 0.25)])
    space = _of(rows)
    assert space.rank == 3
    np.testing.assert_allclose(_leverages(rows), 1 / 100, rtol=1e-9)


def test_leverages_are_rounded_up_as_the_condition_grows():
    rows = np.random.default_rng(3).standard_normal((500, 4))
    rows[:, 3] = rows[:, 2] + 1e-8 * rows[:, 3]
    basis = np.linalg.qr(np.column_stack([rows[:, :3], (rows[:, 3] - rows[:, 2]) * 1e8]))[0]
    exact = (basis**2).sum(axis=1)
    found = _leverages(rows)
    assert (found >= exact * (1 - 1e-12)).all()
    assert (found <= np.minimum(exact * (1 + 1e-4), 1)).all()


def test_no_rows_span_nothing():
    space = subspace(np.zeros((3, 3)))
    assert space.rank == 0
    coordinates = space.coordinates(np.ones((2, 3)))
    np.testing.assert_array_equal(space.leverages(coordinates), 0.0)
    np.testing.assert_array_equal(space.expand(coordinates), np.zeros((2, 3)))
