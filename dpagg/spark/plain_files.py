"""Parquet files that a pass reads without Spark's reader, where that gives the very same cells.

Spark's reader decodes columns, makes rows of them and then Arrow columns again for Python, which costs several times
what the pass itself does. A task that reads the file with pyarrow has the columns at once. Spark still runs the tasks:
a lost, copied or repeated one reads the same pieces again.

Whatever is not as expected (a file without one of the columns or with another type, one that can't be read) ends the
attempt without a word, and the pass goes through Spark's reader, which alone decides what the table is and what is
wrong with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dpagg.kernels.schema import Numeric, Schema
from dpagg.spark.names import folder_columns

__all__ = ["Piece", "PlainFiles", "PlainTable", "UnlikeTheTable", "largest_task", "plain_files", "read_pieces"]

# Part of a file by byte offsets, the last one excluded; a row group belongs to where it begins.
Piece: TypeAlias = tuple[str, int, int]

# A task reads so many times what one of Spark's reader may: it takes a fraction of the time.
_LARGER = 4
# What opening a file costs, as bytes; Spark's own figure.
_OPEN_BYTES = 4 << 20
_LARGEST = 1 << 62
# Driver and tasks look at each file, one after the other.
_MOST_FILES = 10_000
_BATCH_ROWS = 8_192
# Read ahead of each column: a row group is never in memory as a whole.
_BUFFER_BYTES = 1 << 18

_FIELD_ID = "parquet.field.id"

# Types that both readers take from a file as they are.
_TYPES = {
    "double": pa.float64(),
    "float": pa.float32(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "smallint": pa.int16(),
    "tinyint": pa.int8(),
    "string": pa.string(),
}


@dataclass
class PlainFiles:
    """Files of a table on a file system that every process sees.

    Attributes
    ----------
    sizes : tuple
        Path and size of each file, by path.
    are_usable : bool
        Whether none has turned out to be unlike the table.
    """

    sizes: tuple[tuple[str, int], ...] = field(repr=False)
    are_usable: bool = True

    def tasks(self, cores: int, largest: int) -> list[list[Piece]]:
        """Share the files out evenly among a multiple of the cores, about `largest` bytes each at most."""
        total = sum(size + _OPEN_BYTES for _, size in self.sizes)
        waves = -(-total // (cores * largest))
        share = max(_OPEN_BYTES, -(-total // (cores * waves)))
        tasks: list[list[Piece]] = [[] for _ in range(-(-total // share))]
        before = 0
        for path, size in self.sizes:
            for start in range(0, size, share):
                length = min(share, size - start)
                end = start + length if start + length < size else _LARGEST
                # Where its middle falls: sizes that differ by a little don't make one task more.
                tasks[min(len(tasks) - 1, (before + length // 2) // share)].append((path, start, end))
                before += length + (_OPEN_BYTES if end == _LARGEST else 0)
        return [pieces for pieces in tasks if pieces]


@dataclass(frozen=True)
class PlainTable:
    """Declared columns of plain files.

    Attributes
    ----------
    files : PlainFiles
        Where they are.
    columns : tuple
        Declared name, name in the files and Spark's type of each.
    """

    files: PlainFiles
    columns: tuple[tuple[str, str, str], ...]

    @classmethod
    def of(cls, files: PlainFiles | None, df: DataFrame, schema: Schema) -> PlainTable | None:
        """Return the features and the label, in this order, as they are stored.

        Parameters
        ----------
        files : PlainFiles or None
            Of `df`.
        df : DataFrame
            The whole table, as it is stored; features and label are known to be in it.
        schema : Schema
            Declares features and label.

        Returns
        -------
        PlainTable or None
            None if there are no such files, or a column would have to be converted on the way.
        """
        if files is None:
            return None
        stored = {found.name.lower(): found for found in df.schema.fields}
        folders = folder_columns(path for path, _ in files.sizes)
        columns = []
        for declared in (*schema.features, schema.label):
            found = stored[declared.name.lower()]
            kind = found.dataType.simpleString()
            is_text = not isinstance(declared, Numeric) and declared is not schema.label
            # pyarrow takes a dot for a way into a struct. A folder's name comes before what its files hold. And Spark
            # finds a column with a number by its number.
            if (
                kind not in _TYPES
                or is_text != (kind == "string")
                or "." in found.name
                or found.name.lower() in folders
                or _FIELD_ID in found.metadata
            ):
                return None
            columns.append((declared.name, found.name, kind))
        return cls(files, tuple(columns))

    def without_label(self) -> PlainTable | None:
        """Return the features alone; None if there are none."""
        return PlainTable(self.files, self.columns[:-1]) if len(self.columns) > 1 else None


def largest_task(spark: SparkSession) -> int:
    """Bytes of Parquet for one task, in proportion to what Spark's reader is told (128 MB by default)."""
    jvm: Any = spark.sparkContext._jvm
    told = spark.conf.get("spark.sql.files.maxPartitionBytes")
    return _LARGER * int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(told))


def plain_files(df: DataFrame) -> PlainFiles | None:
    """Return the files of a table that was read as Parquet.

    Parameters
    ----------
    df : DataFrame
        What ``spark.read.parquet`` returned, nothing else done to it.

    Returns
    -------
    PlainFiles or None
        None if they are not on a file system that is mounted here, or too many.
    """
    names = [name for name in df.inputFiles() if not _is_summary(name.rpartition("/")[2])]
    if not 0 < len(names) <= _MOST_FILES:
        return None
    sizes = []
    for name in names:
        parts = urlsplit(name)
        if parts.scheme != "file" or parts.query or parts.fragment:
            return None
        path = unquote(parts.path)
        try:
            sizes.append((path, os.stat(path).st_size))
        except OSError:
            return None
    return PlainFiles(tuple(sorted(sizes))) if all(size > 0 for _, size in sizes) else None


def _is_summary(name: str) -> bool:
    """Whether Spark reads no rows of a file that it lists: one of what is in the others."""
    return name.startswith("_") and "=" not in name


class UnlikeTheTable(Exception):
    """A file is to be read by Spark."""


def read_pieces(pieces: Sequence[Piece], columns: Sequence[tuple[str, str, str]]) -> Iterator[pa.RecordBatch]:
    """Return the rows of some pieces, columns by their declared names.

    Raises
    ------
    UnlikeTheTable
        If a file lacks a column, or has it with another type or in two spellings.
    """
    names = [stored for _, stored, _ in columns]
    for path, start, end in pieces:
        # Hadoop compares checksums too, by files of its own beside each file.
        with pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True) as file:
            _compare(file.schema_arrow, columns)
            groups = [group for group in range(file.num_row_groups) if start <= _offset(file, group) < end]
            if not groups:
                continue
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names, use_threads=False):
                yield pa.RecordBatch.from_arrays(
                    [batch.column(batch.schema.get_field_index(stored)) for stored in names],
                    names=[declared for declared, _, _ in columns],
                )


def _compare(found: pa.Schema, columns: Sequence[tuple[str, str, str]]) -> None:
    spellings = [name.lower() for name in found.names]
    for _, stored, kind in columns:
        position = found.get_field_index(stored)
        if position < 0 or spellings.count(stored.lower()) > 1 or found.field(position).type != _TYPES[kind]:
            raise UnlikeTheTable


def _offset(file: pq.ParquetFile, group: int) -> int:
    """Where a row group begins; any number would do that is always the same."""
    first = file.metadata.row_group(group).column(0)
    pages = (first.dictionary_page_offset, first.data_page_offset)
    return int(min(offset for offset in pages if offset))
