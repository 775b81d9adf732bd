"""The pyspark.ml stage: as others of its kind, with the promise and the treatment of rows that dpagg fit has."""

import json

import numpy as np
import pandas as pd
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import types as T

from dpagg.errors import ConfigError, DataError
from dpagg.runs.certificates import verify_certificate
from dpagg.spark.ml import HessianMixingRegression, HessianMixingRegressionModel

NUM_ROWS = 2000
BOUNDS = {"featureLower": [-1.0, 0.0], "featureUpper": [1.0, 4.0], "labelLower": -10.0, "labelUpper": 10.0}


def frame():
    rng = np.random.default_rng(2)
    a, b = rng.uniform(-1, 1, NUM_ROWS), rng.uniform(0, 4, NUM_ROWS)
    return pd.DataFrame({"a": a, "b": b, "label": 1 + 2 * a - b + rng.normal(0, 0.1, NUM_ROWS)})


def test_a_pipeline_is_fitted_saved_loaded_and_predicts_the_same(spark, tmp_path):
    table = frame()
    df = spark.createDataFrame(table)
    stage = HessianMixingRegression(epsilon=100.0, **BOUNDS)
    pipeline = Pipeline(
        stages=[VectorAssembler(inputCols=["a", "b"], outputCol="features", handleInvalid="keep"), stage]
    )
    pipeline.write().save(str(tmp_path / "pipeline"))
    again = Pipeline.load(str(tmp_path / "pipeline"))
    assert again.getStages()[1].extractParamMap().keys() == stage.extractParamMap().keys()
    fitted = again.fit(df)
    model = fitted.stages[1]
    np.testing.assert_allclose([model.intercept, *model.coefficients], [1, 2, -1], atol=0.05)
    promise = model.certificate
    assert promise["private"] and promise["epsilon"] == 100 and promise["num_rows"] == NUM_ROWS
    assert promise["delta"] == pytest.approx(NUM_ROWS**-1.5) and promise["adjacency"] == "zero_out_one_row"
    assert verify_certificate(promise).holds

    fitted.write().save(str(tmp_path / "fitted"))
    loaded = PipelineModel.load(str(tmp_path / "fitted"))
    assert loaded.stages[1].certificate == promise
    # Out of bounds, missing: as the model itself predicts.
    odd = pd.DataFrame({"a": [0.5, 7.0, np.nan, -np.inf, 0.0], "b": [1.0, -5.0, 2.0, 9.0, np.nan]})
    found = loaded.transform(spark.createDataFrame(odd)).select("prediction").toPandas()["prediction"]
    expected = model.fitted.predict(odd.rename(columns={"a": "x0", "b": "x1"}))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isfinite(found).all()


def test_a_copy_with_other_parameters_and_names_of_columns(spark):
    rows = [(Vectors.dense(a, b), y) for a, b, y in frame().itertuples(index=False)]
    schema = T.StructType().add("f", VectorUDT()).add("y", "double")
    df = spark.createDataFrame(
        [*rows, (None, 0.0), (Vectors.dense(), 0.0), (Vectors.sparse(3, [2], [1.0]), None)], schema
    )
    stage = HessianMixingRegression(featuresCol="f", labelCol="y", predictionCol="guess", insecureSeed=5, **BOUNDS)
    settings = {stage.epsilon: 3.0, stage.adjacency: "change_one_label", stage.fitIntercept: False}
    one, two = (stage.fit(df, settings) for _ in range(2))
    assert one.coefficients == two.coefficients and one.intercept == two.intercept
    assert not one.certificate["private"] and one.certificate["adjacency"] == "change_one_label"
    assert one.certificate["epsilon"] == 3.0 and stage.getOrDefault(stage.epsilon) == 1.0
    guessed = one.transform(df)
    assert guessed.columns == ["f", "y", "guess"]
    assert guessed.where("guess is null").count() == 0 and guessed.count() == NUM_ROWS + 3
    assert isinstance(one.copy(), HessianMixingRegressionModel)
    assert json.loads(one.getOrDefault(one.document))["model"]["format"] == "dpagg-linear-model"


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"labelLower": None}, ConfigError, "labelLower is not given"),
        ({"featureLower": [0.0, 0.0, 0.0]}, ConfigError, "3 numbers are given for vectors of 2"),
        ({"featuresCol": "label"}, DataError, "column 'label' has type double, expected vectors"),
        ({"featuresCol": "nothing"}, DataError, "no column 'nothing'"),
        ({"epsilon": -1.0}, ConfigError, "privacy.epsilon"),
    ],
)
def test_what_is_refused(spark, changes, error, said):
    df = spark.createDataFrame(
        [(Vectors.dense(0.5, 1.0), 1.0)] * 3, T.StructType().add("features", VectorUDT()).add("label", "double")
    )
    with pytest.raises(error, match=said):
        HessianMixingRegression(**(BOUNDS | changes)).fit(df)
