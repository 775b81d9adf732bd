"""A bar for runs of many cells."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator

__all__ = ["progress_bar"]

_LOG = logging.getLogger(__name__)


@contextlib.contextmanager
def progress_bar(shown: bool, total: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that moves a bar on stderr on by a cell and names what was done."""
    if not shown:
        yield _LOG.debug
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda words: bar.update(task, advance=1, description=words)
