"""A release as a Delta table: rows and certificate in one commit, so that neither exists without the other."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.spark.drawn_bags import DrawnBags, commit_first
from dpagg.spark.engines import spark_faults
from dpagg.spark.files import (
    file_system,
    hadoop_path,
    is_empty_folder,
    local_path,
    move_new,
    read_text,
    remove,
    remove_abandoned,
    remove_unlisted,
    staging_path,
)
from dpagg.spark.files import qualified as _qualified
from dpagg.spark.files import write_text as _write_text

_LOG = logging.getLogger(__name__)
# A task that was told to end does so within a few seconds, unless its machine hangs.
_TASKS_END_SECONDS = 60.0

_TABLE_DEFAULTS = "spark.databricks.delta.properties.defaults."

CERTIFICATE_PROPERTY = "dpagg.certificate"
# The underscore keeps VACUUM from removing the files and readers from taking them for data.
CERTIFICATE_FILE = "_certificate.json"
REPORT_FILE = "_report.html"


def publish(
    rows: DataFrame | DrawnBags,
    path: str,
    certificate: dict[str, Any],
    comments: dict[str, str],
    confirm: Callable[[], None] | None = None,
    page: str | None = None,
) -> None:
    """Write the release to a new Delta table at `path`, certificate in its properties and beside its data.

    The commit carries the release's id as its application and the number of its ledger entry as its version; both are
    read back from the log. Everything is written to a folder of this run's own beside the path and moved there at once,
    so that a release is complete or absent, and of two runs with one path one keeps nothing. Files of tasks that
    failed, or ran twice, are removed first: Delta's log does not list them, but whoever reads the folder as Parquet
    would take them for rows.

    Parameters
    ----------
    rows : DataFrame or DrawnBags
        Rows of the release; where they are drawn from the input as they are written, `confirm` is needed.
    path : str
        Where nothing is yet.
    certificate : dict
        Of the release.
    comments : dict
        Of each column.
    confirm : callable, optional
        Called when every row is written and nothing is visible yet; what it raises keeps it so.
    page : str, optional
        A report of the release in HTML, which goes beside the certificate.

    Raises
    ------
    ConfigError
        If something is at the path by now.
    EnvironmentFault
        If the write fails; nothing of it is then left, unless the process was killed.
    """
    spark = rows.spark if isinstance(rows, DrawnBags) else rows.sparkSession
    text, transaction = _text(certificate), _transaction(certificate)
    target = _qualified(spark, path)
    staging = _new_staging(spark, path, target)
    try:
        with spark_faults("while the release was written", path="output.path"):
            with _tasks_ended(spark):
                listed = _write(rows, staging, comments, text, transaction)
            remove_unlisted(spark, staging, listed, ".parquet")
            _write_text(spark, f"{staging}/{CERTIFICATE_FILE}", text)
            if page is not None:
                _write_text(spark, f"{staging}/{REPORT_FILE}", page)
        if confirm is not None:
            confirm()
        move_new(spark, staging, target, path)
    finally:
        remove(spark, staging)
    # Where moving is not one step (object stores) another run may have moved its own there at the same time.
    kept = read_text(spark, f"{target}/{CERTIFICATE_FILE}"), _transactions(spark, target)
    if kept != (text, [transaction]):
        raise EnvironmentFault(
            f"{path} does not hold what this run wrote: another run, perhaps, published there at the same time",
            path="output.path",
            remedy="Use neither: choose a new path for each. Both count as made.",
        )


def _write(
    rows: DataFrame | DrawnBags, folder: str, comments: dict[str, str], certificate: str, transaction: tuple[str, int]
) -> list[str]:
    """Make a Delta table in a new folder, and return its files."""
    local = local_path(folder)
    if isinstance(rows, DrawnBags) and local is not None and not _asks_for_more(rows.spark):
        try:
            written = rows.write(local)
            commit_first(local, written, comments, {CERTIFICATE_PROPERTY: certificate}, transaction)
        except OSError as error:
            raise EnvironmentFault(
                f"{os.strerror(error.errno) if error.errno else 'the disk failed'} while the release was written",
                path="output.path",
                remedy="Check that the folder can be written to and its disk has room, then run again.",
            ) from None
        return [file.name for file in written]
    df = rows.frame() if isinstance(rows, DrawnBags) else rows
    commented = df.select(*(F.col(name).alias(name, metadata={"comment": comments[name]}) for name in df.columns))
    table = folder.replace("`", "``")
    writer = commented.writeTo(f"delta.`{table}`").using("delta")
    for name, value in zip(("txnAppId", "txnVersion"), map(str, transaction), strict=True):
        writer = writer.option(name, value)
    writer.tableProperty(CERTIFICATE_PROPERTY, certificate).create()
    return list(df.sparkSession.read.format("delta").load(folder).inputFiles())


def _asks_for_more(spark: SparkSession) -> bool:
    """Whether the session gives new tables properties, which may change how they are written: only Delta knows."""
    return any(key.startswith(_TABLE_DEFAULTS) for key in spark.conf.getAll)


@contextmanager
def _tasks_ended(spark: SparkSession) -> Iterator[None]:
    """Wait at the end for the tasks of jobs that were begun within: a copy that lost a race may still be writing."""
    context = spark.sparkContext
    tracker, group = context.statusTracker(), context.getLocalProperty("spark.jobGroup.id")
    earlier = set(tracker.getJobIdsForGroup(group))
    yield
    jobs = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - earlier]
    stages = [stage for job in jobs if job is not None for stage in job.stageIds]
    end = time.monotonic() + _TASKS_END_SECONDS
    while any((found := tracker.getStageInfo(stage)) is not None and found.numActiveTasks for stage in stages):
        if time.monotonic() > end:
            _LOG.warning("a task that was told to end still runs; it may leave a file with a second copy of some rows")
            return
        time.sleep(0.1)


def pinned_release(spark: SparkSession, path: str) -> DataFrame:
    """Return the rows of the release at `path` in the version that it has now, however often they are read."""
    table = f"delta.`{_qualified(spark, path).replace('`', '``')}`"
    latest = spark.sql(f"DESCRIBE HISTORY {table} LIMIT 1").select("version").first()
    if latest is None:
        raise DataError(f"no Delta table at {path}", remedy="Give the output path of an aggregate run.")
    return spark.read.format("delta").option("versionAsOf", int(latest["version"])).load(path)


def check_output(spark: SparkSession, path: str) -> None:
    """Make sure that something can be written beside the path, before any label is read; clear what a kill left.

    Raises
    ------
    ConfigError
        If the path itself is a link or a mount point.
    EnvironmentFault
        If nothing can.
    """
    target = _qualified(spark, path)
    local = local_path(target)
    if local is not None and (os.path.islink(local) or os.path.ismount(local)):
        raise ConfigError(
            f"{path} is a {'link' if os.path.islink(local) else 'mount point'}, which a release can't be moved to",
            path="output.path",
            remedy="Give a path behind it, where nothing is yet.",
        )
    remove_abandoned(spark, target)
    remove(spark, _new_staging(spark, path, target))


def _new_staging(spark: SparkSession, path: str, target: str) -> str:
    staging = staging_path(target)
    with spark_faults(f"while a folder beside {path} was made", path="output.path"):
        if not file_system(spark, staging).mkdirs(hadoop_path(spark, staging)):
            raise EnvironmentFault(f"no folder can be made beside {path}", path="output.path")
    return staging


def exists(spark: SparkSession, path: str) -> bool:
    """Return whether anything is at the path."""
    with spark_faults(f"while {path} was looked for"):
        return bool(file_system(spark, path).exists(hadoop_path(spark, path)))


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
    if not exists(spark, path) or is_empty_folder(spark, path):
        return None
    found = _property(spark, path) if _is_table(spark, path) else None
    if found is None:
        raise ConfigError(
            f"{path} exists and is not a finished release",
            path="output.path",
            remedy="Choose a new path. If an interrupted run left it, its files may hold rows of a release that was "
            "never finished: remove them, and count that release as made if anybody could read them.",
        )
    # Releases of dpagg before this was recorded have none.
    if _transactions(spark, path) not in ([], [_transaction(found)]):
        raise ConfigError(
            f"the certificate of {path} is not that of the write in its log",
            path="output.path",
            remedy="Somebody wrote to the table or changed its properties since. Choose a new path for a release.",
        )
    if read_text(spark, f"{path}/{CERTIFICATE_FILE}") != _text(found):
        with spark_faults("while the certificate file was mended", path="output.path"):
            _write_text(spark, f"{path}/{CERTIFICATE_FILE}", _text(found))
    return found


def _transaction(certificate: dict[str, Any]) -> tuple[str, int]:
    """Return what the commit of a release says of itself: its id, and the ledger entry that it was made under."""
    return certificate["release_id"], int(certificate.get("ledger", {}).get("entry", 0))


def _transactions(spark: SparkSession, path: str) -> list[tuple[str, int]]:
    """Return application and version of the writes that a table's log knows."""
    jvm: Any = spark.sparkContext._jvm
    nothing = jvm.scala.Option.empty()
    with spark_faults(f"while the log of {path} was read", path="output.path"):
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(cast(Any, spark)._jsparkSession, path)
        snapshot = log.update(False, nothing, nothing)
        # Delta asks its checksum file for other things, but for these it queries the log: seconds in a fresh JVM.
        checksum = snapshot.checksumOpt()
        known = checksum.get().setTransactions() if checksum.isDefined() else nothing
        found = known.get() if known.isDefined() else snapshot.setTransactions()
        return [(str(found.apply(i).appId()), int(found.apply(i).version())) for i in range(found.size())]


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
