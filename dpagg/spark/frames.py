"""A Spark DataFrame of a notebook as an input: checked, and pinned as far as it can be."""

from __future__ import annotations

import secrets
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, DataError
from dpagg.spark.engines import spark_faults
from dpagg.spark.reading import InputTable, gives_the_same_rows
from dpagg.spark.session import adopt_session

__all__ = ["frame_table"]


def frame_table(
    df: DataFrame, *, is_seeded: bool = False, is_read_once: bool = False, needs_delta: bool = False
) -> InputTable:
    """Return a DataFrame as an input whose files may not change while it is read.

    A release reads its input several times, so the DataFrame has to give the same rows each time. Its version is no
    function of its rows: every call is a request of its own.

    Parameters
    ----------
    df : DataFrame
        Of a classic session.
    is_seeded : bool
        Whether the release is reproducible, and not private: then the version is the same each time.
    is_read_once : bool
        Whether rows are read once and kept, as a fit does; they need not come again then. (Spark's own VectorAssembler
        calls itself not deterministic.)
    needs_delta : bool
        Whether the release will be written as a Delta table.

    Raises
    ------
    ConfigError
        If the DataFrame draws random numbers, or takes some rows by a limit.
    DataError
        If it has no rows, or a column cannot be resolved.
    EnvironmentFault
        If Spark fails, or Delta is needed and not there.
    """
    # Secrets travel in closures, which a session that nobody prepared may write to a file.
    adopt_session(df.sparkSession, needs_delta=needs_delta)
    with spark_faults("while the DataFrame was looked at"):
        steady = is_read_once or gives_the_same_rows(df)
        empty = steady and df.isEmpty()
    if not steady:
        raise ConfigError(
            "the DataFrame is not deterministic (rand, uuid, shuffle, limit or such), and a run reads it several times",
            remedy="Write it to Parquet or Delta first, and give the DataFrame that reads it.",
        )
    if empty:
        raise DataError("the table has no rows")
    version: dict[str, Any] = {"format": "spark dataframe"}
    if not is_seeded:
        version["request"] = secrets.token_hex(16)
    spark = df.sparkSession

    def now() -> dict[str, Any]:
        with spark_faults("while the files of the DataFrame were listed"):
            return {**version, "files": _files(spark, df.inputFiles())}

    return InputTable(df, now(), now)


def _files(spark: SparkSession, paths: list[str]) -> list[list[Any]]:
    """Path, size and time of modification of each file. Not for publication."""
    if not paths:
        return []
    files = spark.read.format("binaryFile").load(paths)
    rows = files.select("path", "length", F.unix_micros("modificationTime").alias("modified")).collect()
    return sorted([str(row["path"]), int(row["length"]), int(row["modified"])] for row in rows)
