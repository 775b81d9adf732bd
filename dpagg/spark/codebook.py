"""Where the columns of a fixed-width file are, by its DDI codebook."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from xml.parsers import expat

from dpagg.errors import DataError

__all__ = ["FixedColumn", "read_codebook"]


@dataclass(frozen=True)
class FixedColumn:
    """One variable of a fixed-width file.

    Attributes
    ----------
    name : str
        Its name.
    start, width : int
        Its first character, counted from 1, and how many there are.
    decimals : int
        How many of its digits come after a point that is not written.
    is_number : bool
        Whether it is one, padded with zeros; else text.
    """

    name: str
    start: int
    width: int
    decimals: int
    is_number: bool


def read_codebook(text: str) -> tuple[FixedColumn, ...]:
    """Return the variables of a DDI codebook (DDI 2, as IPUMS writes it).

    Parameters
    ----------
    text : str
        Its XML. A document type is refused: a codebook has none, and the entities of one can fill the memory.

    Raises
    ------
    DataError
        If it is no such codebook, or one of a file whose lines are of several kinds.
    """
    found = _Handler()
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler = found.doctype
    parser.StartElementHandler = found.start
    parser.EndElementHandler = found.end
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise _unfit(f"is not well-formed XML (line {error.lineno})") from None
    except (KeyError, ValueError):
        raise _unfit("has a variable without a place, or with one that is no number") from None
    if found.structure not in ("", "rectangular"):
        raise DataError(
            f"the codebook describes a {found.structure} file, expected a rectangular one",
            path="input.codebook",
            remedy="Ask IPUMS for a rectangular extract of persons: its lines are all of one kind.",
        )
    columns = tuple(found.columns)
    if not columns:
        raise _unfit("has no variable")
    if len({column.name.lower() for column in columns}) < len(columns):
        raise _unfit("has a variable twice")
    return columns


class _Handler:
    """What is kept of the elements of a codebook."""

    def __init__(self) -> None:
        self.columns: list[FixedColumn] = []
        self.structure = ""
        self._variable: dict[str, str] | None = None
        self._place: dict[str, str] = {}
        self._is_number = False

    def doctype(self, *_: Any) -> None:
        raise _unfit("has a document type, which is refused")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(" ")[2]
        if tag == "var":
            self._variable, self._place, self._is_number = attributes, {}, False
        elif tag == "location" and self._variable is not None:
            self._place = attributes
        elif tag == "varFormat" and self._variable is not None:
            self._is_number = attributes.get("type") == "numeric"
        elif tag == "fileStrc":
            self.structure = attributes.get("type", "")

    def end(self, name: str) -> None:
        if name.rpartition(" ")[2] != "var" or self._variable is None:
            return
        start, stop = int(self._place["StartPos"]), int(self._place["EndPos"])
        if not 1 <= start <= stop:
            raise ValueError("places count from 1")
        decimals = int(self._variable.get("dcml", "0") or 0)
        self.columns.append(FixedColumn(self._variable["name"], start, stop - start + 1, decimals, self._is_number))
        self._variable = None


def _unfit(what: str) -> DataError:
    return DataError(
        f"the codebook {what}",
        path="input.codebook",
        remedy="Give the DDI codebook (XML) that came with the extract.",
    )
