"""Bags drawn from a factor: as a DataFrame, or by each task straight into a file of a Delta table.

Spark's writer takes each number of a list through some ten calls, which costs more than drawing it. A release on a
mounted file system is written by the tasks themselves, and its log by the driver: a new table that nobody sees yet
needs no transaction, only the first commit of Delta's protocol.
"""

from __future__ import annotations

import json
import os
import stat
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from dpagg.errors import EnvironmentFault
from dpagg.kernels.bag_batches import DRAWN, drawn_sums
from dpagg.kernels.weights import Finish

__all__ = ["DrawnBags", "WrittenFile", "commit_first"]

_SPARK_SCHEMA = "bag_id bigint, features array<double>, label double"


class WrittenFile(NamedTuple):
    """A file of a table: its name in the folder, its size in bytes, its number of rows."""

    name: str
    size: int
    num_rows: int


@dataclass(frozen=True, eq=False)
class DrawnBags:
    """The released rows (bag_id, features, label) of a table, drawn where they are written.

    A task that runs again draws the same rows.

    Attributes
    ----------
    spark : SparkSession
        Whose tasks draw.
    finish : Finish
        The last step of the release.
    sums : ndarray, shape (num_bags, r + 1), or None
        The weighted sums, where they are given; otherwise each task draws its chunks from the factor in its closure.
    """

    spark: SparkSession
    finish: Finish
    sums: NDArray[np.float64] | None = field(repr=False)

    def frame(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        finish = self.finish
        if self._is_small:
            return self.spark.createDataFrame(cast(Any, pa.Table.from_batches(list(self._batches()))), _SPARK_SCHEMA)

        def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for chunk in batch.column(0).to_pylist():
                    yield drawn_sums(finish, chunk, None)

        return self.spark.range(0, finish.num_chunks, 1, self._parallel).mapInArrow(cast(Any, draw), _SPARK_SCHEMA)

    def write(self, folder: str) -> list[WrittenFile]:
        """Write the rows as Parquet into a folder that the driver and each task see under this path.

        Raises
        ------
        EnvironmentFault
            If a task's file is not there for the driver.
        """
        finish = self.finish
        if self._is_small:
            written = [_write_file(folder, self._batches())]
        else:

            def draw(chunks: Iterable[int]) -> Iterator[WrittenFile]:
                # What a task raises is written to disk; nothing of it is about a row.
                yield _write_file(folder, (drawn_sums(finish, chunk, None) for chunk in chunks))

            chunks = self.spark.sparkContext.parallelize(range(finish.num_chunks), self._parallel)
            written = chunks.mapPartitions(draw).collect()
        for file in written:
            path = Path(folder, file.name)
            if not path.is_file() or path.stat().st_size != file.size:
                raise EnvironmentFault(
                    "what the executors wrote is not there for the driver",
                    path="output.path",
                    remedy="Give a path that all machines share.",
                )
        return written

    @property
    def _is_small(self) -> bool:
        return self.sums is not None or self.finish.num_chunks == 1

    @property
    def _parallel(self) -> int:
        count = self.finish.num_chunks
        return min(count, max(self.spark.sparkContext.defaultParallelism, count // 64))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        for chunk in range(self.finish.num_chunks):
            bags = self.finish.bags(chunk)
            yield drawn_sums(self.finish, chunk, None if self.sums is None else self.sums[bags.start : bags.stop])


def commit_first(
    folder: str,
    written: Iterable[WrittenFile],
    comments: Mapping[str, str],
    properties: Mapping[str, str],
    transaction: tuple[str, int],
) -> None:
    """Write version 0 of a Delta table: these files, columns with comments, properties, application and its version.

    Its checksum file lets a reader know all of it without a query over the log, which takes a fresh JVM seconds.
    """
    columns = cast(T.StructType, T.StructType.fromDDL(_SPARK_SCHEMA))
    for column in columns.fields:
        column.metadata = {"comment": comments[column.name]}
    now = int(time.time() * 1000)
    app_id, version = transaction
    about = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": columns.json(),
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now,
    }
    made = {"timestamp": now, "operation": "CREATE TABLE AS SELECT", "operationParameters": {}, "isBlindAppend": True}
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    transactions = [{"appId": app_id, "version": version, "lastUpdated": now}]
    files: list[dict[str, Any]] = [
        {
            "path": file.name,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": now,
            "dataChange": True,
            "stats": json.dumps({"numRecords": file.num_rows}),
        }
        for file in written
    ]
    actions = [
        {"commitInfo": made},
        {"metaData": about},
        {"protocol": protocol},
        *({"txn": each} for each in transactions),
        *({"add": each} for each in files),
    ]
    checksum = {
        "tableSizeBytes": sum(file["size"] for file in files),
        "numFiles": len(files),
        "numMetadata": 1,
        "numProtocol": 1,
        "setTransactions": transactions,
        "domainMetadata": [],
        "metadata": about,
        "protocol": protocol,
        # Readers of Delta take them for data that are there already.
        "allFiles": [file | {"dataChange": False} for file in files],
    }
    log = Path(folder, "_delta_log")
    log.mkdir()
    _let_read(log, folder)
    for ending, lines in (("json", actions), ("crc", [checksum])):
        text = "".join(json.dumps(each) + "\n" for each in lines)
        (log / f"{0:020}.{ending}").write_text(text, encoding="utf-8")
        _let_read(log / f"{0:020}.{ending}", folder)


def _write_file(folder: str, batches: Iterable[pa.RecordBatch]) -> WrittenFile:
    """Write a file of a name of its own: two copies of a task don't meet."""
    name, num_rows = f"part-{uuid.uuid4()}.snappy.parquet", 0
    path = os.path.join(folder, name)
    # Drawn numbers repeat nowhere: a dictionary of them is work for nothing.
    with pq.ParquetWriter(path, DRAWN, compression="snappy", use_dictionary=False, write_page_checksum=True) as writer:
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    _let_read(path, folder)
    return WrittenFile(name, os.path.getsize(path), num_rows)


def _let_read(path: str | Path, folder: str) -> None:
    """Give whoever may read the folder, which Hadoop made, the same rights to what is in it."""
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    # File systems without rights refuse this.
    with suppress(OSError):
        os.chmod(path, mode if os.path.isdir(path) else mode & 0o666)
