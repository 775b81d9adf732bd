"""Passes over Parquet files that tasks read themselves: the same rows as Spark's reader, or its reader after all."""

import dataclasses
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from dpagg.config import InputConfig
from dpagg.errors import DataError
from dpagg.kernels.leverage import subspace
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Categorical, Hashed, Label, Numeric, Schema
from dpagg.spark import plain_files as module
from dpagg.spark.engines import tree_merge
from dpagg.spark.plain_files import PlainFiles, PlainTable, UnlikeTheTable, largest_task, plain_files, read_pieces
from dpagg.spark.reading import read_table
from dpagg.spark.rows import SparkRows

SCHEMA = Schema(
    (
        Numeric("double", -1, 1, missing="indicator"),
        Numeric("Long", 0, 2**60),
        Numeric("float", -1, 1, missing="indicator"),
        Numeric("short", 0, 100),
        Categorical("text", ("a", "b"), other=True, missing="indicator"),
        Hashed("word", 3, missing="indicator"),
    ),
    Label("y", 0, 1, 0.5),
)


def rows_of(count, seed):
    rng = np.random.default_rng(seed)

    def holes(values, kind, share=0.1):
        return pa.array(values, type=kind, mask=rng.uniform(size=count) < share)

    doubles = rng.uniform(-1.2, 1.2, count)
    doubles[::7] = np.nan
    doubles[3::11] = np.inf
    return pa.table(
        {
            "id": np.arange(count) + 1_000_000 * seed,
            "double": holes(doubles, pa.float64()),
            "long": holes(rng.integers(2**53, 2**59, count), pa.int64(), 0.05),
            "float": holes(rng.uniform(-1, 1, count).astype(np.float32), pa.float32()),
            "short": pa.array(rng.integers(0, 100, count), type=pa.int16()),
            "text": holes(rng.choice(["a", "b", "c"], count), pa.string()),
            "word": holes([f"word {i}" for i in rng.integers(0, 50, count)], pa.string()),
            "nested": pa.array([{"double": float(i)} for i in range(count)]),
            "y": holes(rng.uniform(-0.5, 1.5, count), pa.float64()),
        }
    )


@pytest.fixture
def folder(tmp_path):
    """Files that differ in the order of columns, row groups, compression, nesting and rows, one without any."""
    path = tmp_path / "day=30 %41 ü"
    path.mkdir()
    shuffled = ["y", "word", "double", "id", "short", "nested", "text", "float", "long"]
    pq.write_table(rows_of(700, 1), path / "part-0.parquet", row_group_size=100)
    pq.write_table(
        rows_of(500, 2).select(shuffled), path / "part 1.parquet", compression="gzip", write_statistics=False
    )
    pq.write_table(rows_of(300, 3).drop(["nested"]), path / "part-2.parquet", use_dictionary=False, version="1.0")
    pq.write_table(rows_of(0, 4), path / "part-3.parquet")
    return path


def both(spark, path, schema=SCHEMA):
    """The same rows twice: whose files tasks may read, and by Spark alone."""
    df = spark.read.parquet(str(path))
    return SparkRows.of(df, schema, files=plain_files(df)), SparkRows.of(df, schema)


def assert_same_passes(plain, other):
    rule = RowRule(SCHEMA)
    found, expected = plain.feature_pass(rule), other.feature_pass(rule)
    np.testing.assert_allclose(found.factor.canonical(), expected.factor.canonical(), rtol=1e-9, atol=1e-9)
    assert found.summary == expected.summary and found.summary.num_missing > 0
    space = subspace(expected.factor.canonical())
    capped = RowRule(SCHEMA, selection=space, cap=1.5 * space.rank / expected.summary.num_rows, released=space)
    found, expected = plain.labelled_pass(capped), other.labelled_pass(capped)
    np.testing.assert_allclose(found.moments.root(space), expected.moments.root(space), rtol=1e-9, atol=1e-9)
    for summary in (found.summary, plain.summary_pass(capped)):
        assert summary.num_over_cap > 0
        assert summary.largest_leverage == pytest.approx(expected.summary.largest_leverage, rel=1e-9)
        assert dataclasses.replace(summary, largest_leverage=0) == dataclasses.replace(
            expected.summary, largest_leverage=0
        )


def test_the_same_as_through_sparks_reader(spark, folder):
    plain, other = both(spark, folder)
    # Spark's own reader would find no row.
    assert_same_passes(dataclasses.replace(plain, df=plain.df.where("false")), other)
    assert plain.plain.files.are_usable


def test_any_cut_reads_each_row_once(folder, monkeypatch):
    monkeypatch.setattr(module, "_OPEN_BYTES", 1)
    files = PlainFiles(tuple(sorted((str(path), path.stat().st_size) for path in folder.iterdir())))
    expected = sorted(
        key for path, _ in files.sizes for key in pq.read_table(path, partitioning=None)["id"].to_pylist()
    )
    for largest in (1 << 30, 20_000, 3_000, 500):
        for cores in (1, 3):
            tasks = files.tasks(cores, largest)
            batches = [batch for pieces in tasks for batch in read_pieces(pieces, [("key", "id", "bigint")])]
            assert sorted(key for batch in batches for key in batch["key"].to_pylist()) == expected
            assert len(tasks) >= min(cores, len(files.sizes))


def test_a_task_reads_four_times_what_sparks_may(spark):
    assert largest_task(spark) == 512 << 20


def test_equal_files_make_equal_tasks():
    files = PlainFiles(tuple((f"f{i}", (100 << 20) + i % 3) for i in range(32)))
    assert [len(pieces) for pieces in files.tasks(2, 512 << 20)] == [4] * 8
    assert [len(pieces) for pieces in files.tasks(4, 512 << 20)] == [4] * 8
    assert [len(pieces) for pieces in PlainFiles(files.sizes[:8]).tasks(2, 512 << 20)] == [4, 4]


def lacking(table):
    return table.drop(["double"])


def without_label(table):
    return table.drop(["y"])


def narrower(table):
    return table.set_column(4, "short", table["short"].cast(pa.int8()))


@pytest.mark.parametrize("change", [lacking, without_label, narrower])
def test_a_file_unlike_the_table_goes_to_sparks_reader(spark, folder, change):
    pq.write_table(change(rows_of(200, 5)), folder / "part-9.parquet")
    # The table's types are those of another file.
    df = spark.read.schema(spark.read.parquet(str(folder / "part-0.parquet")).schema).parquet(str(folder))
    plain = SparkRows.of(df, SCHEMA, files=plain_files(df))
    assert_same_passes(plain, SparkRows.of(df, SCHEMA))
    assert not plain.plain.files.are_usable


def test_two_spellings_of_a_column_go_to_sparks_reader(folder):
    table = rows_of(10, 6)
    pq.write_table(table.append_column("DOUBLE", table["double"]), folder / "part-9.parquet")
    piece = (str(folder / "part-9.parquet"), 0, 1 << 62)
    with pytest.raises(UnlikeTheTable):
        list(read_pieces([piece], [("double", "double", "double")]))
    assert len(list(read_pieces([piece], [("long", "long", "bigint")]))) == 1


@pytest.mark.parametrize("damage", ["cut", "page"])
def test_damage_is_told_by_sparks_reader(spark, folder, damage):
    path = folder / "part-0.parquet"
    table = rows_of(700, 1)
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    rows, _ = both(spark, folder)
    content = bytearray(path.read_bytes())
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match="can't be read") as caught:
            rows.feature_pass(RowRule(SCHEMA))
        assert "part-0" not in str(caught.value)
    else:
        # A cell of a column that is read; without the checksum nobody would see it.
        where = bytes(content).index(np.float64(table["y"].drop_null()[3].as_py()).tobytes())
        content[where] ^= 1
        path.write_bytes(content)
        rows.feature_pass(RowRule(SCHEMA))
        assert rows.plain.files.are_usable  # no label was read
        rows.labelled_pass(RowRule(SCHEMA, released=subspace(np.eye(len(SCHEMA.columns)))))
    assert not rows.plain.files.are_usable


class Counted(int):
    """A number of rows, as a pass merges it."""

    def merge(self, other):
        return Counted(self + other)


def test_a_file_that_ends_the_process_goes_to_sparks_reader(spark, folder):
    plain, _ = both(spark, folder)

    def count(batches):
        if getattr(batches, "__name__", "") == "read_pieces":
            os._exit(1)  # as a fault in the library that decodes it would
        return Counted(sum(batch.num_rows for batch in batches))

    assert tree_merge(plain.df, count, 8, plain.plain) == 1500
    assert not plain.plain.files.are_usable


@pytest.mark.parametrize("cells", [pa.array(["1"]), pa.array([True]), pa.array([1], pa.decimal128(5, 2))])
def test_numbers_that_spark_converts_stay_with_spark(spark, tmp_path, cells):
    pq.write_table(pa.table({"x": cells, "y": [1.0]}), tmp_path / "part.parquet")
    df = spark.read.parquet(str(tmp_path))
    files = plain_files(df)
    assert files is not None
    for name, label in (("x", "y"), ("y", "x")):
        assert PlainTable.of(files, df, Schema((Numeric(name, 0, 1),), Label(label, 0, 1, 0))) is None


def test_names_that_mean_something_else_to_pyarrow_or_in_folders_stay_with_spark(spark, tmp_path):
    for name, folder in (("a.b", ""), ("Day", "day=3")):
        path = tmp_path / name / folder
        path.mkdir(parents=True)
        pq.write_table(pa.table({name: [1.0], "y": [1.0]}), path / "part.parquet")
        df = spark.read.parquet(str(tmp_path / name))
        assert PlainTable.of(plain_files(df), df, Schema((Numeric(name, 0, 1),), Label("y", 0, 1, 0))) is None


def test_a_column_that_spark_finds_by_its_number_stays_with_spark(spark, tmp_path):
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")
    double = T.DoubleType()
    numbered = T.StructType([T.StructField("x", double, True, {"parquet.field.id": 1}), T.StructField("y", double)])
    spark.createDataFrame([(1.0, 2.0)], numbered).coalesce(1).write.parquet(str(tmp_path / "t"))
    other = pa.schema([pa.field("x", pa.float64(), metadata={"PARQUET:field_id": "9"}), pa.field("y", pa.float64())])
    pq.write_table(pa.table({"x": [5.0], "y": [1.0]}, other), tmp_path / "t" / "z.parquet")
    df = spark.read.parquet(str(tmp_path / "t"))
    assert sorted(df.collect(), key=repr) == [(1.0, 2.0), (None, 1.0)]
    assert PlainTable.of(plain_files(df), df, Schema((Numeric("x", 0, 1),), Label("y", 0, 1, 0))) is None


def test_folders_name_columns_as_spark_escapes_them(spark, tmp_path):
    """What is special in a name is escaped: no label may hide in one."""
    df = spark.createDataFrame([(1.0, 2.0), (3.0, 4.0)], "x double, `y:[1] ü` double")
    df.write.partitionBy("y:[1] ü").parquet(str(tmp_path / "t"))
    table = read_table(spark, InputConfig(path=str(tmp_path / "t"), format="parquet"))
    with pytest.raises(DataError, match="laid out by the label"):
        table.refuse_partitions_by("Y:[1] Ü")
    (tmp_path / "u" / "%78=3").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1.0], "y": [1.0]}), tmp_path / "u" / "%78=3" / "part.parquet")
    df = spark.read.parquet(str(tmp_path / "u"))
    assert df.select("x").first() == (3,)
    assert PlainTable.of(plain_files(df), df, Schema((Numeric("x", 0, 1),), Label("y", 0, 1, 0))) is None


def test_summaries_of_a_folder_hold_no_rows(spark, folder):
    schema = pq.read_schema(folder / "part-0.parquet")
    collected = []
    pq.write_table(rows_of(20, 8).cast(schema), folder / "part-8.parquet", metadata_collector=collected)
    collected[0].set_file_path("part-8.parquet")
    pq.write_metadata(schema, folder / "_metadata", collected)
    pq.write_metadata(schema, folder / "_common_metadata")
    pq.write_table(rows_of(20, 9), folder / "_part=9.parquet")
    plain, other = both(spark, folder)
    assert_same_passes(dataclasses.replace(plain, df=plain.df.where("false")), other)
    assert len(plain.plain.files.sizes) == 6


@pytest.mark.parametrize("pattern", ["{a/*,a}", "{a/part.parquet,*/part.parquet}"])
def test_files_that_a_pattern_names_twice_are_refused(spark, tmp_path, pattern):
    """Each label would count twice."""
    (tmp_path / "a").mkdir()
    pq.write_table(pa.table({"x": [1.0], "y": [1.0]}), tmp_path / "a" / "part.parquet")
    assert spark.read.parquet(f"{tmp_path}/{pattern}").count() == 2
    with pytest.raises(DataError, match="names files twice"):
        read_table(spark, InputConfig(path=f"{tmp_path}/{pattern}", format="parquet"))


def test_only_whole_parquet_inputs_are_read_so(spark, folder, tmp_path):
    table = read_table(spark, InputConfig(path=str(folder), format="parquet"))
    assert {path for path, _ in table.files.sizes} == {str(path) for path in folder.iterdir()}
    rows = SparkRows.of(table.df, SCHEMA, "id", "id", table.files)
    assert rows.plain is not None and rows.limited(1)[0].plain is None
    assert [name for name, _, _ in rows._plain_features.columns] == [feature.name for feature in SCHEMA.features]
    for form in ("delta", "csv"):
        path = str(tmp_path / form)
        table.df.drop("nested").limit(3).write.option("header", True).format(form).save(path)
        assert read_table(spark, InputConfig(path=path, format=form)).files is None
