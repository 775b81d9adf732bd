"""The configuration of a run: YAML in, frozen validated models out, unknown keys refused."""

from dpagg.config.bags import SampledNoisyWtdLagConfig, SampledWtdFlagConfig
from dpagg.config.declared import CategoricalConfig, HashedConfig, LabelConfig, NumericConfig, SchemaConfig
from dpagg.config.loading import load_config, parse_config, parse_settings
from dpagg.config.models import (
    AggregateConfig,
    AssumedFloorConfig,
    BoundedLeastSquaresConfig,
    FitConfig,
    InputConfig,
    LeastSquaresConfig,
    NoiseFloorConfig,
    OutputConfig,
    PerformanceConfig,
    PlanConfig,
    PrivacyConfig,
    PrivateFloorConfig,
    ReleaseConfig,
    SampledConfig,
    UnitConfig,
    UnweightedSumsConfig,
    WtdFlagConfig,
)

__all__ = [
    "AggregateConfig",
    "AssumedFloorConfig",
    "BoundedLeastSquaresConfig",
    "CategoricalConfig",
    "FitConfig",
    "HashedConfig",
    "InputConfig",
    "LabelConfig",
    "LeastSquaresConfig",
    "NoiseFloorConfig",
    "NumericConfig",
    "OutputConfig",
    "PerformanceConfig",
    "PlanConfig",
    "PrivacyConfig",
    "PrivateFloorConfig",
    "ReleaseConfig",
    "SampledConfig",
    "SampledNoisyWtdLagConfig",
    "SampledWtdFlagConfig",
    "SchemaConfig",
    "UnitConfig",
    "UnweightedSumsConfig",
    "WtdFlagConfig",
    "load_config",
    "parse_config",
    "parse_settings",
]
