"""A ledger in a Delta table, which processes on several machines may write to at once."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from dpagg.errors import EnvironmentFault, PrivacyError
from dpagg.ledger import Conflict, Entry
from dpagg.ledger.entries import START, VERSION, check_chain, parse_entry, unknown_version
from dpagg.spark.engines import spark_faults
from dpagg.spark.files import (
    file_system,
    hadoop_path,
    local_path,
    locked,
    make_durable,
    qualified,
    read_bytes,
    remove,
    write_bytes,
)

_LOG = logging.getLogger(__name__)

_FORMAT = "dpagg-ledger"
_HEAD = "head"
_SCHEMA = pa.schema([("id", pa.string()), ("sequence", pa.int64()), ("hash", pa.string()), ("content", pa.string())])
_DDL = "id string, sequence bigint, hash string, content string"
# The log is the witness of what was done to the table; 100 years, in the unit that Delta takes. A checkpoint takes a
# fresh JVM five seconds, and each commit has a checksum file that says as much; but 400 commits after one that is older
# than a day Delta begins to compare that with the whole log, before each commit.
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 36500 days",
    "delta.enableExpiredLogCleanup": "false",
    "delta.isolationLevel": "Serializable",
    "delta.checkpointInterval": "300",
    "dpagg.ledger": str(VERSION),
}
# Clocks of a file system and of this process differ by less.
_CLOCK_SECONDS = 60.0
# They change files and no row.
_HARMLESS = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
_OURS = "UPDATE"
# Several drivers may overwrite each other's commit there unless another log store is configured.
_NOT_ATOMIC = ("s3", "s3a", "s3n")
_FIRST = "00000000000000000000.json"
_PART = "part-"
# What Hadoop says of a file that is not there any more, or not as it was.
_LOST = ("FileNotFoundException", "ChecksumException")


@dataclass(frozen=True, eq=False)
class _Seen:
    """A version of the table: Delta's snapshot and files of it, its rows of entries, the hash of the last one."""

    snapshot: Any
    version: int
    files: list[Any]
    batches: list[dict[str, Any]]
    last: str


class DeltaStore:
    """Entries and a head row in one Delta table.

    An append moves the head and puts in one row of entries, in one transaction of Delta that begins at the version
    which was read and replaces the table's file: of processes that read the same head Delta lets one commit. It is what
    a MERGE of these two rows comes to, but the first MERGE of a JVM takes five seconds, nearly all of them for loading
    and compiling the code that plans it. A process that ends before its commit, or loses, leaves a file that no
    version lists; VACUUM removes it.

    On a mounted disk Delta looks whether a version is there and then renames its file to it, which of two processes at
    the same moment lets both win: there a lock is held meanwhile.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    path : str
        Of the table; made at first use.
    """

    expected_operations = frozenset(_HARMLESS | {_OURS})

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = qualified(spark, path)
        self._seen: _Seen | None = None
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
        self._seen = None
        with spark_faults("while the ledger was read", path="ledger.path"):
            self._require_whole_log()
            snapshot = self._delta_log().update(False, self._none(), self._none())
            version = int(snapshot.version())
            # Another process may have made it since the look at the folder: only the version counts.
            if version < 0:
                self._seen = _Seen(snapshot, version, [], [], START)
                return ()
            properties = snapshot.metadata().configuration()
            self._check_format(properties.getOrElse("dpagg.ledger", None) if properties.contains("dpagg.ledger") else 0)
            files = self._files(snapshot)
            rows = [row for file in files for row in self._rows_of(self._absolute(file))]
        head = [row for row in rows if row["id"] == _HEAD]
        if any(value is None for row in rows for value in row.values()):
            raise _tampered("a row of its table lacks a value")
        batches = sorted((row for row in rows if row["id"] != _HEAD), key=lambda row: int(row["sequence"]))
        entries = tuple(self._entry(line) for row in batches for line in row["content"].split("\n"))
        last = check_chain(entries)
        if len(head) != 1 or head[0]["hash"] != last or head[0]["sequence"] != len(entries):
            raise _tampered("its head row does not belong to its entries")
        self._check_commits(_table_version(head[0]["content"]), version)
        self._seen = _Seen(snapshot, version, files, batches, last)
        return entries

    def _files(self, snapshot: Any) -> list[Any]:
        """Return the files of a version, as the checksum file of its commit lists them if it does.

        The query that finds them otherwise takes a fresh JVM seconds.
        """
        # A higher version may keep rows that don't count in a file, or other names of columns.
        if int(snapshot.protocol().minReaderVersion()) != 1:
            raise _tampered("its protocol was changed")
        checksum = snapshot.checksumOpt()
        listed = checksum.get().allFiles() if checksum.isDefined() else self._none()
        if listed.isDefined():
            return [listed.get().apply(i) for i in range(listed.get().size())]
        return list(snapshot.allFiles().collectAsList())

    def _absolute(self, file: Any) -> str:
        jvm: Any = self._spark.sparkContext._jvm
        absolute = jvm.org.apache.spark.sql.delta.util.DeltaFileOperations.absolutePath
        return str(absolute(self._path, file.path()).toString())

    def _rows_of(self, path: str) -> list[dict[str, Any]]:
        """Return the rows of a file: a few thousand short ones after years."""
        try:
            found = pq.read_table(pa.BufferReader(read_bytes(self._spark, path)), schema=_SCHEMA).to_pylist()
        except (pa.ArrowException, OSError, Py4JError) as error:
            if isinstance(error, Py4JError) and not any(word in str(error) for word in _LOST):
                raise
            raise _tampered("a file of its table is missing or damaged") from None
        return cast(list[dict[str, Any]], found)

    def _entry(self, text: str) -> Entry:
        """Parse a line once: a run reads the ledger several times, and lines don't change."""
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = parse_entry(text)
        return found

    def append(self, entries: Sequence[Entry], previous: str) -> None:
        """See `dpagg.ledger.store.Store`."""
        began = time.time()
        seen = self._seen
        if seen is None or seen.last != previous:
            self.read()
            seen = self._seen
        if seen is None or seen.last != previous:
            raise Conflict
        with spark_faults("while the ledger was written", path="ledger.path"), self._alone():
            try:
                self._commit(seen, entries)
            except Exception as error:
                if isinstance(error, _conflicts()):
                    raise Conflict from None
                raise
            finally:
                self._seen = None
        self._keep(began)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others on a mounted disk from committing: its rename, unlike those of HDFS and clouds, replaces a file.

        Who finds another one at it has lost anyhow and doesn't wait.
        """
        folder = local_path(self._path)
        if folder is None:
            yield
            return
        files, log = file_system(self._spark, self._path), f"{self._path}/_delta_log"
        files.mkdirs(hadoop_path(self._spark, log))
        try:
            with locked(os.path.join(folder, "_delta_log", ".lock")) as is_ours:
                if is_ours is None:
                    _LOG.warning(
                        "The file system of %s has no locks, and two drivers that commit at once may overwrite each "
                        "other there: let one driver at a time use this ledger",
                        folder,
                    )
                elif not is_ours:
                    raise Conflict
                yield
        except OSError as error:
            raise EnvironmentFault(
                f"the ledger can't be written: {error.strerror}",
                path="ledger.path",
                remedy="Free space or mend the rights, then run again: a rerun knows how far the last run came.",
            ) from None

    def _keep(self, began: float) -> None:
        """Make an append durable, so that no release outlives its entry; elsewhere than on a disk it is already."""
        local = local_path(self._path)
        if local is None:
            return
        try:
            make_durable(local, began - _CLOCK_SECONDS)
        except OSError as error:
            raise EnvironmentFault(
                f"the ledger was written, but its disk does not keep it: {error.strerror}",
                path="ledger.path",
                remedy="Mend the disk, then run again: a rerun knows how far the last run came.",
            ) from None

    def _commit(self, seen: _Seen, entries: Sequence[Entry]) -> None:
        """Replace the table's files by one with the entries and a head that names the version it makes.

        One that maintenance makes in between is noticed later, and harmless.
        """
        jvm: Any = self._spark.sparkContext._jvm
        delta = jvm.org.apache.spark.sql.delta
        transaction = self._delta_log().startTransaction(self._none(), jvm.scala.Some(seen.snapshot))
        if int(transaction.readVersion()) != seen.version:
            raise Conflict
        transaction.readWholeTable()
        actions = jvm.java.util.ArrayList()
        for text in self._opening() if seen.version < 0 else ():
            actions.add(delta.actions.Action.fromJson(text))
        for file in seen.files:
            actions.add(file.remove())
        rows = pa.Table.from_pylist(_rows(entries, seen), _SCHEMA)
        actions.add(delta.actions.Action.fromJson(json.dumps({"add": self._write(rows)})))
        # Delta derives its checksum file from the last one for named operations alone.
        operation = getattr(delta, f"DeltaOperations${_OURS.title()}")(self._none())
        transaction.commit(jvm.org.apache.spark.api.python.PythonUtils.toSeq(actions), operation)

    def _opening(self) -> list[str]:
        """Return the actions that begin the log of a table."""
        jvm: Any = self._spark.sparkContext._jvm
        about = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": str(jvm.org.apache.spark.sql.types.StructType.fromDDL(_DDL).json()),
            "partitionColumns": [],
            "configuration": _PROPERTIES,
            "createdTime": int(time.time() * 1000),
        }
        # The oldest protocol that says all of it: any reader of Delta can check a ledger.
        return [
            json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}),
            json.dumps({"metaData": about}),
        ]

    def _write(self, rows: pa.Table) -> dict[str, Any]:
        """Write a file of the table, and return what Delta's log says of it."""
        name, sink = f"{_PART}{uuid.uuid4()}.snappy.parquet", pa.BufferOutputStream()
        pq.write_table(rows, sink, compression="snappy")
        content = sink.getvalue().to_pybytes()
        try:
            write_bytes(self._spark, f"{self._path}/{name}", content)
        except Py4JError:
            # Half a file, where there is no log yet, could be what is left of a ledger.
            remove(self._spark, f"{self._path}/{name}")
            raise
        file = {"path": name, "partitionValues": {}, "size": len(content), "modificationTime": int(time.time() * 1000)}
        return file | {"dataChange": True, "stats": json.dumps({"numRecords": rows.num_rows})}

    def history(self) -> list[dict[str, Any]]:
        """Return version, time, operation and the version read of all commits to the table, the newest first.

        Raises
        ------
        EnvironmentFault
            If it can't be read.
        """
        from delta.tables import DeltaTable

        names = ["version", "timestamp", "operation", "readVersion"]
        with spark_faults("while the history of the ledger was read", path="ledger.path"):
            found = DeltaTable.forPath(self._spark, self._path).history().select(names).collect()
        return [
            {"version": int(version), "time": time.isoformat(), "operation": str(operation), "read_version": read}
            for version, time, operation, read in found
        ]

    def _require_whole_log(self) -> None:
        """Make sure that the first commit is there, or that there never was one."""
        files, log = file_system(self._spark, self._path), f"{self._path}/_delta_log"
        if files.exists(hadoop_path(self._spark, f"{log}/{_FIRST}")):
            return
        if any(name.endswith((".json", ".parquet", ".crc")) for name in self._names(log)):
            raise _tampered("the beginning of its log is missing")
        # A process may be at its first commit, or have been killed there: no release was made under one that is alone.
        if not all(name == "_delta_log" or self._is_of_a_first_commit(name) for name in self._names(self._path)):
            raise _tampered("it is a folder without the log of a Delta table")

    def _names(self, folder: str) -> list[str]:
        """Return the names in a folder, but for hidden ones; none if it isn't there."""
        files, path = file_system(self._spark, folder), hadoop_path(self._spark, folder)
        found = [str(each.getPath().getName()) for each in files.listStatus(path)] if files.exists(path) else []
        return [name for name in found if not name.startswith(".")]

    def _is_of_a_first_commit(self, name: str) -> bool:
        path = f"{self._path}/{name}"
        if not name.startswith(_PART):
            return False
        if file_system(self._spark, path).getFileStatus(hadoop_path(self._spark, path)).getLen() == 0:
            return True
        return any(row["id"] == _HEAD and _table_version(row["content"]) == 0 for row in self._rows_of(path))

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
        # An entry names the version it expected to become; a harmless commit may have come in between.
        foreign = {
            commit["operation"]
            for commit in self.history()
            if commit["version"] > written
            and commit["operation"] not in _HARMLESS
            and (commit["operation"], commit["read_version"]) != (_OURS, written - 1)
        }
        if written > version or foreign:
            raise _tampered(f"its table was changed by {', '.join(sorted(foreign)) or 'taking commits away'}")


def _rows(entries: Sequence[Entry], seen: _Seen) -> list[dict[str, Any]]:
    """Return the rows of the table with these entries added to what was seen."""
    first, last = entries[0], entries[-1]
    head = {"format": _FORMAT, "version": VERSION, "table_version": seen.version + 1}
    content = "\n".join(entry.text for entry in entries)
    return [
        {"id": _HEAD, "sequence": last.sequence, "hash": last.hash, "content": json.dumps(head, sort_keys=True)},
        *seen.batches,
        {"id": str(first.sequence), "sequence": first.sequence, "hash": last.hash, "content": content},
    ]


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
