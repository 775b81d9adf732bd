"""Releases with a ledger: charged once, charged again, refused; what the certificate and the commands say."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.cli import run
from dpagg.errors import EnvironmentFault
from dpagg.ledger import Ledger
from dpagg.spark.ledger_store import DeltaStore

ROWS = 600


def settings(folder, **changes):
    found = {
        "input": {"path": str(folder / "table.parquet"), "format": "parquet", "row_id": "key"},
        "schema": {
            "features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "wtd-flag", "num_bags": 50},
        "privacy": {"epsilon": 0.6, "delta": 1e-7, "floor": {"kind": "noise"}},
        "output": {"path": str(folder / "out")},
        "ledger": {
            "path": str(folder / "ledger"),
            "dataset": "ads",
            "partition": "2026-11-28",
            "disjoint": True,
            "budget": {"epsilon": 1.0, "delta": 1e-6},
        },
    }
    for path, value in changes.items():
        section, _, last = path.partition("__")
        if last:
            found[section] = {**found[section], last: value}
        elif value is None:
            del found[section]
        else:
            found[section] = value
    return found


@pytest.fixture
def attempt(spark, tmp_path, capfd):
    rng = np.random.default_rng(3)
    price = rng.uniform(0, 100, ROWS)
    sale = np.clip(0.3 * price + rng.normal(0, 5, ROWS), 0, 50)
    pd.DataFrame({"key": np.arange(ROWS), "price": price, "sale": sale}).to_parquet(tmp_path / "table.parquet")

    def go(*arguments, **changes):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(tmp_path, **changes)))
        capfd.readouterr()
        code = run(["aggregate", str(tmp_path / "config.yaml"), "--json", *arguments])
        return code, capfd.readouterr().err

    return go


def charges(spark, tmp_path):
    return [(c.partition, c.state) for c in Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book().charges("ads")]


def test_a_release_is_charged_and_a_rerun_is_not(attempt, spark, tmp_path, capfd, monkeypatch, caplog):
    assert attempt()[0] == 0 and "ledger is new" in caplog.text
    caplog.clear()
    assert attempt() == (0, "") and "is new" not in caplog.text
    assert charges(spark, tmp_path) == [("2026-11-28", "settled")]
    stated = json.loads((tmp_path / "out" / "_certificate.json").read_text())["ledger"]
    book = Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book()
    assert stated["head"] == book.entries[stated["entry"] - 1].hash and stated["dataset"] == "ads"

    # Over budget: 3, what is left and asked, and the pass over labels is never reached.
    monkeypatch.setattr("dpagg.runs.aggregate._draw", lambda *_: pytest.fail("labels were read"))
    code, err = attempt(output__path=str(tmp_path / "second"), privacy__epsilon=1.1)
    assert code == 3 and "over budget" in err and "of 1 is left" in err and "asked is epsilon 1.1 " in err
    assert not (tmp_path / "second").exists()
    code, err = attempt(output__path=str(tmp_path / "second"), ledger__budget={"epsilon": 2.0, "delta": 1e-6})
    assert code == 3 and "epsilon 2.0 is given" in err
    monkeypatch.undo()
    assert attempt("--insecure-seed", "1", output__path=str(tmp_path / "second"))[0] == 3
    later = {"output__path": str(tmp_path / "second"), "ledger__partition": "2026-11-29", "privacy__epsilon": 1.0}
    assert attempt(**later) == (0, "")
    assert len(charges(spark, tmp_path)) == 2
    assert "2026-11-28, entry 3" in (tmp_path / "out" / "_report.html").read_text()

    ledger = str(tmp_path / "ledger")
    capfd.readouterr()
    assert run(["ledger", "show", ledger, "--json"]) == 0
    [shown] = json.loads(capfd.readouterr().out)["datasets"]
    assert shown["charges"] == {"settled": 2} and shown["in_partition"] == "2026-11-29"
    assert 0.02 < shown["remaining"] < 0.3
    known = ["--certificate", str(tmp_path / "out"), "--certificate", str(tmp_path / "second")]
    assert run(["ledger", "check", ledger, *known]) == 0
    assert run(["ledger", "show", ledger]) == 0 and "2 settled" in capfd.readouterr().out
    spark.sql(f"RESTORE TABLE delta.`{ledger}` TO VERSION AS OF 2")
    assert run(["ledger", "check", ledger, *known]) == 3
    assert "RESTORE" in capfd.readouterr().out
    # A finished release is not taken for granted by a ledger that forgot it.
    code, err = attempt(**later)
    assert code == 3 and "RESTORE" in err


@pytest.mark.slow
def test_a_run_that_ends_anywhere_costs_no_less_than_what_left(attempt, spark, tmp_path, monkeypatch):
    def gone(*_arguments, **_more):
        raise EnvironmentFault("gone")

    for target, states in [
        ("dpagg.runs.aggregate._draw", ["reserved"]),
        ("dpagg.spark.delta.publish", ["publishing"]),  # the reserved one, which goes on
        ("dpagg.ledger.Ledger.settle", ["publishing", "publishing"]),  # charged anew, published, not settled
    ]:
        monkeypatch.setattr(target, gone)
        assert attempt(privacy__epsilon=0.2)[0] == 5
        monkeypatch.undo()
        assert [state for _, state in charges(spark, tmp_path)] == states
    assert attempt(privacy__epsilon=0.2) == (0, "")
    assert [state for _, state in charges(spark, tmp_path)] == ["publishing", "settled"]


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "sampled-wtd-flag", "bag_size": 40},
        pytest.param({"name": "sampled-noisy-wtd-lag", "bag_size": 20, "noised_fraction": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_sampled_releases_are_charged_before_labels_are_read(attempt, spark, tmp_path, mechanism, monkeypatch):
    few = {"mechanism": mechanism, "ledger__budget": {"epsilon": 0.1, "delta": 1e-6}}
    for name in ("weighted_bag_sums", "noisy_label_bags"):
        monkeypatch.setattr(f"dpagg.spark.bagging.{name}", lambda *_: pytest.fail("labels were read"))
    code, err = attempt(**few)
    assert code == 3 and "over budget" in err
    monkeypatch.undo()
    assert attempt(mechanism=mechanism)[0] == 0
    assert charges(spark, tmp_path) == [("2026-11-28", "settled")]
    promise = json.loads((tmp_path / "out" / "_certificate.json").read_text())
    [charge] = Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book().charges("ads")
    assert promise["event"] == charge.event.to_dict() and promise["ledger"]["charge"] == charge.number
    assert run(["certificate", "verify", str(tmp_path / "out")]) == 0
