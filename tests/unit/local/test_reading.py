"""Tables in memory become what Spark would make of them; bad cells, wrong types, missing columns."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.local.reading import normalise

CANARY = "canary7719"
SCHEMA = Schema((Numeric("price", 0, 100), Categorical("device", ("mobile",), other=True)), Label("sale", 0, 50, 0.0))


def columns(table, **changes):
    found = normalise(table, SCHEMA, **changes)
    return {name: found[name].to_pylist() for name in found.column_names}


def test_columns_are_found_without_case_and_named_as_declared():
    found = columns(pa.table({"PRICE": [1], "Device": ["mobile"], "sale": [2], "other": [CANARY]}))
    assert {name: found[name] for name in ("price", "device", "sale")} == {
        "price": [1.0],
        "device": ["mobile"],
        "sale": [2.0],
    }
    assert "other" not in found


@pytest.mark.parametrize(
    "label",
    [
        pd.Series([1.5, None, 3.0]),
        pd.Series(["1.5", CANARY, " 3d "]),
        pd.Series([1.5, CANARY, decimal.Decimal(3)], dtype=object),
        pd.Series([1.5, {}, np.int8(3)], dtype=object),
        pd.Series(["1.5", None, "3"], dtype="category"),
        pd.Series(["1.5", pd.NA, "3"], dtype="string"),
    ],
)
def test_no_label_raises_whatever_its_column_holds(label):
    table = pd.DataFrame({"price": [1, 2, 3], "device": ["mobile"] * 3, "sale": label})
    assert columns(table)["sale"] == [1.5, None, 3.0]


def test_the_type_of_a_column_of_objects_is_not_guessed_from_its_cells():
    """One number among texts, or one fraction among whole numbers, must not decide an error."""
    table = pd.DataFrame({"price": ["1", 2.5, None], "device": ["mobile", 3, True], "sale": [0, 0, 0]}, dtype=object)
    found = columns(table)
    assert found["price"] == [1.0, 2.5, None] and found["device"] == ["mobile", "3", "true"]


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([1, 2], pa.int16()), ["1", "2"]),
        (pa.array([True, None]), ["true", None]),
        (pa.array([datetime.date(2026, 1, 2), None]), ["2026-01-02", None]),
        (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.array(["a", "b"], pa.large_string()), ["a", "b"]),
        (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        (pa.nulls(2), [None, None]),
    ],
)
def test_categories_are_text(column, text):
    assert columns(pa.table({"price": [1, 2], "device": column, "sale": [0, 0]}))["device"] == text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"price": [datetime.datetime(2026, 1, 1)]}, r"column 'price' has type timestamp\[us\], expected a number"),
        ({"device": [1.5]}, r"column 'device' has type double, expected text"),
        ({"sale": [[1.0]]}, r"schema.label: column 'sale' has type list"),
        ({"price": None, "prize": [1]}, r"no column 'price'.*Did you mean 'prize'\?"),
        ({"PRICE": [1]}, r"2 columns of the table are named 'price'"),
    ],
)
def test_what_a_column_cannot_be(changes, said):
    table = {"price": [1], "device": ["mobile"], "sale": [2]} | changes
    with pytest.raises(DataError, match=said):
        normalise(pa.table({name: column for name, column in table.items() if column is not None}), SCHEMA)


@pytest.mark.parametrize("table", [[1, 2], {"price": [1]}, np.zeros((2, 2)), None])
def test_what_is_no_table(table):
    with pytest.raises(ConfigError, match="expected a pandas, Arrow or Spark table"):
        normalise(table, SCHEMA)


def test_an_empty_table():
    with pytest.raises(DataError, match="no rows"):
        normalise(pd.DataFrame({"price": [], "device": [], "sale": []}), SCHEMA)


def test_a_key_that_no_type_holds_shows_no_cell():
    table = pd.DataFrame({"key": [1, CANARY], "price": [1, 2], "device": ["mobile"] * 2, "sale": [0, 0]})
    with pytest.raises(DataError, match="column 'key' of type object can't be read") as caught:
        normalise(table, SCHEMA, "key")
    assert CANARY not in str(caught.value) and caught.value.__cause__ is None
