"""No leverage up to the largest one makes a larger change than the two rows that stand for all."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpagg.accounting.weighted_aggregation import residual_bound_cauchy_schwarz, worst_label_shift
from dpagg.accounting.worst_rows import worst_rows, worst_user


@given(
    st.floats(1e-9, 1.0),
    st.integers(2, 10**9),
    st.floats(1e-3, 1e3),
    st.floats(0.0, 20.0),
)
def test_no_row_exceeds_them(largest, num_rows, label_range, offset):
    half_range = label_range / 2 + offset
    every = np.concatenate([[0.0], np.geomspace(largest * 1e-12, largest, 4001), np.linspace(0, largest, 4001)])
    change = worst_label_shift(every, residual_bound_cauchy_schwarz(every, num_rows, half_range), label_range)
    leverage, bound = worst_rows(largest, num_rows, half_range, label_range)
    found = worst_label_shift(leverage, bound, label_range).max()
    assert leverage.max() == largest
    assert found >= change.max() * (1 - 1e-12)
    assert found <= change.max() * (1 + 1e-3) + 1e-12 * label_range**2  # and is no larger than it has to be


def test_the_peak_is_at_one_half_with_an_intercept():
    leverage, _ = worst_rows(1.0, 10_000, 1.0, 2.0)
    np.testing.assert_allclose(leverage, [1.0, 0.5])
    leverage, _ = worst_rows(0.01, 10_000, 1.0, 2.0)
    np.testing.assert_allclose(leverage, [0.01, 0.01])


def test_a_change_of_one_label_never_exceeds_it():
    rng = np.random.default_rng(0)
    for _ in range(200):
        n, d = int(rng.integers(3, 12)), int(rng.integers(1, 3))
        x = np.column_stack([np.ones(n), rng.standard_t(1.5, (n, d))])
        hat = x @ np.linalg.pinv(x)
        rest = np.eye(n) - hat
        leverage, bound = worst_rows(float(np.diag(hat).max()), n, 0.5, 1.0)
        limit = worst_label_shift(leverage, bound, 1.0).max()
        y = rng.choice([0.0, 1.0], n)
        for i in range(n):
            other = y.copy()
            other[i] = 1.0 - y[i]
            assert abs(y @ rest @ y - other @ rest @ other) <= limit * (1 + 1e-9) + 1e-12


@given(st.integers(1, 8), st.integers(9, 40), st.integers(0, 1000))
def test_no_user_exceeds_the_worst_user(max_rows, num_rows, seed):
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(num_rows), rng.standard_t(1.5, (num_rows, 2))])
    hat = x @ np.linalg.pinv(x)
    rest = np.eye(num_rows) - hat
    users = np.array_split(rng.permutation(num_rows), -(-num_rows // max_rows))
    largest = max(float(np.diag(hat)[rows].sum()) for rows in users)
    limit = 2 * 1.0 * worst_user(largest, max_rows, num_rows, 0.5, 1.0)
    y = rng.choice([0.0, 1.0], num_rows)
    for rows in users:
        other = y.copy()
        other[rows] = rng.choice([0.0, 1.0], len(rows))
        assert abs(y @ rest @ y - other @ rest @ other) <= limit * (1 + 1e-9) + 1e-12
        shift = other - y
        assert shift @ hat @ shift <= max_rows * min(largest, 1.0) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("half_range", [0.5, 0.8])
def test_the_largest_change_by_any_user_of_small_tables(half_range):
    """Against all labels at either bound, where the change, convex in each label by itself, is largest or nearly so."""
    rng = np.random.default_rng(8)
    closest = 0.0
    for n, g in [(4, 2), (6, 2), (6, 3), (7, 4), (8, 1), (8, 6)] * 6:
        x = np.column_stack([np.ones(n), rng.standard_t(1.5, n)])[:, : int(rng.integers(1, 3))]
        hat = x @ np.linalg.pinv(x)
        rest = np.eye(n) - hat
        corners = np.array(list(itertools.product([half_range - 1.0, half_range], repeat=n)))
        sums = np.einsum("ci,ij,cj->c", corners, rest, corners)
        for rows in itertools.combinations(range(n), g):
            others = [i for i in range(n) if i not in rows]
            group = (corners[:, others] > 0) @ (1 << np.arange(len(others)))
            found = max(np.ptp(sums[group == key]) for key in np.unique(group))
            limit = 2 * worst_user(float(np.diag(hat)[list(rows)].sum()), g, n, half_range, 1.0)
            assert found <= limit * (1 + 1e-9)
            closest = max(closest, found / limit)
    # Here a constant is in the span of the features, so bounds by labels about another point than the middle are loose.
    assert closest > (0.75 if half_range == 0.5 else 0.45)


def test_each_bound_of_a_user_is_the_least_somewhere():
    def old(largest, rows, n, half):
        share = min(largest / rows, 0.5 * (1 - n**-0.5))
        return rows * float(residual_bound_cauchy_schwarz(share, n, half))

    # Ten rows that are all alike: 2 D^2, where the sum of bounds gives 3.6 D^2.
    assert worst_user(0.2, 2, 10, 0.5, 1.0) == pytest.approx(1.0, rel=1e-9)
    assert old(0.2, 2, 10, 0.5) == pytest.approx(1.8, rel=1e-9)
    # A user with much leverage: the block across.
    across = 0.5 * np.sqrt(20 * 980 * 0.25)
    assert worst_user(5.0, 20, 1000, 0.5, 1.0) == pytest.approx(20 * 0.25 / 2 + across, rel=1e-9)
    assert worst_user(5.0, 20, 1000, 0.5, 1.0) < 0.6 * old(5.0, 20, 1000, 0.5)


def test_a_limit_nobody_reaches_is_that_of_the_table():
    """A user holds no more rows than there are; the number given may be in the billions, meaning no limit."""
    assert worst_user(3.0, 10**12, 20, 0.5, 1.0) == worst_user(3.0, 20, 20, 0.5, 1.0)
    assert worst_user(3.0, 10**9, 10**9, 0.5, 1.0) < 10**9


@given(st.floats(1e-4, 3.0), st.integers(1, 60), st.integers(0, 200), st.floats(0.5, 4.0))
def test_the_number_of_rows_with_large_residuals_is_the_worst_one(largest, max_rows, more, half):
    num_rows = max_rows + more + 2
    least = 1.0 - min(largest, 1.0)
    peak = 0.5 * (1 - num_rows**-0.5)
    over = np.arange(1, max_rows + 1)
    sums = over * residual_bound_cauchy_schwarz(np.minimum(largest / over, peak), num_rows, half)
    each = max((sums + (max_rows - over) * least).max(), max_rows * least) - max_rows * least / 2
    block = min(largest, 0.5)
    rows = min(max_rows, num_rows / 2)
    across = max_rows * half**2 / 2 + half * np.sqrt(rows * (num_rows - rows) * block * (1 - block))
    assert worst_user(largest, max_rows, num_rows, half, 1.0) == pytest.approx(min(sums[-1], each, across), rel=1e-12)
