"""A table of Spark's catalogue, as the files that hold it: so that it can be pinned."""

from __future__ import annotations

from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.errors import ParseException, PySparkException
from pyspark.sql import SparkSession

from dpagg.errors import ConfigError, DataError

__all__ = ["Stored", "stored_table"]

_PINNED = ("delta", "parquet")


@dataclass(frozen=True)
class Stored:
    """Where a table of the catalogue is, and in which format."""

    path: str
    format: str


def stored_table(spark: SparkSession, name: str) -> Stored:
    """Look a table up in the catalogue.

    Parameters
    ----------
    spark : SparkSession
        Whose catalogues are asked.
    name : str
        Of the table, with schema and catalogue if they are not the current ones; parts with special characters in
        backticks, as in SQL.

    Raises
    ------
    ConfigError
        If it is no name of a table.
    DataError
        If there is no such table, or it is a view, or of a format whose version can't be pinned.
    """
    try:
        described = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except ParseException:
        raise ConfigError(
            f"{name!r} is given, expected the name of a table such as catalog.schema.name", path="input.table"
        ) from None
    except (PySparkException, Py4JError) as error:
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        raise DataError(
            f"the catalogue has no table {name!r} that can be read ({condition or type(error).__name__})",
            path="input.table",
            remedy="Check the name, and the settings of the session's catalogues.",
        ) from None
    # Columns come first, and one may be called Provider: the facts of the table are behind a headline.
    facts: dict[str, str] = {}
    is_headed = False
    for row in described:
        if str(row["col_name"]).startswith("# Detailed Table Information"):
            is_headed = True
        elif is_headed:
            facts.setdefault(str(row["col_name"]), str(row["data_type"]))
    # Of a view of the session there are no such facts.
    if not facts or "VIEW" in facts.get("Type", "").upper():
        raise DataError(
            f"{name!r} is a view, whose rows have no version",
            path="input.table",
            remedy="Give its query as input.sql, over input.tables.",
        )
    provider, location = facts.get("Provider", "").lower(), facts.get("Location", "")
    if provider not in _PINNED or not location:
        raise DataError(
            f"the table {name!r} is stored as {provider or 'nothing known'}, expected {' or '.join(_PINNED)}",
            path="input.table",
            remedy="Write it as Delta, or give the path and format of its files.",
        )
    return Stored(location, provider)
