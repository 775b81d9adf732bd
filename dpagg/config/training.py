"""The configuration of a network trained on a release."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dpagg.config.fields import Count, CountOrAuto, Model, Number, Positive, a_number, number_or_none, refused
from dpagg.config.models import Config, OutputConfig, ReleaseConfig

PositiveOrNone = Annotated[Annotated[Number, Field(gt=0)] | None, BeforeValidator(number_or_none)]
Share = Annotated[Number, Field(ge=0, lt=1)]


class NetworkConfig(Model):
    """A multilayer perceptron.

    ``lipschitz`` bounds how far the output moves a unit of encoded features, ``output_bound`` how far it is from the
    middle of the label's bounds; both in half widths of these bounds, and none for a free network.
    """

    hidden: Annotated[tuple[Annotated[Count, Field(le=4096)], ...], Field(max_length=16)] = (64, 64)
    lipschitz: PositiveOrNone = 4.0
    output_bound: PositiveOrNone = 1.0


class TrainingConfig(Model):
    """How the network is trained; ``batch_size`` counts bags, auto takes about 4,096 rows."""

    batch_size: CountOrAuto = "auto"
    max_epochs: Annotated[Count, Field(le=100_000)] = 50
    learning_rate: Positive = 1e-3
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-4
    averaging: Share = 0.99
    held_out: Share = 0.1
    patience: Count = 5
    seed: Annotated[int, BeforeValidator(a_number), Field(ge=0, lt=2**31)] = 0
    residual_std: Annotated[Number, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _can_stop_early(self) -> TrainingConfig:
        if self.held_out == 0 and "patience" in self.model_fields_set:
            raise refused(
                "without bags held out nothing tells when to stop",
                field="patience",
                remedy="Hold some out (held_out: 0.1), or leave patience out.",
            )
        return self


class TrainingReleaseConfig(ReleaseConfig):
    """A release: the Delta table that `dpagg aggregate` wrote, or a copy of its Parquet files and certificate."""

    format: Literal["delta", "parquet"] = "delta"


class TrainingPerformanceConfig(Model):
    """Settings that change speed only, never the network."""

    checkpoint_seconds: Annotated[Number, Field(ge=0)] = 30.0


class TrainConfig(Config):
    """One network trained on a Sampled-Noisy-WTD-LAg release."""

    release: TrainingReleaseConfig
    network: NetworkConfig = NetworkConfig()
    training: TrainingConfig = TrainingConfig()
    output: OutputConfig
    performance: TrainingPerformanceConfig = TrainingPerformanceConfig()

    @model_validator(mode="before")
    @classmethod
    def _reads_a_release(cls, given: Any) -> Any:
        for key in ("input", "privacy", "mechanism", "schema"):
            if isinstance(given, dict) and key in given:
                raise refused(
                    "a network is trained on a release, not on a table",
                    field=key,
                    remedy="Run dpagg aggregate with mechanism sampled-noisy-wtd-lag first, and give release.path.",
                )
        return given
