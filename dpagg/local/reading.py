"""A table in memory, its columns typed as Spark types them, so that no cell can raise an error.

What a cell becomes is what `dpagg.spark.reading.normalise` makes of it. Text of pandas or Arrow exceptions may quote
cells, so none reaches a message.
"""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.schema import Numeric, Schema
from dpagg.kernels.text_cells import each_distinct, number_of

__all__ = ["UNIT_COLUMN", "normalise", "numbers"]

UNIT_COLUMN = "__dpagg_unit"

_NUMBERS = "a number, or text that holds one"
_CATEGORIES = "text, a whole number, a boolean or a date"
_KEYS = "a whole number, text, a date or binary"


def normalise(
    table: Any, schema: Schema, row_id: str | None = None, unit: str | None = None, *, with_label: bool = True
) -> pa.Table:
    """Select the declared columns in the types that the encoder takes.

    Parameters
    ----------
    table : pandas.DataFrame, pyarrow.Table or anything that exports an Arrow stream
        Has at least the declared columns; names are compared without case.
    schema : Schema
        Declares features and label.
    row_id : str, optional
        Name of the row key.
    unit : str, optional
        Name of the column that says whose row it is; it becomes `UNIT_COLUMN`.
    with_label : bool
        Whether the label is read; without it the table may have none.

    Returns
    -------
    pyarrow.Table
        The row key and the unit if there are any, the features, the label, under their declared names. Numeric
        features and the label are doubles, the others text; a cell that can't be read as such is null.

    Raises
    ------
    DataError
        If the table has no rows, a column is missing or ambiguous, or its type can't hold what it should; never for
        the value of a cell.
    ConfigError
        If it is no table.
    """
    found = _Columns(table, [feature.name for feature in schema.features])
    if found.num_rows == 0:
        raise DataError("the table has no rows")
    columns: dict[str, pa.ChunkedArray] = {}
    if row_id is not None:
        columns[row_id] = found.column(row_id, _key, _KEYS, "input.row_id")
    if unit is not None:
        columns[UNIT_COLUMN] = found.column(unit, _key, _KEYS, "privacy.unit.column")
    for position, feature in enumerate(schema.features):
        path = f"schema.features[{position}]"
        if isinstance(feature, Numeric):
            columns[feature.name] = found.column(feature.name, _number, _NUMBERS, path)
        else:
            columns[feature.name] = found.column(feature.name, _text, _CATEGORIES, path)
    if with_label:
        columns[schema.label.name] = found.column(schema.label.name, _number, _NUMBERS, "schema.label")
    # A table without columns would lose its rows.
    return pa.table(columns | {"__dpagg_row": pa.nulls(found.num_rows)})


def numbers(cells: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return cells of any kind as numbers, in the same shape; NaN where a cell holds none, and never an error."""
    found = [math.nan if (number := _cell_number(cell)) is None else number for cell in cells.ravel().tolist()]
    return np.array(found, dtype=np.float64).reshape(cells.shape)


class _Columns:
    """The columns of a table by declared name; like Spark, without case."""

    def __init__(self, table: Any, declared: Sequence[str]) -> None:
        if _is_pandas(table):
            self.num_rows = len(table)
            names = [str(name) for name in table.columns]
            self._at: Callable[[int], Any] = lambda position: table.iloc[:, position]
        else:
            table = _as_arrow(table)
            self.num_rows = table.num_rows
            names = table.column_names
            self._at = table.column
        self._by_name: dict[str, list[tuple[str, int]]] = {}
        for position, name in enumerate(names):
            self._by_name.setdefault(name.lower(), []).append((name, position))

    def column(
        self, name: str, convert: Callable[[pa.ChunkedArray], pa.ChunkedArray | None], expected: str, path: str
    ) -> pa.ChunkedArray:
        found = self._by_name.get(name.lower(), [])
        if not found:
            near = get_close_matches(name.lower(), self._by_name, n=1)
            raise DataError(
                f"the table has no column {name!r}",
                path=path,
                remedy=f"Did you mean {self._by_name[near[0]][0][0]!r}?" if near else "Check the name.",
            )
        if len(found) > 1:
            raise DataError(
                f"{len(found)} columns of the table are named {name!r} (case doesn't count)",
                path=path,
                remedy="Rename all but one.",
            )
        stored = self._at(found[0][1])
        shown = str(getattr(stored, "dtype", None) or getattr(stored, "type", None))
        try:
            converted = convert(_arrow(stored, convert))
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            raise DataError(
                f"column {name!r} of type {shown} can't be read",
                path=path,
                remedy=f"Convert the column first: expected is {expected}.",
            ) from None
        if converted is None:
            raise DataError(
                f"column {name!r} has type {shown}, expected {expected}", path=path, remedy="Convert the column first."
            )
        return converted


def _is_pandas(table: Any) -> bool:
    return any(
        kind.__module__.partition(".")[0] == "pandas" and kind.__name__ == "DataFrame" for kind in type(table).__mro__
    )


def _as_arrow(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if hasattr(table, "__arrow_c_stream__"):
        try:
            return pa.table(table)
        except (pa.ArrowException, ValueError, TypeError):
            pass
    raise ConfigError(
        f"{type(table).__name__} is given, expected a pandas, Arrow or Spark table",
        remedy="Make a pandas.DataFrame or pyarrow.Table of it.",
    )


def _arrow(stored: Any, convert: Callable[..., Any]) -> pa.ChunkedArray:
    """A column as Arrow, dictionaries decoded."""
    if not isinstance(stored, pa.ChunkedArray):
        if stored.dtype.name == "category":
            stored = stored.astype(object)
        if stored.dtype == object:
            # Arrow would choose a type by the values, and one value could decide an error.
            values = stored.tolist()
            if convert is not _key:
                values = [_cell_number(each) if convert is _number else _cell_text(each) for each in values]
            kind = {_number: pa.float64(), _text: pa.string()}.get(convert)
            stored = pa.array(values, kind, from_pandas=True)
        else:
            stored = pa.array(stored, from_pandas=True)
    column = stored if isinstance(stored, pa.ChunkedArray) else pa.chunked_array([stored])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column


def _number(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return column.cast(pa.float64(), safe=False)
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    return each_distinct(column, number_of, pa.float64()) if _is_text(kind) else None


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pa.types.is_null(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string())
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return each_distinct(column, _cell_text, pa.string())
    return column.cast(pa.string() if pa.types.is_string(kind) else pa.large_string()) if _is_text(kind) else None


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    kind = column.type
    if pa.types.is_signed_integer(kind) or (pa.types.is_integer(kind) and kind.bit_width < 64):
        return column.cast(pa.int64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return column
    if _is_text(kind):
        return column.cast(pa.large_string())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.int64())
    if pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return each_distinct(column, _cell_text, pa.string())
    return None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cell_number(cell: Any) -> float | None:
    """A cell of a column of objects as a number."""
    if isinstance(cell, str):
        return number_of(cell)
    try:
        number = float(cell)
        return number if math.isfinite(number) else None
    except Exception:  # of any kind of cell; none may raise
        return None


def _cell_text(cell: Any) -> str | None:
    """A cell as the text that Spark makes of it."""
    if isinstance(cell, str):
        return cell
    if isinstance(cell, bool) or type(cell).__name__ in ("bool_", "bool"):
        return "true" if cell else "false"
    if isinstance(cell, decimal.Decimal):
        return f"{cell:f}" if cell.is_finite() else None
    if isinstance(cell, datetime.date) and not isinstance(cell, datetime.datetime):
        return cell.isoformat()
    if hasattr(cell, "__index__"):
        return str(cell.__index__())
    return None
