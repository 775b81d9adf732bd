"""The configuration of a network trained on a release."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from dpagg.config.fields import Count, CountOrAuto, Model, Number, Positive, a_number, number_or_none, refused
from dpagg.config.models import Config, OutputConfig, ReleaseConfig

PositiveOrNone = Annotated[Annotated[Number, Field(gt=0)] | None, BeforeValidator(number_or_none)]
Share = Annotated[Number, Field(ge=0, lt=1)]


class NetworkConfig(Model):
    """A multilayer perceptron."""

    hidden: Annotated[tuple[Annotated[Count, Field(le=4096)], ...], Field(max_length=16)] = (64, 64)
    """Widths of the hidden layers."""
    lipschitz: PositiveOrNone = 4.0
    """Bound on how far the output moves a unit of encoded features, in half widths of the label's bounds; none for no
    bound."""
    output_bound: PositiveOrNone = 1.0
    """Bound on how far the output is from the middle of the label's bounds, in half widths; none for no bound."""


class TrainingConfig(Model):
    """How the network is trained."""

    batch_size: CountOrAuto = "auto"
    """Bags of a step; auto takes about 4,096 rows."""
    max_epochs: Annotated[Count, Field(le=100_000)] = 50
    """Passes over the release at most."""
    learning_rate: Positive = 1e-3
    """Of AdamW."""
    weight_decay: Annotated[Number, Field(ge=0)] = 1e-4
    """Of AdamW."""
    averaging: Share = 0.99
    """Decay of the running mean of the weights, which is what is kept; 0 keeps the last ones."""
    held_out: Share = 0.1
    """Share of the bags that decides when to stop."""
    patience: Count = 5
    """Epochs without a smaller held-out loss before training ends."""
    seed: Annotated[int, BeforeValidator(a_number), Field(ge=0, lt=2**31)] = 0
    """Of first weights and order of bags; training is not where privacy comes from."""
    residual_std: Annotated[Number, Field(ge=0)] = 0.0
    """Standard deviation of a label given its features, in units of the label, if known roughly."""

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
    """delta as published, or parquet for a copy of its files with the certificate."""


class TrainingPerformanceConfig(Model):
    """Settings that change speed only, never the network."""

    checkpoint_seconds: Annotated[Number, Field(ge=0)] = 30.0
    """Seconds between checkpoints."""


class TrainConfig(Config):
    """One network trained on a Sampled-Noisy-WTD-LAg release."""

    release: TrainingReleaseConfig
    """A release of sampled-noisy-wtd-lag."""
    network: NetworkConfig = NetworkConfig()
    """Shape of the network."""
    training: TrainingConfig = TrainingConfig()
    """How it is trained."""
    output: OutputConfig
    """A folder for the network."""
    performance: TrainingPerformanceConfig = TrainingPerformanceConfig()
    """Speed only."""

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
