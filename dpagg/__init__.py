"""Differentially private aggregates of labelled tables, and regression on them.

The names below are loaded when they are first used: ``import dpagg`` itself loads neither Spark nor any
other large library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpagg.config import AggregateConfig, FitConfig, PrivateFitConfig, TrainConfig, load_config
    from dpagg.interfaces.estimator import HessianMixingRegressor
    from dpagg.interfaces.notebook import aggregate, fit, plan
    from dpagg.interfaces.results import Fit, PlanOfRelease, Release
    from dpagg.regression.model import LinearModel
    from dpagg.runs.aggregate import run_aggregate
    from dpagg.runs.fit import run_fit
    from dpagg.runs.plan import make_plan
    from dpagg.runs.predict import run_predict
    from dpagg.runs.train import run_train
    from dpagg.spark.session import SessionSettings, spark_session

__version__ = "0.1.0"

__all__ = [
    "AggregateConfig",
    "Fit",
    "FitConfig",
    "HessianMixingRegressor",
    "LinearModel",
    "PlanOfRelease",
    "PrivateFitConfig",
    "Release",
    "SessionSettings",
    "TrainConfig",
    "aggregate",
    "fit",
    "load_config",
    "make_plan",
    "plan",
    "run_aggregate",
    "run_fit",
    "run_predict",
    "run_train",
    "spark_session",
]

_HOMES = {
    "AggregateConfig": "dpagg.config",
    "Fit": "dpagg.interfaces.results",
    "FitConfig": "dpagg.config",
    "HessianMixingRegressor": "dpagg.interfaces.estimator",
    "LinearModel": "dpagg.regression.model",
    "PlanOfRelease": "dpagg.interfaces.results",
    "PrivateFitConfig": "dpagg.config",
    "Release": "dpagg.interfaces.results",
    "SessionSettings": "dpagg.spark.session",
    "TrainConfig": "dpagg.config",
    "aggregate": "dpagg.interfaces.notebook",
    "fit": "dpagg.interfaces.notebook",
    "load_config": "dpagg.config",
    "make_plan": "dpagg.runs.plan",
    "plan": "dpagg.interfaces.notebook",
    "run_aggregate": "dpagg.runs.aggregate",
    "run_fit": "dpagg.runs.fit",
    "run_predict": "dpagg.runs.predict",
    "run_train": "dpagg.runs.train",
    "spark_session": "dpagg.spark.session",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'dpagg' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
