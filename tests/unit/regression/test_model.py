"""The model in the user's units and as JSON, read by an independent reader."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpagg.errors import DataError
from dpagg.kernels.encoding import encode_features
from dpagg.kernels.schema import Categorical, Constant, Hashed, Label, Numeric, Schema
from dpagg.regression.least_squares import fit_bounded_least_squares, fit_least_squares
from dpagg.regression.model import LinearModel

FEATURES = (
    Numeric("price", 5.0, 305.0, "indicator"),
    Numeric("age", -40.0, -10.0, Constant(-12.5)),
    Numeric("views", 0.0, 7.0),
    Categorical("device", ("mobile", "desktop", "tablet"), other=True, missing="indicator"),
    Categorical("country", ("JP", "US", "DE"), missing=Constant("US")),
    Categorical("hour", ("day", "night"), missing="drop"),
    Hashed("shop", 5, "indicator"),
    Hashed("page", 3, Constant("front")),
)
LABEL = Label("sale", 0.0, 100.0, 0.0)


def batch(rows: int, seed: int) -> pa.RecordBatch:
    rng = np.random.default_rng(seed)

    def text(*values: str | None) -> pa.Array:
        return pa.array([values[i] for i in rng.integers(len(values), size=rows)], pa.string())

    def number(low: float, high: float) -> pa.Array:
        return pa.array(rng.uniform(low, high, rows), mask=rng.random(rows) < 0.2)

    return pa.RecordBatch.from_pydict(
        {
            "price": number(-50, 400),
            "age": number(-60, 0),
            "views": number(-1, 9),
            "device": text("mobile", "desktop", "tablet", "tv", None),
            "country": text("JP", "US", "DE", "unheard of", None),
            "hour": text("day", "night", None),
            "shop": text("a", "b", "ü", "d", "e", "f", None),
            "page": text("front", "back", None),
        }
    )


def predict_from_json(document: dict[str, Any], row: dict[str, Any]) -> float | None:
    """A reader that knows the file's own text only; None where there is no prediction."""
    total = document["user_units"]["intercept"]
    for feature in document["user_units"]["features"]:
        value, missing = row[feature["name"]], feature["missing"]
        offsets: dict[str, float] = {}
        if feature["type"] == "categorical":
            offsets = {category["value"]: category["offset"] for category in feature["categories"]}
            if value is not None and value not in offsets and feature["other"] is None:
                value = None
        if value is None:
            if missing["rule"] == "drop":
                return None
            total += missing.get("offset", 0.0)
            if "value" not in missing:
                continue
            value = missing["value"]
        if feature["type"] == "numeric":
            total += feature["per_unit"] * min(max(value, feature["lower"]), feature["upper"])
        elif feature["type"] == "categorical":
            total += offsets[value] if value in offsets else feature["other"]["offset"]
        else:
            digest = hashlib.blake2b(value.encode(), digest_size=8).digest()
            total += feature["offsets"][int.from_bytes(digest, "little") % len(feature["offsets"])]
    return float(total)


def model_of(schema: Schema, seed: int = 1) -> LinearModel:
    rng = np.random.default_rng(seed)
    d = schema.num_columns
    return LinearModel(
        schema=schema,
        coefficients=rng.normal(size=d),
        standard_errors=rng.random(d),
        population_standard_errors=np.where(rng.random(d) < 0.5, np.nan, 1.0),
        intercept_standard_error=0.25,
        fit={"status": "ok", "message": "fine"},
        release={"epsilon": 1.0},
    )


@pytest.mark.parametrize("intercept", [True, False])
def test_the_file_alone_predicts_what_the_encoded_model_does(intercept: bool) -> None:
    schema = Schema(FEATURES, LABEL, intercept)
    model = model_of(schema)
    document = json.loads(json.dumps(model.to_dict(), allow_nan=False))
    rows = batch(500, 2)
    encoded, keep = encode_features(rows, schema)
    expected = model.predict(encoded)
    assert 0 < keep.sum() < 500
    for position, row in enumerate(rows.to_pylist()):
        predicted = predict_from_json(document, row)
        if not keep[position]:
            assert predicted is None
        else:
            assert predicted == pytest.approx(expected[position], abs=1e-12)


@pytest.mark.parametrize("intercept", [True, False])
def test_round_trip_through_json(intercept: bool) -> None:
    model = model_of(Schema(FEATURES, LABEL, intercept))
    document = json.loads(json.dumps(model.to_dict(), allow_nan=False))
    again = LinearModel.from_dict(document)
    assert again.schema == model.schema
    np.testing.assert_array_equal(again.coefficients, model.coefficients)
    np.testing.assert_array_equal(again.standard_errors, model.standard_errors)
    np.testing.assert_array_equal(again.population_standard_errors, model.population_standard_errors)
    assert again.to_dict() == document


def damage(document: dict[str, Any], *keys: Any, value: Any) -> dict[str, Any]:
    part: Any = document
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    return document


@pytest.mark.parametrize(
    ("keys", "value", "text"),
    [
        (("format",), "other", "format"),
        (("version",), 2, "version"),
        (("encoded", "columns"), [], "damaged"),
        (("encoded", "columns", 1, "name"), "wrong", "damaged"),
        (("encoded", "columns", 1, "coefficient"), None, "damaged"),
        (("user_units", "features", 0, "lower"), 1e9, "damaged"),
        (("user_units", "features", 0, "type"), "mystery", "damaged"),
        (("label",), {}, "damaged"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused(keys: tuple[Any, ...], value: Any, text: str) -> None:
    document = json.loads(json.dumps(model_of(Schema(FEATURES, LABEL)).to_dict()))
    with pytest.raises(DataError, match=text):
        LinearModel.from_dict(damage(document, *keys, value=value))


def test_arrays_must_fit_the_schema() -> None:
    with pytest.raises(ValueError, match="columns"):
        LinearModel(Schema(FEATURES, LABEL), np.zeros(2), np.zeros(2), np.zeros(2))


def fitted(seed: int, bound: float | None = None) -> tuple[LinearModel, NDArray[np.float64], NDArray[np.float64]]:
    """A fit on encoded rows taken as an aggregate, with the rows of its design in the user's units."""
    rng = np.random.default_rng(seed)
    schema = Schema((Numeric("a", 10.0, 30.0), Numeric("b", -1.0, 0.0)), LABEL)
    x = np.column_stack([rng.uniform(10, 30, 200), rng.uniform(-1, 0, 200)])
    encoded = encode_features(pa.RecordBatch.from_pydict({"a": x[:, 0], "b": x[:, 1]}), schema)[0]
    y = 3 + 0.5 * x[:, 0] - 4 * x[:, 1] + rng.normal(size=200)
    factor = np.linalg.qr(np.column_stack([encoded, y]), mode="r")
    fit = fit_least_squares(factor, 200) if bound is None else fit_bounded_least_squares(factor, 200, bound)
    return LinearModel.from_fit(fit, schema, num_rows=200, details={"method": "m"}), x, y


def test_errors_in_the_users_units_are_those_of_a_fit_in_the_users_units() -> None:
    model, x, y = fitted(3)
    design = np.column_stack([np.ones(200), x])
    beta, rss, _, _ = np.linalg.lstsq(design, y)
    errors = np.sqrt(np.diag(rss[0] / 197 * np.linalg.inv(design.T @ design)))
    user = model.to_user_units()
    got = [user["intercept"], *(feature["per_unit"] for feature in user["features"])]
    np.testing.assert_allclose(got, beta, rtol=1e-9)
    got_errors = [user["intercept_standard_error"], *(f["standard_error"] for f in user["features"])]
    np.testing.assert_allclose(got_errors, errors, rtol=1e-9)
    assert model.fit["method"] == "m" and model.fit["status"] == "ok"
    # A bag's residual variance estimates the whole residual sum of squares of the original rows.
    assert model.fit["bag_residual_variance"] == pytest.approx(rss[0] / 197, rel=1e-9)
    assert model.fit["row_residual_std"] == pytest.approx(math.sqrt(rss[0] / 197 / 197), rel=1e-9)
    assert (model.population_standard_errors > model.standard_errors).all()


def test_a_bound_fit_has_no_population_errors() -> None:
    model, _, _ = fitted(4, bound=1.0)
    assert model.fit["status"] == "bound_active" and np.isnan(model.population_standard_errors).all()
    loose, _, _ = fitted(4, bound=1e6)
    assert loose.fit["status"] == "ok" and np.isfinite(loose.population_standard_errors).all()
    json.dumps(model.to_dict(), allow_nan=False)


def test_an_undetermined_column_has_null_errors_and_spares_the_rest() -> None:
    schema = Schema((Numeric("a", 0.0, 2.0), Numeric("b", -1.0, 1.0)), LABEL)
    rng = np.random.default_rng(5)
    encoded = np.column_stack([np.ones(50), np.zeros(50), rng.uniform(-1, 1, 50)])
    factor = np.linalg.qr(np.column_stack([encoded, rng.normal(size=50)]), mode="r")
    model = LinearModel.from_fit(fit_least_squares(factor, 50), schema, num_rows=50)
    user = json.loads(json.dumps(model.to_dict(), allow_nan=False))["user_units"]
    assert user["features"][0]["standard_error"] is None and user["features"][0]["per_unit"] == 0.0
    # The centre of a is 1, so the user's intercept holds the undetermined slope; b's centre is 0.
    assert user["intercept_standard_error"] is None
    assert user["features"][1]["standard_error"] > 0
