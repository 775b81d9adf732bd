"""A release as a Delta table: rows and certificate in one commit, so that neither exists without the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.weights import Finish
from dpagg.spark.engines import spark_faults

CERTIFICATE_PROPERTY = "dpagg.certificate"
# The underscore keeps VACUUM from removing the file and readers from taking it for data.
CERTIFICATE_FILE = "_certificate.json"
_SCHEMA = pa.schema([("bag_id", pa.int64()), ("features", pa.list_(pa.float64())), ("label", pa.float64())])
_SPARK_SCHEMA = "bag_id bigint, features array<double>, label double"


def drawn_bags(spark: SparkSession, finish: Finish, sums: NDArray[np.float64] | None) -> DataFrame:
    """Return the released rows (bag_id, features, label), drawn where they are written.

    With `sums`, shape (num_bags, r + 1), the weighted sums are given; otherwise each task draws its chunks from the
    factor in its closure. A task that runs again draws the same rows.
    """
    if sums is not None or finish.num_chunks == 1:
        starts = [finish.bags(chunk) for chunk in range(finish.num_chunks)]
        parts = [
            _batch(finish, chunk, None if sums is None else sums[bags.start : bags.stop])
            for chunk, bags in enumerate(starts)
        ]
        return spark.createDataFrame(cast(Any, pa.Table.from_batches(parts)), _SPARK_SCHEMA)

    def draw(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for chunk in batch.column(0).to_pylist():
                yield _batch(finish, chunk, None)

    parallel = min(finish.num_chunks, max(spark.sparkContext.defaultParallelism, finish.num_chunks // 64))
    return spark.range(0, finish.num_chunks, 1, parallel).mapInArrow(cast(Any, draw), _SPARK_SCHEMA)


def publish(df: DataFrame, path: str, certificate: dict[str, Any], comments: dict[str, str]) -> None:
    """Write the release to a new Delta table at `path`, certificate in its properties and beside its data.

    Raises
    ------
    ConfigError
        If something exists at the path.
    EnvironmentFault
        If the write fails; the table then does not exist.
    """
    spark = df.sparkSession
    text = _text(certificate)
    commented = df.select(*(F.col(name).alias(name, metadata={"comment": comments[name]}) for name in df.columns))
    with spark_faults():
        (
            commented.writeTo(f"delta.`{_qualified(spark, path)}`")
            .using("delta")
            .tableProperty(CERTIFICATE_PROPERTY, text)
            .create()
        )
        write_certificate_file(spark, path, text)


def write_certificate_file(spark: SparkSession, path: str, text: str) -> None:
    """Put the certificate beside the data, on whatever file system the table is."""
    jvm: Any = spark.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(path)
    target = jvm.org.apache.hadoop.fs.Path(folder, CERTIFICATE_FILE)
    stream = _file_system(spark, path).create(target, True)
    stream.write(text.encode())
    stream.close()


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether anything is at the path."""
    jvm: Any = spark.sparkContext._jvm
    return bool(_file_system(spark, path).exists(jvm.org.apache.hadoop.fs.Path(path)))


def read_certificate(spark: SparkSession, path: str) -> dict[str, Any]:
    """Return the certificate in the properties of the Delta table at `path`.

    Raises
    ------
    DataError
        If there is no Delta table or no certificate in it.
    """
    if not _is_table(spark, path):
        raise DataError(f"no Delta table at {path}", remedy="Give the output path of an aggregate run.")
    found = _property(spark, path)
    if found is None:
        raise DataError(
            f"the Delta table at {path} carries no certificate",
            remedy="Only a table written by dpagg aggregate has one.",
        )
    return found


def published_certificate(spark: SparkSession, path: str) -> dict[str, Any] | None:
    """Return the certificate of the release at `path`, None if nothing is there; mend its certificate file.

    Raises
    ------
    ConfigError
        If something is there that is not a finished release.
    """
    if not exists(spark, path):
        return None
    found = _property(spark, path) if _is_table(spark, path) else None
    if found is None:
        raise ConfigError(
            f"{path} exists and is not a finished release",
            path="output.path",
            remedy="Choose a new path. If an interrupted run left it, its files may hold rows of a release that was "
            "never finished: remove them, and count that release as made if anybody could read them.",
        )
    if not exists(spark, f"{path}/{CERTIFICATE_FILE}"):
        with spark_faults():
            write_certificate_file(spark, path, _text(found))
    return found


def _is_table(spark: SparkSession, path: str) -> bool:
    from delta.tables import DeltaTable

    with spark_faults():
        return exists(spark, path) and DeltaTable.isDeltaTable(spark, path)


def _property(spark: SparkSession, path: str) -> dict[str, Any] | None:
    from delta.tables import DeltaTable

    with spark_faults():
        detail = DeltaTable.forPath(spark, path).detail().select("properties").head()
    text = detail[0].get(CERTIFICATE_PROPERTY) if detail is not None else None
    return None if text is None else cast(dict[str, Any], json.loads(text))


def _text(certificate: dict[str, Any]) -> str:
    return json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False)


def _batch(finish: Finish, chunk: int, sums: NDArray[np.float64] | None) -> pa.RecordBatch:
    features, labels = finish.chunk(chunk, sums)
    count, width = features.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(features.ravel()))
    bags = finish.bags(chunk)
    return pa.RecordBatch.from_arrays(
        [pa.array(np.arange(bags.start, bags.stop)), rows, pa.array(labels)], schema=_SCHEMA
    )


def _qualified(spark: SparkSession, path: str) -> str:
    """A path with its file system: a relative one is no table name."""
    jvm: Any = spark.sparkContext._jvm
    return str(_file_system(spark, path).makeQualified(jvm.org.apache.hadoop.fs.Path(path)).toString())


def _file_system(spark: SparkSession, path: str) -> Any:
    jvm: Any = spark.sparkContext._jvm
    configuration = cast(Any, spark.sparkContext._jsc).hadoopConfiguration()
    return jvm.org.apache.hadoop.fs.Path(path).getFileSystem(configuration)
