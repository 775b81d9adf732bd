"""What a run needs of the command line around it: Spark, logs, metrics."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dpagg.errors import ConfigError, DpaggError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.runs.monitoring import Monitor


def start_spark(verbose: bool, log_format: str = "text") -> SparkSession:
    """Return the Spark session of the command, once logs are as asked."""
    set_logging(verbose, log_format)
    from dpagg.spark.session import spark_session

    return spark_session()


def set_logging(verbose: bool, log_format: str = "text") -> None:
    """Let the log go to standard error, in words or as JSON.

    Raises
    ------
    ConfigError
        If the format is neither.
    """
    if log_format not in ("text", "json"):
        raise ConfigError(f"--log-format is {log_format!r}, expected text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    if log_format == "json":
        from dpagg.runs.monitoring import JsonFormatter

        handler.setFormatter(JsonFormatter())
    is_told = verbose or log_format == "json"
    logging.basicConfig(level=logging.INFO if is_told else logging.WARNING, handlers=[handler])
    # An interrupt ends the conversation with the JVM in the middle of a word, at length.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def measured(path: Path | None) -> Iterator[Monitor]:
    """Write the metrics of a run, however it ends."""
    from dpagg.runs.monitoring import Monitor, write_metrics

    monitor, code = Monitor(), 1
    try:
        yield monitor
        code = 0
    except DpaggError as error:
        code = error.exit_code
        raise
    finally:
        if path is not None:
            write_metrics(path, [monitor.to_dict(code)])
