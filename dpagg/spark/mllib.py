"""Spark's own least squares, to compare with. Not private."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pyspark.ml.feature import VectorAssembler
from pyspark.ml.regression import LinearRegression
from pyspark.sql import DataFrame

__all__ = ["mllib_least_squares"]


def mllib_least_squares(df: DataFrame, features: Sequence[str], label: str) -> tuple[float, NDArray[np.float64]]:
    """Return intercept and slopes, shape (d,), of MLlib's ``LinearRegression`` with the solver ``normal``."""
    rows = VectorAssembler(inputCols=list(features), outputCol="__features").transform(df)
    model = LinearRegression(featuresCol="__features", labelCol=label, solver="normal").fit(rows)
    return float(model.intercept), np.asarray(model.coefficients.toArray(), dtype=np.float64)
