"""The ledger in a Delta table: what comes back, who wins, and what is noticed."""

import shutil
import threading
from pathlib import Path

import pytest

from dpagg.accounting import GaussianRelease
from dpagg.errors import DataError, PrivacyError
from dpagg.ledger import Conflict, Entry, Ledger, Request
from dpagg.spark import ledger_store
from dpagg.spark.ledger_store import DeltaStore


def request(release, mu=0.1, partition="day", epsilon=1.0, **changes):
    event = GaussianRelease(mu=mu)
    fields = {
        "dataset": "ads", "partition": partition, "release_id": release, "event": event, "unit": "one label",
        "adjacency": "change_one_label", "epsilon": epsilon, "delta": max(1e-30, event.delta(epsilon)),
        "budget_epsilon": 2.0, "budget_delta": 1e-6, "disjoint": True,
    }  # fmt: skip
    return Request(**fields | changes)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger")


def test_a_charge_goes_its_way_and_another_process_reads_it(spark, path):
    ledger = Ledger(DeltaStore(spark, path))
    receipt = ledger.charge(request("r1"))
    ledger.publishing(receipt)
    last = ledger.settle(receipt)
    book = Ledger(DeltaStore(spark, path)).book()
    assert [entry.kind for entry in book.entries] == ["opened", "dataset", "reserved", "publishing", "settled"]
    assert book.head == last.hash
    [charge] = book.charges("ads")
    assert charge.state == "settled" and charge.event == GaussianRelease(mu=0.1)


def test_who_decided_on_an_old_head_adds_nothing(spark, path):
    Ledger(DeltaStore(spark, path)).charge(request("r1"))
    slow, fast = DeltaStore(spark, path), DeltaStore(spark, path)
    head = slow.read()[-1]
    Ledger(fast).charge(request("r2"))
    entry = Entry(sequence=head.sequence + 1, kind="reserved", previous=head.hash, time="", run="x")
    later = Entry(sequence=head.sequence + 2, kind="reserved", previous=entry.hash, time="", run="x")
    with pytest.raises(Conflict):
        slow.append([entry, later], head.hash)
    assert [charge.release_id for charge in Ledger(fast).book().charges("ads")] == ["r1", "r2"]


def test_rows_come_back_as_spark_reads_them(spark, path, monkeypatch):
    ledger = charged(spark, path, 3)
    store = DeltaStore(spark, path)
    entries = store.read()
    # Delta's own query finds the same, where its checksum files don't list the table's files.
    monkeypatch.setattr(DeltaStore, "_listed", lambda *_: None)
    assert DeltaStore(spark, path).read() == entries == tuple(ledger.book().entries)
    monkeypatch.undo()
    [live] = {each.rpartition("/")[2] for each in spark.read.format("delta").load(path).inputFiles()}
    (Path(path) / live).write_bytes(b"PAR1")
    (Path(path) / f".{live}.crc").unlink()
    with pytest.raises(PrivacyError, match="can't be read"):
        DeltaStore(spark, path).read()


def test_what_is_done_ahead_adds_nothing_and_raises_nothing(spark, path, tmp_path, monkeypatch):
    rehearsed = []

    def rehearse(store, folder, original=DeltaStore._rehearse):
        original(store, folder)
        rehearsed.append((folder, spark.read.format("delta").load(str(folder)).count()))

    monkeypatch.setattr(DeltaStore, "_rehearse", rehearse)
    monkeypatch.setattr(ledger_store, "_REHEARSED", set())
    charged(spark, path, 1)
    store = DeltaStore(spark, path)
    found = store.read(), store.history()
    store.prepare()
    assert (store.read(), store.history()) == found
    [(folder, rows)] = rehearsed
    assert rows == 2 and not folder.exists()
    assert str(folder).startswith(spark.sparkContext.getConf().get("spark.local.dir"))
    DeltaStore(spark, str(tmp_path / "none")).prepare()
    assert not (tmp_path / "none").exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    monkeypatch.setattr(DeltaStore, "_rehearse", lambda *_: 1 / 0)
    monkeypatch.setattr(ledger_store, "_REHEARSED", set())
    DeltaStore(spark, str(tmp_path / "foreign")).prepare()
    assert not ledger_store._REHEARSED
    store.prepare()
    assert ledger_store._REHEARSED


@pytest.mark.slow
def test_threads_race_and_the_budget_holds(spark, path):
    # Each takes epsilon 0.9 at most; two of them fit into 2.0 by their sum, and composition lets no fourth in.
    Ledger(DeltaStore(spark, path)).charge(request("first", mu=0.3))
    outcomes = []

    def work(name):
        try:
            Ledger(DeltaStore(spark, path)).charge(request(name, mu=0.3))
            outcomes.append("charged")
        except PrivacyError:
            outcomes.append("refused")

    threads = [threading.Thread(target=work, args=(f"r{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    charges = Ledger(DeltaStore(spark, path)).book().charges("ads")
    assert len(outcomes) == 4 and outcomes.count("charged") == len(charges) - 1
    # mu = sqrt(k) 0.3 reaches epsilon 2 at delta 1e-6 between k = 1 and k = 3.
    assert GaussianRelease(mu=0.3 * len(charges) ** 0.5).delta(2.0) <= 1e-6
    assert GaussianRelease(mu=0.3 * (len(charges) + 1) ** 0.5).delta(2.0) > 1e-6


def charged(spark, path, count=2):
    ledger = Ledger(DeltaStore(spark, path))
    for i in range(count):
        ledger.charge(request(f"r{i}", partition=f"p{i}"))
    return ledger


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE delta.`{path}` SET content = replace(content, 'p1', 'p9') WHERE sequence = 4", "not|chain"),
        pytest.param("DELETE FROM delta.`{path}` WHERE sequence = 1", "chain", marks=pytest.mark.slow),
        pytest.param("DELETE FROM delta.`{path}` WHERE sequence = 4", "head|chain", marks=pytest.mark.slow),
        pytest.param("DELETE FROM delta.`{path}` WHERE id = 'head'", "head", marks=pytest.mark.slow),
        pytest.param("RESTORE TABLE delta.`{path}` TO VERSION AS OF 0", "RESTORE", marks=pytest.mark.slow),
        pytest.param("UPDATE delta.`{path}` SET id = id", "UPDATE", marks=pytest.mark.slow),
    ],
)
def test_a_changed_table_is_noticed_and_nothing_is_charged(spark, path, change, said):
    ledger = charged(spark, path)
    spark.sql(change.format(path=path))
    with pytest.raises(PrivacyError, match=said):
        ledger.charge(request("r9", partition="p9"))


def test_missing_history_is_noticed(spark, path, tmp_path):
    ledger = charged(spark, path)
    (tmp_path / "ledger/_delta_log/00000000000000000000.json").unlink()
    with pytest.raises(PrivacyError, match="beginning"):
        ledger.book()
    for file in (tmp_path / "ledger/_delta_log").glob("*.*"):
        file.unlink()
    for file in (tmp_path / "ledger/_delta_log").glob(".*.crc"):
        file.unlink()
    with pytest.raises(PrivacyError, match="holds no commit"):
        ledger.book()
    shutil.rmtree(tmp_path / "ledger/_delta_log")
    with pytest.raises(PrivacyError, match="without the log"):
        ledger.charge(request("r9"))


@pytest.mark.slow
def test_maintenance_is_no_tampering(spark, path):
    ledger = charged(spark, path)
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark.sql(f"VACUUM delta.`{path}`")
    ledger.charge(request("r9", partition="p9"))
    assert len(ledger.book().charges("ads")) == 3


def test_an_unknown_format_and_a_foreign_table_are_refused(spark, path, tmp_path):
    ledger = charged(spark, path, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('dpagg.ledger' = '7')")
    with pytest.raises(DataError, match=r"version 7.*newer"):
        ledger.charge(request("r9"))
    other = str(tmp_path / "other")
    spark.range(3).write.format("delta").save(other)
    with pytest.raises(PrivacyError, match="did not make"):
        Ledger(DeltaStore(spark, other)).book()


def test_settings_of_the_session_are_as_before(spark, path):
    charged(spark, path, 1)  # Delta keeps what it saw last among the settings
    before = dict(spark.conf.getAll)
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    charged(spark, path, 2)
    changed = {name for name, value in dict(spark.conf.getAll).items() if before.get(name) != value}
    assert changed - {"spark.databricks.delta.lastCommitVersionInSession"} == {"spark.sql.shuffle.partitions"}
    assert spark.conf.get("spark.sql.shuffle.partitions") == "7"


@pytest.mark.parametrize(("scheme", "warned"), [("s3a", True), ("gs", False)])
def test_a_store_without_atomic_commits_is_warned_of(monkeypatch, caplog, spark, scheme, warned):
    monkeypatch.setattr("dpagg.spark.ledger_store.qualified", lambda _, path: path)
    DeltaStore(spark, f"{scheme}://bucket/ledger")
    said = [record.message for record in caplog.records if "overwrite each other" in record.message]
    assert bool(said) == warned
    caplog.clear()
    spark.conf.set(f"spark.delta.logStore.{scheme}.impl", "io.delta.storage.S3DynamoDBLogStore")
    DeltaStore(spark, f"{scheme}://bucket/ledger")
    assert not caplog.records
