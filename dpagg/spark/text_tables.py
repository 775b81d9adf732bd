"""Tables that are lines of text: CSV, JSON lines, fixed width. Cells are text, and rows of malformed lines are marked.

A line is malformed where it has not the columns of the table: a matter of structure, which no value of a well-formed
label decides. What becomes of it is for whoever reads the table: see `dpagg.spark.reading.InputTable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpagg.errors import DataError
from dpagg.kernels.lines import LineFormat
from dpagg.kernels.rows import MALFORMED
from dpagg.kernels.text_cells import BLANKS
from dpagg.spark.codebook import FixedColumn, read_codebook
from dpagg.spark.files import read_text
from dpagg.spark.names import quoted

__all__ = ["TEXT_FORMATS", "TextSource", "text_lines", "text_table"]

TEXT_FORMATS = ("csv", "json", "fixed-width")
_CORRUPT = "__dpagg_corrupt"
_ROW = "__dpagg_object"
# Spark takes this for no quote at all.
_NO_QUOTE = "\0"
# What Jackson lets pass besides JSON, so that a label of no sense stays a label.
_LENIENT = {
    "allowNumericLeadingZeros": "true",
    "allowBackslashEscapingAnyCharacter": "true",
    "allowUnquotedControlChars": "true",
    "maxNumLen": str(2**31 - 1),
}
# Rows looked at first for each declared column of JSON lines: nearly always all are there.
_FIRST_ROWS = 1000


class TextSource(Protocol):
    """How lines of text hold a table."""

    @property
    def path(self) -> str:
        """Path or URI, as Spark takes it."""

    @property
    def format(self) -> str:
        """One of `TEXT_FORMATS`."""

    @property
    def header(self) -> bool:
        """Whether each CSV file begins with the names of its columns."""

    @property
    def delimiter(self) -> str:
        """Delimiter of a CSV file."""

    @property
    def quote(self) -> str:
        """What quotes cells of a CSV file; ``none`` for nothing."""

    @property
    def column_names(self) -> Sequence[str] | None:
        """Names for a CSV without a header; None names them c0, c1, ..."""

    @property
    def null_values(self) -> Sequence[str]:
        """Texts that mean that a cell is missing."""

    @property
    def codebook(self) -> str | None:
        """Path of the DDI codebook of a fixed-width file."""


def text_table(
    spark: SparkSession,
    source: TextSource,
    declared: Sequence[str] = (),
    label: str | None = None,
    folders: Sequence[str] = (),
) -> DataFrame:
    """Return the rows of text files: all cells text, and the column `MALFORMED`.

    Parameters
    ----------
    spark : SparkSession
        Any.
    source : TextSource
        Which files, and how they hold a table.
    declared : sequence of str
        Columns that a run will ask for, the label among them: JSON lines have no others.
    label : str, optional
        Name of the label, whose absence must decide nothing.
    folders : sequence of str
        Columns that Spark finds in names of folders, in lower case.

    Raises
    ------
    DataError
        If names don't fit, or there is no codebook.
    """
    if source.format == "json":
        return _json(spark, source, [name for name in declared if name.lower() not in folders], label)
    return _fixed_width(spark, source) if source.format == "fixed-width" else _csv(spark, source, label, folders)


def text_lines(spark: SparkSession, source: TextSource) -> tuple[DataFrame, LineFormat] | None:
    """Return the bare lines and how they are cut, where that needs neither quotes nor a header; else None."""
    simple = source.format == "csv" and not source.header and source.quote == "none" and len(source.delimiter) == 1
    if not simple or source.column_names is None or not source.delimiter.isascii() or len(source.column_names) < 2:
        return None
    lines = spark.read.text(source.path).select("value")
    return lines, LineFormat(tuple(source.column_names), source.delimiter, tuple(source.null_values))


def _csv(spark: SparkSession, source: TextSource, label: str | None, folders: Sequence[str]) -> DataFrame:
    reader = (
        spark.read.option("header", source.header)
        .option("sep", source.delimiter)
        .option("quote", _NO_QUOTE if source.quote == "none" else source.quote)
        .option("inferSchema", False)
        .option("mode", "PERMISSIVE")
        # Otherwise a file whose columns stand in another order is read under the first one's names.
        .option("enforceSchema", False)
        .option("columnNameOfCorruptRecord", _CORRUPT)
    )
    stored = [name for name in reader.csv(source.path).columns if name.lower() not in folders]
    names = list(stored)
    if not source.header:
        given = source.column_names
        names = [f"c{position}" for position in range(len(stored))] if given is None else list(given)
        if len(names) < len(stored):
            raise DataError(
                f"{len(names)} names are given for a table of {len(stored)} columns",
                path="input.column_names",
                remedy="Name every column, or leave the names out: then they are c0, c1, ...",
            )
    if label is not None and [name.lower() for name in names] == [label.lower()]:
        raise DataError(
            "the label is the only column of a CSV, where a missing one is a blank line, and no row",
            path="input.path",
            remedy="Add a column, such as a row key, or store the table as Parquet or Delta.",
        )
    # Of a part of the columns Spark would not see how many cells a line has.
    df = reader.option("columnPruning", False).schema(_texts([*names, _CORRUPT])).csv(source.path)
    if not source.delimiter.strip(BLANKS):
        df = df.unionByName(_blank_rows(spark, source, names))
    return _marked(df, source.null_values)


def _blank_rows(spark: SparkSession, source: TextSource, names: Sequence[str]) -> DataFrame:
    """Lines of nothing but blanks of which some are delimiters.

    Spark takes them for blank lines, and so the label alone would decide whether a row without features is one.
    """
    lines = spark.read.text(source.path)
    line = F.col("value")
    cells = F.split(line, rf"\Q{source.delimiter}\E", -1)
    is_row = (F.trim(line, F.lit(BLANKS)) == "") & (F.size(cells) > 1)
    texts = [F.nullif(F.get(cells, F.lit(position)), F.lit("")).alias(name) for position, name in enumerate(names)]
    corrupt = F.when(F.size(cells) != len(names), line).alias(_CORRUPT)
    folders = [F.col(quoted(name)) for name in lines.columns if name != "value"]
    return lines.filter(is_row).select(*texts, corrupt, *folders)


def _json(spark: SparkSession, source: TextSource, declared: Sequence[str], label: str | None) -> DataFrame:
    # With a schema of text no value decides a type, and so none of a label decides an error.
    lines = spark.read.text(source.path)
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **_LENIENT}
    line = F.make_valid_utf8("value")
    if label is not None:
        # What no quotes are around, such as True, .5 or nothing at all, is made text before anybody takes it for JSON.
        bare = rf'("\Q{label}\E"\s*:\s*)([^\s",\\\[\]{{}}][^",\\\[\]{{}}]*+|)(?=\s*[,}}])'
        line = F.regexp_replace(line, F.lit(bare), F.lit('$1"$2"'))
    row = F.from_json(line, _texts([*declared, _CORRUPT]), options).alias(_ROW)
    folders = [F.col(quoted(name)) for name in lines.columns if name != "value"]
    rows = lines.filter(F.trim(F.col("value"), F.lit(BLANKS)) != "").select(row, *folders)
    df = _marked(rows.select(f"{_ROW}.*", *folders), source.null_values)
    features = [name for name in declared if label is None or name.lower() != label.lower()]
    for rows in (df.limit(_FIRST_ROWS), df):
        counted = rows.agg(*(F.count(F.col(quoted(name))) for name in features)).first() if features else None
        features = [name for name, count in zip(features, counted or (), strict=True) if not count]
    if features:
        raise DataError(
            f"no line has a value of {features[0]!r}",
            path="input.path",
            remedy="Names of JSON fields are compared with case: check the name.",
        )
    return df


def _fixed_width(spark: SparkSession, source: TextSource) -> DataFrame:
    columns = read_codebook(read_text(spark, source.codebook or "") or "")
    length = max(column.start + column.width - 1 for column in columns)
    line = F.col("value").cast("binary")
    # Of blanks alone is a row, too, where all cells are missing: else the label would decide whether there is one.
    lines = spark.read.text(source.path).select("value").filter(F.octet_length(line) > 0)
    # Places are counted in bytes: a character of several in one cell, the label perhaps, does not shift the others.
    whole = F.octet_length(line) == length
    cells = [_fixed_cell(line, column, source.null_values).alias(column.name) for column in columns]
    return lines.select(*cells, (~whole).alias(MALFORMED))


def _fixed_cell(line: Column, column: FixedColumn, null_values: Sequence[str]) -> Column:
    text = F.trim(F.substring(line, column.start, column.width).cast("string"))
    cell = F.when((text != "") & ~text.isin(*null_values), text) if null_values else F.when(text != "", text)
    if not column.is_number:
        return cell
    if column.decimals:
        return F.coalesce((cell.try_cast("double") / 10.0**column.decimals).cast("string"), cell)
    # Padding is no part of a code: 02 is 2, as in an extract that is CSV.
    return F.coalesce(cell.try_cast("bigint").cast("string"), cell)


def _texts(names: Sequence[str]) -> T.StructType:
    return T.StructType([T.StructField(name, T.StringType()) for name in names])


def _marked(df: DataFrame, null_values: Sequence[str]) -> DataFrame:
    """What Spark read, with texts that mean missing as null, and the mark instead of Spark's own."""
    cells = []
    for name, kind in df.dtypes:
        cell = F.col(quoted(name))
        if name != _CORRUPT:
            is_told = kind == "string" and len(null_values) > 0
            cells.append(F.when(~cell.isin(*null_values), cell).alias(name) if is_told else cell)
    return df.select(*cells, F.col(_CORRUPT).isNotNull().alias(MALFORMED))
