"""The ledger in a Delta table: what comes back, who wins, and what is noticed."""

import errno
import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from dpagg.accounting import GaussianRelease
from dpagg.errors import DataError, EnvironmentFault, PrivacyError
from dpagg.ledger import Conflict, Entry, Ledger, Request
from dpagg.ledger.entries import START
from dpagg.runs.ledgers import check_ledger
from dpagg.spark.files import locked
from dpagg.spark.ledger_store import _SCHEMA, DeltaStore, _rows


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


def test_an_append_is_on_disk_when_it_returns(spark, path, monkeypatch):
    """A power cut can't be run: what is written through is watched. A disk that fails then is no success."""
    synced, sync = set(), os.fsync

    def watched(descriptor):
        synced.add(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    charged(spark, path, 1)
    assert {str(file) for file in Path(path).rglob("*")} | {path, str(Path(path).parent)} <= synced

    def failing(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(EnvironmentFault, match="its disk does not keep it"):
        Ledger(DeltaStore(spark, path)).charge(request("r2"))
    # It counts all the same.
    assert len(Ledger(DeltaStore(spark, path)).book().charges("ads")) == 2


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


def test_rows_come_back_as_spark_reads_them(spark, path):
    ledger = charged(spark, path, 3)
    entries = DeltaStore(spark, path).read()
    rows = spark.read.format("delta").load(path).orderBy("sequence").collect()
    assert "\n".join(row.content for row in rows if row.id != "head") == "\n".join(entry.text for entry in entries)
    # Delta's own query finds the files where its checksum files don't list them.
    for file in (Path(path) / "_delta_log").glob("*.crc"):
        file.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert DeltaStore(spark, path).read() == entries == tuple(ledger.book().entries)
    ledger.charge(request("r4", partition="p4"))
    assert DeltaStore(spark, path).read()[: len(entries)] == entries
    [live] = {each.rpartition("/")[2] for each in spark.read.format("delta").load(path).inputFiles()}
    (Path(path) / live).write_bytes(b"PAR1")
    for change in (Path(path) / f".{live}.crc", Path(path) / live):
        with pytest.raises(PrivacyError, match="missing or damaged"):
            DeltaStore(spark, path).read()
        change.unlink()
    with pytest.raises(PrivacyError, match="missing or damaged"):
        DeltaStore(spark, path).read()


def test_what_is_read_ahead_raises_nothing(spark, path, tmp_path):
    Ledger(DeltaStore(spark, str(tmp_path / "none"))).read_ahead()
    assert not (tmp_path / "none").exists()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "file").touch()
    foreign = Ledger(DeltaStore(spark, str(tmp_path / "foreign")))
    foreign.read_ahead()
    with pytest.raises(PrivacyError, match="without the log"):
        foreign.charge(request("r9"))


def test_an_append_is_one_commit_that_replaces_the_file_which_was_read(spark, path):
    """A file that comes to be after the reading, by whatever hand, belongs to no entry that was checked."""
    charged(spark, path)
    store = DeltaStore(spark, path)
    before, versions = store.read(), len(store.history())
    Ledger(store).charge(request("r9", partition="p9"))
    assert store.read()[: len(before)] == before and len(store.history()) == versions + 1
    assert len(spark.read.format("delta").load(path).inputFiles()) == 1
    assert {row.id for row in spark.read.format("delta").load(path).collect()} == {"head", "1", "4", "5"}
    spark.sql(f"INSERT INTO delta.`{path}` SELECT id, sequence, hash, content FROM delta.`{path}` WHERE id = '4'")
    entry = Entry(sequence=6, kind="reserved", previous=store._seen.last, time="", run="x")
    with pytest.raises(Conflict):
        store.append([entry], entry.previous)
    assert len(store.history()) == versions + 2


@pytest.mark.parametrize("created", [False, True])
def test_of_two_that_read_one_version_delta_lets_one_commit(spark, path, created):
    if created:
        charged(spark, path, 1)
    slow, fast = DeltaStore(spark, path), DeltaStore(spark, path)
    seen = slow.read()
    charged_first = Ledger(fast)
    charged_first.charge(request("fast", partition="p5"))
    entry = Entry(sequence=len(seen) + 1, kind="opened", previous=seen[-1].hash if seen else START, time="", run="x")
    with pytest.raises(Conflict):
        slow.append([entry], entry.previous)
    assert [charge.release_id for charge in charged_first.book().charges("ads")][-1] == "fast"
    assert [row["operation"] for row in fast.history()] == ["UPDATE"] * (created + 1)


def test_on_a_mounted_disk_one_commits_at_a_time(spark, path, monkeypatch, caplog):
    """Delta's own commit there is a look and a rename, between which another one may rename: both would win."""
    ledger = charged(spark, path, 1)
    store = DeltaStore(spark, path)
    seen, files = store.read(), set(Path(path).rglob("*"))
    entry = Entry(sequence=len(seen) + 1, kind="reserved", previous=seen[-1].hash, time="", run="x")
    with locked(f"{path}/_delta_log/.lock") as is_ours, pytest.raises(Conflict):
        assert is_ours
        store.append([entry], entry.previous)
    assert set(Path(path).rglob("*")) == files
    # A file system without locks stops no driver, as S3 doesn't.
    assert not caplog.records

    def unknown(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", unknown)
    ledger.charge(request("r1", partition="p1"))
    assert "has no locks" in caplog.text and len(ledger.book().charges("ads")) == 2


def test_a_ledger_that_another_process_makes_at_the_same_moment_is_found(spark, path):
    class Slow(DeltaStore):
        def _require_whole_log(self):
            super()._require_whole_log()
            if not Path(path).exists():
                charged(spark, path, 1)

    assert [entry.kind for entry in Slow(spark, path).read()] == ["opened", "dataset", "reserved"]


def test_a_first_commit_that_was_cut_short_is_no_ledger_yet(spark, path):
    """Its file is there before its version, for a moment or after a kill; nothing was released under it."""
    store = DeltaStore(spark, path)
    store.read()
    store._write(
        pa.Table.from_pylist(
            _rows([Entry(sequence=1, kind="opened", previous=START, time="", run="x")], store._seen), _SCHEMA
        )
    )
    (Path(path) / "part-cut.snappy.parquet").touch()
    assert DeltaStore(spark, path).read() == ()
    (Path(path) / "_delta_log").mkdir()
    assert len(charged(spark, path, 1).book().charges("ads")) == 1
    # One that has more than a first commit was made by somebody's hand.
    charged(spark, path, 2)
    shutil.rmtree(Path(path) / "_delta_log")
    with pytest.raises(PrivacyError, match="without the log"):
        DeltaStore(spark, path).read()


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
        ("INSERT INTO delta.`{path}` VALUES ('x', NULL, NULL, NULL)", "lacks a value"),
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
    with pytest.raises(PrivacyError, match="without the log"):
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
    # In between, too: the entry goes to a later version than its head names.
    store = DeltaStore(spark, path)
    seen = store.read()
    spark.sql(f"VACUUM delta.`{path}`")
    entry = Entry(
        sequence=len(seen) + 1,
        kind="dataset",
        previous=seen[-1].hash,
        time="",
        run="x",
        dataset="other",
        body={"epsilon": 1.0, "delta": 1e-6, "adjacency": "change_one_label", "unit": "x", "disjoint": False},
    )
    store.append([entry], entry.previous)
    assert [row["operation"] for row in store.history()[:3]] == ["UPDATE", "VACUUM END", "VACUUM START"]
    assert set(ledger.book().terms) == {"ads", "other"}
    # A checkpoint takes nothing from the history.
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path).checkpoint()
    ledger.charge(request("r10", partition="p10"))
    assert len(ledger.book().charges("ads")) == 4 and check_ledger(spark, path)["holds"]
    spark.sql(f"UPDATE delta.`{path}` SET id = id")
    with pytest.raises(PrivacyError, match="UPDATE"):
        ledger.book()


def test_an_unknown_format_and_a_foreign_table_are_refused(spark, path, tmp_path):
    ledger = charged(spark, path, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('dpagg.ledger' = '7')")
    with pytest.raises(DataError, match=r"version 7.*newer"):
        ledger.charge(request("r9"))
    other = str(tmp_path / "other")
    spark.range(3).write.format("delta").save(other)
    with pytest.raises(PrivacyError, match="did not make"):
        Ledger(DeltaStore(spark, other)).book()


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


def test_defaults_of_the_session_make_no_other_table(spark, path):
    defaults = {"enableDeletionVectors": "true", "columnMapping.mode": "name", "checkpointInterval": "2"}
    for name, value in defaults.items():
        spark.conf.set(f"spark.databricks.delta.properties.defaults.{name}", value)
    charged(spark, path, 1)
    shutil.rmtree(path)  # Delta still remembers it
    assert len(charged(spark, path, 2).book().entries) == 4
    made = spark.sql(f"DESCRIBE DETAIL delta.`{path}`").first()
    assert (made.minReaderVersion, made.minWriterVersion) == (1, 2)
    # After so many commits without one Delta would compare the whole log with its checksum before each of ours.
    compared = spark._jvm.org.apache.spark.sql.delta.sources.DeltaSQLConf.FORCED_CHECKSUM_VALIDATION_INTERVAL()
    assert 100 < int(made.properties["delta.checkpointInterval"]) < compared.defaultValue().get()
    assert "delta.enableDeletionVectors" not in made.properties
