"""Tables as users have them: what is read, what is pinned, what is refused and in which words."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from dpagg.config import InputConfig
from dpagg.errors import DataError
from dpagg.kernels.encoding import Categorical, Hashed, Label, Numeric, Schema, encode_features, encode_label
from dpagg.spark.reading import check_row_key, normalise, read_table

CANARY = "canary7719"
SCHEMA = Schema(
    (Numeric("price", 0, 100, "indicator"), Categorical("device", ("mobile", "tv"), other=True)),
    Label("sale", 0, 50, 0),
)


def source(path: Path, format: str, **settings: Any) -> InputConfig:
    return InputConfig.model_validate({"path": str(path), "format": format, **settings})


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in df.collect()), key=repr)


# Reading


def test_csv_with_a_header_is_text(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "id,price,sale\n1,2.5,3\n2,,\n\n4,x,1\n")
    table = read_table(spark, source(path, "csv")).settled()
    assert rows(table.df) == [("1", "2.5", "3"), ("2", None, None), ("4", "x", "1")]


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_headerless_csv_also_gzipped(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "1;2\n3;4\n")
    table = read_table(spark, source(path, "csv", header=False, delimiter=";")).settled()
    assert table.df.columns == ["c0", "c1"] and rows(table.df) == [("1", "2"), ("3", "4")]
    named = read_table(spark, source(path, "csv", header=False, delimiter=";", column_names=["a", "b"])).settled()
    assert named.df.columns == ["a", "b"] and rows(named.df) == rows(table.df)


def test_a_short_first_row_does_not_decide_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "1,2\n3,4,5\n")
    names = ["a", "b", "sale"]
    table = read_table(spark, source(path, "csv", header=False, column_names=names, malformed="drop")).settled()
    assert rows(table.df) == [("3", "4", "5")] and table.num_malformed == 1
    with pytest.raises(DataError, match=r"1 names are given for a table of 2 columns"):
        read_table(spark, source(path, "csv", header=False, column_names=["a"]))


def test_csv_files_of_different_order_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "t" / "1.csv", "id,price,sale\n1,2,3\n")
    write(tmp_path / "t" / "2.csv", "id,sale,price\n2,5,6\n")
    with pytest.raises(DataError, match="cannot be read as csv"):
        read_table(spark, source(tmp_path / "t", "csv"))


def test_parquet_and_uci_data_are_read_whole(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2], "price": [0.5, None]}), tmp_path / "t.parquet")
    table = read_table(spark, source(tmp_path / "t.parquet", "parquet"))
    assert rows(table.df) == [(1, 0.5), (2, None)]

    path = shared_data / "yacht" / "data.csv.gz"
    expected = np.loadtxt(path, delimiter=",")
    names = [f"c{place}" for place in range(expected.shape[1])]
    schema = Schema(tuple(Numeric(name, -100, 100) for name in names[:-1]), Label(names[-1], -100, 100, 0))
    df = normalise(read_table(spark, source(path, "csv", header=False)).settled().df, schema)
    found = np.array(rows(df))
    np.testing.assert_array_equal(found[np.lexsort(found.T)], expected[np.lexsort(expected.T)])


# Pinning


def test_a_changed_file_shows_in_recheck(spark: SparkSession, tmp_path: Path) -> None:
    for change in (
        lambda folder: write(folder / "2.csv", "id,price\n2,2\n"),
        lambda folder: write(folder / "1.csv", "id,price\n1,3\n"),
        lambda folder: (folder / "1.csv").rename(folder / "3.csv"),
    ):
        folder = tmp_path / "t"
        write(folder / "1.csv", "id,price\n1,2\n")
        table = read_table(spark, source(folder, "csv"))
        again = read_table(spark, source(folder, "csv"))
        assert again.version == table.version
        table.recheck()
        change(folder)
        with pytest.raises(DataError, match="changed while it was read"):
            table.recheck()
        for file in folder.iterdir():
            file.unlink()


def test_a_deleted_input_shows_in_recheck(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "id,price\n1,2\n")
    table = read_table(spark, source(path, "csv"))
    path.unlink()
    with pytest.raises(DataError, match="changed while it was read"):
        table.recheck()


def test_delta_is_pinned_to_a_version(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark.range(5).write.format("delta").save(str(path))
    table = read_table(spark, source(path, "delta"))
    spark.range(5, 7).write.format("delta").mode("append").save(str(path))
    table.recheck()
    assert table.df.count() == 5 and table.version["version"] == 0
    assert read_table(spark, source(path, "delta")).df.count() == 7
    assert read_table(spark, source(path, "delta", version=0)).version == table.version
    with pytest.raises(DataError, match=r"version 9 .* does not exist, the latest is 1"):
        read_table(spark, source(path, "delta", version=9))


def test_a_delta_table_put_in_the_place_of_another_shows(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(5).write.format("delta").save(str(tmp_path / "t"))
    table = read_table(spark, source(tmp_path / "t", "delta"))
    (tmp_path / "t").rename(tmp_path / "old")
    spark.range(5).write.format("delta").save(str(tmp_path / "t"))
    with pytest.raises(DataError, match="changed while it was read"):
        table.recheck()


# Refusals


def _broken(tmp_path: Path, kind: str, spark: SparkSession) -> tuple[InputConfig, str]:
    text = write(tmp_path / "text.csv", f"id,price\n1,{CANARY}\n")
    if kind in ("parquet", "delta", "csv"):
        return source(tmp_path / "nowhere", kind), "does not exist"
    if kind == "csv as parquet":
        return source(text, "parquet"), "cannot be read as parquet"
    if kind == "csv as delta":
        return source(text, "delta"), "is not a Delta table"
    if kind == "not gzip":
        bad = tmp_path / "t.csv.gz"
        bad.write_text(f"1,{CANARY}\n")
        return source(bad, "csv", header=False), "cannot be read as csv"
    if kind == "header only":
        return source(write(tmp_path / "t.csv", "id,price\n"), "csv"), "has no rows"
    if kind == "no bytes":
        return source(write(tmp_path / "t.csv", ""), "csv"), "holds no data"
    if kind == "empty folder":
        (tmp_path / "t").mkdir()
        return source(tmp_path / "t", "parquet"), "holds no data"
    if kind == "no rows":
        pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "t.parquet")
        return source(tmp_path / "t.parquet", "parquet"), "has no rows"
    if kind == "parquet as csv":
        pq.write_table(pa.table({"id": [CANARY]}), tmp_path / "t.parquet")
        return source(tmp_path / "t.parquet", "csv"), "input.format: parquet"
    spark.range(3).write.format("delta").save(str(tmp_path / "t"))
    return source(tmp_path / "t", "parquet"), "is a Delta table, not parquet"


@pytest.mark.parametrize(
    "kind",
    [
        "parquet",
        "delta",
        "csv",
        "csv as parquet",
        "csv as delta",
        "not gzip",
        "header only",
        "no bytes",
        "empty folder",
        "no rows",
        "parquet as csv",
        "delta as parquet",
    ],
)
def test_what_cannot_be_read_is_bad_data(
    spark: SparkSession,
    tmp_path: Path,
    kind: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    given, words = _broken(tmp_path, kind, spark)
    with pytest.raises(DataError, match=words) as refused:
        read_table(spark, given)
    assert refused.value.exit_code == 4
    captured = capfd.readouterr()
    for text in (str(refused.value), caplog.text, captured.out, captured.err):
        assert CANARY not in text
    assert "Exception" not in str(refused.value) and "org.apache" not in str(refused.value)


# Types


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_no_cell_can_raise_an_error(spark: SparkSession, tmp_path: Path, ansi: str) -> None:
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    path = write(
        tmp_path / "t.csv",
        "id,price,device,sale\n"
        f"a,12.5,tv,3\nb,{CANARY},mobile,{CANARY}\nc,,,\nd,NaN,radio,NaN\ne,Infinity,tv,-Infinity\nf,1e999,tv,60\n",
    )
    df = normalise(read_table(spark, source(path, "csv")).settled().df, SCHEMA, "id")
    assert df.dtypes == [("id", "string"), ("price", "double"), ("device", "string"), ("sale", "double")]
    batch = df.orderBy("id").toArrow().combine_chunks().to_batches()[0]
    encoded, keep = encode_features(batch, SCHEMA)
    assert keep.tolist() == [True, True, False, True, True, True]  # c: the device is missing, which drops
    assert [column.name for column in SCHEMA.columns] == [
        "intercept",
        "price",
        "price:missing",
        "device=tv",
        "device:other",
    ]
    expected = [[1, -0.75, 0, 1, 0], [1, 0, 1, 0, 0], [1, 0, 1, 0, 1], [1, 0, 1, 1, 0], [1, 0, 1, 1, 0]]
    assert encoded[keep].tolist() == expected
    assert encode_label(batch.column("sale"), SCHEMA.label).tolist() == [3, 0, 0, 0, 0, 50]


def test_stored_types_become_those_of_the_encoder(spark: SparkSession) -> None:
    df = spark.sql(
        "SELECT 7L AS id, CAST(1.5 AS decimal(10,2)) AS a, true AS b, 3 AS c, CAST(2 AS tinyint) AS d, "
        "DATE'2026-01-02' AS e, false AS f, CAST(NULL AS void) AS g, 2.5F AS sale"
    )
    schema = Schema(
        (
            *(Numeric(name, 0, 10) for name in "abc"),
            Categorical("d", ("2",)),
            *(Hashed(name, 3) for name in "ef"),
            Numeric("g", 0, 1, "indicator"),
        ),
        Label("sale", 0, 5, 0),
    )
    found = normalise(df, schema, "ID")
    assert found.columns == ["ID", *"abcdefg", "sale"]
    assert rows(found) == [(7, 1.5, 1.0, 3.0, "2", "2026-01-02", "false", None, 2.5)]


def test_odd_column_names(spark: SparkSession) -> None:
    df = spark.createDataFrame([(1.0, 2.0, 3.0)], ["a.b", "back`tick", "Mixed Case"])
    schema = Schema((Numeric("a.b", 0, 9), Numeric("back`tick", 0, 9)), Label("mixed case", 0, 9, 0))
    assert normalise(df, schema).columns == ["a.b", "back`tick", "mixed case"]
    assert rows(normalise(df, schema)) == [(1.0, 2.0, 3.0)]


@pytest.mark.parametrize(
    ("query", "path", "words"),
    [
        (
            "SELECT 1 AS id, 'tv' AS device, 1 AS sale, 2 AS prize",
            "schema.features[0]",
            "Did you mean 'prize'",
        ),
        ("SELECT 1 AS id, 1 AS price, 'tv' AS device", "schema.label", "no column 'sale'"),
        ("SELECT 1 AS price, 'tv' AS device, 1 AS sale", "input.row_id", "no column 'id'"),
        ("SELECT 1 AS id, array(1) AS price, 'tv' AS device, 1 AS sale", "schema.features[0]", "type array"),
        (
            "SELECT 1 AS id, DATE'2026-01-01' AS price, 'tv' AS device, 1 AS sale",
            "schema.features[0]",
            "date",
        ),
        ("SELECT 1 AS id, 1 AS price, 1.0D AS device, 1 AS sale", "schema.features[1]", "type double"),
        ("SELECT 1 AS id, 1 AS price, struct(1) AS device, 1 AS sale", "schema.features[1]", "type struct"),
        ("SELECT 1 AS id, 1 AS price, 'tv' AS device, map(1, 2) AS sale", "schema.label", "type map"),
        ("SELECT 1.0D AS id, 1 AS price, 'tv' AS device, 1 AS sale", "input.row_id", "type double"),
        (
            "SELECT 1 AS id, 1 AS price, 2 AS PRICE, 'tv' AS device, 1 AS sale",
            "schema.features[0]",
            "2 columns",
        ),
    ],
)
def test_wrong_columns_are_refused_by_declared_type_alone(
    spark: SparkSession, query: str, path: str, words: str
) -> None:
    with pytest.raises(DataError) as refused:
        normalise(spark.sql(query), SCHEMA, "id")
    assert refused.value.path == path and words in str(refused.value)


def test_cells_taken_for_a_header_are_not_shown(spark: SparkSession, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "1,prices,devices,sales\n2,7,tv,1\n")
    with pytest.raises(DataError, match="no column") as refused:
        normalise(read_table(spark, source(path, "csv")).df, SCHEMA, "id")
    assert "prices" not in str(refused.value) and "sales" not in str(refused.value)
    assert "input.header and input.delimiter" in str(refused.value)


# Row keys


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ("(1), (2), (2), (2)", "repeats an earlier row's key in 2 of 4 rows"),
        ("(1), (NULL), (2)", "is null in 1 of 3 rows"),
        ("(NULL), (NULL), (8), (8)", "is null in 2 and repeats an earlier row's key in 1 of 4 rows"),
        (f"('{CANARY}'), ('{CANARY}')", "in 1 of 2 rows"),
    ],
)
def test_bad_row_keys_are_counted_not_shown(spark: SparkSession, keys: str, words: str) -> None:
    df = spark.sql(f"SELECT * FROM VALUES {keys} AS t(`the id`)")
    with pytest.raises(DataError) as refused:
        check_row_key(df, "the id")
    assert words in str(refused.value) and refused.value.path == "input.row_id"
    assert CANARY not in str(refused.value)


def test_good_row_keys_pass(spark: SparkSession) -> None:
    check: Callable[[DataFrame, str], None] = check_row_key
    check(spark.range(1000).repartition(3), "id")
    check(spark.sql("SELECT * FROM VALUES ('a'), ('A'), ('') AS t(id)"), "id")
