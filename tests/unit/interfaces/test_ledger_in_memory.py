"""Releases and fits of tables in memory with a ledger: charged before labels count, refused, and never forgotten."""

import json
from pathlib import Path

import pytest

import dpagg
from dpagg.errors import ConfigError, PrivacyError
from dpagg.ledger import FileStore, Ledger
from tests.unit.interfaces.test_notebook import ASKED, FLAG, LAG, PRIVACY, SCHEMA, frame


@pytest.fixture
def ledger(tmp_path):
    section = {"path": str(tmp_path / "ledger"), "dataset": "ads", "partition": "day", "disjoint": True}
    return section | {"budget": {"epsilon": 1.2, "delta": 1e-5}}


def states(ledger):
    return [charge.state for charge in Ledger(FileStore(Path(ledger["path"]))).book().charges("ads")]


def test_a_release_is_charged_and_the_next_is_over_budget(ledger, tmp_path, monkeypatch):
    release = dpagg.aggregate(frame(), **ASKED, ledger=ledger, output=tmp_path / "out")
    assert states(ledger) == ["settled"]
    stated = release.certificate["ledger"]
    book = Ledger(FileStore(tmp_path / "ledger")).book()
    assert book.entries[stated["entry"] - 1].hash == stated["head"] and stated["budget"] == ledger["budget"]
    assert json.loads((tmp_path / "out" / "_certificate.json").read_text())["ledger"] == stated

    # Over budget: no label is read, nothing is written.
    monkeypatch.setattr("dpagg.local.rows.LocalRows.labelled_pass", lambda *_: pytest.fail("labels were read"))
    with pytest.raises(PrivacyError, match=r"over budget.*of 1.2 is left"):
        dpagg.aggregate(frame(), **ASKED, ledger=ledger, output=tmp_path / "second")
    assert not (tmp_path / "second").exists() and states(ledger) == ["settled"]
    # Another day has a budget of its own, another budget is refused, and so is a release that protects nobody.
    monkeypatch.undo()
    dpagg.aggregate(frame(), **ASKED, ledger=ledger | {"partition": "next"})
    assert states(ledger) == ["settled", "settled"]
    with pytest.raises(PrivacyError, match=r"epsilon 9\.0 is given"):
        dpagg.aggregate(frame(), **ASKED, ledger=ledger | {"budget": {"epsilon": 9, "delta": 1e-5}})
    with pytest.raises(PrivacyError, match="protects nobody"):
        dpagg.aggregate(frame(), **ASKED, ledger=ledger | {"partition": "third"}, insecure_seed=1)


def test_a_call_that_ends_anywhere_costs_no_less_than_what_left(ledger, tmp_path, monkeypatch):
    def gone(*_arguments, **_more):
        raise OSError("gone")

    for target, left in [
        ("dpagg.local.rows.LocalRows.labelled_pass", ["reserved"]),
        ("dpagg.interfaces.saving.save_release", ["reserved", "publishing"]),
    ]:
        monkeypatch.setattr(target, gone)
        with pytest.raises(OSError, match="gone"):
            small = {"privacy": PRIVACY | {"epsilon": 0.3}}
            dpagg.aggregate(frame(), **ASKED | small, ledger=ledger, output=tmp_path / "out")
        monkeypatch.undo()
        assert states(ledger) == left
    # Each call is a release of its own: what an earlier one reserved stays spent.
    dpagg.aggregate(frame(), **ASKED | small, ledger=ledger, output=tmp_path / "out")
    assert states(ledger) == ["reserved", "publishing", "settled"]


@pytest.mark.parametrize("mechanism", [FLAG, LAG], ids=lambda each: each["name"])
def test_bags_are_charged_before_labels_are_read(ledger, mechanism, monkeypatch):
    asked = ASKED | {"mechanism": mechanism, "row_id": "key"}
    few = ledger | {"budget": {"epsilon": 0.1, "delta": 1e-5}}
    for name in ("weighted_bag_sums", "noisy_label_bags"):
        monkeypatch.setattr(f"dpagg.local.rows.LocalRows.{name}", lambda *_: pytest.fail("labels were read"))
    with pytest.raises(PrivacyError, match="over budget"):
        dpagg.aggregate(frame(), **asked, ledger=few)
    monkeypatch.undo()
    dpagg.aggregate(frame(), **asked, ledger=ledger | {"dataset": "bags"})
    assert [entry.kind for entry in FileStore(Path(ledger["path"])).read()][-1] == "settled"


def test_fits_are_charged_to_a_budget_for_rows(ledger):
    asked = {"schema": SCHEMA, "privacy": PRIVACY | {"adjacency": "zero_out_one_row", "num_rows": 800}}
    found = dpagg.fit(frame(), **asked, ledger=ledger)
    assert states(ledger) == ["settled"] and found.certificate["ledger"]["dataset"] == "ads"
    with pytest.raises(PrivacyError, match="is for zero_out_one_row"):
        dpagg.aggregate(frame(), **ASKED, ledger=ledger)
    with pytest.raises(ConfigError, match="ledger: a fit of a release costs nothing"):
        dpagg.fit(dpagg.aggregate(frame(), **ASKED), ledger=ledger)
