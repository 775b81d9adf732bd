"""Synthetic files in the formats of the real ones, any number of rows: for whoever does not have the data.

Nothing in them was taken from a real row. Shares, tails and missing values are of the kind that the real tables have,
and a linear model of the encoded features explains between a fifth and a half of the label's variance, which is far
more than it does of the real log's. Files are called ``synthetic``, and a note lies beside each.

Rows come in chunks, each from a generator of its own (seed and number of the chunk), so that a file depends on seed and
number of rows alone, however many processes made it, and memory doesn't grow with it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal
from zlib import compressobj

import numpy as np

from dpagg.experiments.label_tables.census_rows import CENSUS_FIELDS, census_codebook, census_csv, census_fixed_width
from dpagg.experiments.label_tables.criteo_rows import criteo_lines

__all__ = ["write_census", "write_criteo"]

_CHUNK_ROWS = 100_000
_GZIP = 31  # window bits of zlib for a gzip member
_NOTE = (
    "SYNTHETIC: made by dpagg's generator of stand-ins, from a seed. No row, code or number in it is of a person, a "
    "click or a sale. It has the format of {real}, and signal of its own."
)


def write_criteo(path: Path | str, rows: int, seed: int, *, processes: int | None = None) -> Path:
    """Write a synthetic Criteo conversion log: tab-separated, no header, 23 columns, sorted by time of click.

    Parameters
    ----------
    path : Path or str
        A folder, made if needed.
    rows : int
        Lines.
    seed : int
        One seed and one number of rows give one file.
    processes : int, optional
        That make chunks at the same time; as many as there are cores by default.

    Returns
    -------
    Path
        The file, ``criteo-synthetic.tsv`` in the folder.
    """
    target = Path(path) / "criteo-synthetic.tsv"
    _write(target, rows, partial(_criteo_chunk, rows, seed, _CHUNK_ROWS), processes)
    _note(target, rows, seed, "the Criteo Sponsored Search Conversion Log")
    return target


def write_census(
    path: Path | str,
    rows: int,
    seed: int,
    format: Literal["csv", "fixed-width"] = "csv",
    *,
    compressed: bool = False,
    processes: int | None = None,
) -> Path:
    """Write a synthetic rectangular IPUMS USA extract of the labour force of 1940.

    Parameters
    ----------
    path : Path or str
        A folder, made if needed.
    rows : int
        Persons.
    seed : int
        One seed and one number of rows give the same persons in either format.
    format : str
        ``csv`` with a header, or ``fixed-width`` with its DDI codebook beside it (``.xml``).
    compressed : bool
        Whether it is gzipped, as IPUMS hands extracts out.
    processes : int, optional
        That make chunks at the same time; as many as there are cores by default.

    Returns
    -------
    Path
        The file, ``census-synthetic.csv`` or ``.dat`` (``.gz``) in the folder.
    """
    ending = "csv" if format == "csv" else "dat"
    target = Path(path) / f"census-synthetic.{ending}{'.gz' if compressed else ''}"
    head = ",".join(field.name for field in CENSUS_FIELDS) + "\n" if format == "csv" else ""
    _write(target, rows, partial(_census_chunk, rows, seed, format, _CHUNK_ROWS), processes, head.encode())
    if format == "fixed-width":
        book = census_codebook(target.name.removesuffix(".gz"))
        target.with_name("census-synthetic.xml").write_text(book, encoding="utf-8")
    _note(target, rows, seed, "an IPUMS USA extract of the 1940 census")
    return target


def _criteo_chunk(rows: int, seed: int, most: int, chunk: int) -> bytes:
    size = min(most, rows - chunk * most)
    return criteo_lines(np.random.default_rng([seed, 1, chunk]), chunk * most, size, rows)


def _census_chunk(rows: int, seed: int, format: str, most: int, chunk: int) -> bytes:
    written = census_csv if format == "csv" else census_fixed_width
    return written(np.random.default_rng([seed, 2, chunk]), chunk * most, min(most, rows - chunk * most))


def _write(target: Path, rows: int, chunk: Callable[[int], bytes], processes: int | None, head: bytes = b"") -> None:
    if rows < 1:
        raise ValueError(f"rows must be at least 1, got {rows}")
    target.parent.mkdir(parents=True, exist_ok=True)
    packer = compressobj(1, wbits=_GZIP) if target.suffix == ".gz" else None
    # A name of its own until it is whole: a reader never finds half a file.
    partial_file = target.with_name(f".{target.name}.unfinished")
    with partial_file.open("wb") as file:
        for text in _chunks(head, -(-rows // _CHUNK_ROWS), chunk, processes or os.cpu_count() or 1):
            file.write(text if packer is None else packer.compress(text))
        if packer is not None:
            file.write(packer.flush())
    partial_file.replace(target)


def _chunks(head: bytes, count: int, chunk: Callable[[int], bytes], processes: int) -> Iterator[bytes]:
    """The head and each chunk in order; at most twice as many at a time as there are processes."""
    yield head
    if processes == 1 or count == 1:
        yield from map(chunk, range(count))
        return
    # A fork would inherit whatever threads the caller has.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting: deque[Future[bytes]] = deque()
        for number in range(count):
            waiting.append(pool.submit(chunk, number))
            if len(waiting) == 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _note(target: Path, rows: int, seed: int, real: str) -> None:
    about = {"synthetic": True, "what": _NOTE.format(real=real), "file": target.name, "rows": rows, "seed": seed}
    # A name that starts with an underscore: Spark's readers skip it where they read the folder.
    target.with_name(f"_{target.name}.about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
