"""The factor is a monoid, exact for any split, and finds small directions that a Gram matrix loses."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dpagg.kernels.factor import Factor


def _rows(seed, count, width):
    return np.random.default_rng(seed).standard_normal((count, width))


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(1, 6))
def test_split_anywhere_gives_the_same_factor(a, b, c, width):
    rows = _rows(a * 10_000 + b * 100 + c, a + b + c, width)
    whole = Factor.zero(width).add(rows)
    first, second, third = (Factor.zero(width).add(part) for part in np.split(rows, [a, a + b]))
    left, right = first.merge(second).merge(third), first.merge(second.merge(third))
    for split in (left, right, third.merge(first).merge(second)):
        assert split.num_rows == a + b + c
        np.testing.assert_allclose(split.triangle.T @ split.triangle, rows.T @ rows, atol=1e-10)
    if a + b + c >= width + 3:
        np.testing.assert_allclose(left.canonical(), whole.canonical(), atol=1e-7, rtol=1e-7)


def test_no_rows_are_an_exact_identity():
    factor, zero = Factor.zero(3).add(_rows(0, 9, 3)), Factor.zero(3)
    np.testing.assert_array_equal(factor.merge(zero).triangle, factor.triangle)
    np.testing.assert_array_equal(zero.merge(factor).triangle, factor.triangle)
    np.testing.assert_array_equal(factor.add(np.empty((0, 3))).triangle, factor.triangle)
    np.testing.assert_array_equal(zero.merge(Factor.zero(3)).triangle, np.zeros((3, 3)))


def test_many_tiles_agree_with_one_dense_qr():
    rows = _rows(1, 3 * 4096 + 17, 21)
    found = Factor.zero(21).add(rows).canonical()
    dense = np.linalg.qr(rows, mode="r")
    np.testing.assert_allclose(found, dense * np.sign(np.diag(dense))[:, None], rtol=1e-11, atol=1e-11)
    assert (np.diag(found) >= 0).all()
    assert np.array_equal(found, np.triu(found))


def test_a_tiny_direction_keeps_its_size():
    rows = _rows(2, 20_000, 3)
    rows[:, 2] = rows[:, 0] + 1e-9 * rows[:, 2]
    found = Factor.zero(3).add(rows).canonical()[2, 2]
    basis = np.linalg.qr(rows[:, :2])[0]
    exact = np.linalg.norm(rows[:, 2] - basis @ (basis.T @ rows[:, 2]))
    assert abs(found / exact - 1) < 1e-5
