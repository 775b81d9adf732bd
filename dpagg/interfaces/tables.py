"""Which kind of table a program gives, told without importing Spark or pandas."""

from __future__ import annotations

from typing import Any

from dpagg.errors import ConfigError, EnvironmentFault

__all__ = ["is_connect", "is_pandas", "is_spark", "memory_table"]


def is_connect(table: Any) -> bool:
    """Return whether it is a DataFrame of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(table).__mro__)


def is_spark(table: Any) -> bool:
    """Return whether it is a DataFrame of a classic Spark session.

    Raises
    ------
    EnvironmentFault
        If it is one of Spark Connect.
    ConfigError
        If it is a DataFrame of pandas on Spark.
    """
    modules = [kind.__module__ for kind in type(table).__mro__]
    if is_connect(table):
        raise EnvironmentFault(
            "a Spark Connect DataFrame is given, and Connect has neither RDDs nor the driver's JVM, through which "
            "private aggregates are drawn",
            remedy="Give df.toArrow(), which needs no Spark from there on, or use a classic session.",
        )
    if any(name.startswith("pyspark.pandas.") for name in modules):
        raise ConfigError("a DataFrame of pandas on Spark is given", remedy="Give df.to_spark().")
    return any(name.startswith("pyspark.sql.") for name in modules)


def is_pandas(table: Any) -> bool:
    """Return whether it is a pandas DataFrame."""
    return any(kind.__module__.partition(".")[0] == "pandas" for kind in type(table).__mro__)


def memory_table(table: Any) -> Any:
    """Return a table in memory; a path is refused with what to do instead.

    Raises
    ------
    ConfigError
        If it is a path.
    """
    if isinstance(table, str) or hasattr(table, "__fspath__"):
        raise ConfigError(
            "a path is given, expected a table",
            remedy="Read it (pandas, pyarrow or Spark), or run dpagg aggregate with a configuration.",
        )
    return table
