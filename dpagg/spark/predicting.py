"""A model over a table of any size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, EnvironmentFault
from dpagg.kernels.encoding import encode_features
from dpagg.kernels.schema import Schema
from dpagg.spark.engines import guarded, map_in_arrow, spark_faults
from dpagg.spark.files import (
    file_system,
    hadoop_path,
    move_new,
    qualified,
    remove,
    remove_abandoned,
    staging_path,
)
from dpagg.spark.names import quoted

__all__ = ["exists", "predictions", "stored_format", "write_new"]

# Delta stores columns of such names under others.
_SPECIAL = " ,;{}()\n\t="


def predictions(
    df: DataFrame,
    schema: Schema,
    model: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    row_id: str | None,
    column: str,
) -> DataFrame:
    """Return the row key, if one is kept, and the prediction of each row; null where a feature to drop is missing.

    Parameters
    ----------
    df : DataFrame
        As `dpagg.spark.reading.normalise` returns it, with or without a label.
    schema : Schema
        Of the model.
    model : callable
        From encoded features, shape (k, d), to predictions, shape (k,); it travels to the tasks.
    row_id : str or None
        Name of the key in `df`.
    column : str
        Name of the prediction.
    """
    # A table without columns would lose its rows on the way to Python.
    rows = df.select("*", F.lit(1).alias("__dpagg_row"))

    def predict(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            encoded, keep = guarded(lambda each: encode_features(each, schema), batch)
            values = pa.array(model(encoded), mask=~keep)
            if row_id is None:
                yield pa.RecordBatch.from_arrays([values], names=[column])
            else:
                key = batch.column(batch.schema.get_field_index(row_id))
                yield pa.RecordBatch.from_arrays([key, values], names=[row_id, column])

    fields = f"{quoted(column)} double"
    if row_id is not None:
        fields = f"{quoted(row_id)} {df.schema[row_id].dataType.simpleString()}, {fields}"
    return map_in_arrow(rows, predict, fields)


def stored_format(spark: SparkSession, path: str) -> str:
    """Return the format of a table, by its Delta log, else by the name of its file."""
    name = path.rstrip("/").lower()
    # A path that cannot be looked at is refused when it is read, with a reason.
    with suppress(Py4JError):
        if file_system(spark, path).exists(hadoop_path(spark, f"{path.rstrip('/')}/_delta_log")):
            return "delta"
    for ending, found in (("csv", "csv"), ("json", "json"), ("jsonl", "json")):
        if name.endswith((f".{ending}", f".{ending}.gz", f".{ending}.bz2")):
            return found
    return "parquet"


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether anything is at the path."""
    where = qualified(spark, path)
    return bool(file_system(spark, where).exists(hadoop_path(spark, where)))


def write_new(df: DataFrame, path: str, stored_as: str) -> None:
    """Write a table at a path where nothing is, whole or not at all.

    Raises
    ------
    ConfigError
        If something is there.
    DataError, EnvironmentFault
        If it can't be read to its end or written; nothing is left then.
    """
    spark = df.sparkSession
    target = qualified(spark, path)
    if exists(spark, path):
        raise ConfigError(f"{path} exists", path="OUT", remedy="Choose a new path: nothing is ever overwritten.")
    remove_abandoned(spark, target)
    staging = staging_path(target)
    try:
        with spark_faults("while predictions were written", "OUT"):
            writer = df.write.format(stored_as)
            if stored_as == "delta" and any(character in _SPECIAL for name in df.columns for character in name):
                writer = writer.option("delta.columnMapping.mode", "name")
            writer.save(staging)
        move_new(spark, staging, target, path)
    except (ConfigError, EnvironmentFault) as error:
        error.path = "OUT"
        raise
    finally:
        remove(spark, staging)
