"""Releases of bags as arrays and as Parquet files, made without Spark."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def made_bags(num_bags=60, bag_size=4, num_columns=3, seed=0, noise=0.3):
    """Features, weights and label sums; labels are tanh of a feature times another, noise on the first two."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, (num_bags, bag_size, num_columns))
    labels = 5.0 + 2.0 * np.tanh(2 * features[..., 0]) * features[..., 1]
    labels[:, :2] += noise * rng.standard_normal((num_bags, 2))
    weights = rng.standard_normal((num_bags, bag_size))
    return features, weights, (weights * labels).sum(axis=1)


def write_bags(file, features, weights, sums, first=0, row_group_size=None):
    table = pa.table(
        {
            "bag_id": np.arange(first, first + len(sums)),
            "features": features.tolist(),
            "weights": weights.tolist(),
            "label": sums,
        },
        schema=pa.schema(
            [
                ("bag_id", pa.int64()),
                ("features", pa.list_(pa.list_(pa.float64()))),
                ("weights", pa.list_(pa.float64())),
                ("label", pa.float64()),
            ]
        ),
    )
    pq.write_table(table, file, row_group_size=row_group_size)
    return str(file)
