"""Numbers that text holds, as Spark reads them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["BLANKS", "each_distinct", "number_of", "numbers_of"]

# What Java reads as a number: a trailing f or d, and no underscores, unlike Python.
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", re.ASCII)
_HEXADECIMAL = re.compile(r"[+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+[fFdD]?", re.ASCII)
# What Java and Spark trim: everything up to the space.
BLANKS = "".join(map(chr, range(33)))


def number_of(text: str) -> float | None:
    """Return the number that a text holds, None if none; of what is infinite or NaN none comes either."""
    text = text.strip(BLANKS)
    if _DECIMAL.fullmatch(text):
        return _finite(float(text.rstrip("fFdD")))
    if _HEXADECIMAL.fullmatch(text):
        digits, _, power = text.lower().partition("p")
        try:
            return _finite(float.fromhex(f"{digits}p{power.rstrip('fd')}"))
        except OverflowError:
            return None
    return None


def numbers_of(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return a column of text as doubles, of the same kind; what holds no number is null, infinity or NaN."""
    try:
        # Arrow reads a part of what Java reads, the same way, and all of it or nothing.
        return pc.cast(column, pa.float64())
    except pa.ArrowInvalid:
        return each_distinct(column, lambda cell: None if cell is None else number_of(cell), pa.float64())


def each_distinct(
    column: pa.Array | pa.ChunkedArray, convert: Callable[[Any], Any], kind: pa.DataType
) -> pa.Array | pa.ChunkedArray:
    """Convert each distinct cell of a column once."""
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    chunked = isinstance(column, pa.ChunkedArray)
    distinct = (column.combine_chunks() if chunked else column).dictionary_encode()
    if isinstance(distinct, pa.ChunkedArray):
        distinct = distinct.combine_chunks()
    values = pa.array([convert(_decoded(value)) for value in _cells(distinct.dictionary)], kind)
    taken = pc.take(values, distinct.indices)
    return pa.chunked_array([taken]) if chunked else taken


def _cells(values: pa.Array) -> list[Any]:
    is_text = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    # Bytes of a file need not be valid text, and none may raise an error.
    return list(
        values.cast(pa.binary() if pa.types.is_string(values.type) else pa.large_binary()).to_pylist()
        if is_text
        else values.to_pylist()
    )


def _decoded(cell: Any) -> Any:
    return cell.decode(errors="replace") if isinstance(cell, bytes) else cell


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
