"""Which tables the experiments run on: real files where they are found, stand-ins where they are not."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.config import AggregateConfig, load_config, parse_config
from dpagg.errors import ConfigError, DataError
from dpagg.experiments.label_dp.label_files import find_census, find_criteo
from dpagg.experiments.label_tables.census import census_config, census_features
from dpagg.experiments.label_tables.criteo import criteo_config
from dpagg.experiments.label_tables.stand_ins import write_census, write_criteo
from dpagg.experiments.uci import load_rows

__all__ = ["Case", "Found", "find_cases", "uci_config"]

DELTA = 1e-8
# Under one over the 132 million rows of the whole census.
_CENSUS_DELTA = 1e-9
_STAND_IN_SEED = 1940
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
        Folder with the Criteo log, an IPUMS extract of 1940, ``NAME/data.csv.gz`` (the response last) or ``NAME.yaml``
        (configurations of ``dpagg aggregate``); or one such configuration.
    scratch : Path
        Where stand-ins are made.
    sets : sequence of str, optional
        Names to run, out of those that are there.
    synthetic : int
        Rows of a stand-in for each of the paper's two tables that is not there; 0 makes none.

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
        for name, add in (("criteo", _add_criteo), ("census", _add_census)):
            if sets is None or name in sets:
                add(data, scratch / name / "made", synthetic, found)
        _look_for_configurations(data, found)
        _look_for_uci(data, found, sets)
    names = [case.name for case in found.cases]
    for name in sets or ():
        if name not in names:
            there = sorted({"criteo", "census", *names, *_uci_names(data)})
            raise DataError(
                f"there is no table {name!r} under {data}", path="--sets", remedy=f"There may be: {', '.join(there)}."
            )
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"two tables are called {name!r}", path="--data", remedy="Rename one of them.")
    if sets is not None:
        found.cases[:] = [case for case in found.cases if case.name in sets]
    if not found.cases:
        raise DataError(f"there is nothing to run on under {data}", path="--data", remedy=" ".join(found.notes) or None)
    return found


def _add_criteo(data: Path, made_in: Path, synthetic: int, found: Found) -> None:
    def declared(path: Path) -> AggregateConfig:
        privacy = {"epsilon": 1.0, "delta": DELTA}
        return parse_config(criteo_config(str(path), "not written", privacy=privacy), "aggregate")

    file = find_criteo(data)
    if file is not None:
        made = "synthetic" in file.name
        origin = f"{'a stand-in' if made else 'the log'} in {file.name}"
        found.cases.append(Case("criteo", "Criteo conversion log", declared(file), made, origin))
        return
    found.notes.append(f"The Criteo conversion log is not there{_instead(synthetic)}.")
    if synthetic:
        config = declared(made_in / "criteo-synthetic.tsv")
        found.cases.append(_stand_in("criteo", "Criteo stand-in", config, made_in, synthetic, write_criteo))


def _add_census(data: Path, made_in: Path, synthetic: int, found: Found) -> None:
    def declared(path: Path, codebook: Path | None = None, absent: Sequence[str] = ()) -> AggregateConfig:
        content = census_config(
            str(path),
            "not written",
            codebook=None if codebook is None else str(codebook),
            privacy={"epsilon": 1.0, "delta": _CENSUS_DELTA},
            features=census_features(exclude=absent),
        )
        return parse_config(content, "aggregate")

    extract = find_census(data)
    if extract is not None:
        absent = [feature["name"] for feature in census_features() if feature["name"] not in extract.columns]
        if absent:
            found.notes.append(f"The census extract has no {', '.join(absent)}: left out of its features.")
        made, config = "synthetic" in extract.file.name, declared(extract.file, extract.codebook, absent)
        origin = f"{'a stand-in' if made else 'the extract'} in {extract.file.name}"
        found.cases.append(Case("census", "1940 census", config, made, origin))
        return
    found.notes.append(f"An IPUMS extract of the 1940 census is not there{_instead(synthetic)}.")
    if synthetic:
        config = declared(made_in / "census-synthetic.csv")
        found.cases.append(_stand_in("census", "1940 census stand-in", config, made_in, synthetic, write_census))


def _instead(synthetic: int) -> str:
    return "; a synthetic stand-in is made" if synthetic else ""


def _stand_in(
    name: str, title: str, config: AggregateConfig, folder: Path, rows: int, write: Callable[..., Path]
) -> Case:
    def make() -> None:
        write(folder, rows, _STAND_IN_SEED)

    with tempfile.TemporaryDirectory() as sample:  # a generator that was changed makes another table
        first = write(Path(sample), 100, _STAND_IN_SEED, processes=1).read_bytes()
    made_from = (name, rows, _STAND_IN_SEED, hashlib.sha256(first).hexdigest())
    return Case(name, title, config, True, f"a stand-in of {rows:,} rows, made up in the real format", make, made_from)


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
    small = []
    for name in _uci_names(data):
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


def _uci_names(data: Path) -> list[str]:
    return sorted(file.parent.name for file in data.glob("*/data.csv.gz"))


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
