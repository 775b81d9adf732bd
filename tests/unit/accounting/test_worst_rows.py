"""No leverage up to the largest one makes a larger change than the two rows that stand for all."""

import numpy as np
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
    limit = 2 * 1.0 * worst_user(largest, max_rows, num_rows, 0.5)
    y = rng.choice([0.0, 1.0], num_rows)
    for rows in users:
        other = y.copy()
        other[rows] = rng.choice([0.0, 1.0], len(rows))
        assert abs(y @ rest @ y - other @ rest @ other) <= limit * (1 + 1e-9) + 1e-12
        shift = other - y
        assert shift @ hat @ shift <= max_rows * min(largest, 1.0) * (1 + 1e-9) + 1e-12
