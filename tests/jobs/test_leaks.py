"""Canaries: labels, feature values, keys and the secret are planted, then searched for in all that is durable."""

import base64
import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
import zstandard

from dpagg.kernels.streams import Secret

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SEED = 20_261_129
NUM_ROWS = 2_000
LABELS = (271.8281828459, 31.41592653589)  # beyond the bounds, and within
FEATURE = 57.72156649015
CELLS = ("canary-label-cell", "canary-number-cell", "canary-category", "canary-key")


@pytest.fixture(scope="module")
def run(tmp_path_factory, spark_submit):
    """Run the aggregate and the fit job with everything that Spark can write turned on."""
    home = tmp_path_factory.mktemp("leaks")
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
    inputs, work = home / "inputs", home / "work"
    inputs.mkdir()
    for name in ("events", "tmp", "cwd", "local"):
        (work / name).mkdir(parents=True)
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
    logging = work / "log4j2.properties"
    logging.write_text(
        "rootLogger.level=debug\nrootLogger.appenderRef.file.ref=file\n"
        "appender.file.type=File\nappender.file.name=file\n"
        f"appender.file.fileName={work / 'debug.log'}\n"
        "appender.file.layout.type=PatternLayout\nappender.file.layout.pattern=%p %c %m%n%ex\n"
    )
    options = [
        "--conf", "spark.eventLog.enabled=true",
        "--conf", f"spark.eventLog.dir=file://{work / 'events'}",
        "--conf", "spark.eventLog.logBlockUpdates.enabled=true",
        "--conf", "spark.ui.enabled=false",
        "--conf", f"spark.local.dir={work / 'local'}",
        "--driver-java-options", f"-Dlog4j2.configurationFile=file://{logging}",
    ]  # fmt: skip
    environment = os.environ | {"TMPDIR": str(work / "tmp")}
    results = []
    for job, file, more in (
        ("aggregate", "aggregate.yaml", ["--insecure-seed", str(SEED)]),
        ("fit", "fit.yaml", []),
        ("fit", "private.yaml", ["--insecure-seed", str(SEED)]),
        ("aggregate", "aggregate.yaml", []),  # refused: another release is there
    ):
        results.append(
            spark_submit(*options, JOBS / f"{job}.py", "--config", home / file, "--verbose", *more, env=environment)
        )
    for number, result in enumerate(results):
        (work / f"stdout-{number}").write_text(result.stdout)
        (work / f"stderr-{number}").write_text(result.stderr)
    return work, [result.returncode for result in results], inputs


def _contents(folder):
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
    return {(name, str(path)) for path, content in _contents(folder) for name, form in _canaries() if form in content}


def test_the_search_finds_what_is_there(run, tmp_path):
    _, _, inputs = run
    seen = {name for name, _ in found(inputs)}
    assert seen == {str(number) for number in (*LABELS, FEATURE)} | set(CELLS)
    key = Secret.insecure(SEED)._key
    (tmp_path / "x.zst").write_bytes(zstandard.compress(b"..." + key + np.float64(LABELS[1]).tobytes()))
    assert {name for name, _ in found(tmp_path)} == {"the secret", str(LABELS[1])}


def test_jobs_end_as_they_should(run):
    work, codes, _ = run
    assert codes == [0, 0, 0, 2], (work / "stderr-0").read_text()[-2000:] + (work / "stderr-1").read_text()[-2000:]
    assert (work / "model.json").is_file()
    assert json.loads((work / "private.json").read_text())["certificate"]["adjacency"] == "zero_out_one_row"
    promise = json.loads((work / "out" / "_certificate.json").read_text())
    assert promise["num_rows"] == NUM_ROWS and promise["engine"] == "rows"


def test_there_is_something_to_search(run):
    work, _, _ = run
    assert sum(len(content) for path, content in _contents(work / "events")) > 50_000
    assert (work / "debug.log").stat().st_size > 500_000
    assert any(path.suffix == ".parquet" for path in (work / "out").iterdir())


def test_no_canary_is_in_anything_durable(run):
    work, _, _ = run
    assert found(work) == set()


def test_no_scratch_stays(run):
    work, _, _ = run
    left = [path for path in (work / "local").rglob("*") if path.is_file()]
    assert left == []
