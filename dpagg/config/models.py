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
    """Weighted sums over all rows."""
    num_bags: CountOrAuto = "auto"
    """Sums to release; auto takes as many as rows, or what an assumed floor allows."""


class UnweightedSumsConfig(Model):
    """Plain sums over bags of known members: no privacy, for comparison."""

    name: Literal["unweighted-sums"]
    """Plain sums over disjoint bags: NOT PRIVATE, for comparison."""
    num_bags: Count
    """Bags that the rows are cut into."""
    i_know_this_is_not_private: bool = False
    """Has to be true."""

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
    """The residual floor comes from noise on the weighted label sums alone: no assumption."""

    kind: Literal["noise"]
    """Noise on the label sums alone; no assumption about labels."""
    level: Literal["auto", "known", "hidden"] = "auto"
    """known states the variance of the noise, hidden draws it and tells nobody, which needs less of it where there are
    many bags; auto takes the smaller."""


class AssumedFloorConfig(Model):
    """The residual floor is a mean squared residual per row that the user states."""

    kind: Literal["assume"]
    """No noise; the guarantee rests on your statement about the labels."""
    mean_squared_residual: Positive
    """What the squared residuals of least squares come to a row at least, in squared units of the label, for any label
    changed."""


class PrivateFloorConfig(Model):
    """The residual norm is released with noise of its own, and the bags get the noise still missing."""

    kind: Literal["private"]
    """A noisy residual norm is released first, and noise supplies what it lacks."""
    budget_share: Annotated[Number, Field(gt=0, lt=1)] = 0.2
    """Share of the guarantee that this norm takes."""
    failure_share: Annotated[Number, Field(gt=0, lt=1)] = 0.1
    """Share of delta for the chance that it comes out far too large."""


FloorConfig: TypeAlias = Annotated[
    NoiseFloorConfig | AssumedFloorConfig | PrivateFloorConfig, Field(discriminator="kind")
]


class UnitConfig(Model):
    """Whose labels are protected together: all rows with one value of a column, of which max_rows take part."""

    column: Text
    """Column that names the user."""
    max_rows: Count
    """Rows of a user that take part, chosen by their keys; further ones are left out."""


class PrivacyConfig(Model):
    """The guarantee to meet, and what it may rest on."""

    epsilon: Positive
    """The claim's epsilon: 1 or less is a strong promise."""
    delta: Annotated[Number, Field(gt=0, lt=1)]
    """The claim's delta, less than one over the number of rows; at most n^-1.5 is sensible."""
    leverage_cap_factor: Annotated[Annotated[Number, Field(gt=1)] | None, BeforeValidator(number_or_none)] = 10.0
    """Rows with a leverage over this many times d/n (in bags d/k) are left out, by features alone; none keeps all."""
    floor: FloorConfig = NoiseFloorConfig(kind="noise")
    """Where the variance comes from that hides a label: noise, private or assume."""
    unit: UnitConfig | None = None
    """Protect all labels of one user: the user's column and max_rows; one label by default."""


class OutputConfig(Model):
    """Where the result goes."""

    path: Text
    """A new path; what exists is never overwritten."""


class PlanConfig(Model):
    """What `dpagg plan` may suppose; never used by a release."""

    residual_std: Positive | None = None
    """A guess of the standard deviation of labels about their least-squares fit, in units of the label, for the loss to
    expect."""
    label_noise_std: Positive | None = None
    """For bags: noise to plan the least bag size with, in units of the label, instead of what the guarantee needs."""


class PerformanceConfig(Model):
    """Settings that change speed and memory, never privacy."""

    engine: Literal["auto", "rows", "factor"] = "auto"
    """factor draws the sums from the rows' triangular factor, rows draws each weight and costs n times m; auto is
    factor."""
    num_partitions: Count | None = None
    """Partitions that rows are shuffled into, for bags and the engine rows."""


class AggregateConfig(Config):
    """One release of aggregates: table, schema, mechanism, guarantee, output."""

    input: InputConfig
    """The table."""
    schema_: SchemaConfig = Field(alias="schema")
    """Features and label with their declared bounds."""
    mechanism: MechanismConfig
    """What is released."""
    privacy: PrivacyConfig
    """The guarantee."""
    output: OutputConfig
    """Where the release goes."""
    ledger: LedgerConfig | None = None
    """The budget to charge; without it nobody adds up what several releases cost."""
    plan: PlanConfig = PlanConfig()
    """For dpagg plan only."""
    performance: PerformanceConfig = PerformanceConfig()
    """Speed and memory only."""

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
    """Folder of the release."""


class LeastSquaresConfig(Model):
    """Least squares on the aggregates."""

    name: Literal["least-squares"]
    """Least squares of label on features."""


class BoundedLeastSquaresConfig(Model):
    """Least squares over coefficients with a bounded Euclidean norm, in encoded units."""

    name: Literal["bounded-least-squares"]
    """Least squares over coefficients of a bounded norm."""
    norm_bound: Positive
    """Bound on the Euclidean norm of the coefficients, in encoded units."""


MethodConfig: TypeAlias = Annotated[LeastSquaresConfig | BoundedLeastSquaresConfig, Field(discriminator="name")]


class FitConfig(Config):
    """One model fitted on a release; `dpagg.config.PrivateFitConfig` is the fit that reads a table."""

    release: ReleaseConfig
    """What dpagg aggregate published."""
    method: MethodConfig = LeastSquaresConfig(name="least-squares")
    """How to fit."""
    output: OutputConfig
    """Where the model goes."""
