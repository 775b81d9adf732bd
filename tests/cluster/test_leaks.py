"""Canaries in nothing durable, on a real cluster with everything turned on that Spark can write."""

from __future__ import annotations

import pytest

from tests.canaries import SEED, contents, debug_log, found, plant
from tests.cluster.standalone import QUICK, ROOT, Cluster, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run three jobs on a cluster of their own; return its folder, theirs, and their exit codes."""
    home = tmp_path_factory.mktemp("leaks")
    work = home / "work"
    (work / "events").mkdir(parents=True)
    plant(home, work)
    driver_log = debug_log(home / "driver.properties", work / "driver-debug.log")
    executor_log = debug_log(home / "executor.properties", None)
    conf = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "true",
        "spark.eventLog.compression.codec": "zstd",
        "spark.eventLog.dir": f"file://{work / 'events'}",
        "spark.eventLog.logBlockUpdates.enabled": "true",
        "spark.ui.enabled": "true",
        "spark.executor.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile=file://{executor_log}",
        "spark.driver.extraJavaOptions": f"{QUICK} -Dlog4j2.configurationFile=file://{driver_log}",
    }
    cluster = Cluster(home / "cluster")
    codes = []
    try:
        for job, file, more in (
            ("aggregate", "aggregate.yaml", ["--insecure-seed", str(SEED)]),
            ("fit", "fit.yaml", []),
            ("fit", "private.yaml", ["--insecure-seed", str(SEED)]),
        ):
            script = ROOT / "jobs" / f"{job}.py"
            application = cluster.submit(script, "--config", home / file, "--verbose", *more, conf=conf)
            until(lambda job=application: "Spark Jobs" in job.page("jobs"), "a page of the UI")
            codes.append(application.wait())
        until(lambda: not cluster.applications(), "the end of the applications")
        until(lambda: not cluster.scratch(), "the end of their scratch")
    finally:
        cluster.stop()
    return cluster, work, codes


def test_jobs_end_as_they_should(run):
    cluster, work, codes = run
    assert codes == [0, 0, 0], "".join(path.read_text()[-2000:] for path in (cluster.home / "logs").glob("driver-*"))
    assert all((work / name).exists() for name in ("out/_certificate.json", "model.json", "private.json"))


def test_there_is_something_to_search(run):
    cluster, work, _ = run
    assert sum(path.name.endswith(".zstd") for path in (work / "events").rglob("*")) >= 3
    assert sum(len(content) for _, content in contents(work / "events")) > 100_000
    errors = list((cluster.home / "work").rglob("stderr"))
    assert len(errors) >= 6 and all("DEBUG " in path.read_text() for path in errors)
    assert (work / "driver-debug.log").stat().st_size > 500_000


def test_no_canary_is_in_anything_durable(run):
    """Output, certificates, models, event logs, logs of drivers, master and workers, executors' work directories."""
    cluster, work, _ = run
    assert found(work) == set()
    assert found(cluster.home) == set()


def test_no_scratch_stays(run):
    cluster, _, _ = run
    assert cluster.scratch() == []
