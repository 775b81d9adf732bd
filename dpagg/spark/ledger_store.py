"""A ledger in a Delta table, which processes on several machines may write to at once."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from dpagg.errors import PrivacyError
from dpagg.ledger import Conflict, Entry
from dpagg.ledger.entries import START, VERSION, check_chain, parse_entry, unknown_version
from dpagg.spark.engines import spark_faults
from dpagg.spark.files import file_system, hadoop_path, is_empty_folder, qualified

_LOG = logging.getLogger(__name__)

_FORMAT = "dpagg-ledger"
_HEAD = "head"
_FIELDS = [("id", pa.string()), ("sequence", pa.int64()), ("hash", pa.string()), ("content", pa.string())]
_SCHEMA, _SPARK_SCHEMA = pa.schema(_FIELDS), "id string, sequence bigint, hash string, content string"
# The log is the witness of what was done to the table; 100 years, in the unit that Delta takes.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.isolationLevel": "Serializable",
    "dpagg.ledger": str(VERSION),
}
# They change files and no row.
_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
_OURS = {"CREATE TABLE AS SELECT", "MERGE"}
# Several drivers may overwrite each other's commit there unless another log store is configured.
_NOT_ATOMIC = ("s3", "s3a", "s3n")
_LIGHT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
}
_FIRST = "00000000000000000000.json"


class DeltaStore:
    """Entries and a head row in one Delta table.

    An append is one MERGE that moves the head and puts in one row of entries, whose key is the number of the first:
    processes that read the same head rewrite the same row, so that Delta lets one commit and refuses the other, and a
    process that comes later finds the key taken and changes nothing.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    path : str
        Of the table; made at first use.
    """

    expected_operations = frozenset(_HARMLESS | _OURS)

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = qualified(spark, path)
        self._version = -1
        self._parsed: dict[str, Entry] = {}
        scheme = self._path.partition(":")[0]
        if scheme in _NOT_ATOMIC and spark.conf.get(f"spark.delta.logStore.{scheme}.impl", None) is None:
            _LOG.warning(
                "On %s two drivers that commit at once may overwrite each other: let one driver at a time use this "
                "ledger, or set spark.delta.logStore.%s.impl to a store with atomic commits",
                scheme,
                scheme,
            )

    def read(self) -> tuple[Entry, ...]:
        """See `dpagg.ledger.store.Store`.

        The rows must form the chain that the head row names, and the log must hold all commits and none that isn't a
        ledger's: an older state (RESTORE) or rows changed by hand are refused.
        """
        with spark_faults("while the ledger was read", path="ledger.path"), _lightly(self._spark):
            if not self._is_there():
                self._version = -1
                return ()
            self._require_whole_log()
            snapshot = self._delta_log().update(False, self._none(), self._none())
            version = int(snapshot.version())
            properties = snapshot.metadata().configuration()
            self._check_format(properties.getOrElse("dpagg.ledger", None) if properties.contains("dpagg.ledger") else 0)
            rows = (
                self._spark.read.format("delta").option("versionAsOf", version).load(self._path).collect()
            )  # a few thousand short rows after years
        head = [row for row in rows if row["id"] == _HEAD]
        batches = sorted((row for row in rows if row["id"] != _HEAD), key=lambda row: int(row["sequence"]))
        entries = tuple(self._entry(line) for row in batches for line in row["content"].split("\n"))
        last = check_chain(entries)
        if len(head) != 1 or head[0]["hash"] != last or head[0]["sequence"] != len(entries):
            raise _tampered("its head row does not belong to its entries")
        self._check_commits(_table_version(head[0]["content"]), version)
        self._version = version
        return entries

    def _entry(self, text: str) -> Entry:
        """Parse a line once: a run reads the ledger several times, and lines don't change."""
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = parse_entry(text)
        return found

    def append(self, entries: Sequence[Entry], previous: str) -> None:
        """See `dpagg.ledger.store.Store`."""
        rows = self._rows(entries)
        with spark_faults("while the ledger was written", path="ledger.path"), _lightly(self._spark):
            try:
                if previous == START:
                    self._create(rows)
                else:
                    self._merge(rows, previous)
            except Exception as error:
                # Of two creators the slower one meets an error of no particular class.
                if isinstance(error, _conflicts()):
                    raise Conflict from None
                if previous == START and self._is_there():
                    raise Conflict from None
                raise
        # The next head names the version that it makes; one that maintenance made in between is noticed, and harmless.
        self._version += 1

    def history(self) -> list[dict[str, Any]]:
        """Return version, time and operation of all commits to the table, the newest first.

        Raises
        ------
        EnvironmentFault
            If it can't be read.
        """
        from delta.tables import DeltaTable

        with spark_faults("while the history of the ledger was read", path="ledger.path"):
            found = DeltaTable.forPath(self._spark, self._path).history().select("version", "timestamp", "operation")
            return [
                {"version": int(row[0]), "time": row[1].isoformat(), "operation": str(row[2])}
                for row in found.collect()
            ]

    def _is_there(self) -> bool:
        files, path = file_system(self._spark, self._path), hadoop_path(self._spark, self._path)
        if not files.exists(path) or is_empty_folder(self._spark, self._path):
            return False
        if not files.exists(hadoop_path(self._spark, f"{self._path}/_delta_log")):
            raise _tampered("it is a folder without the log of a Delta table")
        return True

    def _require_whole_log(self) -> None:
        first = hadoop_path(self._spark, f"{self._path}/_delta_log/{_FIRST}")
        if not file_system(self._spark, self._path).exists(first):
            raise _tampered("the beginning of its log is missing")

    def _delta_log(self) -> Any:
        jvm: Any = self._spark.sparkContext._jvm
        session: Any = self._spark._jsparkSession
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, self._path)

    def _none(self) -> Any:
        jvm: Any = self._spark.sparkContext._jvm
        return jvm.scala.Option.empty()

    def _check_format(self, version: object) -> None:
        if str(version) != str(VERSION):
            if version == 0:
                raise _tampered("it is a Delta table that dpagg did not make, or its properties were removed")
            raise unknown_version(version)

    def _check_commits(self, written: int, version: int) -> None:
        """Look for commits since the last entry that put back or change rows; usually there is none at all."""
        if written == version:
            return
        since = [commit["operation"] for commit in self.history() if commit["version"] > written]
        # An entry names the version it expected to become; a harmless commit may have come in between.
        foreign = [name for name in since if name not in _HARMLESS]
        if written > version or foreign not in ([], ["MERGE"]):
            raise _tampered(f"its table was changed by {', '.join(sorted(set(foreign))) or 'taking commits away'}")

    def _rows(self, entries: Sequence[Entry]) -> DataFrame:
        last = entries[-1]
        head = {"format": _FORMAT, "version": VERSION, "table_version": self._version + 1}
        content = "\n".join(entry.text for entry in entries)
        rows = [
            {"id": _HEAD, "sequence": last.sequence, "hash": last.hash, "content": json.dumps(head, sort_keys=True)},
            {"id": str(entries[0].sequence), "sequence": entries[0].sequence, "hash": last.hash, "content": content},
        ]
        return self._spark.createDataFrame(cast(Any, pa.Table.from_pylist(rows, _SCHEMA)), _SPARK_SCHEMA).coalesce(1)

    def _create(self, rows: DataFrame) -> None:
        table = self._path.replace("`", "``")
        writer = rows.writeTo(f"delta.`{table}`").using("delta")
        for name, value in _PROPERTIES.items():
            writer = writer.tableProperty(name, value)
        writer.create()

    def _merge(self, rows: DataFrame, previous: str) -> None:
        from delta.tables import DeltaTable

        done = (
            DeltaTable.forPath(self._spark, self._path)
            .alias("old")
            .merge(rows.alias("new"), "old.id = new.id")
            .whenMatchedUpdateAll(f"old.id = '{_HEAD}' AND old.hash = '{previous}'")
            .whenNotMatchedInsertAll(f"new.id <> '{_HEAD}'")
            .execute()
            .select("num_updated_rows", "num_inserted_rows")
            .collect()
        )
        # A process that came later found another head, changed nothing, and its MERGE succeeded all the same.
        changed = [(int(row[0]), int(row[1])) for row in done]
        if changed == [(0, 0)]:
            raise Conflict
        if changed != [(1, 1)]:
            raise _tampered("an entry was added that does not follow its head")


@contextmanager
def _lightly(spark: SparkSession) -> Iterator[None]:
    """Work on a few rows without compiling code for them: half the processor time of a first charge."""
    before = {name: spark.conf.get(name, None) for name in _LIGHT}
    for name, value in _LIGHT.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(Py4JError):
            for name, earlier in before.items():
                if earlier is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, earlier)


def _conflicts() -> tuple[type[Exception], ...]:
    """What Delta raises when another commit came first; the classes have no base of their own."""
    from delta import exceptions

    return tuple(getattr(exceptions, name) for name in exceptions.__all__)


def _table_version(content: str) -> int:
    try:
        head = json.loads(content)
        if head["format"] == _FORMAT and head["version"] == VERSION:
            return int(head["table_version"])
    except (ValueError, KeyError, TypeError):
        pass
    raise _tampered("its head row is not as it was written")


def _tampered(what: str) -> PrivacyError:
    return PrivacyError(
        f"the ledger is not as dpagg left it: {what}; nothing is charged",
        path="ledger.path",
        remedy="Run dpagg ledger check. A table that was put back to an earlier version forgets what was spent since: "
        "restore it to its last version before that.",
    )
