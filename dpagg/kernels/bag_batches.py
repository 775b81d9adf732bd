"""Bags as Arrow batches: what is released, and what it is made from."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.bags import NoisyLabels, Ranking, bag_spaces, bag_streams, weighted_bags
from dpagg.kernels.weights import Finish

__all__ = ["DRAWN", "collapsed_bags", "drawn_sums", "leverages_of", "noisy_labels_of", "weighted_sums_of"]

DRAWN = pa.schema([("bag_id", pa.int64()), ("features", pa.list_(pa.float64())), ("label", pa.float64())])


def drawn_sums(finish: Finish, chunk: int, sums: NDArray[np.float64] | None) -> pa.RecordBatch:
    """Return a chunk of a release over the whole table: bag_id, features, label."""
    features, labels = finish.chunk(chunk, sums)
    count, width = features.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(features.ravel()))
    bags = finish.bags(chunk)
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(bags.start, bags.stop)), rows, pa.array(labels)], schema=DRAWN
    )


def leverages_of(bags: NDArray[np.int64], rows: NDArray[np.float64]) -> pa.RecordBatch:
    """Return bag_id and the largest leverage within each bag; rows, shape (b, k, d), have no label."""
    return _batch(bag_id=bags, leverage=bag_spaces(rows).leverages.max(axis=1))


def weighted_sums_of(ranking: Ranking, bags: NDArray[np.int64], rows: NDArray[np.float64]) -> pa.RecordBatch:
    """Return one weighted sum a bag (Sampled-WTD-FLAG) of rows, shape (b, k, d + 1).

    Columns: bag_id, features, label, a standard normal to be scaled and added to the label, and the largest leverage
    within the bag. The label has its centre back but no noise yet: it is NOT private as it is.
    """
    drawn = weighted_bags(rows, bag_streams(ranking.secret, ranking.release_id, bags))
    center = ranking.rule.label_center
    # Labels are summed about their centre only where the first column is an intercept.
    labels = drawn.labels + center * drawn.features[:, 0] if center else drawn.labels
    return _batch(
        bag_id=bags, features=_lists(drawn.features), label=labels, noise=drawn.noise, leverage=drawn.leverages
    )


def noisy_labels_of(
    ranking: Ranking, noisy: NoisyLabels, bags: NDArray[np.int64], rows: NDArray[np.float64]
) -> pa.RecordBatch:
    """Return features, weights and the noisy weighted label sum of each bag (Sampled-Noisy-WTD-LAg).

    Columns: bag_id, features (k lists of d), weights (k), label, of rows, shape (b, k, d + 1).
    """
    labels = rows[:, :, -1] + ranking.rule.label_center
    weights, sums = noisy.draw(labels, bag_streams(ranking.secret, ranking.release_id, bags))
    return _batch(bag_id=bags, features=_lists(rows[:, :, :-1]), weights=_lists(weights), label=sums)


def collapsed_bags(
    batch: pa.RecordBatch, *, num_noised: int, noise_variance: float, row_variance: float
) -> pa.RecordBatch:
    """Return the weighted sums of released bags, each divided by its standard deviation, for least squares.

    The batch has features (k lists of d), weights (k) and label, in this order. The result has lists of the d sums and
    the label, and the root of the sum of squares of the noised weights, all scaled alike.
    """
    weights = batch.column(1).flatten().to_numpy(zero_copy_only=False).reshape(batch.num_rows, -1)
    rows = batch.column(0).flatten().flatten().to_numpy(zero_copy_only=False)
    labels = batch.column(2).to_numpy(zero_copy_only=False)
    sums = np.einsum("bi,bij->bj", weights, rows.reshape(*weights.shape, -1))
    noised = np.square(weights[:, :num_noised]).sum(axis=1)
    scale = 1.0 / np.sqrt(noise_variance * noised + row_variance * np.square(weights).sum(axis=1))
    return _batch(
        features=_lists(np.column_stack([sums, labels]) * scale[:, None]), noised_root=np.sqrt(noised) * scale
    )


def _lists(values: NDArray[np.float64]) -> pa.Array:
    """An array of any shape as (nested) lists along its first axis."""
    found: pa.Array = pa.array(np.ascontiguousarray(values).ravel())
    for axis in range(values.ndim - 1, 0, -1):
        count, width = int(np.prod(values.shape[:axis])), values.shape[axis]
        found = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * np.int32(width)), found)
    return found


def _batch(**columns: Any) -> pa.RecordBatch:
    arrays = [pa.array(each) if isinstance(each, np.ndarray) else cast(pa.Array, each) for each in columns.values()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
