"""The scikit-learn estimator: scikit-learn's own checks, the promise, and no error by a value."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from dpagg import HessianMixingRegressor
from dpagg.errors import ConfigError, DpaggError, PrivacyError
from dpagg.runs.certificates import verify_certificate

BOUNDS = {"feature_lower": -10, "feature_upper": 10, "label_lower": -100, "label_upper": 100}
CANARY = "canary7719"

# Where scikit-learn asks for what a private estimator must not do.
EXCEPTIONS = {
    "check_dtype_object": "an error about a cell that is no number would tell a feature; such a cell is a missing one",
    "check_supervised_y_no_nan": "an error about a missing or infinite label would tell it; it becomes the middle",
}
NOT_RUN = {"check_array_api_input": "needs SCIPY_ARRAY_API, which is off"}


def rows(num_rows=4000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (num_rows, 3))
    return X, X @ [1.0, -2.0, 0.5] + 3 + rng.normal(0, 1, num_rows)


def test_scikit_learn_checks():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(
            HessianMixingRegressor(**BOUNDS), expected_failed_checks=EXCEPTIONS, on_fail=None, on_skip=None
        )
    assert len(found) > 40
    statuses = {each["check_name"]: each["status"] for each in found if each["status"] != "passed"}
    assert statuses == dict.fromkeys(EXCEPTIONS, "xfail") | dict.fromkeys(NOT_RUN, "skipped")


def test_it_is_the_private_fit_and_near_least_squares_where_epsilon_is_large():
    X, y = rows()
    model = HessianMixingRegressor(epsilon=200.0, **BOUNDS).fit(X, y)
    best = LinearRegression().fit(X, y)
    np.testing.assert_allclose(model.coef_, best.coef_, atol=0.02)
    assert model.intercept_ == pytest.approx(best.intercept_, abs=0.2)
    np.testing.assert_allclose(model.predict(X), X @ model.coef_ + model.intercept_, rtol=1e-9, atol=1e-9)
    assert model.score(X, y) == pytest.approx(best.score(X, y), abs=1e-3)
    promise = model.certificate_
    assert promise["private"] and promise["mechanism"] == "ihm" and promise["num_rows"] == 4000
    assert (promise["epsilon"], promise["delta"]) == (200.0, 4000**-1.5)
    assert verify_certificate(promise).holds


def test_only_a_random_state_repeats_a_fit_and_it_says_so():
    X, y = rows(500)
    free, seeded = HessianMixingRegressor(**BOUNDS), HessianMixingRegressor(random_state=3, **BOUNDS)
    assert (free.fit(X, y).coef_ != clone(free).fit(X, y).coef_).all()
    assert (seeded.fit(X, y).coef_ == clone(seeded).fit(X, y).coef_).all()
    assert free.certificate_["private"] and not seeded.certificate_["private"]
    assert seeded.certificate_["statement"].startswith("NOT PRIVATE")
    other = HessianMixingRegressor(random_state=np.random.RandomState(3), **BOUNDS)
    first = other.fit(X, y).coef_
    assert (other.fit(X, y).coef_ != first).any() and not other.certificate_["private"]


@pytest.mark.parametrize("place", ["feature", "label"])
@pytest.mark.parametrize("cell", [np.nan, np.inf, -1e300, 1e308, CANARY, None, {}, "1e5"])
def test_no_cell_raises_and_each_counts_as_the_middle_or_a_bound(place, cell):
    X, y = rows(300)
    X, y = X.astype(object), y.astype(object)
    (X[7] if place == "feature" else y)[1] = cell
    expected_X, expected_y = X.copy(), y.copy()
    number = {"1e5": 1e5, -1e300: -1e300, 1e308: 1e308}.get(cell, 0.0) if isinstance(cell, str | float) else 0.0
    (expected_X[7] if place == "feature" else expected_y)[1] = np.clip(number, -100, 100)
    seeded = HessianMixingRegressor(random_state=3, **BOUNDS)
    found, expected = (
        seeded.fit(X, y).coef_,
        clone(seeded).fit(expected_X.astype(float), expected_y.astype(float)).coef_,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert np.isfinite(seeded.predict(X)).all()


def test_frames_names_and_bounds_of_each_feature():
    X, y = rows()
    table = pd.DataFrame(X, columns=["price", "Age", "size"])
    model = HessianMixingRegressor(
        epsilon=200.0, feature_lower=[-10, -10, -1], feature_upper=[10, 10, 1], label_lower=-100, label_upper=100
    ).fit(table, y)
    assert [column["name"] for column in model.certificate_["columns"]] == ["intercept", "price", "Age", "size"]
    outside = table.head(2).assign(size=[5.0, 1.0])
    clipped = outside.assign(size=1.0)
    np.testing.assert_array_equal(model.predict(outside), model.predict(clipped))
    # A name that would meet the label's is not used.
    renamed = pd.DataFrame(X, columns=["y", "Y", "z"])
    assert clone(model).fit(renamed, y).certificate_["columns"][1]["name"] == "x0"


def test_within_pipelines_and_cross_validation():
    X, y = rows()
    model = make_pipeline(
        FunctionTransformer(np.clip, kw_args={"a_min": -10, "a_max": 10}), HessianMixingRegressor(**BOUNDS)
    )
    assert (cross_val_score(model, X, y, cv=3) > 0.8).all()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"label_lower": None}, ConfigError, "label_lower is not given, and a bound that is read off"),
        ({"feature_upper": [1, 2]}, ConfigError, "shape"),
        ({"feature_lower": 20}, ConfigError, "lower bound"),
        ({"epsilon": 0}, ConfigError, "privacy.epsilon"),
        ({"adjacency": "replace"}, ConfigError, "privacy.adjacency"),
        ({"delta": 0.5}, PrivacyError, "expected less than 1/n"),
    ],
)
def test_what_is_refused(changes, error, said):
    X, y = rows(50)
    with pytest.raises(error, match=said) as caught:
        HessianMixingRegressor(**(BOUNDS | changes)).fit(X, y)
    assert isinstance(caught.value, DpaggError)
