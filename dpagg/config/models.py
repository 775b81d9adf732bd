"""What can be configured: frozen models that refuse an unknown key."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    StringConstraints,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from dpagg.config.wording import shown
from dpagg.errors import ConfigError
from dpagg.kernels.encoding import Categorical, Constant, Feature, Hashed, Label, Missing, Numeric, Schema


def _refused(message: str, *, remedy: str | None = None, field: str | None = None) -> PydanticCustomError:
    # pydantic formats the template with its context, so the message itself goes into the context.
    return PydanticCustomError("dpagg", "{message}", {"message": message, "remedy": remedy, "field": field})


def _a_number(value: object) -> object:
    if isinstance(value, bool):
        raise _refused("a number is expected, not true or false")
    return value


def _count_or_auto(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _refused(f"{shown(value)} is given, expected a whole number from 1, or auto")
    return value


def _number_or_none(value: object) -> object:
    return None if value == "none" else _a_number(value)


def _category(value: object) -> object:
    # A whole number has one spelling only, as Spark writes it; true, 1.50 or a date have several.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise _refused("a category is text", remedy="Put it in quotes.")
    return value


# Names a configuration may come to use: answered as not available yet, not as unknown.
PLANNED = frozenset(
    {"sampled-wtd-flag", "sampled-noisy-wtd-lag", "private", "ihm", "linear-mixing", "adassp", "dp-gd"}
)

Number: TypeAlias = Annotated[float, BeforeValidator(_a_number), Field(allow_inf_nan=False)]
AnyNumber: TypeAlias = Annotated[float, BeforeValidator(_a_number)]
Positive: TypeAlias = Annotated[Number, Field(gt=0)]
Count: TypeAlias = Annotated[int, BeforeValidator(_a_number), Field(ge=1)]
CountOrAuto: TypeAlias = Annotated[int | Literal["auto"], PlainValidator(_count_or_auto)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False)


class _Config(_Model):
    """A whole configuration file."""

    def public_dict(self) -> dict[str, Any]:
        """Everything configured, defaults included, as plain JSON values."""
        return self.model_dump(mode="json", by_alias=True)

    def digest(self) -> str:
        """SHA-256 of the configuration as canonical JSON, without settings of performance only."""
        content = self.public_dict()
        content.pop("performance", None)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class InputConfig(_Model):
    """The table to read, and the column that identifies its rows."""

    path: Text
    format: Literal["parquet", "delta", "csv"]
    row_id: Text | None = None
    version: Annotated[int, BeforeValidator(_a_number), Field(ge=0)] | None = None
    header: bool = True
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=8)] = ","
    column_names: tuple[Text, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_joins_yet(cls, given: Any) -> Any:
        for key in ("tables", "sql"):
            if isinstance(given, dict) and key in given:
                raise _refused(
                    "joining tables is not available yet",
                    field=key,
                    remedy="Join them beforehand and give input.path.",
                )
        return given

    @model_validator(mode="after")
    def _fits_format(self) -> Self:
        if self.format != "csv":
            for key in ("header", "delimiter", "column_names"):
                if getattr(self, key) != type(self).model_fields[key].default:
                    raise _refused(f"this is for csv, but input.format is {self.format}", field=key)
        if self.format != "delta" and self.version is not None:
            raise _refused(f"only a Delta table has versions, input.format is {self.format}", field="version")
        if self.column_names is not None:
            if self.header:
                raise _refused(
                    "a file with a header names its columns itself",
                    field="column_names",
                    remedy="Leave it out, or set input.header: false.",
                )
            if len({name.lower() for name in self.column_names}) < len(self.column_names):
                raise _refused("a name is given twice (case doesn't count)", field="column_names")
        return self


class _ConstantNumber(_Model):
    constant: Number


class _ConstantText(_Model):
    constant: Annotated[Text, BeforeValidator(_category)]


def _missing_rule(value: object) -> object:
    if isinstance(value, Mapping) or value in ("drop", "indicator"):
        return value
    raise _refused(f"{shown(value)} is given, expected drop, indicator or {{constant: VALUE}}")


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


class _Encoded(_Model):
    """A part of the schema that stands for a frozen object of `dpagg.kernels.encoding`."""

    def to_kernel(self) -> object:
        raise NotImplementedError

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        try:
            self.to_kernel()
        except ConfigError as error:
            raise _refused(error.message, remedy=error.remedy, field=error.path) from None
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
    categories: tuple[Annotated[str, BeforeValidator(_category)], ...]
    other: bool = False
    missing: MissingText = "drop"

    def to_kernel(self) -> Categorical:
        """Return the feature as the encoder takes it."""
        return Categorical(self.name, self.categories, self.other, _to_missing(self.missing))


class HashedConfig(_Encoded):
    """A text feature hashed into a fixed number of buckets."""

    type: Literal["hashed"]
    name: Text
    buckets: Annotated[int, BeforeValidator(_a_number)]
    missing: MissingText = "drop"

    def to_kernel(self) -> Hashed:
        """Return the feature as the encoder takes it."""
        return Hashed(self.name, self.buckets, _to_missing(self.missing))


FeatureConfig: TypeAlias = Annotated[
    NumericConfig | CategoricalConfig | HashedConfig, Field(discriminator="type")
]


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
            raise _refused(
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

    def to_kernel(self) -> Schema:
        """Return the schema as the encoder takes it."""
        features: tuple[Feature, ...] = tuple(feature.to_kernel() for feature in self.features)
        return Schema(features, self.label.to_kernel(), self.intercept)


class WtdFlagConfig(_Model):
    """Weighted sums over the whole table, one a bag (WTD-FLAG)."""

    name: Literal["wtd-flag"]
    num_bags: CountOrAuto = "auto"


class UnweightedSumsConfig(_Model):
    """Plain sums over bags of known members: no privacy, for comparison."""

    name: Literal["unweighted-sums"]
    num_bags: Count
    i_know_this_is_not_private: bool = False

    @model_validator(mode="after")
    def _confirmed(self) -> Self:
        if not self.i_know_this_is_not_private:
            raise _refused(
                "unweighted sums protect no label (epsilon is infinite)",
                field="i_know_this_is_not_private",
                remedy="Set it to true if that is what you want, or use the mechanism wtd-flag.",
            )
        return self


MechanismConfig: TypeAlias = Annotated[WtdFlagConfig | UnweightedSumsConfig, Field(discriminator="name")]


class NoiseFloorConfig(_Model):
    """The residual floor comes from noise on the weighted label sums alone: no assumption."""

    kind: Literal["noise"]


class AssumedFloorConfig(_Model):
    """The residual floor is a mean squared residual per row that the user states."""

    kind: Literal["assume"]
    mean_squared_residual: Positive


FloorConfig: TypeAlias = Annotated[NoiseFloorConfig | AssumedFloorConfig, Field(discriminator="kind")]


class PrivacyConfig(_Model):
    """The guarantee to meet, and what it may rest on.

    Rows with a leverage over ``leverage_cap_factor`` times d/n are dropped, by their features alone;
    None keeps every row.
    """

    epsilon: Positive
    delta: Annotated[Number, Field(gt=0, lt=1)]
    leverage_cap_factor: Annotated[
        Annotated[Number, Field(gt=1)] | None, BeforeValidator(_number_or_none)
    ] = 10.0
    floor: FloorConfig = NoiseFloorConfig(kind="noise")

    @model_validator(mode="before")
    @classmethod
    def _labels_only_yet(cls, given: Any) -> Any:
        if isinstance(given, dict) and "unit" in given:
            raise _refused(
                "protecting all labels of one user is not available yet; one label is protected",
                field="unit",
                remedy="Leave it out if each user has one row at most.",
            )
        return given


class OutputConfig(_Model):
    """Where the result goes."""

    path: Text


class PlanConfig(_Model):
    """What `dpagg plan` may suppose; never used by a release."""

    residual_std: Positive | None = None


class PerformanceConfig(_Model):
    """Settings that change speed and memory, never privacy."""

    engine: Literal["auto", "rows", "factor"] = "auto"
    num_partitions: Count | None = None
    tile_rows: Count = 4096


class AggregateConfig(_Config):
    """One release of aggregates: table, schema, mechanism, guarantee, output."""

    input: InputConfig
    schema_: SchemaConfig = Field(alias="schema")
    mechanism: MechanismConfig
    privacy: PrivacyConfig
    output: OutputConfig
    plan: PlanConfig = PlanConfig()
    performance: PerformanceConfig = PerformanceConfig()

    @model_validator(mode="before")
    @classmethod
    def _no_ledger_yet(cls, given: Any) -> Any:
        if isinstance(given, dict) and "ledger" in given:
            raise _refused(
                "there is no ledger yet, and a section that asks for one is never ignored",
                field="ledger",
                remedy="Take the section out and keep the account elsewhere.",
            )
        return given

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        key = self.input.row_id
        if key is None:
            if self.performance.engine == "rows":
                raise _refused(
                    "the engine rows draws a weight for each row and needs its key",
                    field="performance.engine",
                    remedy="Set input.row_id, or use the engine factor.",
                )
            return self
        if key.lower() == self.schema_.label.name.lower():
            raise _refused(
                f"{key!r} is the label too",
                field="input.row_id",
                remedy="Name a column that identifies a row and doesn't follow from labels.",
            )
        if any(key.lower() == feature.name.lower() for feature in self.schema_.features):
            raise _refused(f"{key!r} is a feature too", field="input.row_id", remedy="Leave out one of them.")
        return self

    @cached_property
    def encoding(self) -> Schema:
        """The schema as the encoder takes it."""
        return self.schema_.to_kernel()


class ReleaseConfig(_Model):
    """A release made by `dpagg aggregate`."""

    path: Text


class LeastSquaresConfig(_Model):
    """Least squares on the aggregates."""

    name: Literal["least-squares"]


class BoundedLeastSquaresConfig(_Model):
    """Least squares over coefficients with a bounded Euclidean norm, in encoded units."""

    name: Literal["bounded-least-squares"]
    norm_bound: Positive


MethodConfig: TypeAlias = Annotated[
    LeastSquaresConfig | BoundedLeastSquaresConfig, Field(discriminator="name")
]


class FitConfig(_Config):
    """One model fitted on a release."""

    release: ReleaseConfig
    method: MethodConfig = LeastSquaresConfig(name="least-squares")
    output: OutputConfig
