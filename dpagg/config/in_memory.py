"""Configurations of runs over tables that a program holds, instead of paths."""

from __future__ import annotations

from typing import Literal

from dpagg.config.fields import Text
from dpagg.config.fitting import PrivateFitConfig
from dpagg.config.models import AggregateConfig, OutputConfig
from dpagg.config.source import InputConfig

_HELD = "held by the program"


class HeldInputConfig(InputConfig):
    """A table that a program holds: only its row key is configured."""

    path: Text = _HELD
    format: Literal["held"] = "held"  # type: ignore[assignment]


class HeldAggregateConfig(AggregateConfig):
    """One release of a table that a program holds."""

    input: HeldInputConfig = HeldInputConfig()
    output: OutputConfig = OutputConfig(path=_HELD)


class HeldFitConfig(PrivateFitConfig):
    """One private model of a table that a program holds."""

    input: HeldInputConfig = HeldInputConfig()
    output: OutputConfig = OutputConfig(path=_HELD)
