"""What Spark itself offers over the same columns, to compare with. Not private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.mllib.linalg.distributed import RowMatrix
from pyspark.mllib.util import MLUtils
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

__all__ = ["mllib_gram", "mllib_least_squares", "sql_sums"]

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
