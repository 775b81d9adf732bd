"""What Spark itself offers over the same columns, to compare with. Not private."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import OneHotEncoder, StringIndexer, VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.mllib.linalg.distributed import RowMatrix
from pyspark.mllib.util import MLUtils
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpagg.kernels.schema import Categorical, Hashed, Numeric, Schema

__all__ = ["mllib_encoded_least_squares", "mllib_gram", "mllib_least_squares", "mllib_table", "sql_sums"]

_VECTOR = "__features"


def mllib_least_squares(df: DataFrame, features: Sequence[str], label: str) -> tuple[float, NDArray[np.float64]]:
    """Return intercept and slopes, shape (d,), of MLlib's ``LinearRegression`` with the solver ``normal``."""
    rows = VectorAssembler(inputCols=list(features), outputCol=_VECTOR).transform(df)
    model = LinearRegression(featuresCol=_VECTOR, labelCol=label, solver="normal").fit(rows)
    return float(model.intercept), np.asarray(model.coefficients.toArray(), dtype=np.float64)


def mllib_gram(df: DataFrame, features: Sequence[str]) -> NDArray[np.float64]:
    """Return X^T X, shape (d, d), by ``RowMatrix.computeGramianMatrix``, which runs in the JVM."""
    rows = VectorAssembler(inputCols=list(features), outputCol=_VECTOR).transform(df).select(_VECTOR)
    matrix = RowMatrix(MLUtils.convertVectorColumnsFromML(rows, _VECTOR))
    return np.asarray(matrix.computeGramianMatrix().toArray(), dtype=np.float64)


def sql_sums(df: DataFrame, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return the sum of each column, shape (d,): the least that a pass over them costs in Spark."""
    found = df.agg(*(F.sum(F.col(name)) for name in columns)).head()
    return np.asarray(found if found is not None else (), dtype=np.float64)


def mllib_table(
    spark: SparkSession, path: str, names: Sequence[str], schema: Schema, null_value: str, delimiter: str = "\t"
) -> DataFrame:
    """Return the declared columns of a CSV without header and quotes, as who knows Spark well would read them.

    Spark's own reader takes them apart with a schema and reads only those; numbers are clipped to their bounds, a
    missing one becomes the middle and is marked in a column of its own, and a hashed column becomes one of its buckets
    by Spark's own hash.

    Parameters
    ----------
    spark : SparkSession
        Any.
    path : str
        Of the file.
    names : sequence of str
        Of its columns, in order.
    schema : Schema
        Features, each missing value with an indicator, and label.
    null_value : str
        What stands for a missing value.
    delimiter : str
        Between cells.
    """
    numbers = {feature.name for feature in schema.features if isinstance(feature, Numeric)} | {schema.label.name}
    stored = T.StructType([T.StructField(n, T.DoubleType() if n in numbers else T.StringType()) for n in names])
    reader = spark.read.option("sep", delimiter).option("quote", "\0").option("nullValue", null_value)
    columns: list[Column] = []
    for feature in schema.features:
        cell = F.col(feature.name)
        if isinstance(feature, Numeric):
            bounded = F.greatest(F.lit(feature.lower), F.least(F.lit(feature.upper), cell))
            columns.append(F.coalesce(bounded, F.lit(feature.center)).alias(feature.name))
            columns.append(cell.isNull().cast("double").alias(f"{feature.name}_missing"))
        elif isinstance(feature, Hashed):
            bucket = F.pmod(F.xxhash64(cell), F.lit(feature.buckets)).cast("string")
            columns.append(F.when(cell.isNotNull(), bucket).alias(feature.name))
        else:
            columns.append(cell.alias(feature.name))
    label = F.coalesce(F.col(schema.label.name), F.lit(schema.label.missing_constant))
    bounded = F.greatest(F.lit(schema.label.lower), F.least(F.lit(schema.label.upper), label))
    return reader.schema(stored).csv(path).select(*columns, bounded.alias(schema.label.name))


def mllib_encoded_least_squares(df: DataFrame, schema: Schema) -> PipelineModel:
    """Fit StringIndexer, OneHotEncoder and ``LinearRegression`` (solver ``normal``) on `mllib_table`."""
    texts = [feature.name for feature in schema.features if isinstance(feature, Categorical | Hashed)]
    numbers = [feature.name for feature in schema.features if isinstance(feature, Numeric)]
    indexed, encoded = [f"{name}_index" for name in texts], [f"{name}_columns" for name in texts]
    stages: list[Any] = [
        StringIndexer(inputCols=texts, outputCols=indexed, handleInvalid="keep"),
        OneHotEncoder(inputCols=indexed, outputCols=encoded),
        VectorAssembler(inputCols=[*numbers, *(f"{name}_missing" for name in numbers), *encoded], outputCol=_VECTOR),
        LinearRegression(featuresCol=_VECTOR, labelCol=schema.label.name, solver="normal"),
    ]
    return Pipeline(stages=stages).fit(df)
