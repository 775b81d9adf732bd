"""The doctor's own session."""

import platform

from dpagg.spark.doctor import examine


def test_a_session_and_its_worker_are_looked_at(spark):
    said = examine(start=True)[-1]
    assert said.check == "a session" and said.status == "ok"
    assert f"Spark {spark.version}" in said.found and f"Python {platform.python_version()}" in said.found
    assert "OMP_NUM_THREADS 1" in said.found
