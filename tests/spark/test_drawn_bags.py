"""Bags that tasks write themselves: the table that Spark's writer makes, and nothing else in the folder."""

import errno
import json
import os
import stat
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dpagg.errors import ConfigError, EnvironmentFault
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import BAGS_PER_CHUNK, Finish
from dpagg.spark.delta import check_output, publish, published_certificate, read_certificate
from dpagg.spark.drawn_bags import DrawnBags

COMMENTS = {"bag_id": "number", "features": "sums", "label": "sum of `labels`"}
PROMISE = {"release_id": "x", "words": 'µ "quoted"', "ledger": {"entry": 4}}
RULE = RowRule(Schema((Numeric("a", -1, 1), Numeric("b", -1, 1)), Label("y", 0, 1, 0.0)))


def drawn(spark, num_bags, *, given=False):
    factor = np.array([[3.0, 1.0, 0.5, 2.0], [0, 2.0, 0.1, 1.0], [0, 0, 1.0, 0.3], [0, 0, 0, 0.2]])
    finish = Finish(Secret.insecure(5), "x", num_bags, 0.5, RULE, None if given else factor)
    sums = np.random.default_rng(3).standard_normal((num_bags, 4)) if given else None
    return DrawnBags(spark, finish, sums)


def by_bag(df):
    rows = df.toPandas().sort_values("bag_id")
    return np.column_stack([rows["bag_id"], np.stack(rows["features"].to_list()), rows["label"]])


@pytest.mark.parametrize(("num_bags", "given"), [(70, False), (70, True), (2 * BAGS_PER_CHUNK + 5, False)])
def test_it_is_the_table_that_spark_writes(spark, tmp_path, monkeypatch, num_bags, given):
    bags = drawn(spark, num_bags, given=given)
    publish(bags, str(tmp_path / "a folder" / "o`wn"), PROMISE, COMMENTS)
    monkeypatch.setattr("dpagg.spark.delta.local_path", lambda _: None)
    publish(bags, str(tmp_path / "spark"), PROMISE, COMMENTS)
    monkeypatch.undo()
    own, of_spark = (
        spark.read.format("delta").load(str(path)) for path in (tmp_path / "a folder" / "o`wn", tmp_path / "spark")
    )
    assert own.schema == of_spark.schema and own.schema["label"].metadata == {"comment": "sum of `labels`"}
    np.testing.assert_array_equal(by_bag(own), by_bag(of_spark))
    np.testing.assert_array_equal(by_bag(own), by_bag(bags.frame()))
    assert len(np.unique(by_bag(own)[:, 0])) == num_bags
    path = str(tmp_path / "a folder" / "o`wn")
    assert read_certificate(spark, path) == published_certificate(spark, path) == PROMISE
    # As a partner reads it, and as Delta goes on with it.
    assert len(pd.read_parquet(path)) == num_bags
    assert spark.sql(f"DESCRIBE HISTORY delta.`{path.replace('`', '``')}`").count() == 1
    jvm = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    snapshot = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path).unsafeVolatileSnapshot()
    assert snapshot.checksumOpt().isDefined()
    # Delta replays the log and compares: it raises, or says False.
    assert snapshot.validateChecksum(jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap()))
    assert snapshot.checksumOpt().get().setTransactions().get().toString() == snapshot.setTransactions().toString()
    own.limit(1).write.format("delta").mode("append").save(path)
    assert spark.read.format("delta").load(path).count() == num_bags + 1
    assert os.listdir(tmp_path / "a folder") == ["o`wn"]


def test_the_log_lists_what_is_there(spark, tmp_path):
    publish(drawn(spark, 3 * BAGS_PER_CHUNK), str(tmp_path / "out"), PROMISE, COMMENTS)
    lines = (tmp_path / "out" / "_delta_log" / f"{0:020}.json").read_text().splitlines()
    added = [line["add"] for line in map(json.loads, lines) if "add" in line]
    assert len(added) == 2 and {each["path"] for each in added} == {
        p.name for p in (tmp_path / "out").glob("*.parquet")
    }
    for each in added:
        file = tmp_path / "out" / each["path"]
        assert each["size"] == file.stat().st_size
        assert json.loads(each["stats"]) == {"numRecords": pq.read_metadata(file).num_rows}


def test_files_that_the_driver_does_not_see_are_no_release(spark, tmp_path, monkeypatch):
    """As where each machine has a disk of its own under that path."""
    original = DrawnBags.write

    def elsewhere(bags, folder):
        monkeypatch.setattr("pathlib.Path.is_file", lambda _: False)
        return original(bags, folder)

    monkeypatch.setattr(DrawnBags, "write", elsewhere)
    with pytest.raises(EnvironmentFault, match="not there for the driver"):
        publish(drawn(spark, 2 * BAGS_PER_CHUNK), str(tmp_path / "out"), PROMISE, COMMENTS)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("num_bags", [70, 2 * BAGS_PER_CHUNK])
def test_a_folder_that_vanishes_is_no_release(spark, tmp_path, monkeypatch, num_bags):
    original = DrawnBags.write
    monkeypatch.setattr(DrawnBags, "write", lambda bags, folder: original(bags, folder + "/gone"))
    with pytest.raises(EnvironmentFault, match="while the release was written"):
        publish(drawn(spark, num_bags), str(tmp_path / "out"), PROMISE, COMMENTS)
    assert os.listdir(tmp_path) == []


def test_what_a_session_asks_of_new_tables_is_heeded(spark, tmp_path):
    spark.conf.set("spark.databricks.delta.properties.defaults.appendOnly", "true")
    publish(drawn(spark, 2 * BAGS_PER_CHUNK), str(tmp_path / "out"), PROMISE, COMMENTS)
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path}/out`").first()
    assert detail["properties"]["delta.appendOnly"] == "true"
    assert spark.read.format("delta").load(str(tmp_path / "out")).count() == 2 * BAGS_PER_CHUNK


@pytest.mark.parametrize("name", ["to_folder", "to_nothing", "mount"])
def test_where_nothing_can_be_moved_to_is_refused_before_a_label_is_read(spark, tmp_path, name):
    path = tmp_path / name if name != "mount" else Path("/proc")
    if name != "mount":
        path.symlink_to(tmp_path / "folder")
    if name == "to_folder":
        (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match="mount point" if name == "mount" else "is a link"):
        check_output(spark, str(path))
    (tmp_path / "real").mkdir()
    (tmp_path / "parent").symlink_to(tmp_path / "real")
    publish(drawn(spark, 70), str(tmp_path / "parent" / "out"), PROMISE, COMMENTS)
    assert published_certificate(spark, str(tmp_path / "real" / "out")) == PROMISE


def test_whoever_reads_its_certificate_can_read_the_table(spark, tmp_path):
    """A service with a strict umask: Hadoop makes folders and certificate by its own."""
    before = os.umask(0o077)
    try:
        publish(drawn(spark, 70), str(tmp_path / "out"), PROMISE, COMMENTS)
    finally:
        os.umask(before)
    found = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {stat.S_IMODE((tmp_path / "out" / "_certificate.json").stat().st_mode)}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out", tmp_path / "out" / "_delta_log")}
    assert len(folders) == 1


def test_a_release_is_on_disk_before_anybody_sees_it(spark, tmp_path, monkeypatch):
    """A power cut leaves a whole release or none; that nothing else is written first can't be run, so it is watched."""
    done, sync, rename = [], os.fsync, os.rename

    def watched_sync(descriptor):
        done.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    def watched_rename(source, target):
        done.append(None)
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "rename", watched_rename)
    publish(drawn(spark, 2 * BAGS_PER_CHUNK), str(tmp_path / "out"), PROMISE, COMMENTS)
    assert done.count(None) == 1 and done[-2:] == [None, str(tmp_path)]
    synced = {Path(path).name for path in done[:-2]}
    assert {path.name for path in (tmp_path / "out").rglob("*")} <= synced
    assert any(name.startswith(".out.") for name in synced)


def test_a_disk_that_is_full_only_now_leaves_no_release(spark, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        publish(drawn(spark, 70), str(tmp_path / "out"), PROMISE, COMMENTS)
    assert os.listdir(tmp_path) == []
