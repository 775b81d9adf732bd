"""The input of a run: a table, or tables and a query that joins them, and until when labels may arrive."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from dpagg.config.fields import Model, Text, a_number, refused

Version: TypeAlias = Annotated[int, BeforeValidator(a_number), Field(ge=0)] | None
Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Format: TypeAlias = Literal["parquet", "delta", "csv", "json", "fixed-width"]
Malformed: TypeAlias = Literal["refuse", "drop"]

# Each key is for these formats only.
_FOR_FORMATS: dict[str, tuple[str, ...]] = {
    "header": ("csv",),
    "delimiter": ("csv",),
    "quote": ("csv",),
    "column_names": ("csv",),
    "codebook": ("fixed-width",),
    "null_values": ("csv", "json", "fixed-width"),
    "malformed": ("csv", "json", "fixed-width"),
}


class TableConfig(Model):
    """One of several tables that a query joins; in the format of the input unless it has its own.

    ``labels`` declares that its rows are label data: they then decide nothing but labels.
    """

    path: Text | None = None
    """Where the table is."""
    table: Text | None = None
    """Its name in Spark's catalogue, instead of path and format."""
    format: Format | None = None
    """How it is stored; by default as the input says."""
    version: Version = None
    """Version of a Delta table; the newest by default."""
    labels: bool = False
    """Whether its rows come about with a label (conversions): it then decides labels and nothing else."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        _check_place(self.path, self.table, self.format)
        return self


def _check_place(path: str | None, table: str | None, table_format: str | None) -> None:
    """Refuse a table that is at a path and in the catalogue, or nowhere."""
    if path is not None and table is not None:
        raise refused("there is a path and a table of the catalogue", field="table", remedy="Keep one of them.")
    if path is None and table is None:
        raise refused("a required key is missing: the table to read", field="path")
    if table is not None and table_format is not None:
        raise refused("the catalogue says how a table is stored", field="format", remedy="Leave it out.")


def _a_table(given: Any) -> Any:
    return {"path": given} if isinstance(given, str) else given


class WindowConfig(Model):
    """Until when labels of the rows may arrive: the days after an event date, ISO dates.

    A release of an open window would be made again, and charged again, for the labels that came late. ``as_of`` is the
    day to judge by: today (UTC) unless it is given.
    """

    event_date: Text
    """Day of the rows, such as 2026-11-28."""
    days: Annotated[int, BeforeValidator(a_number), Field(ge=0)]
    """Days after it on which labels may still arrive."""
    as_of: Text | None = None
    """Day to judge by; today (UTC) by default."""

    @model_validator(mode="after")
    def _are_dates(self) -> Self:
        for field in ("event_date", "as_of"):
            given = getattr(self, field)
            try:
                _ = given is None or date.fromisoformat(given)
            except ValueError:
                raise refused(f"{given!r} is given, expected a date like 2026-11-28", field=field) from None
        return self

    @property
    def last_day(self) -> date:
        """The last day on which a label may arrive."""
        return date.fromisoformat(self.event_date) + timedelta(days=self.days)

    @property
    def is_open(self) -> bool:
        """Whether labels may still arrive."""
        today = datetime.now(UTC).date() if self.as_of is None else date.fromisoformat(self.as_of)
        return today <= self.last_day


class InputConfig(Model):
    """The table to read, or tables and the query that joins them; and the column that identifies its rows.

    ``table`` names one in Spark's catalogue. A cell of text that is one of ``null_values`` is missing; a line that has
    not the columns of the others is ``malformed``.
    """

    path: Text | None = None
    """Where the table is: a file or a folder."""
    table: Text | None = None
    """Name of the table in Spark's catalogue, instead of path and format."""
    format: Format | None = None
    """How it is stored: parquet, delta, csv, json (one object a line) or fixed-width."""
    tables: dict[Name, Annotated[TableConfig, BeforeValidator(_a_table)]] | None = None
    """Names and paths of tables to join, instead of path."""
    sql: Text | None = None
    """Spark SQL over these tables whose result is the input."""
    row_id: Text | None = None
    """Column that identifies a row, unique and not null; needed for bags, users and the engine rows."""
    version: Version = None
    """Version of a Delta table; the newest by default."""
    header: bool = True
    """CSV: whether the first line names the columns."""
    delimiter: Annotated[str, StringConstraints(min_length=1, max_length=8)] = ","
    """CSV: what stands between cells."""
    quote: Literal['"', "'", "none"] = '"'
    """CSV: what stands around cells that hold delimiters; none for nothing."""
    column_names: tuple[Text, ...] | None = None
    """CSV without a header: names of the columns, in order."""
    codebook: Text | None = None
    """Fixed width: the DDI codebook (XML) that says where each column is."""
    null_values: tuple[str, ...] = ()
    """Text: cells that count as missing."""
    malformed: Malformed = "refuse"
    """Text: what becomes of lines that have not the columns of the others: refuse the table, or drop them."""
    attribution_window: WindowConfig | None = None
    """Until when labels may arrive; a release before that is refused."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.tables is None) != (self.sql is None):
            raise refused(
                "tables and the query that joins them belong together",
                field="tables" if self.sql is None else "sql",
                remedy="Give input.tables and input.sql, or input.path.",
            )
        if (self.path is None and self.table is None) == (self.tables is None):
            raise refused(
                "a required key is missing: the table to read"
                if self.tables is None
                else "there is a path and tables to join",
                field="path",
                remedy="Give input.path, input.table, or input.tables with input.sql.",
            )
        if self.tables is None:
            _check_place(self.path, self.table, self.format)
        if self.format is None and self.table is None:
            lacking = [name for name, table in (self.tables or {}).items() if table.path and table.format is None]
            if self.tables is None or lacking:
                raise refused("a required key is missing", field="format")
        if self.tables is not None:
            if not self.tables:
                raise refused("no table is given", field="tables")
            if all(table.labels for table in self.tables.values()):
                raise refused(
                    "all tables hold labels, so that none says which rows there are",
                    field="tables",
                    remedy="Set labels: true for those only whose rows come about with a label.",
                )
            if self.row_id is None and any(table.labels for table in self.tables.values()):
                raise refused(
                    "a row key is needed to join labels to rows",
                    field="row_id",
                    remedy="Name the column that identifies a row.",
                )
            if any((table.format or self.format) == "json" for table in self.tables.values()):
                raise refused(
                    "the columns of JSON lines are those that a run declares, which several tables don't share",
                    field="tables",
                    remedy="Write them as Parquet or Delta first.",
                )
            for key in ("version", "column_names"):
                if getattr(self, key) is not None:
                    raise refused(
                        "this is for one table, not for several", field=key, remedy="Give it in input.tables."
                    )
        return self

    @model_validator(mode="after")
    def _fits_format(self) -> Self:
        stored = {self.format, *(table.format for table in (self.tables or {}).values())}
        for key, formats in _FOR_FORMATS.items():
            if not stored.intersection(formats) and getattr(self, key) != type(self).model_fields[key].default:
                raise refused(f"this is for {', '.join(formats)}, but input.format is {self.format}", field=key)
        if "fixed-width" in stored and self.codebook is None:
            raise refused(
                "a required key is missing: where each column is",
                field="codebook",
                remedy="Give the DDI codebook (XML) that came with the file.",
            )
        if self.format != "delta" and self.version is not None and self.table is None:
            raise refused(f"only a Delta table has versions, input.format is {self.format}", field="version")
        if self.column_names is not None:
            if self.header:
                raise refused(
                    "a file with a header names its columns itself",
                    field="column_names",
                    remedy="Leave it out, or set input.header: false.",
                )
            if len({name.lower() for name in self.column_names}) < len(self.column_names):
                raise refused("a name is given twice (case doesn't count)", field="column_names")
        return self
