"""A full disk at each write: nothing half-published, no spend hidden, and a rerun that is right once there is room."""

import json
import os
import subprocess
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.cli import run
from dpagg.ledger import Ledger
from dpagg.spark.ledger_store import DeltaStore

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path):
    """A file system of 6 MB, and functions that fill it and make room."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small file system needs the right to mount one")
    filler = folder / "filler"

    def fill():
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    yield folder, fill, lambda: filler.unlink(missing_ok=True)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # Java may hold a file open a little longer


def prepared(tmp_path, ledger, out):
    rng = np.random.default_rng(3)
    price = rng.uniform(0, 100, 500)
    sale = np.clip(0.3 * price + rng.normal(0, 5, 500), 0, 50)
    pd.DataFrame({"price": price, "sale": sale}).to_parquet(tmp_path / "table.parquet")
    config = {
        "input": {"path": str(tmp_path / "table.parquet"), "format": "parquet"},
        "schema": {
            "features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "wtd-flag", "num_bags": 40},
        "privacy": {"epsilon": 0.3, "delta": 1e-7},
        "output": {"path": str(out)},
        "ledger": {
            "path": str(ledger), "dataset": "ads", "partition": "day", "budget": {"epsilon": 1.0, "delta": 1e-6},
        },
    }  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    return ["aggregate", str(tmp_path / "config.yaml")]


def states(spark, ledger):
    return [charge.state for charge in Ledger(DeltaStore(spark, str(ledger))).book().charges("ads")]


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("dpagg.runs.charging.Account.charge", []),
        ("dpagg.runs.charging.Account.publishing", ["reserved"]),
        ("dpagg.runs.charging.Account.settle", ["publishing"]),
    ],
)
def test_no_room_for_the_ledger(disk, spark, tmp_path, monkeypatch, capfd, before, left):
    folder, fill, free = disk
    ledger, out = folder / "ledger", tmp_path / "out" / "release"
    command = prepared(tmp_path, ledger, out)
    # The table is there, so that a full disk is met by an entry and not by its making.
    assert run(["ledger", "init", str(ledger), "--dataset", "ads", "--epsilon", "1", "--delta", "1e-6"]) == 0
    owner, name = before.rsplit(".", 1)
    from dpagg.runs.charging import Account

    original = getattr(Account, name)

    def filled(self, *arguments):
        fill()
        return original(self, *arguments)

    monkeypatch.setattr(before, filled)
    assert run(command) == 5 and owner
    said = capfd.readouterr().err
    assert "ledger.path" in said and "Traceback" not in said
    monkeypatch.undo()
    free()
    assert states(spark, ledger) == left
    # Files are there only if the ledger said so before.
    assert out.exists() == (left == ["publishing"])
    before_rerun = (out / "_certificate.json").read_text() if out.exists() else None
    assert run(command) == 0
    assert states(spark, ledger) == ["settled"]
    promise = (out / "_certificate.json").read_text()
    assert before_rerun in (None, promise) and json.loads(promise)["private"]


def test_no_room_for_a_new_ledger(disk, spark, tmp_path, capfd):
    folder, fill, free = disk
    command = prepared(tmp_path, folder / "ledger", tmp_path / "out" / "release")
    fill()
    assert run(command) == 5
    assert "ledger.path" in capfd.readouterr().err and not (tmp_path / "out" / "release").exists()
    free()
    assert run(command) == 0 and states(spark, folder / "ledger") == ["settled"]


@pytest.mark.parametrize("what", ["data", "certificate"])
def test_no_room_for_the_release(disk, spark, tmp_path, monkeypatch, capfd, what):
    folder, fill, free = disk
    ledger, out = tmp_path / "ledger", folder / "out" / "release"
    command = prepared(tmp_path, ledger, out)
    where = {"data": "dpagg.spark.delta._new_staging", "certificate": "dpagg.spark.delta._write_text"}[what]
    from dpagg.spark import delta

    original, calls = getattr(delta, where.rsplit(".", 1)[1]), []

    def filled(*arguments):
        calls.append(arguments)
        made = original(*arguments) if what == "data" else None
        # The first folder is the one that is tried before any label is read.
        if what == "certificate" or len(calls) > 1:
            fill()
        return made if what == "data" else original(*arguments)

    monkeypatch.setattr(where, filled)
    assert run(command) == 5
    assert "while the release was written" in capfd.readouterr().err
    monkeypatch.undo()
    free()
    assert states(spark, ledger) == ["publishing"] and not out.exists()
    assert os.listdir(folder / "out") == []
    assert run(command) == 0
    assert states(spark, ledger) == ["publishing", "settled"] and len(pd.read_parquet(out)) == 40


def test_no_room_for_a_model(disk, spark, tmp_path, monkeypatch, capfd):
    folder, fill, free = disk
    prepared(tmp_path, tmp_path / "ledger", folder / "model.json")
    content = yaml.safe_load((tmp_path / "config.yaml").read_text())
    content["privacy"] |= {"adjacency": "zero_out_one_row", "num_rows": 500}
    del content["mechanism"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(content))
    fill()
    assert run(["fit", str(tmp_path / "config.yaml")]) == 5
    assert "No space left" in capfd.readouterr().err
    free()
    assert os.listdir(folder) == [] and states(spark, tmp_path / "ledger") == ["publishing"]
    assert run(["fit", str(tmp_path / "config.yaml")]) == 0
    assert states(spark, tmp_path / "ledger") == ["publishing", "settled"]
