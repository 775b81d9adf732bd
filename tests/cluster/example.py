"""A table in several files, the runs that are made of it, and how a release is read back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

NUM_FEATURES = 6
SEED = 20_261_129

# By name: the command, what differs from `settings`, and the pass that a fault hits: the name of a stage, the how
# many-th of this name in the run.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "factor": ("aggregate", {"mechanism": {"name": "wtd-flag", "num_bags": "auto"}}),
    "rows": (
        "aggregate",
        {
            "mechanism": {"name": "wtd-flag", "num_bags": 300},
            "performance": {"engine": "rows", "num_partitions": 6},
        },
    ),
    "flag": ("aggregate", {"mechanism": {"name": "sampled-wtd-flag", "bag_size": 100, "num_bags": "auto"}}),
    "lag": (
        "aggregate",
        {
            "mechanism": {
                "name": "sampled-noisy-wtd-lag",
                "bag_size": 8,
                "num_bags": "auto",
                "noised_fraction": 0.5,
                "noise_std": 400.0,
                "weight_cap": 3.0,
            }
        },
    ),
    "ihm": ("fit", {"mechanism": {"name": "ihm", "sketch_size": 200}}),
}
PASS = "^(treeAggregate|collect) at .*engines"
BAGS = "^first at .*bagging"
WRITE = "recordDelta|collect at .*drawn_bags"
HELD = f"{BAGS}|{WRITE}"  # the third one and all after it take bags from a cache; the fifth writes them


def write_table(folder: Path, num_files: int, rows_a_file: int) -> Path:
    """Write a table of rows that a linear model explains in part."""
    folder.mkdir(parents=True)
    for number in range(num_files):
        part(number, rows_a_file).to_parquet(folder / f"{number:02}.parquet")
    return folder


def part(number: int, num_rows: int, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng([seed, number])
    x = rng.uniform(0, 1, (num_rows, NUM_FEATURES))
    return pd.DataFrame(
        {
            "key": np.arange(number * num_rows, (number + 1) * num_rows),
            **{f"x{column}": x[:, column] for column in range(NUM_FEATURES)},
            "device": rng.choice(["mobile", "desktop"], num_rows),
            "sale": np.clip(x @ np.arange(NUM_FEATURES) + rng.normal(0, 2, num_rows), 0, 15),
        }
    )


def linked(table: Path, folder: Path) -> Path:
    """Return another folder of the same files."""
    folder.mkdir()
    for file in table.iterdir():
        os.link(file, folder / file.name)
    return folder


def configuration(folder: Path, name: str, table: Path, out: Path, *, num_rows: int, kind: str = "parquet") -> Path:
    """Write the configuration of one of `RUNS` and return its path."""
    command, more = RUNS[name]
    found: dict[str, Any] = {
        "input": {"path": str(table), "format": kind},
        "schema": {
            "intercept": True,
            "features": [
                *({"name": f"x{column}", "type": "numeric", "lower": 0, "upper": 1} for column in range(NUM_FEATURES)),
                {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
            ],
            "label": {"name": "sale", "lower": 0, "upper": 15, "missing": {"constant": 0}},
        },
        "privacy": {"epsilon": 1.0, "delta": 1e-9},
        "output": {"path": str(out)},
        **json.loads(json.dumps(more)),
    }
    if command == "fit":
        found["privacy"] |= {"adjacency": "zero_out_one_row", "num_rows": num_rows}
    else:
        found["input"]["row_id"] = "key"
    file = folder / f"{out.name}.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


def released(out: Path) -> np.ndarray:
    """Return all numbers of a release, or of a model, as somebody without Delta reads them."""
    if out.is_file():
        model = json.loads(out.read_text())
        columns = model["encoded"]["columns"]
        return np.array([[each["coefficient"], each["standard_error"]] for each in columns])
    table = pd.read_parquet(out).sort_values("bag_id", ignore_index=True)
    columns = [np.stack([np.hstack(each) for each in table[name]]) for name in table.columns if name in _LISTS]
    return np.column_stack([table["bag_id"], *columns, table["label"]])


_LISTS = ("features", "weights")


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two releases are equal to 1e-9 of each column's size."""
    if found.shape != expected.shape:
        return False
    return bool((np.abs(found - expected) <= 1e-9 * np.abs(expected).max(axis=0)).all())


def as_delta(folder: Path) -> None:
    """Make a folder of Parquet files a Delta table, by writing the first entry of its log."""
    types = {"key": "long", "device": "string"}
    fields = [
        {"name": name, "type": types.get(name, "double"), "nullable": True, "metadata": {}}
        for name in part(0, 1).columns
    ]
    metadata = {
        "id": "5d3bd3c4-7a35-4c3f-9b2b-1d7c5a2d9e10",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    _commit(
        folder,
        0,
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
        *(_add(file) for file in sorted(folder.glob("*.parquet"))),
    )


def append_to_delta(folder: Path, rows: pd.DataFrame) -> None:
    """Add rows to the table of `as_delta` as its next version."""
    file = folder / "appended.parquet"
    rows.to_parquet(file)
    _commit(folder, 1, _add(file))


def _add(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    return {"add": {"path": file.name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}}


def _commit(folder: Path, version: int, *actions: dict[str, Any]) -> None:
    log = folder / "_delta_log"
    log.mkdir(exist_ok=True)
    (log / f"{version:020}.json").write_text("".join(f"{json.dumps(each)}\n" for each in actions))
