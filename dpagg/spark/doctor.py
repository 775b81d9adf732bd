"""What a run needs of a machine, looked at one by one: what is wrong, and how it is mended.

Nothing is fetched, and no Spark is started unless that is asked for.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from dpagg.errors import DpaggError
from dpagg.spark.java import MINIMUM_JAVA, cache_dir, delta_jars_at_hand, java_home, probe_java

__all__ = ["Finding", "examine"]

Status = Literal["ok", "note", "wrong"]

_GIB = 1 << 30
_PYTHON = ((3, 11), (3, 14))
# The JVM's heap, with what it and Python workers need besides.
_MEMORY_NEEDED, _MEMORY_WANTED = 1 * _GIB, 4 * _GIB
_DISK_NEEDED, _DISK_WANTED = _GIB // 4, 5 * _GIB
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# What a worker imports; it says its Python's version and theirs.
_WORKER = "import sys, numpy, pyarrow, randomgen; print('%d.%d' % sys.version_info[:2], numpy.__version__)"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes
    ----------
    check : str
        What.
    status : str
        ``ok``; ``note``: runs work, or some do not; ``wrong``: they will not.
    found : str
        What is there.
    remedy : str or None
        What to do about it.
    """

    check: str
    status: Status
    found: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def examine(*, start: bool = False) -> list[Finding]:
    """Look at Python, packages, Java, Delta's jars, Spark, workers, memory, disk and threads.

    Parameters
    ----------
    start : bool
        Start a session too, and run a Python task in it.
    """
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("Python", _python),
        ("packages", _packages),
        ("Java", _java),
        ("Spark", _spark),
        ("Delta's jars", _jars),
        ("Python of workers", _workers),
        ("memory", _memory),
        ("disk", _disk),
        ("BLAS threads", _blas_threads),
        ("terminal", _terminal),
    ]
    if start:
        checks.append(("a session", _session))
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings += check()
        except DpaggError as error:
            findings.append(Finding(name, "wrong", error.message, error.remedy))
        except (OSError, ImportError) as error:
            findings.append(Finding(name, "wrong", f"could not be looked at ({type(error).__name__})", None))
    return findings


def _python() -> Iterator[Finding]:
    found = f"{platform.python_version()} ({sys.executable})"
    low, high = _PYTHON
    fits = low <= sys.version_info[:2] < high
    yield Finding("Python", "ok" if fits else "wrong", found, None if fits else "Use Python 3.11, 3.12 or 3.13.")


def _packages() -> Iterator[Finding]:
    from packaging.requirements import Requirement

    try:
        declared = [Requirement(line) for line in requires("dpagg") or []]
    except PackageNotFoundError:
        yield Finding("packages", "note", "dpagg is not installed, only imported", "Run `pip install` on it.")
        return
    needed = [each for each in declared if each.marker is None or each.marker.evaluate({"extra": ""})]
    wrong = []
    for each in needed:
        try:
            found = version(each.name)
        except PackageNotFoundError:
            wrong.append(f"{each.name} is missing")
            continue
        if not each.specifier.contains(found, prereleases=True):
            wrong.append(f"{each.name} is {found}, not {each.specifier}")
    if wrong:
        yield Finding("packages", "wrong", "; ".join(wrong), "Run `make install`, or `pip install` dpagg again.")
    else:
        yield Finding("packages", "ok", f"all {len(needed)} as declared")


def _java() -> Iterator[Finding]:
    declared = os.environ.get("JAVA_HOME")
    home = java_home()
    seen = probe_java(str(home / "bin" / "java"))
    feature = "?" if seen is None else str(seen[0])
    if declared and Path(declared) != home:
        before = probe_java(str(Path(declared) / "bin" / "java"))
        what = "does not start" if before is None else f"is Java {before[0]}"
        yield Finding(
            "Java",
            "note",
            f"JAVA_HOME {what}: Java {feature} is taken instead ({home})",
            f"Point JAVA_HOME at a Java {MINIMUM_JAVA} or newer, or unset it; spark-submit follows it.",
        )
    else:
        yield Finding("Java", "ok", f"{feature} ({home})")


def _spark() -> Iterator[Finding]:
    spark = version("pyspark")
    home = os.environ.get("SPARK_HOME")
    if home and not list(Path(home, "jars").glob(f"spark-core_*-{spark}.jar")):
        yield Finding(
            "Spark",
            "wrong",
            f"pyspark is {spark}, SPARK_HOME ({home}) is another version or no Spark",
            f"Unset SPARK_HOME, or point it at Spark {spark}.",
        )
    elif os.environ.get("SPARK_REMOTE"):
        yield Finding(
            "Spark",
            "wrong",
            "SPARK_REMOTE asks for Spark Connect, which has no RDDs to draw through",
            "Unset SPARK_REMOTE.",
        )
    else:
        yield Finding("Spark", "ok", f"{spark}, Delta {version('delta-spark')}")


def _jars() -> Iterator[Finding]:
    jars = delta_jars_at_hand()
    if jars is None:
        yield Finding(
            "Delta's jars",
            "note",
            "not here yet: the first run fetches them (9 MB), which needs a network",
            "Run `python -m dpagg.spark.java --prepare` now, or set DPAGG_JARS to a folder that has them.",
        )
    else:
        yield Finding("Delta's jars", "ok", str(jars[0].parent) if jars else "among Spark's own")


def _workers() -> Iterator[Finding]:
    declared = os.environ.get("PYSPARK_PYTHON")
    if not declared:
        yield Finding(
            "Python of workers",
            "ok",
            "this one on this machine; on a cluster python3 on each node's PATH, unless PYSPARK_PYTHON says otherwise",
        )
        return
    try:
        done = subprocess.run([declared, "-c", _WORKER], capture_output=True, text=True, timeout=60, check=False)
        answer = done.stdout.split() if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if answer is None:
        yield Finding(
            "Python of workers",
            "note",
            f"PYSPARK_PYTHON ({declared}) does not run here with numpy, pyarrow and randomgen",
            "It is for the nodes of a cluster: they need these packages there. On this machine it is not used.",
        )
    elif answer[0] != own:
        yield Finding(
            "Python of workers",
            "wrong",
            f"PYSPARK_PYTHON is Python {answer[0]}, the driver's is {own}: Spark refuses that",
            f"Point PYSPARK_PYTHON at a Python {own} with dpagg's packages.",
        )
    else:
        yield Finding("Python of workers", "ok", f"{answer[0]} with numpy {answer[1]} ({declared})")


def _memory() -> Iterator[Finding]:
    free, total = _available_memory()
    found = f"{free / _GIB:.1f} GiB free of {total / _GIB:.1f}"
    if free < _MEMORY_NEEDED:
        yield Finding("memory", "wrong", found, "End other programs: Spark needs about 1 GiB.")
    elif free < _MEMORY_WANTED:
        yield Finding("memory", "note", found, "Enough for small tables; 4 GiB are better.")
    else:
        yield Finding("memory", "ok", found)


def _available_memory() -> tuple[int, int]:
    """Free and total bytes, within the limit of a container if there is one."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    free = total
    proc = Path("/proc/meminfo")
    if proc.is_file():
        lines = dict(line.split(":", 1) for line in proc.read_text().splitlines() if ":" in line)
        free = int(lines.get("MemAvailable", "0 kB").split()[0]) * 1024 or total
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            allowed, taken = Path(limit).read_text().strip(), int(Path(used).read_text())
        except (OSError, ValueError):
            continue
        if allowed.isdigit() and int(allowed) < total:
            total = int(allowed)
            free = min(free, max(0, total - taken))
    return free, total


def _disk() -> Iterator[Finding]:
    scratch = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    places = (
        ("disk for scratch", Path(scratch), "Set SPARK_LOCAL_DIRS to a folder with room."),
        ("disk for the cache", cache_dir(), "Set XDG_CACHE_HOME to a folder that can be written to."),
    )
    for name, place, remedy in places:
        there = next(folder for folder in (place, *place.parents) if folder.exists())
        free = shutil.disk_usage(there).free
        found = f"{free / _GIB:.1f} GiB free in {place}"
        if not os.access(there, os.W_OK):
            yield Finding(name, "wrong", f"{place} can't be written to", remedy)
        elif free < _DISK_NEEDED:
            yield Finding(name, "wrong", found, remedy)
        elif free < _DISK_WANTED and place == Path(scratch):
            yield Finding(name, "note", found, f"Large tables spill there. {remedy}")
        else:
            yield Finding(name, "ok", found)


def _blas_threads() -> Iterator[Finding]:
    declared = [f"{name}={os.environ[name]}" for name in _THREADS if name in os.environ]
    driver = ", ".join(declared) if declared else f"all {os.cpu_count()} cores"
    yield Finding("BLAS threads", "ok", f"driver: {driver}; one in each worker that dpagg starts")


def _terminal() -> Iterator[Finding]:
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
    if encoding != "utf8":
        yield Finding(
            "terminal",
            "note",
            f"its encoding is {encoding or 'unknown'}",
            "Set PYTHONIOENCODING=utf-8.",
        )
    else:
        yield Finding("terminal", "ok", "UTF-8")


def _session() -> Iterator[Finding]:
    from dpagg.spark.session import spark_session

    spark = spark_session()

    def look(_rows: Any) -> Iterator[list[str]]:
        import numpy as np
        import randomgen

        threads = os.environ.get("OMP_NUM_THREADS", "not set")
        yield [platform.python_version(), np.__version__, randomgen.__version__, threads]

    python, numpy_version, randomgen_version, threads = (
        spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()[0]
    )
    yield Finding(
        "a session",
        "ok",
        f"Spark {spark.version} runs; its worker has Python {python}, numpy {numpy_version}, randomgen "
        f"{randomgen_version}, OMP_NUM_THREADS {threads}",
    )
