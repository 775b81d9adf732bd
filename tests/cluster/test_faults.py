"""What Spark does on a bad day, on a real cluster, and that no release shows it.

Each fault is evident from the REST API of the driver. Under a public seed a release after a fault equals the one
without, to rounding.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster import example
from tests.cluster.example import BAGS, HELD, PASS, RUNS, SEED, WRITE, configuration, released, same
from tests.cluster.sessions import Frozen, Session
from tests.cluster.standalone import HOSTS, Cluster, until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

# Many small tasks: the last pass over them must not end before its beginning is seen in the REST API.
NUM_FILES, ROWS_A_FILE = 40, 12_500
NUM_ROWS = NUM_FILES * ROWS_A_FILE
CONF = {
    "spark.sql.files.maxPartitionBytes": "1m",
    "spark.ui.liveUpdate.period": "0",
    "spark.ui.retainedStages": "60",  # a run has half as many; the list is asked for often
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "2",
    "spark.speculation.quantile": "0.5",
}
# Where a fault hits: in the pass that reads the labels, over cached rows, or while a release is written: for bags of
# disjoint rows that is when they are made, or taken from a cache.
KILLED = [
    ("factor", PASS, 3),
    ("factor", WRITE, 1),
    ("rows", PASS, 3),
    ("flag", HELD, 5),
    ("lag", WRITE, 1),
    ("ihm", PASS, 3),
]
COPIED = [("factor", PASS, 2), ("factor", WRITE, 1), ("rows", PASS, 3), ("flag", BAGS, 1), ("ihm", PASS, 1)]
CHANGED = [("factor", PASS, 2), ("rows", PASS, 3), ("flag", BAGS, 2), ("lag", WRITE, 1), ("ihm", PASS, 3)]


def named(cases: list[tuple[str, str, int]]) -> list[Any]:
    """Give cases short names."""
    words = {PASS: "pass", WRITE: "write", BAGS: "bags", HELD: "held"}
    return [pytest.param(*case, id=f"{case[0]}-{words[case[1]]}-{case[2]}") for case in cases]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example.write_table(tmp_path_factory.mktemp("table") / "rows", NUM_FILES, ROWS_A_FILE)


@pytest.fixture(scope="module")
def session(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    running = Session(cluster, tmp_path_factory.mktemp("session") / "plain", CONF)
    yield running
    running.close()


@pytest.fixture(scope="module")
def racing(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    running = Session(cluster, tmp_path_factory.mktemp("session") / "racing", CONF | SPECULATION)
    yield running
    running.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where all releases are made: a seed gives the same one for the same input and output only."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def undisturbed(session: Session, table: Path, home: Path) -> Callable[[str], np.ndarray]:
    """Return a function that tells what a run releases when nothing happens."""
    known: dict[str, np.ndarray] = {}

    def release(name: str) -> np.ndarray:
        if name not in known:
            out = start(session, home, name, table)
            assert session.answer() == 0, session.text()[-3000:]
            known[name] = taken(out)
            assert np.isfinite(known[name]).all() and len(known[name]) >= 8
        return known[name]

    return release


def start(session: Session, home: Path, name: str, table: Path, kind: str = "parquet") -> Path:
    """Begin a run and return where its release will be."""
    out = home / name
    config = configuration(home, name, table, out, num_rows=NUM_ROWS, kind=kind)
    session.settle()
    if out.exists():  # a failed test's
        taken(out)
    session.start(RUNS[name][0], config, "--json", "--insecure-seed", str(SEED))
    return out


def taken(out: Path) -> np.ndarray:
    """Return a release and remove it."""
    try:
        return released(out)
    finally:
        out.unlink() if out.is_file() else shutil.rmtree(out)


def nothing_left(out: Path) -> bool:
    """Whether there is no release and no unfinished one beside its place."""
    return not out.exists() and not list(out.parent.glob(f".{out.name}.*"))


@pytest.mark.parametrize(("name", "stage", "occurrence"), named(KILLED))
def test_an_executor_killed_in_mid_pass(session, undisturbed, table, home, name, stage, occurrence):
    expected = undisturbed(name)
    out = start(session, home, name, table)
    frozen = Frozen(session, stage, occurrence, jvm=stage == HELD)
    held = session.executors()[frozen.executor]
    frozen.kill()
    assert session.answer() == 0, session.text()[-3000:]
    lost = session.executors()[frozen.executor]
    assert not lost["isActive"] and lost["removeReason"]
    tasks = session.tasks(frozen.stage)
    [failed] = [each for each in tasks if each["taskId"] == frozen.task["taskId"]]
    assert failed["status"] == "FAILED" and "ExecutorLostFailure" in failed["errorMessage"]
    again = [each for each in tasks if each["index"] == failed["index"] and each["status"] == "SUCCESS"]
    assert again and all(each["executorId"] != frozen.executor for each in again)
    # It took cached rows with it.
    assert held["diskUsed"] > 0 if name == "ihm" else held["rddBlocks"] > 0 or name != "flag"
    assert same(taken(out), expected)


@pytest.mark.parametrize(("name", "stage", "occurrence"), named(COPIED))
def test_a_copy_of_a_slow_task(racing, undisturbed, table, home, name, stage, occurrence):
    """The executor on one host hangs; Spark starts copies of its tasks on the other one, and they win."""
    expected = undisturbed(name)
    out = start(racing, home, name, table)
    frozen = Frozen(racing, stage, occurrence)

    def copy() -> list[dict[str, Any]]:
        tasks = [each for each in racing.tasks(frozen.stage) if each["index"] == frozen.task["index"]]
        return [each for each in tasks if each["speculative"] and each["status"] == "SUCCESS"]

    [won] = until(copy, "a copy that wins")
    frozen.resume()
    assert racing.answer() == 0, racing.text()[-3000:]
    executors = racing.executors()
    hosts = {executors[each]["hostPort"].split(":")[0] for each in (won["executorId"], frozen.executor)}
    assert hosts == set(HOSTS)
    number = frozen.task["taskId"]
    until(
        lambda: (number, "KILLED") in [(each["taskId"], each["status"]) for each in racing.tasks(frozen.stage)], "end"
    )
    assert same(taken(out), expected)


def test_cached_rows_that_vanish(session, undisturbed, table, home, cluster):
    """Blocks are dropped from an executor's disk while it lives, between two passes over them."""
    expected = undisturbed("ihm")
    out = start(session, home, "ihm", table)
    frozen = Frozen(session, PASS, 3)
    # Delta keeps the state of its tables in memory; rows are kept on disk.
    [cached] = [each for each in session.rest("storage/rdd") if each["diskUsed"]]
    blocks = [file for file in cluster.scratch() if file.name.startswith(f"rdd_{cached['id']}_")]
    assert cached["numCachedPartitions"] == len(blocks) >= 4
    for file in blocks:
        file.unlink()
    frozen.resume()
    assert session.answer() == 0, session.text()[-3000:]
    lost = [each for stage in session.stages(session.first_stage - 1) for each in session.tasks(stage["stageId"])]
    assert any(each["status"] == "FAILED" and "rdd_" in each.get("errorMessage", "") for each in lost)
    assert same(taken(out), expected)


@pytest.mark.parametrize(("name", "stage", "occurrence"), named(CHANGED))
def test_an_input_that_changes_in_mid_run(session, table, home, tmp_path, name, stage, occurrence):
    """Refused with exit code 4, in whatever pass it happens, and nothing is published."""
    own = example.linked(table, tmp_path / "rows")
    out = start(session, home, name, own)
    frozen = Frozen(session, stage, occurrence)
    # One file more, or another one in the place of one: as many rows, of the same keys.
    replaced = occurrence % 2 == 0
    part = example.part(3 if replaced else NUM_FILES, ROWS_A_FILE, seed=1)
    part.to_parquet(tmp_path / "new.parquet")
    (tmp_path / "new.parquet").rename(own / ("03.parquet" if replaced else "new.parquet"))
    frozen.resume()
    before = len(session.text())
    assert session.answer() == 4, session.text()[-3000:]
    assert re.search("input changed while it was read|input file can't be read", session.text()), before
    assert nothing_left(out)


def test_a_delta_input_is_read_in_its_first_version(session, table, home, tmp_path):
    own = example.linked(table, tmp_path / "rows")
    example.as_delta(own)
    releases = []
    for disturb in (False, True):
        out = start(session, home, "rows", own, kind="delta")
        if disturb:
            frozen = Frozen(session, PASS, 2)
            example.append_to_delta(own, example.part(NUM_FILES, ROWS_A_FILE))
            frozen.resume()
        assert session.answer() == 0, session.text()[-3000:]
        releases.append(taken(out))
    assert same(releases[1], releases[0])
    assert (own / "_delta_log" / f"{1:020}.json").exists()


def test_too_many_losses_publish_nothing(cluster, table, home, tmp_path):
    """With a real secret, and a task that may not fail once: exit code 5, and nothing is there."""
    config = configuration(home, "factor", table, home / "factor", num_rows=NUM_ROWS)
    session = Session(cluster, tmp_path / "session", CONF | {"spark.task.maxFailures": "1"})
    try:
        session.start("aggregate", config, "--json")
        frozen = Frozen(session, WRITE)
        frozen.kill()
        assert session.answer() == 5, session.text()[-3000:]
        assert not session.executors()[frozen.executor]["isActive"]
    finally:
        session.close()
    assert "Spark stopped" in session.text() and "Traceback" not in session.text()
    assert nothing_left(home / "factor")
