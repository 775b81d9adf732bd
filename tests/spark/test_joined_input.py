"""Tables joined by a query: pinned, quiet about cells, refused where the query would not read the same rows twice."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.spark.joining import read_input

QUERY = """
SELECT i.key, i.price, c.sale FROM imp i
LEFT JOIN (SELECT key, sum(try_cast(sale AS double)) AS sale FROM conv GROUP BY key) c ON c.key = i.key  -- a comment
"""


@pytest.fixture
def source(spark, tmp_path):
    pd.DataFrame({"key": [1, 2, 3], "price": [5.0, 6.0, 7.0]}).to_parquet(tmp_path / "imp.parquet")
    conversions = spark.createDataFrame([(1, "10"), (1, "5"), (3, "secret-cell")], "key long, sale string")
    conversions.write.format("delta").save(str(tmp_path / "conv"))
    table = SimpleNamespace(path=str(tmp_path / "conv"), table=None, format="delta", version=None, labels=False)
    imp = SimpleNamespace(path=str(tmp_path / "imp.parquet"), table=None, format=None, version=None, labels=False)
    tables = {"imp": imp, "conv": table}
    return SimpleNamespace(
        path=None,
        table=None,
        format="parquet",
        version=None,
        header=True,
        delimiter=",",
        quote='"',
        column_names=None,
        codebook=None,
        null_values=(),
        malformed="refuse",
        row_id="key",
        tables=tables,
        sql=QUERY,
    )


def test_a_join_is_pinned_and_any_change_is_noticed(spark, source, tmp_path):
    table = read_input(spark, source)
    assert sorted(map(tuple, table.df.collect())) == [(1, 5.0, 15.0), (2, 6.0, None), (3, 7.0, None)]
    version = table.version
    assert version["tables"]["conv"]["version"] == 0 and version["tables"]["imp"]["format"] == "parquet"
    assert "listing_with_sizes" not in json.dumps(version)
    table.recheck()
    # A commit to the Delta table after it was pinned changes nothing; another file does.
    spark.sql(f"INSERT INTO delta.`{tmp_path}/conv` VALUES (2, '7')")
    table.recheck()
    assert table.df.where("key = 2").collect()[0]["sale"] is None
    source.tables["conv"].version = 1
    again = read_input(spark, source)
    assert again.version != version and again.df.where("key = 2").collect()[0]["sale"] == 7.0
    pd.DataFrame({"key": [1, 2, 3, 4], "price": [5.0, 6.0, 7.0, 8.0]}).to_parquet(tmp_path / "imp.parquet")
    with pytest.raises(DataError, match="changed"):
        again.recheck()
    assert spark.catalog.listTables() == []


def test_a_cast_that_fails_raises_nothing(spark, source):
    spark.conf.set("spark.sql.ansi.enabled", "true")
    source.sql = "SELECT key, CAST(sale AS double) AS sale, 1 / 0 AS price FROM conv"
    assert read_input(spark, source).df.where("key = 3").collect()[0]["sale"] is None
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


@pytest.mark.parametrize(
    ("query", "fault", "said"),
    [
        ("SELECT key, rand() AS price FROM imp", ConfigError, "at random"),
        ("SELECT key, price FROM imp LIMIT 2", ConfigError, "takes some of its rows"),
        ("SELECT key, price FROM (SELECT * FROM imp ORDER BY price OFFSET 1)", ConfigError, "takes some of its rows"),
        ("SELECT key, price FROM imp WHERE key IN (SELECT key FROM conv LIMIT 1)", ConfigError, "takes some"),
        ("DROP TABLE imp", ConfigError, "not one that Spark understands"),
        ("SELECT 1) ; (SELECT 2", ConfigError, "not one that Spark understands"),
        ("SELECT prize FROM imp", DataError, "UNRESOLVED_COLUMN"),
        ("SELECT * FROM impressions", DataError, "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM imp WHERE price > 100", DataError, "finds no rows"),
    ],
)
def test_queries_that_are_refused(spark, source, query, fault, said):
    source.sql = query
    with pytest.raises(fault, match=said):
        read_input(spark, source)


def test_a_view_of_the_session_is_left_alone(spark, source):
    spark.range(2).createOrReplaceTempView("imp")
    with pytest.raises(ConfigError, match="has a view 'imp'"):
        read_input(spark, source)
    assert spark.table("imp").count() == 2


@pytest.mark.parametrize(
    "query",
    [
        QUERY,
        # A row for each conversion: a feature and a key that tell of labels, were the table not declared.
        "SELECT key, count(c.sale) OVER (PARTITION BY key) AS price, c.sale FROM imp LEFT JOIN conv c USING (key)",
        pytest.param("SELECT key, price, sale FROM imp FULL JOIN conv USING (key)", marks=pytest.mark.slow),
    ],
)
def test_a_table_that_holds_labels_decides_labels_only(spark, source, tmp_path, query):
    source.tables["conv"].labels, source.sql = True, query
    table = read_input(spark, source, "sale")
    with_none = {(row["key"], row["price"]) for row in table.df.collect()}
    labels = {row["key"]: row["sale"] for row in table.df.collect()}
    assert labels == {1: 15.0 if query == QUERY else 10.0, 2: None, 3: None}
    spark.sql(f"INSERT INTO delta.`{tmp_path}/conv` VALUES (2, '7'), (2, '9'), (4, '1'), (null, '1')")
    more = read_input(spark, source, "sale").df.collect()
    assert len(more) == 3 and {(row["key"], row["price"]) for row in more} == with_none
    # What asks for no label reads no row of it: the files are gone.
    for file in (tmp_path / "conv").glob("*.parquet"):
        file.unlink()
    assert {tuple(row) for row in table.df.select("key", "price").collect()} == with_none
    assert not read_input(spark, source, "sale").df.select("key").isEmpty()
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|FileNotFound|does not exist"):
        table.df.where("key > 0").collect()


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("SELECT key, price, sale FROM imp JOIN conv USING (key)", marks=pytest.mark.slow),
        QUERY + " WHERE sale > 1",
    ],
)
def test_rows_that_hang_on_a_label_are_refused_whatever_the_labels_are(spark, source, tmp_path, query):
    source.tables["conv"].labels, source.sql = True, query
    with pytest.raises(DataError, match="no rows while the tables with labels are empty"):
        read_input(spark, source, "sale")
    spark.sql(f"DELETE FROM delta.`{tmp_path}/conv`")
    with pytest.raises(DataError, match="no rows while the tables with labels are empty"):
        read_input(spark, source, "sale")
    source.sql = QUERY
    assert {row["sale"] for row in read_input(spark, source, "sale").df.collect()} == {None}
