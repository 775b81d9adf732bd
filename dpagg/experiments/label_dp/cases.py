"""Which tables the experiments run on: real files where they are found, stand-ins where they are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.config import AggregateConfig, load_config, parse_config
from dpagg.errors import ConfigError, DataError
from dpagg.experiments.uci import load_rows

__all__ = ["Case", "Found", "find_cases", "uci_config"]

DELTA = 1e-8
# Smaller sets have fewer rows than any of the mechanisms needs for a useful fit at these epsilons.
_FEWEST_ROWS = 10_000


@dataclass(frozen=True)
class Case:
    """A table and what is declared about it.

    Attributes
    ----------
    name : str
        Of files and in tables.
    title : str
        In figures.
    config : AggregateConfig
        Of which input, schema, delta and leverage cap count.
    is_synthetic : bool
        Whether it is made up.
    origin : str
        Where it comes from, in words.
    make : callable, optional
        Writes the table to where the configuration reads it.
    made_from : tuple
        What a table that is made follows from, as JSON values.
    """

    name: str
    title: str
    config: AggregateConfig
    is_synthetic: bool
    origin: str
    make: Callable[[], None] | None = None
    made_from: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if not self.config.schema_.intercept:
            raise ConfigError(
                f"{self.name} has no intercept, and losses are compared with those of a constant",
                path="schema.intercept",
                remedy="Leave it out: true is the default.",
            )


@dataclass(frozen=True)
class Found:
    """The tables to run on, and what is to be said about what was looked for."""

    cases: list[Case] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def find_cases(data: Path, scratch: Path, *, sets: Sequence[str] | None = None, synthetic: int = 0) -> Found:
    """Look for tables under a folder, or take the one that a configuration declares.

    Parameters
    ----------
    data : Path
        Folder with ``NAME/data.csv.gz`` (the response last) or ``NAME.yaml`` (configurations of ``dpagg aggregate``),
        or one such configuration.
    scratch : Path
        Where stand-ins are made.
    sets : sequence of str, optional
        Names to run, out of those that are there.
    synthetic : int
        Rows of a stand-in; 0 makes none.

    Raises
    ------
    ConfigError
        If the configuration is not valid.
    DataError
        If there is no table, or one that was asked for is not there.
    """
    found = Found()
    if data.is_file():
        found.cases.append(_configured(data))
    elif not data.is_dir():
        raise DataError(f"{data} is neither a folder nor a configuration", path="--data")
    else:
        _look_for_configurations(data, found)
        _look_for_uci(data, found, sets)
    if sets is not None:
        names = [case.name for case in found.cases]
        for name in sets:
            if name not in names:
                raise DataError(
                    f"there is no table {name!r} under {data}",
                    path="--sets",
                    remedy=f"There are: {', '.join(names) or 'none'}.",
                )
        found.cases[:] = [case for case in found.cases if case.name in sets]
    if not found.cases:
        raise DataError(f"there is nothing to run on under {data}", path="--data", remedy=" ".join(found.notes) or None)
    return found


def _configured(file: Path) -> Case:
    config = load_config(file, "aggregate")
    return Case(file.stem, file.stem, config, False, f"as {file.name} declares it")


def _look_for_configurations(data: Path, found: Found) -> None:
    for file in sorted([*data.glob("*.yaml"), *data.glob("*.yml")]):
        try:
            found.cases.append(_configured(file))
        except ConfigError as error:
            found.notes.append(f"{file.name} is not a configuration to run on and is left out: {error}")


def _look_for_uci(data: Path, found: Found, sets: Sequence[str] | None) -> None:
    names = sorted(file.parent.name for file in data.glob("*/data.csv.gz"))
    small = []
    for name in names:
        if sets is not None and name not in sets:
            continue
        rows = load_rows(data, name)
        if sets is None and len(rows) < _FEWEST_ROWS:
            small.append(name)
            continue
        title = f"{name} (UCI)"
        origin = "UCI; bounds are those of the file, 5 % wider for the label"
        found.cases.append(Case(name, title, uci_config(data, name, rows), False, origin))
    if small:
        found.notes.append(f"With fewer than {_FEWEST_ROWS:,} rows and left out unless named: {', '.join(small)}.")


def uci_config(data: Path, name: str, rows: Any) -> AggregateConfig:
    """Return a configuration for a set of plain numbers, the response last.

    Bounds of features are quantiles of the features, which are public under label-DP: the middle 99 %, or all where
    that is one value. Those of the label are read off the labels, 5 % wider. Whoever releases has to declare them from
    what is known; here they stand for that. Columns of one value are left out.
    """
    names = [f"x{place}" for place in range(rows.shape[1] - 1)]
    features = []
    for column, values in zip(names, rows[:, :-1].T, strict=True):
        lower, upper = np.quantile(values, [0.005, 0.995])
        if lower == upper:
            lower, upper = values.min(), values.max()
        if lower < upper:
            features.append({"name": column, "type": "numeric", "lower": float(lower), "upper": float(upper)})
    low, high = float(rows[:, -1].min()), float(rows[:, -1].max())
    margin = 0.025 * (high - low)
    label = {"name": "y", "lower": low - margin, "upper": high + margin, "missing": {"constant": low}}
    return parse_config(
        {
            "input": {
                "path": str(data / name / "data.csv.gz"),
                "format": "csv",
                "header": False,
                "column_names": [*names, "y"],
            },
            "schema": {"features": features, "label": label},
            "mechanism": {"name": "wtd-flag"},
            "privacy": {"epsilon": 1.0, "delta": DELTA},
            "output": {"path": "not written"},
        },
        "aggregate",
    )
