"""The paper's two tables in a folder: recognised by what is in the files, whatever their names are."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dpagg.experiments.label_tables.census import LABEL
from dpagg.experiments.label_tables.criteo import COLUMNS

__all__ = ["CensusExtract", "find_census", "find_criteo"]

_ENDINGS = ("", ".csv", ".tsv", ".txt", ".dat")
_FIRST_BYTES = 1 << 16


@dataclass(frozen=True)
class CensusExtract:
    """An IPUMS extract: its file, its codebook if it is fixed width, and the names of its columns."""

    file: Path
    codebook: Path | None
    columns: tuple[str, ...]


def find_criteo(folder: Path) -> Path | None:
    """Return the conversion log: a text file of 23 columns with tabs between, the first of which is 0 or 1."""
    for file in _texts(folder):
        cells = _first_line(file).split("\t")
        if len(cells) == len(COLUMNS) and cells[0] in ("0", "1"):
            return file
    return None


def find_census(folder: Path) -> CensusExtract | None:
    """Return the extract: a CSV with hours worked among its columns, or a fixed-width file with its codebook."""
    for file in _texts(folder):
        columns = tuple(cell.strip().strip('"') for cell in _first_line(file).split(","))
        if LABEL in columns:
            return CensusExtract(file, None, columns)
        codebook = file.with_name(file.name.removesuffix(".gz")).with_suffix(".xml")
        if codebook.is_file() and codebook != file:
            columns = tuple(re.findall(r'<var\b[^>]*\bname="(\w+)"', codebook.read_text("utf-8", errors="replace")))
            if LABEL in columns:
                return CensusExtract(file, codebook, columns)
    return None


def _texts(folder: Path) -> Iterator[Path]:
    """Files in the folder and in folders in it, those that may be one of the tables."""
    for file in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        ending = Path(file.name.removesuffix(".gz")).suffix.lower()
        if file.is_file() and ending in _ENDINGS and not file.name.startswith((".", "_")):
            yield file


def _first_line(file: Path) -> str:
    """The first line as text, empty if it is no text or cannot be read."""
    try:
        with gzip.open(file) if file.name.endswith(".gz") else file.open("rb") as stream:
            return stream.read(_FIRST_BYTES).split(b"\n", 1)[0].decode("utf-8").rstrip("\r")
    except (OSError, EOFError, UnicodeDecodeError):
        return ""
