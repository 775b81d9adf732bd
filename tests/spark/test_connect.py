"""A real Spark Connect server: what works does, and the rest says so in one line. Needs ``pyspark[connect]``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc_status")

SCRIPT = """
import numpy as np, pandas as pd
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()

import dpagg
from dpagg.errors import EnvironmentFault
from dpagg.spark.ml import HessianMixingRegression

table = pd.DataFrame({"key": range(500), "price": np.linspace(0, 100, 500), "sale": np.linspace(0, 30, 500)})
df = spark.createDataFrame(table)
declared = {"features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}}}
asked = {"schema": declared, "privacy": {"epsilon": 1.0, "delta": 1e-6}}

for call in (lambda: dpagg.aggregate(df, output="nowhere", **asked), lambda: dpagg.plan(df, **asked),
             lambda: dpagg.fit(df, **asked), dpagg.spark_session, lambda: HessianMixingRegression().fit(df)):
    try:
        call()
    except EnvironmentFault as error:
        assert "Spark Connect" in str(error) and "\\n" not in str(error) and error.exit_code == 5, error
    else:
        raise AssertionError("it was taken")

release = dpagg.aggregate(df.toArrow(), **asked)
model = dpagg.fit(release)
found = model.predict(df, row_id="key").toPandas().sort_values("key")
np.testing.assert_allclose(found["prediction"], model.predict(table), rtol=1e-12, atol=1e-9)
print("all of it")
"""


@pytest.mark.slow
def test_a_connect_session(tmp_path):
    from dpagg.spark.java import java_home

    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    found = {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": paths}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env=os.environ | found, timeout=1500
    )
    assert done.returncode == 0 and done.stdout.endswith("all of it\n"), done.stderr[-2000:]
