"""Which files a release is made of, for readers that go without Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from dpagg.spark.engines import spark_faults


def delta_files(spark: SparkSession, path: str) -> list[str]:
    """Return the Parquet files of the newest version of a Delta table as URIs, in the order of their names.

    Files that the table no longer or not yet counts are not among them.
    """
    with spark_faults("while the files of the release were listed", "release.path"):
        return sorted(spark.read.format("delta").load(path).inputFiles())
