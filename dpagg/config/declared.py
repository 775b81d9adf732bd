"""The ``schema`` section: features and label with their declared bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from dpagg.config.fields import AnyNumber, Model, Number, Text, a_number, category, refused
from dpagg.config.wording import shown
from dpagg.errors import ConfigError
from dpagg.kernels.encoding import Categorical, Constant, Feature, Hashed, Label, Missing, Numeric, Schema


class _ConstantNumber(Model):
    constant: Number
    """The number that stands for a missing value."""


class _ConstantText(Model):
    constant: Annotated[Text, BeforeValidator(category)]
    """The text that stands for a missing value."""


def _missing_rule(value: object) -> object:
    if isinstance(value, Mapping) or value in ("drop", "indicator"):
        return value
    raise refused(f"{shown(value)} is given, expected drop, indicator or {{constant: VALUE}}")


def _missing_tag(value: object) -> str:
    return "~word" if isinstance(value, str) else "~constant"


def _to_missing(rule: Literal["drop", "indicator"] | _ConstantNumber | _ConstantText) -> Missing:
    return rule if isinstance(rule, str) else Constant(rule.constant)


_Word: TypeAlias = Annotated[Literal["drop", "indicator"], Tag("~word")]
MissingNumber: TypeAlias = Annotated[
    _Word | Annotated[_ConstantNumber, Tag("~constant")],
    Discriminator(_missing_tag),
    BeforeValidator(_missing_rule),
]
MissingText: TypeAlias = Annotated[
    _Word | Annotated[_ConstantText, Tag("~constant")],
    Discriminator(_missing_tag),
    BeforeValidator(_missing_rule),
]


class _Encoded(Model):
    """A part of the schema that stands for a frozen object of `dpagg.kernels.encoding`."""

    def to_kernel(self) -> object:
        raise NotImplementedError

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        try:
            self.to_kernel()
        except ConfigError as error:
            raise refused(error.message, remedy=error.remedy, field=error.path) from None
        return self


class NumericConfig(_Encoded):
    """A numeric feature with declared bounds."""

    type: Literal["numeric"]
    """A number."""
    name: Text
    """Column of the table."""
    lower: AnyNumber
    """Declared lower bound, in the units of the column; smaller values are clipped to it."""
    upper: AnyNumber
    """Declared upper bound, in the units of the column; larger values are clipped to it."""
    missing: MissingNumber = "drop"
    """What becomes of a row without a value: drop leaves it out, indicator adds a column that marks it, {constant:
    NUMBER} puts a number in."""

    def to_kernel(self) -> Numeric:
        """Return the feature as the encoder takes it."""
        return Numeric(self.name, self.lower, self.upper, _to_missing(self.missing))


class CategoricalConfig(_Encoded):
    """A categorical feature with declared categories."""

    type: Literal["categorical"]
    """One of declared categories."""
    name: Text
    """Column of the table."""
    categories: tuple[Annotated[str, BeforeValidator(category)], ...]
    """Its values; the first is the reference, each of the others a column of 0 and 1."""
    other: bool = False
    """Whether all further values make one more category; otherwise they count as missing."""
    missing: MissingText = "drop"
    """What becomes of a row without a value: drop leaves it out, indicator adds a column that marks it, {constant:
    CATEGORY} puts a category in."""

    def to_kernel(self) -> Categorical:
        """Return the feature as the encoder takes it."""
        return Categorical(self.name, self.categories, self.other, _to_missing(self.missing))


class HashedConfig(_Encoded):
    """A text feature hashed into a fixed number of buckets."""

    type: Literal["hashed"]
    """Text with more values than one would list."""
    name: Text
    """Column of the table."""
    buckets: Annotated[int, BeforeValidator(a_number)]
    """Columns that the values are hashed into."""
    missing: MissingText = "drop"
    """What becomes of a row without a value: drop leaves it out, indicator adds a column that marks it, {constant:
    TEXT} puts a text in."""

    def to_kernel(self) -> Hashed:
        """Return the feature as the encoder takes it."""
        return Hashed(self.name, self.buckets, _to_missing(self.missing))


FeatureConfig: TypeAlias = Annotated[NumericConfig | CategoricalConfig | HashedConfig, Field(discriminator="type")]


class LabelConfig(_Encoded):
    """The label, its declared bounds and the constant for a missing one."""

    name: Text
    """Column of the table; what is protected."""
    lower: AnyNumber
    """Declared lower bound, in the units of the column, known without a look at the labels; smaller labels are clipped
    to it."""
    upper: AnyNumber
    """Declared upper bound, in the units of the column, known without a look at the labels; larger labels are clipped
    to it."""
    missing: _ConstantNumber
    """What a missing or bad label counts as: {constant: NUMBER}, such as 0 for no sale."""

    @field_validator("missing", mode="before")
    @classmethod
    def _constant_only(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            raise refused(
                f"{shown(value)} is given, expected {{constant: VALUE}}",
                remedy="Dropping or marking a row for its missing label would tell the label.",
            )
        return value

    def to_kernel(self) -> Label:
        """Return the label as the encoder takes it."""
        return Label(self.name, self.lower, self.upper, self.missing.constant)


class SchemaConfig(_Encoded):
    """Declared features, label and intercept."""

    intercept: bool = True
    """Whether a column of ones is among the features."""
    features: tuple[FeatureConfig, ...]
    """A list of columns, each with its name, type and bounds or categories; the other columns are ignored."""
    label: LabelConfig
    """The column that is protected: name, lower, upper and missing."""

    def columns(self, *keys: str | None) -> tuple[str, ...]:
        """Return the names of keys, features and label, each once."""
        names = [*(key for key in keys if key is not None), *(feature.name for feature in self.features)]
        return tuple({name.lower(): name for name in [*names, self.label.name]}.values())

    def to_kernel(self) -> Schema:
        """Return the schema as the encoder takes it."""
        features: tuple[Feature, ...] = tuple(feature.to_kernel() for feature in self.features)
        return Schema(features, self.label.to_kernel(), self.intercept)
