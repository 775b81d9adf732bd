"""One application that runs many commands, and executors that stand still in the middle of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.cluster.standalone import HOSTS, Application, Cluster, children, until, words_of


class Session(Application):
    """One application that runs commands of ``dpagg`` one after another, when told."""

    def __init__(self, cluster: Cluster, folder: Path, conf: Mapping[str, str] | None = None) -> None:
        folder.mkdir()
        self._answers, pipe = folder, folder / "requests"
        os.mkfifo(pipe)
        self._asked = 0
        self.first_stage = 0
        self.frozen: list[Frozen] = []
        script = Path(__file__).with_name("session_driver.py")
        super().__init__(cluster, script, (pipe, folder), (), dict(conf or {}), {})
        self._pipe = until(lambda: self._open(pipe), "the driver", 200)

    def start(self, *arguments: str | Path) -> None:
        """Run a command; `answer` waits for its exit code."""
        self.settle()
        if self._asked:  # before, there is no application
            # The master starts another executor in the place of a lost one.
            until(lambda: sum(each["isActive"] for each in self.executors().values()) == len(HOSTS), "executors")
            self.first_stage = 1 + max(each["stageId"] for each in self.stages())
        os.write(self._pipe, json.dumps([*map(str, arguments)]).encode() + b"\n")
        self._asked += 1

    def answer(self, seconds: float = 400.0) -> int:
        """Wait for the exit code of the last command."""
        file = self._answers / str(self._asked - 1)
        until(lambda: file.exists() or self.process.poll() is not None, "the end of a command", seconds)
        if not file.exists():
            raise AssertionError(f"the driver ended:\n{self.text()[-3000:]}")
        return int(file.read_text())

    def settle(self) -> None:
        """Let go of what a failed test left, and wait for it."""
        for frozen in self.frozen:
            frozen.resume()
        self.frozen.clear()
        if self._asked:
            self.answer()

    def answered(self) -> bool:
        """Whether the last command has ended."""
        return (self._answers / str(self._asked - 1)).exists()

    def close(self) -> None:
        """Let the driver end."""
        for frozen in self.frozen:
            frozen.resume()
        os.close(self._pipe)
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()

    def _open(self, pipe: Path) -> int | None:
        if self.process.poll() is not None:
            raise AssertionError(f"the driver ended:\n{self.text()[-3000:]}")
        with suppress(OSError):
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        return None


class Frozen:
    """An executor that stands still in the middle of a task, as on a machine that hangs: its Python, or its JVM too.

    Made when the n-th stage of a name within the session's command begins; the task is of this stage, or of a later
    one of the name where stages are short. Other executors still fetch what they need from one whose JVM runs.
    """

    def __init__(self, session: Session, stage_name: str, occurrence: int = 1, *, jvm: bool = False) -> None:
        self._session, self._jvm, self._stage_name = session, jvm, stage_name
        self._processes: list[int] = []
        first = until(lambda: self._begun(occurrence), f"stage {occurrence} of {stage_name}")
        active = [name for name, each in session.executors().items() if each["isActive"]]
        executors = {name: session.executor_process(name) for name in active}
        stopped: dict[str, list[int]] = {name: [] for name in active}
        session.frozen.append(self)
        self.task = until(lambda: self._hanging(first, executors, stopped), f"a task of {stage_name} that hangs")
        self.stage, self.executor = int(self.task["stageId"]), str(self.task["executorId"])
        for name, processes in stopped.items():
            if name != self.executor:
                _signal(processes, signal.SIGCONT)
        self._processes = stopped[self.executor]

    def resume(self) -> None:
        """Let it go on."""
        _signal(self._processes, signal.SIGCONT)

    def kill(self) -> None:
        """End the executor and its Python at once, as when its machine is lost."""
        _signal([self._session.executor_process(self.executor), *self._processes], signal.SIGKILL)

    def _begun(self, occurrence: int) -> int | None:
        found = self._session.stages(self._session.first_stage - 1)
        named = sorted({each["stageId"] for each in found if re.search(self._stage_name, each["name"])})
        if len(named) >= occurrence:
            return int(named[occurrence - 1])
        if self._session.answered():
            raise AssertionError(f"no stage {occurrence} of {self._stage_name}: {[each['name'] for each in found]}")
        return None

    def _stop(self, executor: int) -> list[int]:
        if self._jvm:
            _signal([executor], signal.SIGSTOP)
            return [executor]
        # The daemon first: it could start another worker.
        daemons = [each for each in children(executor) if "pyspark.daemon" in words_of(each)]
        _signal(daemons, signal.SIGSTOP)
        workers = [worker for daemon in daemons for worker in children(daemon)]
        _signal(workers, signal.SIGSTOP)
        return [*workers, *daemons]

    def _hanging(self, first: int, executors: dict[str, int], stopped: dict[str, list[int]]) -> dict[str, Any] | None:
        """A task that still runs a while after all was stopped; an executor may start another Python meanwhile."""
        self._stop_all(executors, stopped)
        before = {each["taskId"] for each in self._running(first)}
        time.sleep(1.0)
        found = next((each for each in self._running(first) if each["taskId"] in before), None)
        return None if self._stop_all(executors, stopped) else found

    def _stop_all(self, executors: dict[str, int], stopped: dict[str, list[int]]) -> bool:
        """Stop what runs, and return whether anything was new."""
        known = set(self._processes)
        for name, executor in executors.items():
            stopped[name] = self._stop(executor)
        self._processes = sorted(known.union(*stopped.values()))
        return set(self._processes) != known

    def _running(self, first: int) -> list[dict[str, Any]]:
        active = [each for each in self._session.stages(first - 1) if each["status"] == "ACTIVE"]
        tasks = [
            task
            for stage in active
            if re.search(self._stage_name, stage["name"])
            for task in self._session.tasks(stage["stageId"])
        ]
        return [each for each in tasks if each["status"] == "RUNNING"]


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
