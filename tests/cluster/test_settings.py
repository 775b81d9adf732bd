"""conf/spark/standalone.conf on a cluster that knows a secret, as conf/spark/README.md says to use it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import example
from tests.cluster.example import configuration, released
from tests.cluster.standalone import HOSTS, ROOT, Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

SETTINGS = ROOT / "conf" / "spark" / "standalone.conf"
NUM_ROWS = 2_000
SHOW = """
import json
from dpagg.spark.session import spark_session
print(json.dumps(dict(spark_session().sparkContext.getConf().getAll())))
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """Return a cluster with these settings on each node, and its secret."""
    secret = secrets.token_hex(32)
    defaults = f"{SETTINGS.read_text()}\nspark.authenticate.secret {secret}\n"
    running = Cluster(tmp_path_factory.mktemp("guarded"), defaults)
    yield running, secret
    running.stop()


def submit(cluster: Cluster, script: Path, *arguments: str | Path, **more):
    options = ("--load-spark-defaults", "--properties-file", str(SETTINGS))
    return cluster.submit(script, *arguments, options=options, **more)


def test_a_release_with_the_settings(guarded, tmp_path):
    cluster, secret = guarded
    table = example.write_table(tmp_path / "rows", 2, NUM_ROWS // 2)
    out = tmp_path / "out"
    config = configuration(tmp_path, "factor", table, out, num_rows=NUM_ROWS)
    run = submit(cluster, ROOT / "jobs" / "aggregate.py", "--config", config, "--json")
    assert run.wait() == 0, run.text()[-3000:]
    assert len(released(out)) == NUM_ROWS
    assert json.loads((out / "_certificate.json").read_text())["private"] is True
    for host in HOSTS:  # both took part, and say that they asked who is there
        logs = [path.read_text() for path in (cluster.home / "work" / host).rglob("stderr")]
        assert logs and all("authentication enabled" in text for text in logs)
    written = [path for path in cluster.home.rglob("*") if path.is_file()]
    holders = [path.name for path in written if secret.encode() in path.read_bytes()]
    assert holders == ["spark-defaults.conf"]


def test_a_session_takes_the_file_over_and_keeps_what_it_protects(guarded, tmp_path):
    cluster, _ = guarded
    script = tmp_path / "show.py"
    script.write_text(SHOW)
    run = submit(cluster, script)
    assert run.wait() == 0, run.text()[-3000:]
    found = run.result()
    for line in SETTINGS.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            key, value = line.split()
            if key not in ("spark.executor.cores", "spark.executor.memory"):  # the tests ask for smaller ones
                assert found[key] == value
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


def test_who_does_not_know_the_secret_gets_nothing(guarded, tmp_path):
    cluster, _ = guarded
    table = example.write_table(tmp_path / "rows", 1, 100)
    config = configuration(tmp_path, "factor", table, tmp_path / "out", num_rows=100)
    arguments = (ROOT / "jobs" / "aggregate.py", "--config", config)
    (tmp_path / "empty").mkdir()
    run = submit(cluster, *arguments, env={"SPARK_CONF_DIR": str(tmp_path / "empty")})
    assert run.wait() == 5 and "secret key must be specified" in run.text(), run.text()[-3000:]
    run = submit(cluster, *arguments, conf={"spark.authenticate.secret": "0" * 64})
    assert run.wait() == 5 and "Traceback" not in run.text(), run.text()[-3000:]
    assert not (tmp_path / "out").exists()
