"""Canaries in nothing durable, after jobs with everything turned on that Spark can write."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import zstandard

from dpagg.kernels.streams import Secret
from tests.canaries import CELLS, FEATURE, LABELS, NUM_ROWS, SEED, contents, debug_log, found, plant

JOBS = Path(__file__).resolve().parents[2] / "jobs"


@pytest.fixture(scope="module")
def run(tmp_path_factory, spark_submit):
    """Run the aggregate and the fit job with everything that Spark can write turned on."""
    home = tmp_path_factory.mktemp("leaks")
    work = home / "work"
    for name in ("events", "tmp", "cwd", "local"):
        (work / name).mkdir(parents=True)
    inputs = plant(home, work)
    logging = debug_log(work / "log4j2.properties", work / "debug.log")
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
    assert sum(len(content) for path, content in contents(work / "events")) > 50_000
    assert (work / "debug.log").stat().st_size > 500_000
    assert any(path.suffix == ".parquet" for path in (work / "out").iterdir())


def test_no_canary_is_in_anything_durable(run):
    work, _, _ = run
    assert found(work) == set()


def test_no_scratch_stays(run):
    work, _, _ = run
    left = [path for path in (work / "local").rglob("*") if path.is_file()]
    assert left == []
