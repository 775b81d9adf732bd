"""Bounded rows have norm at most 1 whatever is in a table; their factor is that of [X y], and X's part is X's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dpagg.kernels.bounded_rows import BoundedRows, pack, unpack
from dpagg.kernels.labelled_factor import LabelledFactor
from dpagg.kernels.schema import Categorical, Hashed, Label, Numeric, Schema

FEATURES = (
    Numeric("price", 0, 100, "indicator"),
    Numeric("age", -5, 5, "drop"),
    Categorical("device", ("a", "b"), other=True, missing="indicator"),
    Hashed("shop", 4, "drop"),
)
WILD = [0.0, 100.0, -1e300, np.nan, np.inf, -np.inf, 50.0, 1e308]
BATCH = pa.RecordBatch.from_pydict(
    {
        "price": WILD,
        "age": [5.0, -5.0, 1e9, 0.0, np.nan, None, -7.0, 1.0],
        "device": ["a", "b", "zzz", None, "b", "b", "b", None],
        "shop": ["p", "q", "r", "s", "t", "u", None, "v"],
        "y": [0.0, 30.0, 1e9, np.nan, 3.0, 4.0, -np.inf, 12.0],
    }
)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("row_bound", [None, 1.2])
def test_norms_and_labels_are_bounded(intercept: bool, row_bound: float | None) -> None:
    rule = BoundedRows(Schema(FEATURES, Label("y", 0, 20, 5.0), intercept), row_bound)
    rows, labels = rule.encode(BATCH)
    norms = np.linalg.norm(rows, axis=1)
    assert norms.max() <= 1 and np.abs(labels).max() <= 1
    # Rows with a missing age or shop are masked, all others are there: whatever they hold.
    np.testing.assert_array_equal(norms > 0, [True, True, True, True, False, False, False, True])
    assert row_bound is None or np.sort(norms)[-3] > 1 - 1e-12  # so long that they are scaled down
    np.testing.assert_array_equal(labels[[4, 5, 6]], 0.0)
    center = 10.0 if intercept else 0.0
    if row_bound is None:
        scale = 10.0 if intercept else 20.0
        np.testing.assert_allclose(labels[[0, 1, 2, 3]], (np.array([0, 20, 20, 5.0]) - center) / scale, rtol=1e-13)


def test_scaling_down_keeps_a_linear_relation_and_coefficients_come_back() -> None:
    schema = Schema((Numeric("x", 0, 10), Numeric("z", 0, 4)), Label("y", 0, 40, 0.0))
    rng = np.random.default_rng(0)
    x, z = rng.uniform(0, 10, 50), rng.uniform(0, 4, 50)
    batch = pa.RecordBatch.from_pydict({"x": x, "z": z, "y": 7 + 2 * x + 3 * z})
    for row_bound in (None, 1.1):
        rule = BoundedRows(schema, row_bound)
        rows, labels = rule.encode(batch)
        found = rule.coefficients(np.linalg.lstsq(rows, labels)[0])
        np.testing.assert_allclose(found, [7 + 2 * 5 + 3 * 2, 2 * 5, 3 * 2], rtol=1e-11)


def test_blocks_come_back() -> None:
    rows, labels = np.arange(12.0).reshape(4, 3), np.arange(4.0)
    back = unpack(pack(rows, labels), 3)
    np.testing.assert_array_equal(back[0], rows)
    np.testing.assert_array_equal(back[1], labels)
    assert unpack(b"", 3)[0].shape == (0, 3)


def test_factor_is_that_of_the_whole_and_splits_anywhere() -> None:
    rng = np.random.default_rng(1)
    rows, labels = rng.standard_normal((9000, 4)) * [1, 1e-3, 10, 1], rng.standard_normal(9000)
    whole = LabelledFactor.of(rows, labels).canonical()
    stacked = np.column_stack([rows, labels])
    np.testing.assert_allclose(whole.T @ whole, stacked.T @ stacked, rtol=1e-11, atol=1e-11)
    assert np.array_equal(whole, np.triu(whole)) and (np.diag(whole) >= 0).all()
    parts = LabelledFactor.zero(4)
    for low, high in ((0, 2), (2, 5000), (5000, 5000), (5000, 9000)):
        parts = LabelledFactor.of(rows[low:high], labels[low:high]).merge(parts)
    np.testing.assert_allclose(parts.canonical(), whole, rtol=1e-10, atol=1e-12)


def test_labels_are_in_no_bit_of_the_part_for_features() -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((5000, 3))
    one, other = (LabelledFactor.of(rows, y).canonical() for y in (rng.standard_normal(5000), np.zeros(5000)))
    np.testing.assert_array_equal(one[:3, :3], other[:3, :3])
    assert not np.array_equal(one[:, 3], other[:, 3])


def test_factor_of_fewer_rows_than_columns_and_of_collinear_ones() -> None:
    rows, labels = np.array([[1.0, 2, 3], [2, 4, 6]]), np.array([1.0, -1])
    whole = LabelledFactor.of(rows, labels).canonical()
    stacked = np.column_stack([rows, labels])
    np.testing.assert_allclose(whole.T @ whole, stacked.T @ stacked, atol=1e-12)
