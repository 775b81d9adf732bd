"""The input of a run: one table, or tables joined by a query, each pinned to a version."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, DataError
from dpagg.spark.catalogue import stored_table
from dpagg.spark.engines import spark_faults
from dpagg.spark.names import quoted
from dpagg.spark.reading import InputTable, TableSource, gives_the_same_rows, read_table

_ANSI = "spark.sql.ansi.enabled"
_KEY = "__dpagg_key"


class NamedTable(Protocol):
    """One table of a join."""

    @property
    def path(self) -> str | None:
        """Path or URI; None for a table of the catalogue."""

    @property
    def table(self) -> str | None:
        """Name in the catalogue."""

    @property
    def format(self) -> str | None:
        """As `TableFormat.format`; None is that of the input."""

    @property
    def version(self) -> int | None:
        """Version of a Delta table; None is the latest."""

    @property
    def labels(self) -> bool:
        """Whether its rows are label data."""


class InputSource(Protocol):
    """The ``input`` section of a configuration."""

    @property
    def path(self) -> str | None:
        """Of one table."""

    @property
    def table(self) -> str | None:
        """Of one table of the catalogue, its name."""

    @property
    def format(self) -> str | None:
        """How tables at paths are stored."""

    @property
    def version(self) -> int | None:
        """Version of a Delta table; None is the latest."""

    @property
    def header(self) -> bool:
        """As `dpagg.spark.text_tables.TextSource`, and so are the next six."""

    @property
    def delimiter(self) -> str:
        """Of a CSV."""

    @property
    def quote(self) -> str:
        """Of a CSV."""

    @property
    def column_names(self) -> Sequence[str] | None:
        """Of a CSV without a header."""

    @property
    def codebook(self) -> str | None:
        """Of a fixed-width file."""

    @property
    def null_values(self) -> Sequence[str]:
        """Of text."""

    @property
    def malformed(self) -> str:
        """Of text: ``refuse`` or ``drop``."""

    @property
    def row_id(self) -> str | None:
        """Name of the row key."""

    @property
    def tables(self) -> Mapping[str, NamedTable] | None:
        """Tables by the names that the query has for them, instead of a path."""

    @property
    def sql(self) -> str | None:
        """The query."""


@dataclass(frozen=True)
class _Table:
    path: str
    format: str
    version: int | None
    header: bool
    delimiter: str
    quote: str
    column_names: Sequence[str] | None
    codebook: str | None
    null_values: Sequence[str]
    malformed: str


def read_input(
    spark: SparkSession,
    source: InputSource,
    label: str | None = None,
    declared: Sequence[str] = (),
    *,
    masked: bool = False,
) -> InputTable:
    """Open the input and pin its version.

    Where tables of a query are declared to hold labels, rows and features are what the query gives when those tables
    are empty, and a row takes its label from the query with all rows, the largest if there are several of its key. So
    neither which rows there are, nor whether a key repeats, nor any feature can tell of a label, whatever the query is;
    and what asks for no label reads no row of those tables.

    Parameters
    ----------
    spark : SparkSession
        With Delta if a table is one.
    source : InputSource
        Which.
    label : str, optional
        Name of the label; needed where a table holds labels.
    declared : sequence of str
        Columns that will be asked for: JSON lines have no others.
    masked : bool
        Whether malformed lines of joined tables become rows without values, as those of tables with labels do in any
        case; else they are refused or left out.

    Raises
    ------
    ConfigError
        If the query is not one that reads, or reads other rows each time.
    DataError
        As `dpagg.spark.reading.read_table`, for each table; or if the query does not fit the tables.
    EnvironmentFault
        If Spark itself failed.
    """
    names = {} if source.tables is None else dict(source.tables)
    if source.tables is None:
        return read_table(spark, _one(spark, source, source), declared=declared, label=label)
    opened = {
        name: read_table(spark, _one(spark, source, table), may_be_empty=table.labels).settled(
            masked=masked or table.labels
        )
        for name, table in names.items()
    }
    query = source.sql or ""
    frames = {name: table.df for name, table in opened.items()}
    emptied = {name: df.limit(0) for name, df in frames.items() if names[name].labels}
    df = _selected(spark, query, frames)
    if not gives_the_same_rows(df):
        raise ConfigError(
            "the query draws something at random, or takes some of its rows, so that a task that runs again would read "
            "other rows",
            path="input.sql",
            remedy="Leave out rand(), uuid() and the like, LIMIT and OFFSET; filter by a column instead.",
        )
    if emptied:
        if source.row_id is None or label is None:
            raise ValueError("tables that hold labels need the names of the row key and of the label")
        df = _labelled(_selected(spark, query, frames | emptied), df, source.row_id, label)
    with spark_faults("while the query was tried"):
        if df.select(*df.columns[:1]).isEmpty():
            raise DataError(
                "the query finds no rows" + (" while the tables with labels are empty" if emptied else ""),
                path="input.sql",
                remedy="Join labels with a LEFT JOIN, and filter by nothing that comes from them." if emptied else None,
            )
    digest = hashlib.sha256(query.encode()).hexdigest()

    def pinned() -> dict[str, Any]:
        tables = {name: table._now() for name, table in opened.items()}
        return _joined_version(tables, {name: table.version for name, table in opened.items()}, digest)

    first = {name: table.pinned for name, table in opened.items()}
    return InputTable(df, _joined_version(first, {n: t.version for n, t in opened.items()}, digest), pinned)


def _selected(spark: SparkSession, query: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    with _views(spark, frames), _failing_quietly(spark):
        try:
            # In brackets, so that nothing but a query is a query.
            df = spark.sql(f"SELECT * FROM (\n{query}\n)")
        except (PySparkException, Py4JError) as error:
            raise _unfit(error) from None
    return df


def _labelled(bare: DataFrame, full: DataFrame, row_id: str, label: str) -> DataFrame:
    """Return the rows of the query without label data, each with the label that the whole query gives to its key.

    The optimizer drops the join where no label is asked for, since its right side has each key once.
    """
    for name, path in ((row_id, "input.row_id"), (label, "schema.label")):
        if sum(name.lower() == column.lower() for column in full.columns) != 1:
            raise DataError(f"the query gives no column {name!r}, or several", path=path)
    value = F.col(quoted(label))
    if dict(full.dtypes)[full.select(value).columns[0]] == "string":
        value = value.try_cast("double")
    try:
        largest = full.groupBy(F.col(quoted(row_id)).alias(_KEY)).agg(F.max(value).alias(label))
        features = bare.drop(label)
        return features.join(largest, features[quoted(row_id)] == largest[_KEY], "left").drop(_KEY)
    except (PySparkException, Py4JError) as error:
        raise _unfit(error) from None


def _one(spark: SparkSession, source: InputSource, table: InputSource | NamedTable) -> TableSource:
    """One table of the input, or the only one."""
    path, stored_as = table.path, table.format or source.format
    if table.table is not None:
        found = stored_table(spark, table.table)
        path, stored_as = found.path, found.format
    if path is None or stored_as is None:
        raise ValueError("a table has a path and a format, or is one of the catalogue")
    return _Table(
        path=path,
        format=stored_as,
        version=table.version,
        header=source.header,
        delimiter=source.delimiter,
        quote=source.quote,
        column_names=source.column_names,
        codebook=source.codebook,
        null_values=source.null_values,
        malformed=source.malformed,
    )


def _joined_version(
    tables: Mapping[str, Mapping[str, Any]], public: Mapping[str, Mapping[str, Any]], digest: str
) -> dict[str, Any]:
    everything = json.dumps(tables, sort_keys=True)
    return {
        "format": "sql",
        "tables": dict(public),
        "sql_sha256": digest,
        "partition_columns": sorted({name for t in tables.values() for name in t.get("partition_columns", [])}),
        # Sizes of files are in it: compared, and not published.
        "listing_with_sizes_sha256": hashlib.sha256(everything.encode()).hexdigest(),
    }


@contextmanager
def _views(spark: SparkSession, tables: Mapping[str, DataFrame]) -> Iterator[None]:
    """Give tables their names while the query is analysed; what it reads is settled then."""
    taken = {table.name.lower() for table in spark.catalog.listTables() if table.isTemporary}
    for name in tables:
        if name.lower() in taken:
            raise ConfigError(
                f"the session has a view {name!r} already", path="input.tables", remedy="Take another name."
            )
    try:
        for name, df in tables.items():
            df.createOrReplaceTempView(name)
        yield
    finally:
        for name in tables:
            with suppress(Py4JError):
                spark.catalog.dropTempView(name)


@contextmanager
def _failing_quietly(spark: SparkSession) -> Iterator[None]:
    """Analyse without ANSI mode: a cell that cannot be cast is null then, and no error that would tell of it."""
    before = spark.conf.get(_ANSI, None)
    spark.conf.set(_ANSI, "false")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_ANSI)
        else:
            spark.conf.set(_ANSI, before)


def _unfit(error: Exception) -> ConfigError | DataError:
    # The name of the condition is a constant of Spark; its text may quote what it met.
    condition = error.getCondition() if isinstance(error, PySparkException) else None
    said = condition or type(error).__name__
    if isinstance(error, ParseException):
        return ConfigError(f"the query is not one that Spark understands ({said})", path="input.sql")
    return DataError(
        f"the query does not fit the tables ({said})",
        path="input.sql",
        remedy="Names of tables are the keys of input.tables; try the query in spark-sql.",
    )
