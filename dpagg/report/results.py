"""A page of results: sections with words, figures and tables, in the looks of the page of a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from dpagg.report import palette
from dpagg.report.page import GENERATOR, environment

__all__ = ["Grid", "Section", "as_markdown", "render_results"]


@dataclass(frozen=True)
class Grid:
    """A table: a heading a column, the first one naming rows."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading; figures come with their captions."""

    title: str
    paragraphs: Sequence[str] = ()
    items: Sequence[str] = ()
    figures: Sequence[tuple[Markup, str]] = ()
    grids: Sequence[Grid] = ()


def render_results(title: str, badges: Sequence[tuple[str, str]], sections: Sequence[Section]) -> str:
    """Return a self-contained page without a script; the same arguments give the same page.

    Parameters
    ----------
    title : str
    badges : sequence of (str, str)
        What has to be seen first: ``good``, ``warn`` or ``claim``, and the words.
    sections : sequence of Section
    """
    template = environment().get_template("results.html.j2")
    return template.render(generator=Markup(GENERATOR), palette=palette, title=title, badges=badges, sections=sections)


def as_markdown(grid: Grid) -> str:
    """Return a table as Markdown."""
    align = ["---", *(["---:"] * (len(grid.head) - 1))]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in (grid.head, align, *grid.rows)
    )
