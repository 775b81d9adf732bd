"""Canaries: labels, feature values, keys and the secret, planted in a table and searched for in all that is durable."""

import base64
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
import zstandard

from dpagg.kernels.streams import Secret

SEED = 20_261_129
NUM_ROWS = 2_000
LABELS = (271.8281828459, 31.41592653589)  # beyond the bounds, and within
FEATURE = 57.72156649015
CELLS = ("canary-label-cell", "canary-number-cell", "canary-category", "canary-key")


def plant(home: Path, work: Path) -> Path:
    """Write a table with canaries, and configurations of runs whose outputs go to `work`; return the table's folder."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "key": [f"row-{i}" for i in range(NUM_ROWS)],
            "price": rng.uniform(0, 100, NUM_ROWS).astype(str),
            "device": rng.choice(["mobile", "desktop"], NUM_ROWS),
            "sale": rng.uniform(0, 40, NUM_ROWS).astype(str),
        }
    )
    table.loc[0, "sale"], table.loc[1, "sale"] = map(str, LABELS)
    table.loc[2, "price"] = str(FEATURE)
    table.loc[3, "sale"], table.loc[4, "price"], table.loc[5, "device"], table.loc[6, "key"] = CELLS
    inputs = home / "inputs"
    inputs.mkdir()
    table.to_csv(inputs / "table.csv", index=False)
    config = {
        "input": {"path": str(inputs / "table.csv"), "format": "csv", "row_id": "key"},
        "schema": {
            "features": [
                {"name": "price", "type": "numeric", "lower": 0, "upper": 100, "missing": "indicator"},
                {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"], "other": True},
            ],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "wtd-flag", "num_bags": 200},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "leverage_cap_factor": "none"},
        "output": {"path": str(work / "out")},
        "performance": {"engine": "rows"},
    }
    (home / "aggregate.yaml").write_text(yaml.safe_dump(config))
    fit = {"release": {"path": str(work / "out")}, "output": {"path": str(work / "model.json")}}
    (home / "fit.yaml").write_text(yaml.safe_dump(fit))
    private = {name: config[name] for name in ("input", "schema")} | {
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "adjacency": "zero_out_one_row", "num_rows": NUM_ROWS},
        "output": {"path": str(work / "private.json")},
    }
    private["input"] = {name: value for name, value in config["input"].items() if name != "row_id"}
    (home / "private.yaml").write_text(yaml.safe_dump(private))
    return inputs


def debug_log(file: Path, log: Path | None) -> Path:
    """Write a configuration of log4j that puts everything into a log (None: standard error) and return it."""
    place = "type=Console\nappender.all.target=SYSTEM_ERR" if log is None else f"type=File\nappender.all.fileName={log}"
    file.write_text(
        "rootLogger.level=debug\nrootLogger.appenderRef.all.ref=all\n"
        f"appender.all.name=all\nappender.all.{place}\n"
        "appender.all.layout.type=PatternLayout\nappender.all.layout.pattern=%p %c %m%n%ex\n"
    )
    return file


def contents(folder: Path):
    """All files below a folder, decompressed where Spark or anybody compressed them."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        yield path, content
        if ".zst" in path.name:
            yield path, zstandard.ZstdDecompressor().stream_reader(content, read_across_frames=True).read()
        if path.suffix == ".gz":
            yield path, gzip.decompress(content)


def _forms(number):
    """A number as text and as the eight bytes of a double."""
    yield str(number)[:11].encode()
    yield np.float64(number).tobytes()
    yield np.float64(number).tobytes()[::-1]


def _canaries():
    for number in (*LABELS, FEATURE):
        yield from ((str(number), form) for form in _forms(number))
    yield from ((cell, cell.encode()) for cell in CELLS)
    key = Secret.insecure(SEED)._key
    for form in (
        key,
        key.hex().encode(),
        key.hex().upper().encode(),
        base64.b64encode(key).rstrip(b"="),
        repr(key).encode(),
    ):
        yield "the secret", form


def found(folder):
    return {(name, str(path)) for path, content in contents(folder) for name, form in _canaries() if form in content}
