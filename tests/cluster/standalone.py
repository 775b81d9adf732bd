"""A standalone Spark cluster on loopback, its applications as a user submits them, and what its REST API tells.

A master and two workers, one on 127.0.0.1 and one on 127.0.0.2: speculation never puts a copy on the host that already
runs the task. Every port is chosen by the system. Only processes that were started here, or by these, are signalled.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pyspark.find_spark_home import _find_spark_home

from dpagg.spark.java import java_home

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ("127.0.0.1", "127.0.0.2")
# The second compiler would not pay for itself in the minute that a process lives.
QUICK = "-XX:TieredStopAtLevel=1"
T = TypeVar("T")


def _end_with_parent() -> None:
    """Let Linux end a process when the tests are ended so that no fixture cleans up."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def until(found: Callable[[], T | None], what: str, seconds: float = 200.0) -> T:
    """Ask again until there is an answer."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = found()
        if answer:
            return answer
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {seconds:g} s")


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


class Cluster:
    """A master and two workers, each with room for four executors; logs, work and scratch under one folder.

    ``defaults`` is the spark-defaults.conf of all nodes, and of who submits from them.
    """

    def __init__(self, home: Path, defaults: str = "") -> None:
        self.home = home
        self._processes: list[subprocess.Popen[bytes]] = []
        self._applications: list[Application] = []
        for name in ("conf", "work", "local", "logs"):
            (home / name).mkdir(parents=True)
        (home / "conf" / "spark-defaults.conf").touch(0o600)
        (home / "conf" / "spark-defaults.conf").write_text(defaults)
        # Nothing of this machine's own configuration; the package is what executors import.
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
        self.environment |= {
            "JAVA_HOME": str(java_home()),
            "SPARK_CONF_DIR": str(home / "conf"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": QUICK,
            "PYSPARK_PYTHON": sys.executable,
        }
        self.package = home / "dpagg.zip"
        with zipfile.ZipFile(self.package, "w") as package:
            for file in sorted((ROOT / "dpagg").rglob("*.py")):
                package.write(file, file.relative_to(ROOT))
        try:
            log = self._start(
                "master",
                "deploy.master.Master",
                *("--host", HOSTS[0], "--port", "0", "--webui-port", "0"),
                SPARK_LOCAL_IP=HOSTS[0],
                SPARK_MASTER_OPTS="-Dspark.master.rest.enabled=false",  # it would take a fixed port
            )
            self.url = self._said(log, r"Starting Spark master at (spark://\S+)")
            self.web = self._said(log, r"MasterWebUI: .*started at (http://\S+)")
            for host in HOSTS:
                self._start_worker(host)
            until(lambda: len(self.alive_workers()) == len(HOSTS), "workers")
        except BaseException:
            self.stop()
            raise

    def alive_workers(self) -> list[dict[str, Any]]:
        return [worker for worker in json.loads(fetch(f"{self.web}/json/"))["workers"] if worker["state"] == "ALIVE"]

    def applications(self) -> list[str]:
        """Numbers of the applications that the master knows to run."""
        return [each["id"] for each in json.loads(fetch(f"{self.web}/json/"))["activeapps"]]

    def scratch(self) -> list[Path]:
        """Files in the local directories of the workers."""
        # Unlike rglob, walk bears folders that are removed meanwhile.
        return [Path(folder) / file for folder, _, files in os.walk(self.home / "local") for file in files]

    def stop(self) -> None:
        """End what was started here; a worker ends its executors."""
        for application in self._applications:
            if application.process.poll() is None:
                application.kill()
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def submit(
        self,
        script: str | Path,
        *arguments: str | Path,
        options: tuple[str, ...] = (),
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Application:
        """Start ``spark-submit`` of a script on both workers."""
        self._applications.append(Application(self, script, arguments, options, dict(conf or {}), dict(env or {})))
        return self._applications[-1]

    def workers(self) -> list[int]:
        return [process.pid for process in self._processes[1:]]

    def _start_worker(self, host: str) -> None:
        self._start(
            f"worker-{host}",
            "deploy.worker.Worker",
            *("--host", host, "--port", "0", "--webui-port", "0", "--cores", "4", "--memory", "4g"),
            *("--work-dir", str(self.home / "work" / host), self.url),
            SPARK_LOCAL_IP=host,
            SPARK_LOCAL_DIRS=str(self.home / "local" / host),
        )

    def _start(self, name: str, what: str, *arguments: str, **environment: str) -> Path:
        log = self.home / "logs" / name
        command = [str(Path(_find_spark_home()) / "bin" / "spark-class"), f"org.apache.spark.{what}", *arguments]
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=self.environment | environment,
                    start_new_session=True,
                    preexec_fn=_end_with_parent,
                )
            )
        return log

    def _said(self, log: Path, pattern: str) -> str:
        def found() -> str | None:
            said = re.search(pattern, log.read_text(errors="replace"))
            return said.group(1).rstrip(".") if said else None

        return until(found, pattern)


class Application:
    """One ``spark-submit``, seen through the REST API of its driver."""

    def __init__(
        self,
        cluster: Cluster,
        script: str | Path,
        arguments: tuple[str | Path, ...],
        options: tuple[str, ...],
        conf: dict[str, str],
        env: dict[str, str],
    ) -> None:
        self._cluster = cluster
        before = len(list((cluster.home / "logs").glob("driver-*")))
        self.name = f"driver-{before // 2}"
        self.stdout, self.stderr = (cluster.home / "logs" / f"{self.name}.{kind}" for kind in ("out", "err"))
        settings = {
            "spark.cores.max": "2",
            "spark.executor.cores": "1",
            "spark.executor.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.driver.host": HOSTS[0],
            "spark.driver.bindAddress": HOSTS[0],
            "spark.ui.port": "0",
            # On a busy machine one executor could do all the work before the other one is there.
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            "spark.sql.shuffle.partitions": "4",
            "spark.databricks.delta.snapshotPartitions": "2",
            **conf,
        }
        command = [str(Path(sys.executable).parent / "spark-submit"), "--master", cluster.url, "--name", self.name]
        command += ["--py-files", str(cluster.package), *options]
        for key, value in settings.items():
            command += ["--conf", f"{key}={value}"]
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [*command, str(script), *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=cluster.environment | env,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        self._api: str | None = None

    def wait(self, seconds: float = 400.0) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """End the driver at once, as a lost machine would: the JVM and the Python that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def text(self) -> str:
        return self.stdout.read_text(errors="replace") + self.stderr.read_text(errors="replace")

    def result(self) -> Any:
        return json.loads(self.stdout.read_text().strip().splitlines()[-1])

    def rest(self, path: str) -> Any:
        """Ask the driver's REST API; None where it does not answer."""
        try:
            return json.loads(fetch(f"{self.address}/{path}"))
        except (OSError, ValueError):  # while Spark starts it answers, but not in JSON
            return None

    def page(self, name: str) -> str:
        """Ask for a page of the driver's UI; empty where it does not answer, or says that it is starting up."""
        with suppress(OSError):
            return fetch(f"{self.address.split('/api/')[0]}/{name}/")
        return ""

    def executors(self) -> dict[str, dict[str, Any]]:
        """All executors that ever were, by number."""
        return {each["id"]: each for each in self.rest("allexecutors") or [] if each["id"] != "driver"}

    def stages(self, after: int = -1) -> list[dict[str, Any]]:
        """Attempts of stages that ran or run, in order."""
        # One that waits for another is listed too, and so is one that will be skipped.
        begun = ("ACTIVE", "COMPLETE", "FAILED")
        found = [each for each in self.rest("stages") or [] if each["stageId"] > after and each["status"] in begun]
        return sorted(found, key=lambda each: (each["stageId"], each["attemptId"]))

    def tasks(self, stage: int) -> list[dict[str, Any]]:
        """Tasks of all attempts of a stage."""
        found: list[dict[str, Any]] = []
        for attempt in self.rest(f"stages/{stage}?details=false") or []:
            listed = self.rest(f"stages/{stage}/{attempt['attemptId']}/taskList?length=1000") or []
            found += [each | {"stageId": stage, "attemptId": attempt["attemptId"]} for each in listed]
        return found

    def executor_process(self, executor: str) -> int:
        """Process of an executor of this application: a child of one of our workers."""
        for process in (pid for worker in self._cluster.workers() for pid in children(worker)):
            words = words_of(process)
            if f"--executor-id {executor} " in f"{words} " and f"--app-id {self.app_id()} " in f"{words} ":
                return process
        raise AssertionError(f"no process of executor {executor}")

    def app_id(self) -> str:
        return self.address.rsplit("/", 1)[1]

    @property
    def address(self) -> str:
        """Of its REST API."""
        if self._api is None:
            self._api = until(self._look, f"{self.name} in the master's list", 200)
        return self._api

    def _look(self) -> str | None:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended too early:\n{self.text()[-3000:]}")
        for each in json.loads(fetch(f"{self._cluster.web}/json/"))["activeapps"]:
            page = fetch(f"{self._cluster.web}/app/?appId={each['id']}")
            ui = re.search(r'href="(http://[^"]+)">Application Detail UI', page)
            if ui and each["name"] == self.name:
                return f"{ui.group(1).rstrip('/')}/api/v1/applications/{each['id']}"
        return None


def children(process: int) -> list[int]:
    """Processes that a process started and that still run."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def words_of(process: int) -> str:
    """Command line of a process."""
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
