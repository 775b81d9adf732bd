"""What can be configured: frozen models that refuse an unknown key."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from dpagg.config.bags import SampledNoisyWtdLagConfig, SampledWtdFlagConfig
from dpagg.config.declared import SchemaConfig
from dpagg.config.fields import (
    Count,
    CountOrAuto,
    Model,
    Number,
    Positive,
    Text,
    number_or_none,
    refused,
)
from dpagg.config.ledger import LedgerConfig, refuse_empty_ledger
from dpagg.config.source import InputConfig
from dpagg.kernels.encoding import Schema

# Keys of the input that came later, with what they are where they are left out.
_LATER_INPUT: dict[str, Any] = {
    "tables": None,
    "sql": None,
    "attribution_window": None,
    "table": None,
    "quote": '"',
    "codebook": None,
    "null_values": [],
    "malformed": "refuse",
}


class Config(Model):
    """A whole configuration file."""

    def public_dict(self) -> dict[str, Any]:
        """Everything configured, defaults included, as plain JSON values.

        Without sections that came later and are left out, so that releases from before are recognised.
        """
        content = self.model_dump(mode="json", by_alias=True)
        if content.get("ledger", "") is None:
            del content["ledger"]
        if "input" in content:
            for key, default in _LATER_INPUT.items():
                if content["input"][key] == default:
                    del content["input"][key]
            for table in content["input"].get("tables", {}).values():
                if table["table"] is None:
                    del table["table"]
        return content

    def asked(self) -> dict[str, Any]:
        """What a release is asked for, however its input and its account are found and whatever day it is."""
        content = self.public_dict()
        content.pop("performance", None)
        source = content["input"]
        for key in ("path", "table", "codebook"):
            source.pop(key, None)
        for table in source.get("tables", {}).values():
            for key in ("path", "table"):
                table.pop(key, None)
        source.get("attribution_window", {}).pop("as_of", None)
        if "ledger" in content:
            # Where the account is kept and whether the budget is repeated make no other release.
            content["ledger"] = [content["ledger"]["dataset"], content["ledger"]["partition"]]
        return content

    def digest(self) -> str:
        """SHA-256 of the configuration as canonical JSON, without settings of performance only."""
        content = self.public_dict()
        content.pop("performance", None)
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class WtdFlagConfig(Model):
    """Weighted sums over the whole table, one a bag (WTD-FLAG)."""

    name: Literal["wtd-flag"]
    num_bags: CountOrAuto = "auto"


class UnweightedSumsConfig(Model):
    """Plain sums over bags of known members: no privacy, for comparison."""

    name: Literal["unweighted-sums"]
    num_bags: Count
    i_know_this_is_not_private: bool = False

    @model_validator(mode="after")
    def _confirmed(self) -> Self:
        if not self.i_know_this_is_not_private:
            raise refused(
                "unweighted sums protect no label (epsilon is infinite)",
                field="i_know_this_is_not_private",
                remedy="Set it to true if that is what you want, or use the mechanism wtd-flag.",
            )
        return self


SampledConfig: TypeAlias = SampledWtdFlagConfig | SampledNoisyWtdLagConfig
MechanismConfig: TypeAlias = Annotated[
    WtdFlagConfig | SampledConfig | UnweightedSumsConfig, Field(discriminator="name")
]


class NoiseFloorConfig(Model):
    """The residual floor comes from noise on the weighted label sums alone: no assumption.

    With ``level: hidden`` the variance of the noise is itself drawn and never told, which needs less of it where
    there are many bags; ``auto`` takes the smaller.
    """

    kind: Literal["noise"]
    level: Literal["auto", "known", "hidden"] = "auto"


class AssumedFloorConfig(Model):
    """The residual floor is a mean squared residual per row that the user states."""

    kind: Literal["assume"]
    mean_squared_residual: Positive


class PrivateFloorConfig(Model):
    """The residual norm is released with noise of its own, and the bags get the noise still missing.

    ``budget_share`` is the share of the guarantee that this release takes, ``failure_share`` the share of delta for
    the chance that it comes out far too large.
    """

    kind: Literal["private"]
    budget_share: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    failure_share: Annotated[Number, Field(gt=0, lt=1)] = 0.1


FloorConfig: TypeAlias = Annotated[
    NoiseFloorConfig | AssumedFloorConfig | PrivateFloorConfig, Field(discriminator="kind")
]


class UnitConfig(Model):
    """Whose labels are protected together: all rows with one value of a column, of which max_rows take part."""

    column: Text
    max_rows: Count


class PrivacyConfig(Model):
    """The guarantee to meet, and what it may rest on.

    Rows with a leverage over ``leverage_cap_factor`` times d/n are dropped, by their features alone;
    None keeps every row. Of disjoint bags, those with a row over that many times d/k are dropped.
    """

    epsilon: Positive
    delta: Annotated[Number, Field(gt=0, lt=1)]
    leverage_cap_factor: Annotated[Annotated[Number, Field(gt=1)] | None, BeforeValidator(number_or_none)] = 10.0
    floor: FloorConfig = NoiseFloorConfig(kind="noise")
    unit: UnitConfig | None = None


class OutputConfig(Model):
    """Where the result goes."""

    path: Text


class PlanConfig(Model):
    """What `dpagg plan` may suppose; never used by a release."""

    residual_std: Positive | None = None
    label_noise_std: Positive | None = None


class PerformanceConfig(Model):
    """Settings that change speed and memory, never privacy."""

    engine: Literal["auto", "rows", "factor"] = "auto"
    num_partitions: Count | None = None


class AggregateConfig(Config):
    """One release of aggregates: table, schema, mechanism, guarantee, output."""

    input: InputConfig
    schema_: SchemaConfig = Field(alias="schema")
    mechanism: MechanismConfig
    privacy: PrivacyConfig
    output: OutputConfig
    ledger: LedgerConfig | None = None
    plan: PlanConfig = PlanConfig()
    performance: PerformanceConfig = PerformanceConfig()

    @model_validator(mode="before")
    @classmethod
    def _no_empty_ledger(cls, given: Any) -> Any:
        refuse_empty_ledger(given)
        return given

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        key, unit = self.input.row_id, self.privacy.unit
        if unit is not None and unit.column.lower() == self.schema_.label.name.lower():
            raise refused(f"{unit.column!r} is the label", field="privacy.unit.column", remedy="Name the user column.")
        if key is None:
            if unit is not None:
                raise refused(
                    "which rows of a user take part is decided by the row key",
                    field="privacy.unit",
                    remedy="Set input.row_id.",
                )
            if self.performance.engine == "rows":
                raise refused(
                    "the engine rows draws a weight for each row and needs its key",
                    field="performance.engine",
                    remedy="Set input.row_id, or use the engine factor.",
                )
            return self
        if key.lower() == self.schema_.label.name.lower():
            raise refused(
                f"{key!r} is the label too",
                field="input.row_id",
                remedy="Name a column that identifies a row and doesn't follow from labels.",
            )
        if any(key.lower() == feature.name.lower() for feature in self.schema_.features):
            raise refused(f"{key!r} is a feature too", field="input.row_id", remedy="Leave out one of them.")
        return self

    @model_validator(mode="after")
    def _fits_bags(self) -> Self:
        mechanism, privacy = self.mechanism, self.privacy
        if not isinstance(mechanism, SampledWtdFlagConfig | SampledNoisyWtdLagConfig):
            return self
        if self.input.row_id is None:
            raise refused(
                "bags are chosen by the row key", field="input.row_id", remedy="Name the column that identifies a row."
            )
        if self.performance.engine != "auto":
            raise refused(
                f"{mechanism.name} draws a weight for each row of a bag, in one way only",
                field="performance.engine",
                remedy="Leave it out.",
            )
        if privacy.unit is not None:
            raise refused(
                f"{mechanism.name} protects one label, not all labels of a user",
                field="privacy.unit",
                remedy="Use the mechanism wtd-flag.",
            )
        num_columns = self.encoding.num_columns
        if isinstance(mechanism, SampledWtdFlagConfig):
            if mechanism.bag_size <= num_columns:
                raise refused(
                    f"bags of {mechanism.bag_size} rows for {num_columns} encoded columns: least squares fits the "
                    "labels of such a bag exactly",
                    field="mechanism.bag_size",
                    remedy="Take more rows a bag than columns, at best many times as many.",
                )
            if isinstance(privacy.floor, PrivateFloorConfig):
                raise refused(
                    "each bag would need a private floor of its own",
                    field="privacy.floor.kind",
                    remedy="Take noise, or the mechanism wtd-flag.",
                )
        if isinstance(privacy.floor, NoiseFloorConfig) and privacy.floor.level == "hidden":
            raise refused(
                f"a hidden level of noise is not accounted for {mechanism.name}",
                field="privacy.floor.level",
                remedy="Leave it out.",
            )
        if isinstance(mechanism, SampledWtdFlagConfig):
            return self
        if not isinstance(privacy.floor, NoiseFloorConfig):
            raise refused(
                f"{mechanism.name} rests on noise on labels, not on a residual floor",
                field="privacy.floor",
                remedy="Leave it out.",
            )
        if privacy.leverage_cap_factor is not None and "leverage_cap_factor" in privacy.model_fields_set:
            raise refused(
                f"{mechanism.name} releases features as they are: leverages don't matter",
                field="privacy.leverage_cap_factor",
                remedy="Leave it out.",
            )
        return self

    @cached_property
    def encoding(self) -> Schema:
        """The schema as the encoder takes it."""
        return self.schema_.to_kernel()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that the run reads, the label last."""
        unit = None if self.privacy.unit is None else self.privacy.unit.column
        return self.schema_.columns(self.input.row_id, unit)


class ReleaseConfig(Model):
    """A release made by `dpagg aggregate`."""

    path: Text


class LeastSquaresConfig(Model):
    """Least squares on the aggregates."""

    name: Literal["least-squares"]


class BoundedLeastSquaresConfig(Model):
    """Least squares over coefficients with a bounded Euclidean norm, in encoded units."""

    name: Literal["bounded-least-squares"]
    norm_bound: Positive


MethodConfig: TypeAlias = Annotated[LeastSquaresConfig | BoundedLeastSquaresConfig, Field(discriminator="name")]


class FitConfig(Config):
    """One model fitted on a release; `dpagg.config.PrivateFitConfig` is the fit that reads a table."""

    release: ReleaseConfig
    method: MethodConfig = LeastSquaresConfig(name="least-squares")
    output: OutputConfig
