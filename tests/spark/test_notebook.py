"""Spark DataFrames of a notebook: what comes back, what is refused, and that no call needs a path but to write."""

import json
import sys
import types

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F

import dpagg
from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.runs.certificates import load_certificate, verify_certificate
from dpagg.spark.session import _CLOSURE_KEY, _CLOSURE_LIMIT

SCHEMA = {
    "features": [
        {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
        {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
    ],
    "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
}
ASKED = {"schema": SCHEMA, "privacy": {"epsilon": 1.0, "delta": 1e-6}}


def frame(num_rows=600, seed=0):
    rng = np.random.default_rng(seed)
    price = rng.uniform(0, 100, num_rows)
    return pd.DataFrame(
        {
            "key": np.arange(num_rows),
            "price": price,
            "device": rng.choice(["mobile", "desktop"], num_rows),
            "sale": np.clip(0.3 * price + rng.normal(0, 5, num_rows), 0, 50),
        }
    )


@pytest.fixture
def df(spark, tmp_path):
    frame().to_parquet(tmp_path / "table.parquet")
    return spark.read.parquet(str(tmp_path / "table.parquet"))


def test_from_plan_to_release_to_model_to_predictions(df, tmp_path):
    plan = dpagg.plan(df, **ASKED, plan={"residual_std": 5.0})
    assert plan["num_bags"] == 600 and "expected_excess_mse" in plan["for_residual_std"]
    release = dpagg.aggregate(df, **ASKED, output=tmp_path / "out")
    assert release.table.columns == ["bag_id", "features", "label"] and release.table.count() == 600
    assert load_certificate(tmp_path / "out") == release.certificate
    assert release.certificate["private"] and release.certificate["input_version"].keys() == {"format", "request"}
    assert verify_certificate(release.certificate).holds
    assert "any other value within the bounds" in release._repr_html_()
    with pytest.raises(ConfigError, match="holds another release"):
        dpagg.aggregate(df, **ASKED, output=str(tmp_path / "out"))
    with pytest.raises(ConfigError, match="schema: a fit of a release"):
        dpagg.fit(release, schema=SCHEMA)
    model = dpagg.fit(release, method={"name": "bounded-least-squares", "norm_bound": 1e3}, output=tmp_path / "m.json")
    assert json.loads((tmp_path / "m.json").read_text())["fit"]["method"] == "bounded-least-squares"
    table = release.to_arrow()
    best = np.linalg.lstsq(np.stack(table["features"].to_pylist()), table["label"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(model.model.coefficients, best, rtol=1e-6)
    found = model.predict(df, row_id="key", column="guess").toPandas().sort_values("key")
    np.testing.assert_allclose(found["guess"], model.predict(frame()), rtol=1e-12, atol=1e-9)


def test_what_is_refused(df):
    with pytest.raises(ConfigError, match="output: a release of a Spark DataFrame is written"):
        dpagg.aggregate(df, **ASKED)
    with pytest.raises(ConfigError, match="not deterministic"):
        dpagg.plan(df.withColumn("price", F.rand() * 100), **ASKED)
    with pytest.raises(ConfigError, match="not deterministic"):
        dpagg.plan(df.limit(100), **ASKED)
    with pytest.raises(DataError, match="no rows"):
        dpagg.plan(df.where("price < 0"), **ASKED)
    with pytest.raises(DataError, match="no column 'price'"):
        dpagg.plan(df.drop("price"), **ASKED)


def test_a_private_fit_in_a_session_of_somebody_else_which_is_prepared_before_a_secret_travels(df, spark):
    """PySpark writes a closure over its limit to a file; the limit is put out of reach."""
    settings = spark.sparkContext._jsc.sc().conf()
    settings.set(_CLOSURE_KEY, "1000")
    privacy = ASKED["privacy"] | {"adjacency": "zero_out_one_row", "num_rows": 600}
    found = dpagg.fit(df, schema=SCHEMA, privacy=privacy)
    assert found.certificate["mechanism"] == "ihm" and found.certificate["num_rows"] == 600
    assert verify_certificate(found.certificate).holds
    assert settings.get(_CLOSURE_KEY) == _CLOSURE_LIMIT


def test_files_that_change_while_they_are_read(df, tmp_path, monkeypatch):
    from dpagg.runs import aggregate as runs

    draw = runs._draw

    def changed(*arguments):
        found = draw(*arguments)
        frame(seed=1).to_parquet(tmp_path / "table.parquet")
        return found

    monkeypatch.setattr(runs, "_draw", changed)
    with pytest.raises(DataError, match="the input changed"):
        dpagg.aggregate(df, **ASKED, output=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_spark_connect_frame_is_refused_in_one_line(spark):
    """By the name of its module: nothing is asked of it, and nothing is imported for it."""
    module = types.ModuleType("pyspark.sql.connect.dataframe")
    remote = type("DataFrame", (), {"__module__": module.__name__})
    before = set(sys.modules)
    for call in (dpagg.aggregate, dpagg.plan):
        with pytest.raises(EnvironmentFault, match=r"Spark Connect DataFrame.*df\.toArrow\(\)") as caught:
            call(remote(), **ASKED)
        assert "\n" not in str(caught.value) and caught.value.exit_code == 5
    assert not {name for name in set(sys.modules) - before if "connect" in name}
