"""The declared schema of a table, and its rows as numbers.

Every bound, category and constant here is declared, never read from the data: under label-DP
nothing that is derived from labels may enter, and a scale taken from the data would be.
Each row is encoded by itself, so a table may be cut anywhere.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpagg.errors import ConfigError, DataError

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
ColumnKind: TypeAlias = Literal["intercept", "numeric", "category", "other", "missing", "bucket"]

# Squares and sums of bounds must stay finite in double precision.
_LARGEST_BOUND = 1e100
_LARGEST_BUCKETS = 1_000_000
# Rows encoded at a time, so that the strided writes into the output stay in cache.
_TILE = 4096


@dataclass(frozen=True)
class Constant:
    """A declared value that stands in for a missing one."""

    value: float | str


Missing: TypeAlias = Literal["drop", "indicator"] | Constant


@dataclass(frozen=True)
class Numeric:
    """A number between declared bounds, encoded into [-1, 1].

    Parameters
    ----------
    name
        Column of the table.
    lower, upper
        Declared bounds in the user's units; values outside are clipped to them.
    missing
        What a null, NaN or infinite value becomes: ``"drop"`` drops the row, ``"indicator"``
        encodes the centre of the bounds and sets a column of its own, a `Constant` is a number
        within the bounds.

    Raises
    ------
    ConfigError
        If the bounds are not finite, not in order or too close, or the constant is outside them.
    """

    name: str
    lower: float
    upper: float
    missing: Missing = "drop"

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_bounds(self.lower, self.upper)
        if isinstance(self.missing, Constant):
            _check_constant_between(self.missing.value, self.lower, self.upper, "missing.constant")
        else:
            _check_missing(self.missing)

    @property
    def center(self) -> float:
        """Middle of the bounds, in the user's units."""
        return self.lower / 2 + self.upper / 2

    @property
    def half_width(self) -> float:
        """Half the distance between the bounds, in the user's units."""
        return self.upper / 2 - self.lower / 2


@dataclass(frozen=True)
class Categorical:
    """One of a list of declared categories, encoded as 0/1 columns.

    Parameters
    ----------
    name
        Column of the table.
    categories
        The declared values, in order; the first one is the reference (see `Schema`).
    other
        Whether values outside `categories` get a column of their own. Without it such a value
        counts as missing.
    missing
        What a null becomes: ``"drop"``, ``"indicator"`` or a `Constant` that is a category.

    Raises
    ------
    ConfigError
        If there is no category, one is given twice or isn't text, or the constant is not one of them.
    """

    name: str
    categories: tuple[str, ...]
    other: bool = False
    missing: Missing = "drop"

    def __post_init__(self) -> None:
        _check_name(self.name)
        object.__setattr__(self, "categories", tuple(self.categories))
        if not self.categories:
            raise ConfigError("no category is given", path="categories", remedy="List at least one.")
        seen: set[str] = set()
        for position, category in enumerate(self.categories):
            if not isinstance(category, str):
                raise ConfigError(
                    f"a category is text, not {type(category).__name__}",
                    path=f"categories[{position}]",
                    remedy="Put it in quotes.",
                )
            if category in seen:
                raise ConfigError(
                    f"category {category!r} is given twice", path="categories", remedy="Keep one of them."
                )
            seen.add(category)
        if isinstance(self.missing, Constant):
            if self.missing.value not in seen:
                raise ConfigError(
                    f"the constant {self.missing.value!r} is none of the declared categories",
                    path="missing.constant",
                    remedy="Use a category, or missing: indicator.",
                )
        else:
            _check_missing(self.missing)


@dataclass(frozen=True)
class Hashed:
    """Text put into one of a fixed number of buckets by a public hash.

    The bucket of a value is BLAKE2b with a digest of 8 bytes over its UTF-8 form, read as a
    little-endian number, modulo `buckets`.

    Parameters
    ----------
    name
        Column of the table.
    buckets
        Number of buckets, at least 2.
    missing
        What a null becomes: ``"drop"``, ``"indicator"`` or a text `Constant`, hashed as any other.

    Raises
    ------
    ConfigError
        If `buckets` is out of range or the constant is not text.
    """

    name: str
    buckets: int
    missing: Missing = "drop"

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not 2 <= self.buckets <= _LARGEST_BUCKETS:
            raise ConfigError(
                f"{self.buckets} is given, expected a whole number from 2 to {_LARGEST_BUCKETS:,}",
                path="buckets",
            )
        if isinstance(self.missing, Constant):
            if not isinstance(self.missing.value, str):
                raise ConfigError(
                    f"the constant of a hashed feature is text, not {type(self.missing.value).__name__}",
                    path="missing.constant",
                    remedy="Put it in quotes.",
                )
        else:
            _check_missing(self.missing)


Feature: TypeAlias = Numeric | Categorical | Hashed


@dataclass(frozen=True)
class Label:
    """The label, clipped to declared bounds.

    Parameters
    ----------
    name
        Column of the table.
    lower, upper
        Declared bounds in the user's units.
    missing_constant
        What a null, NaN or infinite label becomes, within the bounds. There is no other way to treat
        a missing label: dropping the row would tell its label.

    Raises
    ------
    ConfigError
        If the bounds are not finite, not in order or too close, or the constant is outside them.
    """

    name: str
    lower: float
    upper: float
    missing_constant: float

    def __post_init__(self) -> None:
        _check_name(self.name)
        _check_bounds(self.lower, self.upper)
        _check_constant_between(self.missing_constant, self.lower, self.upper, "missing.constant")

    @property
    def range(self) -> float:
        """Distance between the bounds (D), in the user's units."""
        return self.upper - self.lower


@dataclass(frozen=True)
class Column:
    """What one encoded column means.

    For a ``numeric`` column ``encoded = (x - center) / half_width`` with x in the user's units,
    clipped to ``center ± half_width``. Any other column is 0 or 1 (``center`` 0, ``half_width`` 1),
    and `value` is its category or bucket, if it has one.
    """

    name: str
    feature: str | None
    meaning: str
    kind: ColumnKind
    center: float = 0.0
    half_width: float = 1.0
    value: str | None = None


@dataclass(frozen=True)
class Schema:
    """Features, label and intercept of a table, and the columns they are encoded into.

    A categorical or hashed feature always has exactly one of its columns set, so a full set of them
    adds up to an intercept. Therefore its first category (bucket 0) is the reference and has no
    column when there is an intercept already; without a declared one, the first such feature has
    all its columns and the following ones have a reference.

    Raises
    ------
    ConfigError
        If there is neither a feature nor an intercept, or two columns of the table share a name.
    """

    features: tuple[Feature, ...]
    label: Label
    intercept: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if not self.features and not self.intercept:
            raise ConfigError(
                "there is no feature and no intercept",
                path="features",
                remedy="Declare at least one feature.",
            )
        seen: set[str] = set()
        for position, feature in enumerate(self.features):
            # Spark compares column names without case, so names that differ in case only are one.
            if feature.name.lower() in seen:
                raise ConfigError(
                    f"{feature.name!r} is declared twice (case doesn't count)",
                    path=f"features[{position}].name",
                    remedy="Declare each column once.",
                )
            seen.add(feature.name.lower())
        if self.label.name.lower() in seen:
            raise ConfigError(
                f"{self.label.name!r} is a feature as well as the label",
                path="label.name",
                remedy="Take it out of the features: a label among them is not protected at all.",
            )

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The encoded columns, in order."""
        columns: list[Column] = []
        if self.intercept:
            columns.append(Column("intercept", None, "1 in every row", "intercept"))
        for feature, full in zip(self.features, self._full, strict=True):
            columns.extend(_columns_of(feature, full))
        return tuple(columns)

    @property
    def num_columns(self) -> int:
        """Number of encoded columns (d)."""
        return len(self.columns)

    @cached_property
    def _full(self) -> tuple[bool, ...]:
        spanned, full = self.intercept, []
        for feature in self.features:
            one_hot = not isinstance(feature, Numeric)
            full.append(one_hot and not spanned)
            spanned = spanned or one_hot
        return tuple(full)


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
    for feature, full in zip(schema.features, schema._full, strict=True):
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


def hash_buckets(values: Sequence[str], buckets: int) -> npt.NDArray[np.int64]:
    """Bucket of each text, int64 of shape (k,) (see `Hashed`)."""
    digests = b"".join(hashlib.blake2b(value.encode(), digest_size=8).digest() for value in values)
    return (np.frombuffer(digests, dtype="<u8") % np.uint64(buckets)).astype(np.int64)


def _columns_of(feature: Feature, full: bool) -> list[Column]:
    name = feature.name
    columns: list[Column] = []
    if isinstance(feature, Numeric):
        meaning = f"{name}, {feature.lower:g} to {feature.upper:g} scaled to -1 to 1"
        columns.append(Column(name, name, meaning, "numeric", feature.center, feature.half_width))
    elif isinstance(feature, Categorical):
        against = "" if full else f" (against {feature.categories[0]!r})"
        for category in feature.categories[0 if full else 1 :]:
            meaning = f"1 where {name} is {category!r}{against}"
            columns.append(Column(f"{name}={category}", name, meaning, "category", value=category))
        if feature.other:
            meaning = f"1 where {name} is none of the declared categories{against}"
            columns.append(Column(f"{name}:other", name, meaning, "other"))
    else:
        against = "" if full else " (against bucket 0)"
        for bucket in range(0 if full else 1, feature.buckets):
            meaning = f"1 where {name} hashes to bucket {bucket} of {feature.buckets}{against}"
            columns.append(Column(f"{name}#{bucket}", name, meaning, "bucket", value=str(bucket)))
    if feature.missing == "indicator":
        columns.append(Column(f"{name}:missing", name, f"1 where {name} is missing", "missing"))
    return columns


def _encode_numbers(
    values: FloatArray, feature: Numeric, encoded: FloatArray, position: int, keep: BoolArray
) -> None:
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


def _codes(column: pa.Array, feature: Categorical | Hashed) -> tuple[npt.NDArray[np.int64], int]:
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
        buckets = hash_buckets(distinct.dictionary.to_pylist(), feature.buckets)
        found = codes >= 0
        codes[found] = buckets[codes[found]]
        width = feature.buckets
        if isinstance(feature.missing, Constant):
            constant = int(hash_buckets([str(feature.missing.value)], feature.buckets)[0])
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


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("a column needs a name", path="name")


def _check_missing(missing: object) -> None:
    if missing not in ("drop", "indicator"):
        raise ConfigError(
            f"{missing!r} is given, expected drop, indicator or {{constant: VALUE}}", path="missing"
        )


def _check_bounds(lower: float, upper: float) -> None:
    for name, bound in (("lower", lower), ("upper", upper)):
        if not math.isfinite(bound) or abs(bound) > _LARGEST_BOUND:
            raise ConfigError(
                f"{bound} is given, expected a finite number of at most {_LARGEST_BOUND:g} in size",
                path=name,
                remedy="Declare a bound that holds for the quantity itself; values outside are clipped.",
            )
    if lower >= upper:
        raise ConfigError(
            f"the lower bound {lower} is not below the upper bound {upper}",
            path="lower",
            remedy="Swap them, or leave out a column that has one value only.",
        )
    if upper - lower <= max(1e-12 * max(abs(lower), abs(upper)), 1 / _LARGEST_BOUND):
        raise ConfigError(
            f"the bounds {lower} and {upper} are too close to tell apart in double precision",
            path="lower",
            remedy="Shift or scale the column first.",
        )


def _check_constant_between(value: object, lower: float, upper: float, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not lower <= value <= upper:
        raise ConfigError(
            f"the constant {value!r} is not a number between the declared bounds {lower} and {upper}",
            path=path,
        )
