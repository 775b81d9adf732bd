"""The session: Delta works, no cell reaches a log or outlives the process, closures stay closures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpagg.errors import ConfigError
from dpagg.spark.scratch import make_scratch
from dpagg.spark.session import SessionSettings, spark_session

CANARY = "CANARY-73519"


def _run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own, as a user's program would run."""
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        env=os.environ | environment,
    )


def test_delta_round_trip_and_merge(spark, tmp_path):
    path = str(tmp_path / "table")
    spark.range(5).write.format("delta").save(path)
    spark.sql(f"MERGE INTO delta.`{path}` t USING (SELECT 7L AS id) s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *")
    assert sorted(row.id for row in spark.read.format("delta").load(path).collect()) == [0, 1, 2, 3, 4, 7]


def test_second_call_returns_the_running_session(spark):
    assert spark_session(SessionSettings(cores=1, app_name="another")) is spark


def test_workers_are_this_python_with_one_blas_thread(spark):
    def look(_):
        yield sys.executable, os.environ["OMP_NUM_THREADS"], os.environ["OPENBLAS_NUM_THREADS"]

    seen = set(spark.sparkContext.parallelize(range(2), 2).mapPartitions(look).collect())
    assert seen == {(sys.executable, "1", "1")}


def test_local_session_encrypts_and_listens_on_loopback_only(spark):
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.io.encryption.enabled") == "true"
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


@pytest.mark.parametrize("way", ["rdd", "mapInArrow"])
def test_large_closures_are_not_broadcast(spark, monkeypatch, way):
    context = spark.sparkContext
    sizes: list[int] = []
    original = type(context).broadcast

    def broadcast(self, value):
        sizes.append(len(value))
        return original(self, value)

    monkeypatch.setattr(type(context), "broadcast", broadcast)
    carried = np.random.default_rng(5).standard_normal(300_000)  # 2.4 MB, above Spark's own limit of 1 MiB

    def total() -> float:
        if way == "rdd":
            return context.parallelize([1.0], 1).map(lambda one: one * float(carried[0])).sum()

        def each(batches):
            import pyarrow as pa

            for _ in batches:
                yield pa.RecordBatch.from_pydict({"value": [float(carried[0])]})

        return spark.range(1, numPartitions=1).mapInArrow(each, "value double").first().value

    assert total() == carried[0]
    assert sizes == []
    # The same closure under Spark's own limit is broadcast: the check above can fail.
    java_conf = context._jsc.sc().conf()
    limit = java_conf.get("spark.broadcast.UDFCompressionThreshold")
    java_conf.set("spark.broadcast.UDFCompressionThreshold", "1m")
    try:
        total()
    finally:
        java_conf.set("spark.broadcast.UDFCompressionThreshold", limit)
    assert sizes and sizes[0] > 2_000_000


def test_a_running_session_gets_the_closure_limit_back(spark):
    spark.sparkContext._jsc.sc().conf().set("spark.broadcast.UDFCompressionThreshold", "1m")
    spark_session()
    jvm = spark.sparkContext._jvm
    assert jvm.PythonUtils.getBroadcastThreshold(spark.sparkContext._jsc) == 512 * 2**20


@pytest.mark.parametrize("key", ["spark.io.encryption.enabled", "spark.broadcast.UDFCompressionThreshold"])
def test_performance_settings_cannot_weaken_protection(key):
    with pytest.raises(ConfigError, match=key):
        SessionSettings(extra={key: "false"})


FAILING = f"""
import logging, os
logging.basicConfig(level=logging.DEBUG)
from pathlib import Path
from dpagg.spark.session import SessionSettings, spark_session
spark = spark_session(SessionSettings(cores=1, log_level="LEVEL"))
rows = spark.createDataFrame([("{CANARY}",)], "cell string")
rows.createOrReplaceTempView("rows")
failures = 0
for run in (
    lambda: spark.sql("SELECT CAST(cell AS INT) FROM rows").collect(),
    lambda: rows.rdd.map(lambda row: int(row.cell)).collect(),
    lambda: rows.selectExpr("CAST(cell AS DOUBLE) AS x").write.parquet(os.environ["OUT"] + "/p"),
):
    try:
        run()
    except Exception as error:
        failures += "{CANARY}" in str(error)
print("failures", failures)
print("scratch", spark.sparkContext.getConf().get("spark.local.dir"))
"""


@pytest.mark.parametrize("level", ["ERROR", "DEBUG"])
def test_cells_in_spark_errors_reach_no_log_and_scratch_is_removed(tmp_path, level):
    done = _run(FAILING.replace("LEVEL", level), OUT=str(tmp_path))
    assert done.returncode == 0, done.stderr
    # The cell is in each exception, so it was there to be logged.
    assert "failures 3" in done.stdout
    assert CANARY not in done.stderr
    if level == "ERROR":
        noise = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
        assert noise == []
    else:
        assert "INFO SparkContext" in done.stderr and "DEBUG" in done.stderr
    scratch = Path(done.stdout.split("scratch ")[1].strip())
    assert scratch.name.startswith("dpagg-scratch-") and not scratch.exists()


def test_scratch_of_a_killed_run_is_removed_by_the_next(tmp_path):
    script = (
        "import os, signal, sys; from pathlib import Path; from dpagg.spark.scratch import make_scratch;"
        "s = make_scratch(Path(os.environ['PARENT'])); (s / 'rows').write_text('x'); print(s, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = Path(_run(script, PARENT=str(tmp_path)).stdout.strip())
    assert (killed / "rows").exists()
    live = make_scratch(tmp_path)
    assert not killed.exists()
    # A live run's directory is left alone, by this process and by others.
    other = Path(_run(script, PARENT=str(tmp_path)).stdout.strip())
    assert live.exists() and other.exists()
    assert live.stat().st_mode & 0o077 == 0


def test_a_running_session_without_delta_is_refused():
    done = _run(
        "from dpagg.spark.java import java_home; import os; os.environ['JAVA_HOME'] = str(java_home())\n"
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.master('local[1]').config('spark.ui.enabled', 'false').getOrCreate()\n"
        "from dpagg.errors import EnvironmentFault; from dpagg.spark.session import spark_session\n"
        "try: spark_session()\n"
        "except EnvironmentFault as fault: print(fault)"
    )
    assert "The running Spark session has no Delta extension" in done.stdout
    assert "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension" in done.stdout


def test_spark_that_does_not_start_is_an_environment_fault():
    done = _run(
        "from dpagg.errors import EnvironmentFault\n"
        "from dpagg.spark.session import SessionSettings, spark_session\n"
        "try: spark_session(SessionSettings(driver_memory='plenty'))\n"
        "except EnvironmentFault as fault: print(fault)"
    )
    assert done.stdout.startswith("Spark does not start: ") and len(done.stdout.splitlines()) == 1


def test_no_usable_java_is_an_environment_fault_not_a_traceback(tmp_path):
    done = _run("from dpagg.spark.java import main; import sys; sys.exit(main([]))", **_without_java(tmp_path))
    assert done.returncode == 5
    assert "Traceback" not in done.stderr and "cache" in done.stderr


def _without_java(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "not-a-directory").write_text("")
    return {"PATH": str(tmp_path), "JAVA_HOME": "", "XDG_CACHE_HOME": str(tmp_path / "not-a-directory")}


JOB = f"""
CANARY = "{CANARY}"
"""
JOB += """
import json, sys
from dpagg.spark.session import spark_session
spark = spark_session()
spark.range(3).write.format("delta").save(sys.argv[1])
try:
    spark.sparkContext.parallelize([CANARY]).map(int).collect()
except Exception as error:
    print("cell seen" if CANARY in str(error) else "no cell")
conf = spark.sparkContext.getConf()
print(json.dumps({
    "rows": spark.read.format("delta").load(sys.argv[1]).count(),
    "master": conf.get("spark.master"),
    "timezone": spark.conf.get("spark.sql.session.timeZone"),
    "encrypted": conf.get("spark.io.encryption.enabled"),
    "python": spark.sparkContext.pythonExec == sys.executable,
}))
"""


def test_spark_submit_without_options_has_delta(spark_submit, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(JOB)
    done = spark_submit("--conf", "spark.sql.session.timeZone=Asia/Tokyo", job, tmp_path / "table")
    assert done.returncode == 0, done.stderr
    assert CANARY not in done.stderr and "cell seen" in done.stdout
    # Spark's own default is INFO, at which it says more than anyone reads; a few lines come before our turn.
    assert done.stderr.count(" INFO ") < 10 and "INFO SparkContext: Starting job" not in done.stderr
    assert json.loads(done.stdout.strip().splitlines()[-1]) == {
        "rows": 3,
        "master": "local[2]",
        "timezone": "Asia/Tokyo",  # what was given to spark-submit comes before our default
        "encrypted": "true",
        "python": True,
    }
