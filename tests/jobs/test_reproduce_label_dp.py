"""``dpagg reproduce label-dp`` as a user runs it: on stand-ins and a real set, killed on the way, and again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def command(data: Path, out: Path, *more: str) -> list[str]:
    code = "import sys; from dpagg.cli import run; sys.exit(run(sys.argv[1:]))"
    settings = ["--synthetic", "6000", "--sets", "census,wine", "--epsilons", "1,10", "--trials", "2"]
    given = ["reproduce", "label-dp", "--data", str(data), "--out", str(out), *settings, *more]
    return [sys.executable, "-c", code, *given]


def cells(out: Path) -> list[str]:
    return [line for file in sorted((out / "cells").glob("*.jsonl")) for line in file.read_text().splitlines()]


def test_goes_on_after_a_kill_and_says_what_it_found(tmp_path: Path, shared_data: Path) -> None:
    out, environment = tmp_path / "out", os.environ | {"PYTHONPATH": str(ROOT)}
    running = subprocess.Popen(
        command(shared_data, out), cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 600
    while not (out / "cells").exists() or len(cells(out)) < 6:
        assert running.poll() is None and time.monotonic() < deadline, running.stderr.read() if running.stderr else ""
        time.sleep(0.5)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    before = cells(out)
    assert (out / "scratch").exists() and not (out / "label_dp.json").exists()

    done = subprocess.run(
        command(shared_data, out, "--json"), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    result, after = json.loads(done.stdout), cells(out)
    assert set(before) <= set(after)  # nothing was found twice
    asked = [json.dumps(json.loads(line)["asked"], sort_keys=True) + json.loads(line)["settings"] for line in after]
    assert len(asked) == len(set(asked))
    assert result == json.loads((out / "label_dp.json").read_text()) and result["private"] is False
    assert not (out / "scratch").exists()
    assert "SYNTHETIC" in done.stderr and "min" in done.stderr

    census, wine = result["tables"]
    assert (census["is_synthetic"], wine["is_synthetic"]) == (True, False)
    assert census["facts"]["num_rows"] + census["facts"]["num_test_rows"] == 6000
    assert 0.2 <= census["facts"]["r_squared"] <= 0.5
    for table in result["tables"]:
        assert [point["epsilon"] for point in table["bags_allowed"]] == [1.0, 10.0]
        mechanisms = {each["mechanism"] for each in table["losses"]}
        assert {"wtd-flag", "wtd-flag-assumed", "label-gaussian", "label-noise"} <= mechanisms
        falls = table["checks"]["falls_with_epsilon_within_intervals"]
        assert falls["wtd-flag"] and falls["label-gaussian"] and falls["label-noise"]
        for each in table["losses"]:
            assert "refused" in each or each["delta_at_epsilon"] <= table["facts"]["delta"]
        measured = [point for point in table["factor"] if point["floor"] == "noise"]
        assert measured and all(point["theta"]["mean"] > 0 for point in measured)
    if "networks" not in result["skipped"]:
        assert any(not point["is_clean"] for point in census["networks"])
    page = (out / "label_dp.html").read_text()
    assert "SYNTHETIC: 1940 census stand-in" in page and "SYNTHETIC: wine" not in page

    written = {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()}
    again = subprocess.run(
        command(shared_data, out, "--json"), cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert json.loads(again.stdout) == result and cells(out) == after
    assert "all results are there" in again.stderr
    assert {file: file.stat().st_mtime_ns for file in (out / "cells").iterdir()} == written
