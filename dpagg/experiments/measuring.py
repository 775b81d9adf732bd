"""What a benchmark reads off the system: processor time and memory of this process and its children (Linux)."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def processor_seconds() -> float:
    """Return the processor seconds of this process and all its descendants, ended ones included (Linux)."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds for process, seconds in used.items() if _descends(process, os.getpid(), parents))


def _descends(process: int, ancestor: int, parents: dict[int, int]) -> bool:
    while process in parents and process != ancestor:
        process = parents[process]
    return process == ancestor


class PeakMemory:
    """Largest resident memory of the child processes, looked at ten times a second (Linux)."""

    def __init__(self) -> None:
        self.jvm, self.worker = 0, 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        # What takes less than a tenth of a second is looked at too.
        self._look()
        while not self._stop.wait(0.1):
            self._look()

    def _look(self) -> None:
        parents: dict[int, int] = {}
        sizes: dict[int, tuple[str, int]] = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            except OSError:
                continue
            process = int(status.parent.name)
            parents[process] = int(fields["PPid"])
            sizes[process] = (fields["Name"].strip(), int(fields.get("VmRSS", "0 kB").split()[0]) << 10)
        for process, (name, size) in sizes.items():
            if process == os.getpid() or not _descends(process, os.getpid(), parents):
                continue
            if name == "java":
                self.jvm = max(self.jvm, size)
            elif name.startswith("python"):
                self.worker = max(self.worker, size)
