"""Clipped sums: bounds on every row, sensitivities, and the same totals however rows are split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpagg.kernels.clipping import Energies, ResidualQuery, ResidualSums, RowShape, clip_rows


def rows_and_labels(seed: int, n: int = 40, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)) * rng.exponential(1.0, (n, 1)), rng.standard_normal(n)


def test_long_rows_are_scaled_and_short_ones_kept() -> None:
    rows = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    np.testing.assert_allclose(clip_rows(rows, 1.0), [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-12)
    np.testing.assert_array_equal(clip_rows(rows, np.inf), rows)
    np.testing.assert_array_equal(clip_rows(rows, 0.0), 0 * rows)


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
@settings(max_examples=50, deadline=None)
def test_no_row_exceeds_its_bound(seed: int, bound: float) -> None:
    rows, _ = rows_and_labels(seed)
    assert np.linalg.norm(clip_rows(1e3 * rows, bound), axis=1).max() <= bound


def test_sums_match_dense_arithmetic() -> None:
    rows, labels = rows_and_labels(1)
    transform = np.random.default_rng(2).standard_normal((4, 3))
    theta = np.array([0.5, -1.0, 0.2, 0.0])
    query = ResidualQuery(theta, RowShape(transform, 1.5), 0.7)
    expected, squares = np.zeros(3), 0.0
    for x, y in zip(rows, labels, strict=True):
        z = transform.T @ x
        z *= min(1.0, 1.5 / np.linalg.norm(z))
        r = max(-0.7, min(0.7, y - x @ theta))
        expected, squares = expected + r * z, squares + r * r
    sums = query.sums(rows, labels)
    np.testing.assert_allclose(sums.gradient, expected, rtol=1e-12)
    assert sums.squares == pytest.approx(squares, rel=1e-12)


@pytest.mark.parametrize("cut", [0, 1, 17, 40])
def test_split_anywhere_gives_the_same_totals(cut: int) -> None:
    rows, labels = rows_and_labels(3)
    query = ResidualQuery(np.ones(4), RowShape(None, 1.0), 0.5)
    parts = (query.sums(rows[:cut], labels[:cut]), query.sums(rows[cut:], labels[cut:]))
    whole = query.sums(rows, labels)
    merged = parts[0].merge(ResidualSums.zero(4)).merge(parts[1])
    np.testing.assert_allclose(merged.gradient, whole.gradient, rtol=1e-12)
    assert merged.squares == pytest.approx(whole.squares, rel=1e-12)
    energies = Energies.of(rows[:cut], labels[:cut]).merge(Energies.of(rows[cut:], labels[cut:]))
    assert energies.rows == pytest.approx(np.sum(rows**2), rel=1e-12)
    assert energies.labels == pytest.approx(np.sum(labels**2), rel=1e-12)


def test_a_row_moves_each_sum_by_no_more_than_stated_and_can_move_it_that_far() -> None:
    rows, labels = rows_and_labels(4)
    shape, clip = RowShape(np.diag([1.0, 5.0, 0.1, 2.0]), 0.8), 0.3
    query = ResidualQuery(np.zeros(4), shape, clip)
    whole, gram = query.sums(rows, labels), shape.gram(rows)
    moved = []
    for i in range(len(rows)):
        masked = rows.copy()
        masked[i] = 0.0
        sums = query.sums(masked, labels)
        moved.append((np.linalg.norm(whole.gradient - sums.gradient), np.linalg.norm(gram - shape.gram(masked))))
    largest = np.max(moved, axis=0)
    assert 0.99 * 0.8 * clip < largest[0] <= 0.8 * clip * (1 + 1e-12)
    assert 0.99 * 0.8**2 < largest[1] <= 0.8**2 * (1 + 1e-12)
