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


class _ConstantText(Model):
    constant: Annotated[Text, BeforeValidator(category)]


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
    name: Text
    lower: AnyNumber
    upper: AnyNumber
    missing: MissingNumber = "drop"

    def to_kernel(self) -> Numeric:
        """Return the feature as the encoder takes it."""
        return Numeric(self.name, self.lower, self.upper, _to_missing(self.missing))


class CategoricalConfig(_Encoded):
    """A categorical feature with declared categories."""

    type: Literal["categorical"]
    name: Text
    categories: tuple[Annotated[str, BeforeValidator(category)], ...]
    other: bool = False
    missing: MissingText = "drop"

    def to_kernel(self) -> Categorical:
        """Return the feature as the encoder takes it."""
        return Categorical(self.name, self.categories, self.other, _to_missing(self.missing))


class HashedConfig(_Encoded):
    """A text feature hashed into a fixed number of buckets."""

    type: Literal["hashed"]
    name: Text
    buckets: Annotated[int, BeforeValidator(a_number)]
    missing: MissingText = "drop"

    def to_kernel(self) -> Hashed:
        """Return the feature as the encoder takes it."""
        return Hashed(self.name, self.buckets, _to_missing(self.missing))


FeatureConfig: TypeAlias = Annotated[NumericConfig | CategoricalConfig | HashedConfig, Field(discriminator="type")]


class LabelConfig(_Encoded):
    """The label, its declared bounds and the constant for a missing one."""

    name: Text
    lower: AnyNumber
    upper: AnyNumber
    missing: _ConstantNumber

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
    features: tuple[FeatureConfig, ...]
    label: LabelConfig

    def columns(self, *keys: str | None) -> tuple[str, ...]:
        """Return the names of keys, features and label, each once."""
        names = [*(key for key in keys if key is not None), *(feature.name for feature in self.features)]
        return tuple({name.lower(): name for name in [*names, self.label.name]}.values())

    def to_kernel(self) -> Schema:
        """Return the schema as the encoder takes it."""
        features: tuple[Feature, ...] = tuple(feature.to_kernel() for feature in self.features)
        return Schema(features, self.label.to_kernel(), self.intercept)
