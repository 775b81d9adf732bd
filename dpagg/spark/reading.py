"""A table as it was at one moment, its columns typed so that no cell can raise an error.

Spark puts the cell into the exception of a failed cast, and exceptions into its event log, so every
cast here is a ``try_cast`` to null, and no text of a Spark exception reaches a message.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol, cast

from delta.tables import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from dpagg.errors import DataError, DpaggError, EnvironmentFault
from dpagg.kernels.encoding import Numeric, Schema
from dpagg.kernels.lines import LineFormat
from dpagg.kernels.row_keys import refuse_faulty_key, refuse_malformed, refuse_unowned
from dpagg.kernels.rows import MALFORMED
from dpagg.spark.files import qualified, read_text
from dpagg.spark.names import folder_columns, quoted
from dpagg.spark.plain_files import PlainFiles, plain_files
from dpagg.spark.text_tables import TEXT_FORMATS, TextSource, text_lines, text_table

# Conditions and classes by which Spark says that stored data, not the cluster, is at fault.
_BAD_FILE = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "UNABLE_TO_INFER_SCHEMA",
    "DELTA_",
    "ZipException",
    "EOFException",
    "ParquetDecodingException",
)
_NUMBERS = (T.NumericType, T.StringType, T.BooleanType, T.NullType)
_CATEGORIES = (T.IntegralType, T.StringType, T.BooleanType, T.DateType, T.DecimalType, T.NullType)
_UNPUBLISHED = frozenset({"listing_with_sizes_sha256", "num_files", "partition_columns", "files"})
UNIT_COLUMN = "__dpagg_unit"
_KEYS = (T.IntegralType, T.StringType, T.DateType, T.TimestampType, T.DecimalType, T.BinaryType)


class TableSource(TextSource, Protocol):
    """Which table to read: the ``input`` section of a configuration."""

    @property
    def version(self) -> int | None:
        """Version of a Delta table; None is the latest."""

    @property
    def malformed(self) -> str:
        """What becomes of malformed lines: ``refuse`` or ``drop``."""


@dataclass(frozen=True)
class InputTable:
    """A table pinned to one version.

    Attributes
    ----------
    df : DataFrame
        Its rows, as stored. Of files of text all cells are text, and the column `MALFORMED` marks rows whose line is
        malformed: take them by `settled`, or leave them out and count them.
    pinned : dict
        JSON values that tell whether anything changed; not for publication, since the size of a file depends on
        the labels in it.
    files : PlainFiles or None
        Those of `df`, where passes may read them without Spark's reader.
    malformed : str
        What becomes of malformed lines: ``refuse`` or ``drop``.
    lines : tuple or None
        The bare lines and how they are cut, where that is simple (`dpagg.kernels.lines`).
    num_malformed : int
        Lines that were left out.
    """

    df: DataFrame
    pinned: dict[str, Any] = field(repr=False)
    _now: Callable[[], dict[str, Any]] = field(repr=False)
    files: PlainFiles | None = field(default=None, repr=False)
    malformed: str = "refuse"
    lines: tuple[DataFrame, LineFormat] | None = None
    num_malformed: int = 0

    def settled(self, *, masked: bool = False) -> InputTable:
        """Return the table without marks: malformed lines refused or left out, which is a pass to count them.

        Parameters
        ----------
        masked : bool
            Keep them, with all cells missing: where the values of a row may decide neither an error nor a count.

        Raises
        ------
        DataError
            If there are any, and they are to be refused.
        """
        if MALFORMED not in self.df.columns:
            return self
        names = [name for name in self.df.columns if name != MALFORMED]
        mark = F.col(MALFORMED)
        if masked:
            cells = [F.when(~mark, F.col(quoted(name))).alias(name) for name in names]
            return dataclasses.replace(self, df=self.df.select(*cells), lines=None)
        with _reading(None, "while lines were checked"):
            # Spark does not count its own mark alone: hence the first column.
            found = self.df.agg(F.sum(mark.cast("long")), F.count(F.col(quoted(names[0])))).first()
        count = 0 if found is None else int(found[0] or 0)
        refuse_malformed(count, self.malformed)
        # Where all lines are whole, Spark need not look at the cells that nobody asks for.
        df = self.df.filter(~mark) if count else self.df
        return dataclasses.replace(self, df=df.drop(MALFORMED), lines=None, num_malformed=count)

    @property
    def version(self) -> dict[str, Any]:
        """What identifies the input in public.

        Of Delta the table's id and version, of files a digest of the sorted listing (path, time of modification).
        """
        return {name: value for name, value in self.pinned.items() if name not in _UNPUBLISHED}

    def refuse_partitions_by(self, name: str, kind: str = "label") -> None:
        """Refuse files in folders named by protected values: names and number of files would tell them.

        Raises
        ------
        DataError
            If there are such folders.
        """
        if name.lower() in self.pinned.get("partition_columns", []):
            raise DataError(
                f"the files of the input are laid out by the {kind} {name!r}",
                path="input.path",
                remedy=f"Write the table without partitioning by the {kind}: names and number of files would tell it.",
            )

    def recheck(self) -> None:
        """Compare what is stored now with what was pinned.

        Raises
        ------
        DataError
            If a file was added, removed or replaced, or the Delta table is another one.
        """
        try:
            now = self._now()
        except DataError:  # gone, or no longer what it was
            now = {}
        if now != self.pinned:
            raise DataError(
                "the input changed while it was read, so nothing is released",
                path="input.path",
                remedy="Run again when nothing writes to it.",
            )


def read_table(
    spark: SparkSession,
    source: TableSource,
    *,
    may_be_empty: bool = False,
    declared: Sequence[str] = (),
    label: str | None = None,
) -> InputTable:
    """Open a table and pin its version.

    Parameters
    ----------
    spark : SparkSession
        With Delta if the format is ``delta``.
    source : TableSource
        Which table.
    may_be_empty : bool
        Whether it is no error if there is no row: whether there are any is not public where rows are labels.
    declared : sequence of str
        Columns that will be asked for: JSON lines have no others.
    label : str, optional
        Which of them is the label.

    Returns
    -------
    InputTable

    Raises
    ------
    DataError
        If the path doesn't exist, can't be read in this format or holds no row; never for the value
        of a cell.
    EnvironmentFault
        If Spark itself failed.
    """
    lines = None
    with _reading(source):
        _check_format(spark, source)
        if source.format == "delta":
            version = _delta_version(spark, source, source.version)
            pinned = int(version["version"])
            df = spark.read.format("delta").option("versionAsOf", pinned).load(source.path)
            now = _Later(spark, source, pinned)
        else:
            # The listing comes first: whatever changes after it shows in a recheck.
            version = _listing_version(spark, source)
            if source.format in TEXT_FORMATS:
                df = text_table(spark, source, declared, label, version["partition_columns"])
                lines = None if version["partition_columns"] else text_lines(spark, source)
            else:
                df = spark.read.parquet(source.path)
            now = _Later(spark, source, None)
        if source.format == "csv" and source.header and version["num_files"] > 1:
            # Only a pass over all columns compares the header of each file.
            df.write.format("noop").mode("overwrite").save()
        if not may_be_empty and df.isEmpty():
            raise DataError("the table has no rows", path="input.path")
        files = plain_files(df) if source.format == "parquet" else None
    return InputTable(df, version, now, files, source.malformed, lines)


# Which rows these nodes take depends on which task ends first.
_TAKES_SOME_ROWS = re.compile(r"^[\s:+|-]*(GlobalLimit|LocalLimit|Offset|Tail)\b", re.MULTILINE)


def gives_the_same_rows(df: DataFrame) -> bool:
    """Whether each pass over a DataFrame, and each task that runs again, reads the same rows.

    Spark takes LIMIT and OFFSET for deterministic; which rows they take is not, and noise that was measured on some
    rows does not cover others.
    """
    plan = cast(Any, df)._jdf.queryExecution().analyzed()
    return bool(plan.deterministic()) and _TAKES_SOME_ROWS.search(str(plan.treeString())) is None


def normalise(
    df: DataFrame, schema: Schema, row_id: str | None = None, unit: str | None = None, *, with_label: bool = True
) -> DataFrame:
    """Select the declared columns in the types that the encoder takes.

    Numeric features and the label become doubles, the others text; a cell that can't be read as
    such becomes null. The row key stays as it is. No cell can raise an error, with ANSI mode on or off.

    Parameters
    ----------
    df : DataFrame
        Has at least the declared columns.
    schema : Schema
        Declares features and label.
    row_id : str, optional
        Name of the row key.
    unit : str, optional
        Name of the column that says whose row it is; it becomes `UNIT_COLUMN`.
    with_label : bool
        Whether the label is read; without it the table may have none.

    Returns
    -------
    DataFrame
        The row key and the unit if there are any, the features in order, the label, under their declared names; and
        the mark of malformed lines, if there is one.

    Raises
    ------
    DataError
        If a column is missing or ambiguous, or its declared type can't hold what it should.
    """
    declared = [feature.name for feature in schema.features] + [schema.label.name]
    found = _Columns(df, [*(name for name in (row_id, unit) if name is not None), *declared])
    # As text, which crosses to the JVM at once: a `Column` does in five steps.
    selected: list[str] = []
    if row_id is not None:
        key = found.column(row_id, _KEYS, "a whole number, text, a date or binary", "input.row_id")
        selected.append(f"{key} AS {quoted(row_id)}")
    if unit is not None:
        owner = found.column(unit, _KEYS, "a whole number, text, a date or binary", "privacy.unit.column")
        selected.append(f"{owner} AS {quoted(UNIT_COLUMN)}")
    for position, feature in enumerate(schema.features):
        path = f"schema.features[{position}]"
        if isinstance(feature, Numeric):
            cell = found.column(feature.name, _NUMBERS, "a number, or text that holds one", path)
            selected.append(f"try_cast({cell} AS DOUBLE) AS {quoted(feature.name)}")
        else:
            cell = found.column(feature.name, _CATEGORIES, "text, a whole number, a boolean or a date", path)
            selected.append(f"try_cast({cell} AS STRING) AS {quoted(feature.name)}")
    if with_label:
        label = found.column(schema.label.name, _NUMBERS, "a number, or text that holds one", "schema.label")
        selected.append(f"try_cast({label} AS DOUBLE) AS {quoted(schema.label.name)}")
    if MALFORMED in df.columns:
        selected.append(MALFORMED)
    return df.selectExpr(*selected)


def only_features(df: DataFrame, schema: Schema) -> DataFrame:
    """Return the feature columns of a normalised table: labels cannot be read from it."""
    kept = [F.col(quoted(feature.name)) for feature in schema.features]
    kept += [F.col(name) for name in (UNIT_COLUMN, MALFORMED) if name in df.columns]
    # A table without columns would lose its rows on the way to Python.
    return df.select(*kept, F.lit(1).alias("__dpagg_row"))


def limit_rows(df: DataFrame, row_id: str, max_rows: int) -> tuple[DataFrame, int]:
    """Keep at most `max_rows` rows of each unit, chosen by a public hash of the row key, never by a label.

    Returns
    -------
    tuple
        The rows that are kept, and how many are not.

    Raises
    ------
    DataError
        If a row belongs to nobody.
    EnvironmentFault
        If Spark itself failed.
    """
    key, owner = F.col(quoted(row_id)), F.col(UNIT_COLUMN)
    order = Window.partitionBy(owner).orderBy(F.xxhash64(key), key)
    numbered = df.withColumn("__dpagg_turn", F.row_number().over(order))
    with _reading(None):
        over = F.sum((F.col("__dpagg_turn") > max_rows).cast("long"))
        counts = numbered.select(F.count(F.lit(1)) - F.count(owner), over).first()
    unowned, dropped = (0, 0) if counts is None else (int(counts[0]), int(counts[1] or 0))
    refuse_unowned(unowned)
    return numbered.filter(F.col("__dpagg_turn") <= max_rows).drop("__dpagg_turn"), dropped


def check_row_key(df: DataFrame, row_id: str) -> None:
    """Refuse a row key that is null or comes twice.

    Raises
    ------
    DataError
        With counts only.
    EnvironmentFault
        If Spark itself failed.
    """
    key = F.col(quoted(row_id))
    with _reading(None):
        counts = df.select(F.count(F.lit(1)), F.count(key), F.count_distinct(key)).first()
    rows, known, distinct = (0, 0, 0) if counts is None else (int(count) for count in counts)
    refuse_faulty_key(row_id, rows=rows, known=known, distinct=distinct)


@dataclass(frozen=True)
class _Later:
    """What the version of a source is when asked."""

    spark: SparkSession
    source: TableSource
    pinned: int | None

    def __call__(self) -> dict[str, Any]:
        with _reading(self.source):
            if self.pinned is None:
                return _listing_version(self.spark, self.source)
            return _delta_version(self.spark, self.source, self.pinned)


def _check_format(spark: SparkSession, source: TableSource) -> None:
    """Refuse what Spark would read all the same: files of a Delta table hold rows that are deleted."""
    is_delta = DeltaTable.isDeltaTable(spark, source.path)
    if source.format == "delta" and not is_delta:
        _files(spark, source)
        raise DataError(
            f"{source.path!r} is not a Delta table",
            path="input.path",
            remedy="Check input.path and input.format.",
        )
    if source.format != "delta" and is_delta:
        raise DataError(
            f"{source.path!r} is a Delta table, not {source.format}",
            path="input.format",
            remedy="Set input.format: delta.",
        )


def _delta_version(spark: SparkSession, source: TableSource, version: int | None) -> dict[str, Any]:
    table = f"delta.{quoted(qualified(spark, source.path))}"
    detail = spark.sql(f"DESCRIBE DETAIL {table}").select("id").first()
    latest = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").select("version").first()
    if detail is None or latest is None:
        raise DataError(f"{source.path!r} is not a Delta table", path="input.path")
    if version is not None and version > latest["version"]:
        raise DataError(
            f"version {version} of {source.path!r} does not exist, the latest is {latest['version']}",
            path="input.version",
        )
    pinned = int(latest["version"]) if version is None else version
    return {"format": "delta", "table_id": str(detail["id"]), "version": pinned}


def _files(spark: SparkSession, source: TableSource) -> list[list[Any]]:
    """Path, size and time of modification of each file, sorted."""
    # This source lists just the files that the others read, on any file system; contents are not touched.
    files = spark.read.format("binaryFile").load(source.path)
    rows = files.select("path", "length", F.unix_micros("modificationTime").alias("modified")).collect()
    return sorted([str(row["path"]), int(row["length"]), int(row["modified"])] for row in rows)


def _listing_version(spark: SparkSession, source: TableSource) -> dict[str, Any]:
    listing = _files(spark, source)
    if not listing:
        raise DataError(f"{source.path!r} holds no data", path="input.path")
    if source.format in TEXT_FORMATS and any(path.endswith(".parquet") for path, _, _ in listing):
        raise DataError(
            f"{source.path!r} holds parquet files", path="input.format", remedy="Set input.format: parquet."
        )
    if len({path for path, _, _ in listing}) < len(listing):
        raise DataError(
            f"{source.path!r} names files twice, so that each of their rows would count twice",
            path="input.path",
            remedy="Give a pattern that names each file once.",
        )
    return {
        "format": source.format,
        **_codebook_version(spark, source),
        "num_files": len(listing),
        "partition_columns": sorted(folder_columns(path for path, _, _ in listing)),
        "listing_sha256": _digest([[path, modified] for path, _, modified in listing]),
        "listing_with_sizes_sha256": _digest(listing),
    }


def _codebook_version(spark: SparkSession, source: TableSource) -> dict[str, str]:
    """What identifies the codebook of a fixed-width file: another one makes other columns of the same lines."""
    if source.format != "fixed-width":
        return {}
    text = read_text(spark, source.codebook or "")
    if text is None:
        raise DataError(
            f"there is no readable codebook at {source.codebook!r}",
            path="input.codebook",
            remedy="Give the DDI codebook (XML) that came with the file.",
        )
    return {"codebook_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _digest(listing: Sequence[Sequence[object]]) -> str:
    return hashlib.sha256(json.dumps(listing, separators=(",", ":")).encode()).hexdigest()


class _Columns:
    """The columns of a table by declared name; like Spark, without case."""

    def __init__(self, df: DataFrame, declared: Sequence[str]) -> None:
        self._df = df
        self._by_name: dict[str, list[T.StructField]] = {}
        for stored in df.schema.fields:
            self._by_name.setdefault(stored.name.lower(), []).append(stored)
        # If none of the names fits, a CSV may have no header, and its "names" are cells: then show none.
        self._may_show = any(name.lower() in self._by_name for name in declared)

    def column(self, name: str, allowed: tuple[type[T.DataType], ...], expected: str, path: str) -> str:
        found = self._by_name.get(name.lower(), [])
        if not found:
            near = get_close_matches(name.lower(), self._by_name, n=1) if self._may_show else []
            remedy = "Check the name."
            if near:
                remedy = f"Did you mean {self._by_name[near[0]][0].name!r}?"
            elif not self._may_show:
                remedy = "None of the declared columns is there; for a CSV check input.header and input.delimiter too."
            raise DataError(f"the table has no column {name!r}", path=path, remedy=remedy)
        if len(found) > 1:
            raise DataError(
                f"{len(found)} columns of the table are named {name!r} (case doesn't count)",
                path=path,
                remedy="Rename all but one.",
            )
        if not isinstance(found[0].dataType, allowed):
            raise DataError(
                f"column {name!r} has type {found[0].dataType.typeName()}, expected {expected}",
                path=path,
                remedy="Convert the column first.",
            )
        return quoted(found[0].name)


@contextmanager
def _reading(source: TableSource | None, when: str = "while the row key was checked") -> Iterator[None]:
    try:
        yield
    except DpaggError:
        raise
    except (PySparkException, Py4JError) as error:
        raise _fault(error, source, when) from None


def _fault(error: PySparkException | Py4JError, source: TableSource | None, when: str) -> DpaggError:
    causes = _causes(error)
    said = next((cause for cause in causes if cause.startswith(_BAD_FILE)), causes[0])
    is_stored = isinstance(error, AnalysisException) or said.startswith(_BAD_FILE)
    if source is None:
        if is_stored:
            return DataError(f"stored rows cannot be read ({said})", path="input.path")
        return EnvironmentFault(f"Spark failed {when} ({said})")
    if said == "PATH_NOT_FOUND":
        return DataError(f"{source.path!r} does not exist", path="input.path")
    if is_stored:
        return DataError(
            f"{source.path!r} cannot be read as {source.format} ({said})",
            path="input.path",
            remedy="Check input.path and input.format.",
        )
    return EnvironmentFault(
        f"Spark failed while {source.path!r} was opened ({said})",
        path="input.path",
        remedy="Spark's text is withheld, because it may quote rows.",
    )


def _causes(error: PySparkException | Py4JError) -> list[str]:
    """Conditions or class names along the chain of causes: constants of the libraries, never their text."""
    if not isinstance(error, Py4JJavaError):
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        return [condition or type(error).__name__]
    causes: list[str] = []
    cause: Any = error.java_exception
    while cause is not None and len(causes) < 10:
        try:
            condition = cause.getCondition()
        except Py4JError:  # not one of Spark's own exceptions
            condition = None
        causes.append(str(condition or cause.getClass().getSimpleName()))
        cause = cause.getCause()
    return causes
