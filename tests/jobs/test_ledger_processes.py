"""The ledger under real processes: two that race for the last budget, and drivers that are killed at each stage."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.cli import run
from dpagg.ledger import Ledger
from dpagg.spark.ledger_store import DeltaStore

ROUNDS = 20

RACER = """
import sys, time
from pathlib import Path
from dpagg.accounting import GaussianRelease
from dpagg.errors import PrivacyError
from dpagg.ledger import Ledger, Request
from dpagg.spark.ledger_store import DeltaStore
from dpagg.spark.session import SessionSettings, spark_session

folder, me, other, rounds = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
spark = spark_session(SessionSettings(cores=1, driver_memory="700m"))
event = GaussianRelease(mu=0.18)
for i in range(rounds):
    request = Request(
        dataset=f"round {i}", partition="day", release_id=f"{me} {i}", event=event, unit="one label",
        adjacency="change_one_label", epsilon=0.9, delta=event.delta(0.9), budget_epsilon=1.0, budget_delta=1e-6,
    )
    ledger = Ledger(DeltaStore(spark, str(folder / "ledger")))
    (folder / f"ready-{me}-{i}").touch()
    waited_until = time.monotonic() + 1200
    while not (folder / f"ready-{other}-{i}").exists():
        assert time.monotonic() < waited_until, "the other process is gone"
        time.sleep(0.001)
    try:
        ledger.charge(request)
        print(i, "won", flush=True)
    except PrivacyError as error:
        assert "over budget" in str(error), error
        print(i, "refused", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_processes_race_for_the_last_budget_and_one_wins_each_time(tmp_path, spark):
    # Each fits into epsilon 1 at delta 1e-6 by itself, and two do not.
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    pairs = [("a", "b"), ("b", "a")]
    runs = [
        subprocess.Popen([*command, *pair, str(ROUNDS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for pair in pairs
    ]
    try:
        said = [process.communicate(timeout=3000) for process in runs]
    finally:
        for process in runs:
            process.kill()
    assert [process.returncode for process in runs] == [0, 0], said
    outcomes = [dict(line.split(" ") for line in out.splitlines()) for out, _ in said]
    assert [{one[str(i)], two[str(i)]} for one, two in [outcomes] for i in range(ROUNDS)] == [
        {"won", "refused"}
    ] * ROUNDS
    book = Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book()
    assert [len(book.charges(f"round {i}")) for i in range(ROUNDS)] == [1] * ROUNDS


# Where the driver dies, and the states of its charges after a rerun.
STAGES = {
    "before the charge": ("dpagg.runs.charging.Account.charge", ["settled"]),
    "after the charge": ("dpagg.runs.aggregate._draw", ["settled"]),
    "after the pass over labels": ("dpagg.runs.aggregate._require_same_rows", ["settled"]),
    "before the first file": ("dpagg.spark.delta.publish", ["publishing", "settled"]),
    "mid-write": ("dpagg.spark.delta.move_new", ["publishing", "settled"]),
    "after the commit": ("dpagg.runs.charging.Account.settle", ["settled"]),
}

VICTIM = """
import os, signal, sys
from unittest import mock
from dpagg.cli import run

def die(*_arguments, **_more):
    os.kill(os.getpid(), signal.SIGKILL)

with mock.patch(sys.argv[1], die):
    sys.exit(run(["aggregate", sys.argv[2]]))
"""


def prepared(tmp_path):
    rng = np.random.default_rng(3)
    price = rng.uniform(0, 100, 500)
    sale = np.clip(0.3 * price + rng.normal(0, 5, 500), 0, 50)
    pd.DataFrame({"price": price, "sale": sale}).to_parquet(tmp_path / "table.parquet")
    config = textwrap.dedent(
        f"""
        input: {{path: {tmp_path}/table.parquet, format: parquet}}
        schema:
          features: [{{name: price, type: numeric, lower: 0, upper: 100}}]
          label: {{name: sale, lower: 0, upper: 50, missing: {{constant: 0}}}}
        mechanism: {{name: wtd-flag, num_bags: 40}}
        privacy: {{epsilon: 0.3, delta: 1.0e-7}}
        output: {{path: {tmp_path}/out/release}}
        ledger: {{path: {tmp_path}/ledger, dataset: ads, partition: day, budget: {{epsilon: 1, delta: 1.0e-6}}}}
        """
    )
    yaml.safe_load(config)
    (tmp_path / "config.yaml").write_text(config)
    return tmp_path / "config.yaml"


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_driver_never_hides_a_spend_and_the_rerun_is_right(tmp_path, spark, stage):
    config = prepared(tmp_path)
    target, states = STAGES[stage]
    killed = subprocess.run(
        [sys.executable, "-c", VICTIM, target, str(config)], capture_output=True, text=True, timeout=1500
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    there = (tmp_path / "out" / "release").exists()
    assert there == (stage == "after the commit")
    before = (tmp_path / "out" / "release" / "_certificate.json").read_text() if there else None

    assert run(["aggregate", str(config)]) == 0
    book = Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book()
    assert [charge.state for charge in book.charges("ads")] == states
    promise = (tmp_path / "out" / "release" / "_certificate.json").read_text()
    assert before in (None, promise)
    stated = json.loads(promise)["ledger"]
    assert book.entries[stated["entry"] - 1].hash == stated["head"]
    assert len(pd.read_parquet(tmp_path / "out" / "release")) == 40
    assert os.listdir(tmp_path / "out") == ["release"]
