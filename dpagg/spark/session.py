"""The Spark session: found, or made so that nothing private outlives it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from dpagg.errors import ConfigError, EnvironmentFault
from dpagg.spark.java import delta_jars, java_home
from dpagg.spark.scratch import make_scratch

_LOG = logging.getLogger(__name__)

_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

# Beyond this size PySpark writes a task's closure, which carries the secret of a release, to a file.
_CLOSURE_KEY = "spark.broadcast.UDFCompressionThreshold"
_CLOSURE_LIMIT = "512m"

# No performance setting may change these: they keep rows and secrets out of what is durable.
_PROTECTION = {
    "spark.io.encryption.enabled": "true",
    _CLOSURE_KEY: _CLOSURE_LIMIT,
    "spark.sql.extensions": _EXTENSION,
    "spark.sql.catalog.spark_catalog": _CATALOG,
}

# They log the text of a task's exception, which may hold a cell of the data, at levels from INFO to ERROR.
_TALKATIVE = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor",
    "org.apache.spark.rdd",
    "org.apache.spark.scheduler",
    "org.apache.spark.sql",
    "org.apache.spark.util",
)

# PySpark's own loggers of the same texts, which print to stderr whatever the logging set-up.
_TALKATIVE_PYTHON = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

_LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
_LOG_LEVEL_KEY = "dpagg.log.level"

# Of Python workers. Threads of BLAS would fight over cores. And glibc would give the memory of each batch back to the
# system and fault it in again, page by page, for the next: a quarter of a worker's time.
_WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(128 << 20),
}


@dataclass(frozen=True)
class SessionSettings:
    """How a session that dpagg makes itself runs; nothing here changes what a release guarantees.

    Attributes
    ----------
    app_name
        Name of the application in Spark's own listings.
    master
        Spark master; by default what ``spark-submit`` was told, else this machine.
    cores
        Cores to use on this machine when there is no master; all by default.
    driver_memory
        Heap of the JVM, which is also the executor's on this machine.
    shuffle_partitions
        Partitions after a shuffle; 4 on this machine and Spark's own default elsewhere.
    local_dir
        Parent of the scratch directory, for spills (encrypted, removed at exit).
    event_log_dir
        Existing directory for Spark's event log; none is written by default.
    log_level
        Level of Spark's own log on stderr. Messages that carry an exception are left out at any level.
    extra
        Further Spark properties.
    """

    app_name: str = "dpagg"
    master: str | None = None
    cores: int | None = None
    driver_memory: str = "2g"
    shuffle_partitions: int | None = None
    local_dir: Path | None = None
    event_log_dir: Path | None = None
    log_level: str = "ERROR"
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for key in self.extra:
            if key in _PROTECTION:
                raise ConfigError(
                    f"Spark property {key} protects rows and secrets and cannot be set",
                    path="spark",
                    remedy="Leave it out.",
                )


def spark_session(settings: SessionSettings | None = None) -> SparkSession:
    """Return the running session, if there is one with Delta, else make one.

    A session made here encrypts spills, shuffles and caches, keeps its scratch in a directory that is
    removed at exit, has the Delta extension and ends with the process. ``settings`` are for that case:
    a running session (notebook) keeps its own. Under ``spark-submit`` what was given there comes first.

    Parameters
    ----------
    settings
        Performance settings; the defaults suit one machine.

    Raises
    ------
    EnvironmentFault
        If Java, Delta's jars or a scratch directory are missing, Spark does not start, a running
        session has no Delta extension, or it is a Spark Connect session.
    """
    settings = SessionSettings() if settings is None else settings
    if is_remote():
        raise EnvironmentFault(
            "Spark Connect has no RDDs, which private aggregates are drawn through",
            remedy="Use a classic session: unset SPARK_REMOTE, or run spark-submit.",
        )
    _protect_python_log()
    running = SparkSession.getActiveSession()
    if running is None and SparkContext._active_spark_context is not None:
        running = SparkSession.builder.getOrCreate()
    if running is not None:
        _check_running(running)
        _protect_running(running)
        return running
    return _submitted(settings) if "PYSPARK_GATEWAY_PORT" in os.environ else _own(settings)


def adopt_session(session: SparkSession, *, needs_delta: bool) -> None:
    """Protect what runs in a session that somebody else made, as `spark_session` does.

    Parameters
    ----------
    session : SparkSession
        A classic one.
    needs_delta : bool
        Whether a Delta table will be written.

    Raises
    ------
    EnvironmentFault
        If Delta is needed and not there.
    """
    _protect_python_log()
    if needs_delta:
        _check_running(session)
    _protect_running(session)


def _own(settings: SessionSettings) -> SparkSession:
    """Start a JVM and a session in it."""
    declared = settings.local_dir or os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    master = settings.master or f"local[{settings.cores or '*'}]"
    home, jars = java_home(), delta_jars()
    scratch = make_scratch(Path(declared) if declared else None)
    options = _properties(settings, master) | {
        "spark.driver.memory": settings.driver_memory,
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        **settings.extra,
        **_PROTECTION,
    }
    options["spark.driver.extraJavaOptions"] = " ".join(
        [*_java_options(settings, scratch), settings.extra.get("spark.driver.extraJavaOptions", "")]
    ).strip()
    if jars:
        listed = [settings.extra["spark.jars"]] if "spark.jars" in settings.extra else []
        options["spark.jars"] = ",".join([*listed, *map(str, jars)])
    environment = {"JAVA_HOME": str(home), "SPARK_LOCAL_DIRS": str(scratch)} | _python(master)
    conf = SparkConf(loadDefaults=False).setAll(list(options.items()))
    with _environment(environment):
        return _start(conf)


def _submitted(settings: SessionSettings) -> SparkSession:
    """Make the session of a JVM that spark-submit started; its options come before ours."""
    SparkContext._ensure_initialized()
    conf = SparkConf()
    log_configured = _log_configured()
    if not log_configured:
        conf.setIfMissing("spark.log.level", settings.log_level)
    if settings.master is not None:
        conf.setMaster(settings.master)
    master = conf.get("spark.master", "local[*]") or "local[*]"
    for key, value in _properties(settings, master).items():
        conf.setIfMissing(key, value)
    for key, value in (*settings.extra.items(), *_PROTECTION.items()):
        if key == "spark.sql.extensions":
            named = [each for each in (conf.get(key, "") or "").split(",") if each and each != value]
            value = ",".join([*named, value])
        conf.set(key, value)
    if not conf.contains("spark.local.dir") and "SPARK_LOCAL_DIRS" not in os.environ and _local(master):
        conf.set("spark.local.dir", str(make_scratch(settings.local_dir)))
    _load_delta(conf)
    with _environment(_python(master)):
        session = _start(conf)
    if not log_configured:
        _configure_log(settings)
    _protect_running(session)
    return session


def _properties(settings: SessionSettings, master: str) -> dict[str, str]:
    options = {
        "spark.app.name": settings.app_name,
        "spark.master": master,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # pandas writes timestamps in nanoseconds, which would make the whole file unreadable.
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        # Sums of a release are drawn numbers: none comes twice, and looking for some costs a tenth of writing them.
        "spark.hadoop.parquet.enable.dictionary#features.list.element": "false",
        # Spark's bar writes over a table or a bar of our own unless both know of the terminal.
        "spark.ui.showConsoleProgress": "false",
        **{f"spark.executorEnv.{name}": value for name, value in _WORKER_ENVIRONMENT.items()},
    }
    if settings.event_log_dir is not None:
        options["spark.eventLog.enabled"] = "true"
        options["spark.eventLog.dir"] = settings.event_log_dir.resolve().as_uri()
    if _local(master):
        options |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
            "spark.databricks.delta.snapshotPartitions": "2",
        }
    if settings.shuffle_partitions is not None:
        options["spark.sql.shuffle.partitions"] = str(settings.shuffle_partitions)
    return options


def _java_options(settings: SessionSettings, scratch: Path) -> list[str]:
    options = [f'"-Djava.io.tmpdir={scratch}"', f"-D{_LOG_LEVEL_KEY}={settings.log_level}"]
    if _LOG_CONFIGURATION.is_file():  # it isn't when the package is imported from a zip file
        options.append(f"-Dlog4j2.configurationFile={_LOG_CONFIGURATION.as_uri()}")
    return options


def _python(master: str) -> dict[str, str]:
    """Environment of a session on this machine: this Python in the workers, and no name look-ups."""
    if not _local(master):
        return {}
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }


def _local(master: str) -> bool:
    return master.split("[")[0] in ("local", "local-cluster")


def _start(conf: SparkConf) -> SparkSession:
    try:
        context = SparkContext(conf=conf)
        session = SparkSession(context)
    except Exception as fault:
        # Nothing has been read yet, so the text holds settings only; it is what one needs to mend them.
        raise EnvironmentFault(
            f"Spark does not start: {_first_line(fault)}",
            remedy="Look at the space and rights of the temporary directory, and at the memory.",
        ) from fault
    atexit.register(_stop, context, os.getpid())
    return session


def _first_line(fault: Exception) -> str:
    java = getattr(fault, "java_exception", None)
    text = java.toString() if java is not None else str(fault)
    return text.strip().splitlines()[0] if text.strip() else type(fault).__name__


def _stop(context: SparkContext, owner: int) -> None:
    if os.getpid() == owner and SparkContext._active_spark_context is context:
        context.stop()


def _check_running(session: SparkSession) -> None:
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    if _EXTENSION not in extensions.split(",") or catalog != _CATALOG:
        raise EnvironmentFault(
            "The running Spark session has no Delta extension",
            remedy=f"Start it with spark.sql.extensions={_EXTENSION} and "
            f"spark.sql.catalog.spark_catalog={_CATALOG}, or stop it and let dpagg make one.",
        )


def _protect_running(session: SparkSession) -> None:
    """Keep closures and the text of exceptions out of files and logs, in a JVM that others set up."""
    context = session.sparkContext
    java_context: Any = context._jsc
    # The session's own view of the settings is a copy; this is what PySpark asks before each closure.
    java_context.sc().conf().set(_CLOSURE_KEY, _CLOSURE_LIMIT)
    jvm: Any = context._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in _TALKATIVE:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
    if context.getConf().get("spark.io.encryption.enabled", "false") != "true":
        _LOG.warning("The running Spark session does not encrypt what it spills: set spark.io.encryption.enabled=true")


def _protect_python_log() -> None:
    for name in _TALKATIVE_PYTHON:
        PySparkLogger.getLogger(name).disabled = True
    # At DEBUG it logs each command and answer: closures with their secret, rows, texts of exceptions.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _log_configured() -> bool:
    """Whether the owner of a running JVM configured its log; Spark's own default prints at INFO."""
    jvm: Any = SparkContext._jvm
    context = jvm.org.apache.logging.log4j.core.LoggerContext.getContext(False)
    source = context.getConfiguration().getConfigurationSource().getLocation()
    return source is not None and "org/apache/spark/log4j2" not in source


def _configure_log(settings: SessionSettings) -> None:
    # Only once Spark runs: while it starts, it puts its default in the place of any other configuration.
    if _LOG_CONFIGURATION.is_file():
        jvm: Any = SparkContext._jvm
        jvm.java.lang.System.setProperty(_LOG_LEVEL_KEY, settings.log_level)
        uri = jvm.java.net.URI(_LOG_CONFIGURATION.as_uri())
        jvm.org.apache.logging.log4j.core.config.Configurator.reconfigure(uri)


def _load_delta(conf: SparkConf) -> None:
    """Put Delta's jars on the class path of a running JVM, as ``--jars`` would have."""
    jvm: Any = SparkContext._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_EXTENSION.replace(".", "/") + ".class") is not None:
        return
    jars = delta_jars()
    for jar in jars:
        loader.addURL(jvm.java.io.File(str(jar)).toURI().toURL())
    listed = [each for each in (conf.get("spark.jars", "") or "").split(",") if each]
    conf.set("spark.jars", ",".join([*listed, *map(str, jars)]))


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables for a while: Spark reads them when it starts, and the user's own stay as they were."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
