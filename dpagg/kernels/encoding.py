"""Rows of a table as numbers, by the declared schema alone.

Each row is encoded by itself, so a table may be cut anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpagg.errors import DataError
from dpagg.kernels.schema import (
    Categorical,
    Column,
    ColumnKind,
    Constant,
    Feature,
    Hashed,
    Label,
    Missing,
    Numeric,
    Schema,
)

__all__ = [
    "Categorical",
    "Column",
    "ColumnKind",
    "Constant",
    "Feature",
    "Hashed",
    "Label",
    "Missing",
    "Numeric",
    "Schema",
    "code_features",
    "encode_features",
    "encode_label",
    "hash_buckets",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

# Rows encoded at a time, so that the strided writes into the output stay in cache.
_TILE = 4096

# Texts whose hashes are kept: a few MB.
_LARGEST_MEMO = 50_000


def encode_features(batch: pa.RecordBatch, schema: Schema) -> tuple[FloatArray, BoolArray]:
    """Encode the features of a batch of rows.

    Parameters
    ----------
    batch
        Has a column for each feature: numbers for `Numeric`, text for the others, nulls allowed.
        Further columns are ignored.
    schema
        Declares the features.

    Returns
    -------
    tuple of ndarray
        The encoded rows, float64 of shape (k, d), C-contiguous, every value finite and in [-1, 1];
        and which rows to keep, bool of shape (k,): False where a feature declared ``drop`` is missing.
        The values of rows that are not kept mean nothing.

    Raises
    ------
    DataError
        If a column is missing or has another type.
    """
    rows = batch.num_rows
    encoded = np.zeros((rows, schema.num_columns), dtype=np.float64)
    keep = np.ones(rows, dtype=np.bool_)
    start = 0
    if schema.intercept:
        encoded[:, 0] = 1.0
        start = 1
    numeric: list[tuple[int, Numeric, FloatArray]] = []
    for feature, full in zip(schema.features, schema.full_sets, strict=True):
        column = _column(batch, feature.name)
        if isinstance(feature, Numeric):
            values = _as_floats(column, feature.name)
            numeric.append((start, feature, values))
            start += 2 if feature.missing == "indicator" else 1
            continue
        codes, width = _codes(column, feature)
        if feature.missing == "drop":
            keep &= codes >= 0
        first = 0 if full else 1
        chosen = np.flatnonzero(codes >= first)
        encoded[chosen, start + codes[chosen] - first] = 1.0
        start += width - first
    for low in range(0, rows, _TILE):
        tile = slice(low, min(low + _TILE, rows))
        for position, feature, values in numeric:
            _encode_numbers(values[tile], feature, encoded[tile], position, keep[tile])
    return encoded, keep


def code_features(
    batch: pa.RecordBatch, schema: Schema, memo: dict[bytes, int] | None = None
) -> tuple[npt.NDArray[np.uint16], FloatArray, tuple[int, ...], BoolArray]:
    """Encode the features of a batch as the columns in which a row is 1, and its numbers.

    Parameters
    ----------
    batch, schema
        As `encode_features` takes them; the schema has an intercept and less than 65,536 columns.
    memo
        Keeps hashes of texts from batch to batch.

    Returns
    -------
    tuple
        Columns that are 1, shape (f, k), the number of columns where there is none; values of numeric columns, shape
        (q, k), and which columns these are; and which rows to keep, shape (k,). Dense rows made of these are those of
        `encode_features`.
    """
    rows, width, start = batch.num_rows, schema.num_columns, 1
    keep = np.ones(rows, dtype=np.bool_)
    slots: list[npt.NDArray[np.uint16]] = []
    numbers: list[FloatArray] = []
    places: list[int] = []
    for feature, full in zip(schema.features, schema.full_sets, strict=True):
        column = _column(batch, feature.name)
        if isinstance(feature, Numeric):
            encoded = np.zeros((rows, 2))
            _encode_numbers(_as_floats(column, feature.name), feature, encoded, 0, keep)
            numbers.append(np.ascontiguousarray(encoded[:, 0]))
            places.append(start)
            start += 1
            if feature.missing == "indicator":
                slots.append(np.where(encoded[:, 1] > 0, start, width).astype(np.uint16))
                start += 1
            continue
        codes, count = _codes(column, feature, memo)
        if feature.missing == "drop":
            keep &= codes >= 0
        first = 0 if full else 1
        slots.append(np.where(codes >= first, start + codes - first, width).astype(np.uint16))
        start += count - first
    empty: npt.NDArray[np.uint16] = np.zeros((0, rows), dtype=np.uint16)
    stacked = np.stack(slots) if slots else empty
    return stacked, np.stack(numbers) if numbers else np.zeros((0, rows)), tuple(places), keep


def encode_label(column: pa.Array | pa.ChunkedArray, label: Label) -> FloatArray:
    """Clip labels to their declared bounds.

    Parameters
    ----------
    column
        Numbers, nulls allowed, in the user's units.
    label
        Declares bounds and the constant for a missing label.

    Returns
    -------
    ndarray
        float64 of shape (k,), in the user's units, every value within the bounds. A null, NaN or
        infinite label silently becomes the declared constant: no label value may decide an error.

    Raises
    ------
    DataError
        If the column's type is not a number; no value decides it.
    """
    values = _as_floats(column, label.name)
    return np.where(np.isfinite(values), np.clip(values, label.lower, label.upper), label.missing_constant)


def hash_buckets(values: Sequence[bytes], buckets: int, memo: dict[bytes, int] | None = None) -> npt.NDArray[np.int64]:
    """Bucket of each text by its bytes, int64 of shape (k,) (see `Hashed`); `memo` keeps hashes from call to call."""
    if memo is None:
        digests = b"".join(hashlib.blake2b(value, digest_size=8).digest() for value in values)
        return (np.frombuffer(digests, dtype="<u8") % np.uint64(buckets)).astype(np.int64)
    if len(memo) > _LARGEST_MEMO:
        memo.clear()
    hashes = []
    for value in values:
        known = memo.get(value)
        if known is None:
            known = memo[value] = int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")
        hashes.append(known)
    return (np.array(hashes, dtype=np.uint64) % np.uint64(buckets)).astype(np.int64)


def _encode_numbers(values: FloatArray, feature: Numeric, encoded: FloatArray, position: int, keep: BoolArray) -> None:
    with np.errstate(over="ignore"):
        scaled = (values - feature.center) / feature.half_width
    np.clip(scaled, -1.0, 1.0, out=scaled)
    known = np.isfinite(values)
    if not known.all():
        lost = ~known
        if isinstance(feature.missing, Constant):
            constant = (float(feature.missing.value) - feature.center) / feature.half_width
            scaled[lost] = min(1.0, max(-1.0, constant))
        else:
            scaled[lost] = 0.0
            if feature.missing == "indicator":
                encoded[:, position + 1] = lost
            else:
                keep &= known
    encoded[:, position] = scaled


def _codes(
    column: pa.Array, feature: Categorical | Hashed, memo: dict[bytes, int] | None = None
) -> tuple[npt.NDArray[np.int64], int]:
    """Position of each row's column in the full set, -1 where the row has none, and the set's width."""
    text = _as_text(column, feature.name)
    constant: int | None = None
    if isinstance(feature, Categorical):
        known = pc.index_in(text, value_set=pa.array(feature.categories, type=text.type))
        codes = _filled(known)
        width = len(feature.categories)
        if feature.other:
            unseen = pc.and_(pc.is_null(known), pc.is_valid(text)).to_numpy(zero_copy_only=False)
            codes[unseen] = width
            width += 1
        if isinstance(feature.missing, Constant):
            constant = feature.categories.index(str(feature.missing.value))
    else:
        distinct = text.dictionary_encode()
        codes = _filled(distinct.indices)
        # A cell need not be valid UTF-8, and none may raise an error.
        buckets = hash_buckets(distinct.dictionary.cast(pa.binary()).to_pylist(), feature.buckets, memo)
        found = codes >= 0
        codes[found] = buckets[codes[found]]
        width = feature.buckets
        if isinstance(feature.missing, Constant):
            constant = int(hash_buckets([str(feature.missing.value).encode()], feature.buckets)[0])
    if constant is not None:
        codes[codes < 0] = constant
    elif feature.missing == "indicator":
        codes[codes < 0] = width
        width += 1
    return codes, width


def _filled(indices: pa.Array) -> npt.NDArray[np.int64]:
    filled = pc.fill_null(pc.cast(indices, pa.int64()), -1)
    return np.array(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    position = batch.schema.get_field_index(name)
    if position < 0:
        raise DataError(f"the batch has no column {name!r}, or more than one")
    return batch.column(position)


def _as_floats(column: pa.Array | pa.ChunkedArray, name: str) -> FloatArray:
    kind = column.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise DataError(f"column {name!r} has type {kind}, expected a number")
    if not pa.types.is_float64(kind):
        column = pc.cast(column, pa.float64(), safe=False)
    if isinstance(column, pa.ChunkedArray):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)


def _as_text(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column
    if pa.types.is_null(kind):
        return pc.cast(column, pa.string())
    if pa.types.is_dictionary(kind) and pa.types.is_string(kind.value_type):
        return column.dictionary_decode()
    raise DataError(f"column {name!r} has type {kind}, expected text")
