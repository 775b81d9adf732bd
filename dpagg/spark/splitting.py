"""Tables of an experiment: rows split by their keys, written once, and read by every release."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import DataError
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Schema
from dpagg.spark.engines import guarded, map_in_arrow, spark_faults
from dpagg.spark.names import quoted
from dpagg.spark.reading import InputTable, normalise

__all__ = ["ROW_KEY", "rows_under_cap", "write_split"]

ROW_KEY = "dpagg_row_key"
_PART = "part"
_BUCKETS = 1000


def write_split(table: InputTable, schema: Schema, row_id: str | None, path: str, test_share: float) -> int:
    """Write a table as Parquet in two folders, ``part=train`` and ``part=test``, in one pass.

    A row is a test row by a hash of its key, which no label enters. Without a key rows are numbered where they stand.
    Columns are those of the schema, typed as a run would type them, and the key.

    Returns
    -------
    int
        Malformed lines that were left out.

    Raises
    ------
    DataError
        If a column is missing or of a wrong type, a line is malformed and to be refused, or one part has no row.
    EnvironmentFault
        If Spark fails.
    """
    settled = table.settled()
    df, key = settled.df, row_id
    if key is None:
        df, key = df.withColumn(ROW_KEY, F.monotonically_increasing_id()), ROW_KEY
    rows = normalise(df, schema, key)
    spark = rows.sparkSession
    cores = spark.sparkContext.defaultParallelism
    with spark_faults("while the table was split"):
        if rows.rdd.getNumPartitions() < cores:  # a file that cannot be split, such as gzip
            rows = rows.repartition(cores, F.col(quoted(key)))
        bucket = F.pmod(F.xxhash64(F.lit("train or test"), F.col(quoted(key))), F.lit(_BUCKETS))
        part = F.when(bucket < round(test_share * _BUCKETS), "test").otherwise("train")
        rows.withColumn(_PART, part).write.mode("overwrite").partitionBy(_PART).parquet(path)
    for name in ("train", "test"):
        if _is_empty(spark, f"{path}/{_PART}={name}"):
            raise DataError(f"no row of the table is a {name} row", remedy="It needs a few hundred rows at least.")
    return settled.num_malformed


def _is_empty(spark: SparkSession, path: str) -> bool:
    with spark_faults("while the table was split"):
        try:
            return bool(spark.read.parquet(path).isEmpty())
        except Exception as error:
            if "PATH_NOT_FOUND" in str(error):
                return True
            raise


def rows_under_cap(df: DataFrame, rule: RowRule) -> DataFrame:
    """Return the rows of a normalised table that take part by a rule: no feature missing, no leverage over the cap."""
    names = df.columns
    fields = ", ".join(f"c{place} {kind}" for place, (_, kind) in enumerate(df.dtypes))

    def kept(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            block = guarded(rule.features, batch)
            found = batch.filter(pa.array(block.selected))
            yield found.rename_columns([f"c{place}" for place in range(len(names))])

    with spark_faults():
        return map_in_arrow(df, kept, fields).toDF(*names)
