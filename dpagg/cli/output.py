"""How commands print: 80 columns, plain where nobody looks, one JSON object where it is asked for."""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is."""
    # Rich would print each number of a text in bold, in pieces, and take price[usd] for mark-up. Where colours are not
    # wanted, nor is bold.
    return Console(stderr=stderr, highlight=False, markup=False, color_system=None if is_plain() else "auto")


def make_table(*headers: str, show_header: bool = True) -> Table:
    """Return a table in which a long word is broken, not cut."""
    return Table(*(Column(header, overflow="fold") for header in headers), show_header=show_header)


def mark(word: str) -> Text:
    """Return the word of a verdict in its colour."""
    return Text(word, {"ok": "green", "note": "yellow"}.get(word, "bold red"))


def is_plain() -> bool:
    """Whether the user wants no codes in what is printed (no-color.org)."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


@contextmanager
def status(what: str, as_json: bool) -> Iterator[None]:
    """Say on a terminal what is going on while it does."""
    console = make_console(stderr=True)
    if as_json or not console.is_terminal:
        yield
        return
    if is_plain():
        console.print(f"{what} …")
        yield
        return
    with console.status(what):
        yield


@contextmanager
def progress_bar(what: str, as_json: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; what is yielded takes words, steps done and steps at most."""
    console = make_console(stderr=True)
    if as_json or is_plain() or not console.is_terminal:
        yield lambda words, done, most: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda words, done, most: bar.update(task, description=words, completed=done, total=most)


def report_found(found: Mapping[str, Any], as_json: bool, title: str) -> None:
    """Print what a run tells: names and values under a title, or JSON."""
    if as_json:
        print_json(found)
        return
    console = make_console()
    console.print(wrapped(title, console.width), soft_wrap=True)
    table = make_table("", "", show_header=False)
    for name, value in found.items():
        lines = value.items() if isinstance(value, Mapping) else [(None, value)]
        for inner, content in lines:
            if content == title:
                continue
            table.add_row((name if inner is None else f"{name}: {inner}").replace("_", " "), shown(content))
    console.print(table)


def wrapped(text: str, width: int) -> str:
    """Break lines at words, what follows under the words of its line and not under its name or bullet."""
    lines = []
    for line in text.splitlines():
        begin = re.match(r"\s*- |\S+ {2,}|", line)
        indent = " " * len(begin.group() if begin else "")
        lines.append(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False) if line else "")
    return "\n".join(lines)


def shown(value: Any) -> str:
    """Return a value as a person reads it."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def print_json(found: Mapping[str, Any]) -> None:
    """Print one JSON object, in ASCII where the terminal knows no more."""
    ascii_only = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    typer.echo(json.dumps(found, indent=2, ensure_ascii=ascii_only, allow_nan=False))


def complain(message: str) -> None:
    """Say on standard error why the command ends."""
    console = make_console(stderr=True)
    # A person reads whole words; a log has one line a message.
    console.print(Text.assemble(("dpagg:", "bold red"), " ", message), soft_wrap=not console.is_terminal)
