"""Rows of norm at most 1 with labels of size at most 1, by what is declared alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.kernels.schema import Schema

Array = NDArray[np.float64]

# So that no norm exceeds 1 by a rounding.
_INSIDE = 1.0 - 1e-14


@dataclass(frozen=True)
class BoundedRows:
    """How a row of a table enters a private regression.

    Encoded features are divided by a declared bound on their norm, the label is centred (where there is an intercept)
    and divided by its largest size. A longer row is scaled down with its label, as if it had a smaller weight, which
    leaves a linear relation as it is. A row with a missing feature whose rule is ``drop`` is a row of zeros: it adds
    nothing to any sum, and how many there are shows in no size and no count.

    Guarantee: zeroing out one row of the table (adjacency ``zero_out_one_row``), or changing one label within its
    bounds (``change_one_label``), changes one row of what `encode` returns, whose norm is at most 1, and one label, of
    size at most 1. With an intercept, its column is part of the row.

    Attributes
    ----------
    schema : Schema
        Declared features and label.
    row_bound : float or None
        Declared bound on the norm of an encoded row, intercept included; None for the one that no row exceeds.
    """

    schema: Schema
    row_bound: float | None = None

    @property
    def largest_norm(self) -> float:
        """Norm that no encoded row exceeds: every feature, and the intercept, adds at most 1 to its square."""
        return math.sqrt(len(self.schema.features) + (1 if self.schema.intercept else 0))

    @property
    def row_scale(self) -> float:
        """Factor of an encoded row."""
        return 1.0 / (self.largest_norm if self.row_bound is None else self.row_bound)

    @property
    def label_center(self) -> float:
        """What is subtracted from labels: the middle of their bounds where an intercept takes it up, else 0."""
        label = self.schema.label
        return label.lower / 2 + label.upper / 2 if self.schema.intercept else 0.0

    @property
    def label_scale(self) -> float:
        """Largest size of a label after centring, by which it is divided."""
        label = self.schema.label
        return label.range / 2 if self.schema.intercept else max(abs(label.lower), abs(label.upper))

    @property
    def coefficient_scale(self) -> float:
        """Factor from coefficients of the bounded rows to those of encoded rows and the label in the user's units."""
        return self.label_scale * self.row_scale

    def encode(self, batch: pa.RecordBatch) -> tuple[Array, Array]:
        """Return rows, shape (k, d), and labels, shape (k,), of a normalised batch.

        Raises
        ------
        DataError
            If a column is missing or has another type; no value decides it.
        """
        rows, keep = encode_features(batch, self.schema)
        labels = encode_label(batch.column(self.schema.label.name), self.schema.label)
        labels = (labels - self.label_center) / self.label_scale
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * self.row_scale
        weights = np.minimum(1.0, _INSIDE / np.maximum(norms, 1e-300))
        weights[~keep] = 0.0
        rows *= (weights * self.row_scale)[:, None]
        # Dividing by the scale may round a label at its bound to just above 1.
        return rows, np.clip(labels, -1.0, 1.0) * weights

    def coefficients(self, bounded: Array) -> Array:
        """Return coefficients, shape (d,), for encoded rows and the label in the user's units."""
        scaled = bounded * self.coefficient_scale
        if self.schema.intercept:
            scaled[0] += self.label_center
        return scaled


def pack(rows: Array, labels: Array) -> bytes:
    """Return rows, shape (k, d), and labels, shape (k,), as the bytes that `unpack` reads."""
    return np.ascontiguousarray(rows).tobytes() + np.ascontiguousarray(labels).tobytes()


def unpack(packed: bytes, width: int) -> tuple[Array, Array]:
    """Return the rows, shape (k, width), and labels that were packed, without a copy."""
    numbers = np.frombuffer(packed)
    count = len(numbers) // (width + 1)
    return numbers[: count * width].reshape(count, width), numbers[count * width :]
