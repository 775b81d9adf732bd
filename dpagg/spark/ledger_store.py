"""A ledger in a Delta table, which processes on several machines may write to at once."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from dpagg.errors import PrivacyError
from dpagg.ledger import Conflict, Entry
from dpagg.ledger.entries import OPENED, START, VERSION, check_chain, parse_entry, unknown_version
from dpagg.spark.engines import spark_faults
from dpagg.spark.files import file_system, hadoop_path, is_empty_folder, qualified, read_bytes

_LOG = logging.getLogger(__name__)

_FORMAT = "dpagg-ledger"
_HEAD = "head"
_FIELDS = [("id", pa.string()), ("sequence", pa.int64()), ("hash", pa.string()), ("content", pa.string())]
_SCHEMA = pa.schema(_FIELDS)
_DDL = "id string, sequence bigint, hash string, content string"
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
# A few rows are worth no compiling, no statistics, and no second task.
_LIGHT = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.stats.collect": "false",
    "spark.databricks.delta.stats.skipping": "false",
    # It is for sources that may give other rows when they are read again; these are constants.
    "spark.databricks.delta.merge.materializeSource": "none",
}
_FIRST = "00000000000000000000.json"
# Applications whose driver has made an append already.
_REHEARSED: set[str] = set()


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
        self._spark = _light_session(spark)
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
        with spark_faults("while the ledger was read", path="ledger.path"):
            if not self._is_there():
                self._version = -1
                return ()
            self._require_whole_log()
            snapshot = self._delta_log().update(False, self._none(), self._none())
            version = int(snapshot.version())
            properties = snapshot.metadata().configuration()
            self._check_format(properties.getOrElse("dpagg.ledger", None) if properties.contains("dpagg.ledger") else 0)
            rows = self._rows_of(snapshot)
        head = [row for row in rows if row["id"] == _HEAD]
        batches = sorted((row for row in rows if row["id"] != _HEAD), key=lambda row: int(row["sequence"]))
        entries = tuple(self._entry(line) for row in batches for line in row["content"].split("\n"))
        last = check_chain(entries)
        if len(head) != 1 or head[0]["hash"] != last or head[0]["sequence"] != len(entries):
            raise _tampered("its head row does not belong to its entries")
        self._check_commits(_table_version(head[0]["content"]), version)
        self._version = version
        return entries

    def _rows_of(self, snapshot: Any) -> list[dict[str, Any]]:
        """Return the rows of a version: a few thousand short ones after years, in one file or a few.

        Delta says which files there are, from the checksum file of its last commit if it can: a query for that and one
        for the rows take a fresh JVM seconds, most of them for code that runs once.
        """
        paths = self._listed(snapshot)
        if paths is None:
            version = int(snapshot.version())
            found = self._spark.read.format("delta").option("versionAsOf", version).load(self._path).collect()
            return [row.asDict() for row in found]
        try:
            tables = [pq.read_table(pa.BufferReader(read_bytes(self._spark, path)), schema=_SCHEMA) for path in paths]
        except (pa.ArrowException, OSError):
            raise _tampered("a file of its table can't be read") from None
        return [row for table in tables for row in table.to_pylist()]

    def _listed(self, snapshot: Any) -> list[str] | None:
        """Return the files of a version as its checksum file lists them, None if it doesn't."""
        checksum = snapshot.checksumOpt()
        listed = checksum.get().allFiles() if checksum.isDefined() else self._none()
        # A higher version may keep rows that don't count in a file, or other names of columns.
        if not listed.isDefined() or int(snapshot.protocol().minReaderVersion()) != 1:
            return None
        files, jvm = listed.get(), cast(Any, self._spark.sparkContext._jvm)
        absolute = jvm.org.apache.spark.sql.delta.util.DeltaFileOperations.absolutePath
        return [str(absolute(self._path, files.apply(i).path()).toString()) for i in range(files.size())]

    def _entry(self, text: str) -> Entry:
        """Parse a line once: a run reads the ledger several times, and lines don't change."""
        found = self._parsed.get(text)
        if found is None:
            found = self._parsed[text] = parse_entry(text)
        return found

    def append(self, entries: Sequence[Entry], previous: str) -> None:
        """See `dpagg.ledger.store.Store`."""
        rows = self._rows(entries)
        with spark_faults("while the ledger was written", path="ledger.path"):
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

    def prepare(self) -> None:
        """Do what an append needs before its content is known, in a thread, while passes over the input run.

        It has Delta list the table's files from its log, which Delta keeps, and where Spark runs on this machine it
        makes one append to a table of its own in Spark's scratch folder: most of the first append of a process is
        loading code. Nothing is added to the ledger, and a fault is met again by what follows.
        """
        with suppress(Exception):
            if self._is_there():
                self._delta_log().update(False, self._none(), self._none()).allFiles().collectAsList()
            context = self._spark.sparkContext
            if str(context.master).startswith("local") and context.applicationId not in _REHEARSED:
                _REHEARSED.add(context.applicationId)
                scratch = (context.getConf().get("spark.local.dir", "") or tempfile.gettempdir()).split(",")[0]
                with tempfile.TemporaryDirectory(dir=scratch, ignore_cleanup_errors=True) as folder:
                    self._rehearse(Path(folder))

    def _rehearse(self, folder: Path) -> None:
        """Append to a small ledger that nobody reads; made by hand, since Delta takes longer to make a table."""
        first = Entry(sequence=1, kind=OPENED, previous=START, time="", run="")
        rows = pa.Table.from_pylist([{"id": _HEAD, "sequence": 1, "hash": first.hash, "content": ""}], _SCHEMA)
        (folder / "_delta_log").mkdir()
        pq.write_table(rows, folder / "0.parquet")
        jvm: Any = self._spark.sparkContext._jvm
        schema = str(jvm.org.apache.spark.sql.types.StructType.fromDDL(_DDL).json())
        about = {"id": "rehearsal", "format": {"provider": "parquet", "options": {}}, "partitionColumns": []}
        file = {"path": "0.parquet", "partitionValues": {}, "size": (folder / "0.parquet").stat().st_size}
        actions: list[dict[str, Any]] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {"metaData": {**about, "schemaString": schema, "configuration": _PROPERTIES}},
            {"add": {**file, "modificationTime": 0, "dataChange": True}},
        ]
        (folder / "_delta_log" / _FIRST).write_text("".join(json.dumps(each) + "\n" for each in actions))
        second = Entry(sequence=2, kind=OPENED, previous=first.hash, time="", run="")
        DeltaStore(self._spark, f"file:{folder}").append([second], first.hash)

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
        files, log = file_system(self._spark, self._path), f"{self._path}/_delta_log"
        if files.exists(hadoop_path(self._spark, f"{log}/{_FIRST}")):
            return
        names = [str(each.getPath().getName()) for each in files.listStatus(hadoop_path(self._spark, log))]
        if not any(name.endswith((".json", ".parquet", ".crc")) for name in names):
            raise PrivacyError(
                "the ledger's log holds no commit: the very first run may have ended while it made the table, or "
                "somebody emptied it; nothing is charged",
                path="ledger.path",
                remedy="If no release was charged to it yet, remove the folder and run again.",
            )
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
        return self._constants(rows)

    def _constants(self, rows: list[dict[str, Any]]) -> DataFrame:
        """Return rows that Spark's planner knows to be constants: no job is needed to read them."""
        context: Any = self._spark.sparkContext
        jvm, found = context._jvm, context._jvm.java.util.ArrayList()
        for row in rows:
            values = context._gateway.new_array(jvm.java.lang.Object, len(_FIELDS))
            for i, (name, _) in enumerate(_FIELDS):
                values[i] = str(row[name])
            found.add(jvm.org.apache.spark.sql.RowFactory.create(values))
        texts = jvm.org.apache.spark.sql.types.StructType.fromDDL(", ".join(f"{name} string" for name, _ in _FIELDS))
        session: Any = self._spark._jsparkSession
        made = DataFrame(session.createDataFrame(found, texts), self._spark)
        return made.withColumn("sequence", made["sequence"].cast("bigint"))

    def _create(self, rows: DataFrame) -> None:
        table = self._path.replace("`", "``")
        writer = rows.coalesce(1).writeTo(f"delta.`{table}`").using("delta")
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
            .collect()
        )
        # A process that came later found another head, changed nothing, and its MERGE succeeded all the same.
        changed = [(int(row["num_updated_rows"]), int(row["num_inserted_rows"])) for row in done]
        if changed == [(0, 0)]:
            raise Conflict
        if changed != [(1, 1)]:
            raise _tampered("an entry was added that does not follow its head")


def _light_session(spark: SparkSession) -> SparkSession:
    """Return a session with the settings of another one, but for those that suit a few rows."""
    own = SparkSession(spark.sparkContext, cast(Any, spark._jsparkSession).cloneSession())
    for name, value in _LIGHT.items():
        own.conf.set(name, value)
    return own


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
