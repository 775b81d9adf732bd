"""The declared schema of a table and the columns it is encoded into.

Every bound, category and constant here is declared, never read from the data: under label-DP
nothing that is derived from labels may enter, and a scale taken from the data might be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from dpagg.errors import ConfigError

ColumnKind: TypeAlias = Literal["intercept", "numeric", "category", "other", "missing", "bucket"]

# Squares and sums of bounds must stay finite in double precision.
_LARGEST_BOUND = 1e100
_LARGEST_BUCKETS = 1_000_000


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
        for feature, full in zip(self.features, self.full_sets, strict=True):
            columns.extend(_columns_of(feature, full))
        return tuple(columns)

    @property
    def num_columns(self) -> int:
        """Number of encoded columns (d)."""
        return len(self.columns)

    @cached_property
    def full_sets(self) -> tuple[bool, ...]:
        """Whether each feature has a column for every value, its reference included."""
        spanned, full = self.intercept, []
        for feature in self.features:
            one_hot = not isinstance(feature, Numeric)
            full.append(one_hot and not spanned)
            spanned = spanned or one_hot
        return tuple(full)


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


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ConfigError("a column needs a name", path="name")


def _check_missing(missing: object) -> None:
    if missing not in ("drop", "indicator"):
        raise ConfigError(f"{missing!r} is given, expected drop, indicator or {{constant: VALUE}}", path="missing")


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
