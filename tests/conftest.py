"""Fixtures shared by all tests: one Spark session, the real data sets, and spark-submit as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same examples in each run, so that a failure belongs to a change; --hypothesis-profile=default looks further. No
# limits of time for an example or its making: a busy machine passes them.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")

# Tests compile far more than they train: without the compiler's last passes they take two thirds of the time.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_multi_thread_eigen=false")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """Return the one session of the whole run; it ends with the process, and is cleaned after each test."""
    from dpagg.spark.session import SessionSettings, spark_session

    return spark_session(
        SessionSettings(
            app_name="dpagg-tests",
            cores=2,
            shuffle_partitions=2,
            local_dir=tmp_path_factory.mktemp("spark"),
            # The tests end before the second compiler would pay for itself: a quarter less time. Without it Java leaves
            # 48 MB for compiled code, which the queries of all tests fill: then the session is lost.
            extra={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"},
        )
    )


@pytest.fixture(autouse=True)
def _clean_session(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drop what a test left in the shared session: views, tables, caches, settings."""
    if "spark" not in request.fixturenames:
        yield
        return
    session: SparkSession = request.getfixturevalue("spark")
    before = dict(session.conf.getAll)
    yield
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)
        else:
            session.sql(f"DROP TABLE IF EXISTS `{table.name}`")
    session.catalog.clearCache()
    for rdd in session.sparkContext._jsc.getPersistentRDDs().values():
        rdd.unpersist(False)
    after = dict(session.conf.getAll)
    for key, value in after.items():
        if key not in before:
            session.conf.unset(key)
        elif before[key] != value:
            session.conf.set(key, before[key])


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the directory of the UCI data sets, which lies beside the project and not in it."""
    directory = ROOT.parent / "shared" / "data" / "uci"
    if not directory.is_dir():
        pytest.skip("the UCI data sets are not beside this checkout (../shared/data/uci)")
    return directory


@pytest.fixture(scope="session")
def spark_submit() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return a function that runs ``spark-submit [options] SCRIPT ARGUMENTS`` with this Python and a Java."""
    from dpagg.spark.java import java_home

    command = Path(sys.executable).parent / "spark-submit"
    environment = os.environ | {"JAVA_HOME": str(java_home()), "PYSPARK_PYTHON": sys.executable}

    def run(*arguments: str | Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(command), "--master", "local[2]", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
            cwd=ROOT,
            env=environment | (env or {}),
        )

    return run
