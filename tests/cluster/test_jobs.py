"""The jobs on a real cluster, by ``spark-submit`` as an operator runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cluster import example
from tests.cluster.example import configuration, released
from tests.cluster.standalone import HOSTS, ROOT, Application, Cluster, children, until

ENVIRONMENT = ROOT / "build" / "environment.tar.gz"
NUM_FILES, ROWS_A_FILE = 4, 1_000
NUM_ROWS = NUM_FILES * ROWS_A_FILE


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example.write_table(tmp_path_factory.mktemp("table") / "rows", NUM_FILES, ROWS_A_FILE)


def job(cluster: Cluster, command: str, config: Path, *arguments: str, **more) -> Application:
    return cluster.submit(ROOT / "jobs" / f"{command}.py", "--config", config, "--json", *arguments, **more)


def assert_holds_the_rows(out: Path, table: Path) -> None:
    """The released features are m rows of N(0, X^T X): their Gram matrix tells X^T X."""
    import pandas as pd

    rows = pd.read_parquet(table)
    scaled = 2.0 * rows[[f"x{column}" for column in range(example.NUM_FEATURES)]].to_numpy() - 1.0
    x = np.column_stack([np.ones(len(rows)), scaled, rows.device == "desktop"])
    features = released(out)[:, 1:-1]
    m, expected = len(features), x.T @ x
    found = features.T @ features / m
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert (np.abs(found - expected) <= 6 * np.sqrt(2 / m) * size).all()
    assert m == json.loads((out / "_certificate.json").read_text())["num_bags"] == NUM_ROWS


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_a_release_on_a_cluster(cluster, table, tmp_path):
    """The cluster starts, and the aggregate job on it makes a right release."""
    out = tmp_path / "factor"
    run = job(cluster, "aggregate", configuration(tmp_path, "factor", table, out, num_rows=NUM_ROWS))
    name = run.app_id()
    assert run.wait() == 0, run.text()[-3000:]
    assert_holds_the_rows(out, table)
    # Both workers ran an executor for it.
    assert all(list((cluster.home / "work" / host).glob(f"{name}/*/stderr")) for host in HOSTS)
    assert json.loads((out / "_certificate.json").read_text())["private"] is True


WHERE = """
import json, sys
from dpagg.spark.session import spark_session
context = spark_session().sparkContext

def look(_):
    import os, dpagg.kernels.rows, numpy, randomgen
    yield [sys.executable, sys.prefix, numpy.__file__, randomgen.__file__, dpagg.kernels.rows.__file__, os.getcwd()]

print(json.dumps(context.parallelize(range(8), 8).mapPartitions(look).collect()))
"""


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_executors_use_the_packed_environment(cluster, table, tmp_path):
    """Nothing that the machine has: interpreter, numpy and randomgen come from the archive, dpagg from the zip."""
    assert ENVIRONMENT.is_file(), "make pack"
    script = tmp_path / "where.py"
    script.write_text(WHERE)
    packed = {
        "options": ("--archives", f"{ENVIRONMENT}#environment"),
        "env": {"PYSPARK_PYTHON": "./environment/bin/python", "PYSPARK_DRIVER_PYTHON": sys.executable},
    }
    run = cluster.submit(script, **packed)
    assert run.wait() == 0, run.text()[-3000:]
    seen = json.loads(run.stdout.read_text().strip().splitlines()[-1])
    assert {Path(folder).is_relative_to(cluster.home / "work" / host) for *_, folder in seen for host in HOSTS} == {
        True,
        False,
    }
    for executable, prefix, numpy, randomgen, package, folder in seen:
        assert Path(folder).is_relative_to(cluster.home / "work")
        inside = str(Path(folder) / "environment")
        assert os.path.abspath(os.path.join(folder, executable)) == f"{inside}/bin/python"
        for each in (prefix, numpy, randomgen):
            assert os.path.abspath(each).startswith(inside)
        assert "dpagg.zip" in package

    out, model = tmp_path / "out", tmp_path / "model"
    run = job(cluster, "aggregate", configuration(tmp_path, "rows", table, out, num_rows=NUM_ROWS), **packed)
    assert run.wait() == 0, run.text()[-3000:]
    (tmp_path / "fit.yaml").write_text(json.dumps({"release": {"path": str(out)}, "output": {"path": str(model)}}))
    run = job(cluster, "fit", tmp_path / "fit.yaml", **packed)
    assert run.wait() == 0, run.text()[-3000:]
    assert json.loads(model.read_text())["fit"]["num_bags"] == 300


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_executors_without_the_packages_are_an_environment_fault(cluster, table, tmp_path):
    """Without the archive, a worker's own Python lacks numpy: exit code 5, nothing published, and the reason."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    env = {"PYSPARK_PYTHON": str(tmp_path / "bare/bin/python"), "PYSPARK_DRIVER_PYTHON": sys.executable}
    out = tmp_path / "out"
    run = job(cluster, "aggregate", configuration(tmp_path, "factor", table, out, num_rows=NUM_ROWS), env=env)
    assert run.wait() == 5, run.text()[-3000:]
    assert "Traceback" not in run.text() and "executors' Python lacks a package" in run.text()
    assert not out.exists()


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_a_driver_killed_while_it_writes_and_the_run_started_again(cluster, table, tmp_path):
    """With a real secret: complete or absent, and the second run clears what the first one left."""
    out = tmp_path / "out"
    config = configuration(tmp_path, "lag", table, out, num_rows=NUM_ROWS)
    killed = job(cluster, "aggregate", config, conf={"spark.ui.liveUpdate.period": "0"})
    killed.app_id()
    staged = until(lambda: list(tmp_path.glob(".out.*.unfinished/*")), "the beginning of the write")
    jvm = killed.process.pid
    assert children(jvm)  # Python is a child of the JVM: both are ended
    killed.kill()
    assert killed.process.returncode == -9 and staged
    assert not out.exists() and list(tmp_path.glob(".out.*.unfinished"))
    # The master lets go of the application, and the workers of its executors and their scratch.
    until(lambda: not cluster.applications(), "the end of the lost application")
    until(lambda: not cluster.scratch(), "the end of its scratch")

    again = job(cluster, "aggregate", config)
    assert again.wait() == 0, again.text()[-3000:]
    assert '"published": "now"' in again.text() and not list(tmp_path.glob(".out.*"))
    promise = json.loads((out / "_certificate.json").read_text())
    assert len(released(out)) == promise["num_bags"] and promise["private"] is True
