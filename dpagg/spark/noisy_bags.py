"""Least squares on bags whose rows and weights are released: one weighted row a bag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from dpagg.kernels.bag_batches import collapsed_bags
from dpagg.spark.engines import table_factor

_COLLAPSED = "features array<double>, noised_root double"


def noisy_bag_factor(
    df: DataFrame, *, num_noised: int, noise_variance: float, row_variance: float
) -> tuple[NDArray[np.float64], int, float]:
    """Return the factor of the weighted sums of bags, each divided by its standard deviation.

    A bag's label sum deviates from ``beta^T sum_i w_i x_i`` by the sum of w_i times a row's residual, and of w_i times
    the noise of the first `num_noised` labels. Given the weights its variance is
    ``row_variance * sum w^2 + noise_variance * sum over noised of w^2``.

    Parameters
    ----------
    df : DataFrame
        Columns features (k lists of d), weights (k) and label, as released.
    num_noised : int
        How many labels of each bag, the first ones, carry noise.
    noise_variance, row_variance : float
        Of the noise on a label, and of a row's residual; not both 0.

    Returns
    -------
    factor : ndarray, shape (d + 1, d + 1)
        Of features and label of the scaled bags.
    num_bags : int
    noised_share : float
        Mean of ``sum over noised of w^2`` times the square of the scale.
    """

    def collapse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield collapsed_bags(
                    batch, num_noised=num_noised, noise_variance=noise_variance, row_variance=row_variance
                )

    collapsed = df.select("features", "weights", "label").mapInArrow(cast(Any, collapse), _COLLAPSED)
    # The root of the noised share rides as one more column behind the label, which leaves the factor before it alone.
    factor, num_bags = table_factor(collapsed, "features", "noised_root")
    share = float(factor[:, -1] @ factor[:, -1]) / num_bags if num_bags else 0.0
    return factor[:-1, :-1], num_bags, share
