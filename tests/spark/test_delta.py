"""Publishing: complete or absent, one winner, and nothing of the loser left."""

import json
import os
import threading

import numpy as np
import pandas as pd
import pytest

from dpagg.errors import ConfigError, DataError, DpaggError, EnvironmentFault
from dpagg.spark.delta import check_output, publish, published_certificate, read_certificate
from dpagg.spark.engines import map_in_arrow
from dpagg.spark.files import qualified, remove_unlisted, staging_path

COMMENTS = {"bag_id": "b", "features": "f", "label": "l"}


def rows(spark, label=0.0, count=50):
    return spark.range(count).selectExpr("id AS bag_id", "array(1.0D, 2.0D) AS features", f"{label}D AS label")


def test_table_and_certificate_appear_together(spark, tmp_path):
    path = str(tmp_path / "a folder" / "o`dd name")
    publish(rows(spark), path, {"release_id": "x", "words": "µ"}, COMMENTS)
    assert read_certificate(spark, path) == {"release_id": "x", "words": "µ"}
    assert len(pd.read_parquet(path)) == 50
    assert sorted(os.listdir(tmp_path / "a folder")) == ["o`dd name"]
    with pytest.raises(ConfigError, match="came into being"):
        publish(rows(spark), path, {"release_id": "y"}, COMMENTS)
    assert read_certificate(spark, path)["release_id"] == "x"
    assert sorted(os.listdir(tmp_path / "a folder")) == ["o`dd name"]


def test_the_commit_names_the_release_and_a_foreign_certificate_is_refused(spark, tmp_path):
    path = str(tmp_path / "out")
    promise = {"release_id": "x", "ledger": {"entry": 4}}
    publish(rows(spark), path, promise, COMMENTS)
    [told] = [
        line for line in (tmp_path / "out/_delta_log" / f"{0:020}.json").read_text().split("\n") if '"txn"' in line
    ]
    assert json.loads(told)["txn"].items() >= {"appId": "x", "version": 4}.items()
    assert published_certificate(spark, path) == promise
    other = json.dumps({"release_id": "x", "ledger": {"entry": 9}})
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('dpagg.certificate' = '{other}')")
    with pytest.raises(ConfigError, match="not that of the write"):
        published_certificate(spark, path)


def test_a_page_is_part_of_what_is_published_and_no_part_of_the_table(spark, tmp_path):
    path = str(tmp_path / "out")
    publish(rows(spark), path, {"release_id": "x"}, COMMENTS, page="<!doctype html>µ")
    assert (tmp_path / "out" / "_report.html").read_text(encoding="utf-8") == "<!doctype html>µ"
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    spark.sql(f"VACUUM delta.`{path}` RETAIN 0 HOURS")
    assert (tmp_path / "out" / "_report.html").exists()
    assert len(pd.read_parquet(path)) == spark.read.format("delta").load(path).count() == 50


def test_of_two_at_once_one_keeps_nothing(spark, tmp_path):
    path, outcomes = str(tmp_path / "out"), {}

    def go(label):
        try:
            publish(rows(spark, label), path, {"release_id": str(label)}, COMMENTS)
            outcomes[label] = "published"
        except DpaggError as error:
            outcomes[label] = type(error).__name__

    threads = [threading.Thread(target=go, args=(label,)) for label in (1.0, 2.0, 3.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["ConfigError", "ConfigError", "published"]
    winner = next(label for label, outcome in outcomes.items() if outcome == "published")
    # Read as a partner would, without the log: one draw, not two.
    assert set(pd.read_parquet(path)["label"]) == {winner}
    assert read_certificate(spark, path)["release_id"] == str(winner)
    assert os.listdir(tmp_path) == ["out"]


def test_nothing_appears_until_it_is_confirmed(spark, tmp_path):
    """The rows are written by then, so that whatever changed while they were is seen."""
    path, seen = str(tmp_path / "out"), []

    def refuse():
        seen.extend(file for file in tmp_path.rglob("*.parquet"))
        raise DataError("the input changed")

    with pytest.raises(DataError, match="the input changed"):
        publish(rows(spark), path, {"release_id": "x"}, COMMENTS, confirm=refuse)
    assert seen and not any((tmp_path / "out") in file.parents for file in seen)
    assert os.listdir(tmp_path) == []
    publish(rows(spark), path, {"release_id": "x"}, COMMENTS, confirm=lambda: seen.clear())
    assert not seen and len(pd.read_parquet(path)) == 50


def test_what_delta_does_not_list_is_removed(spark, tmp_path):
    path = tmp_path / "a folder"
    publish(rows(spark), str(path), {"release_id": "x"}, COMMENTS)
    listed = spark.read.format("delta").load(str(path)).inputFiles()
    [first, *_] = path.glob("*.parquet")
    (path / "part-00009-0.c000.snappy.parquet").write_bytes(first.read_bytes())
    assert len(pd.read_parquet(path)) > 50
    remove_unlisted(spark, str(path), listed, ".parquet")
    assert len(pd.read_parquet(path)) == spark.read.format("delta").load(str(path)).count() == 50
    assert read_certificate(spark, str(path)) == {"release_id": "x"}


def test_a_release_that_is_not_the_own_one_is_noticed(spark, tmp_path, monkeypatch):
    # As on an object store, where a folder is moved file by file.
    def moved_into(_spark, source, target, _shown):
        os.rename(source.removeprefix("file:"), target.removeprefix("file:"))
        (tmp_path / "out" / "_certificate.json").write_text("{}")

    monkeypatch.setattr("dpagg.spark.delta.move_new", moved_into)
    with pytest.raises(EnvironmentFault, match="not hold what this run wrote"):
        publish(rows(spark), str(tmp_path / "out"), {"release_id": "x"}, COMMENTS)


def test_a_write_that_fails_leaves_nothing(spark, tmp_path):
    def explode(batches):
        for batch in batches:
            yield batch
            raise ValueError("canary 31.4159")

    df = map_in_arrow(rows(spark), explode, "bag_id bigint, features array<double>, label double")
    with pytest.raises(EnvironmentFault, match="while the release was written") as caught:
        publish(df, str(tmp_path / "out"), {"release_id": "x"}, COMMENTS)
    assert "canary" not in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_an_output_that_cannot_be_is_known_beforehand(spark, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EnvironmentFault, match=r"output.path"):
        check_output(spark, str(tmp_path / "file" / "out"))
    with pytest.raises(EnvironmentFault, match="no file system"):
        check_output(spark, "nosuch://bucket/out")
    check_output(spark, str(tmp_path / "new" / "out"))
    assert os.listdir(tmp_path / "new") == []


def test_what_a_killed_run_left_is_cleared_and_a_living_ones_is_not(spark, tmp_path):
    target = qualified(spark, str(tmp_path / "out"))
    living = tmp_path / os.path.basename(staging_path(target))
    dead = tmp_path / living.name.replace(f"-{os.getpid()}-", "-999999999-")
    other = tmp_path / living.name.replace(".out.", ".other.").replace(f"-{os.getpid()}-", "-999999999-")
    for folder in (living, dead, other):
        folder.mkdir()
        (folder / "part.parquet").write_text("x")
    check_output(spark, str(tmp_path / "out"))
    assert living.exists() and other.exists() and not dead.exists()


@pytest.mark.parametrize("damage", [None, '{"trunc'])
def test_a_damaged_certificate_file_is_mended_from_the_table(spark, tmp_path, damage):
    path = tmp_path / "out"
    publish(rows(spark), str(path), {"release_id": "x"}, COMMENTS)
    intact = (path / "_certificate.json").read_text()
    (path / "_certificate.json").unlink()
    if damage is not None:
        (path / "_certificate.json").write_text(damage)
        (path / "._certificate.json.crc").unlink(missing_ok=True)
    assert published_certificate(spark, str(path)) == {"release_id": "x"}
    assert (path / "_certificate.json").read_text() == intact


def test_an_empty_folder_is_nothing(spark, tmp_path):
    (tmp_path / "out").mkdir()
    assert published_certificate(spark, str(tmp_path / "out")) is None
    publish(rows(spark), str(tmp_path / "out"), {"release_id": "x"}, COMMENTS)
    assert read_certificate(spark, str(tmp_path / "out")) == {"release_id": "x"}


def test_columns_of_any_name_reach_python(spark):
    df = spark.range(3).selectExpr("id AS `a.b`", "id * 2 AS `c``d`", "id AS `e f`")

    def total(batches):
        for batch in batches:
            assert batch.schema.names == ["a.b", "c`d", "e f"]
            yield batch.select([1]).rename_columns(["x"])

    assert sorted(row.x for row in map_in_arrow(df, total, "x bigint").collect()) == [0, 2, 4]
    assert np.sum([row.x for row in map_in_arrow(df, total, "x bigint").collect()]) == 6
