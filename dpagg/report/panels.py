"""Figures of several panels with lines and intervals, for pages and as files of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from dpagg.report import palette
from dpagg.report.figures import _COLOURS, _DASHES, _MUTED, _plain, drawn_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Line", "Panel", "panels_figure", "standalone"]

_PANEL, _FONT_SIZE, _PER_LINE = (3.9, 2.9), 9.5, 0.24
_ORDER = ("accent", "claim", "good", "warn", "ink", "muted")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Line:
    """Points in order, with half widths of intervals where there are any.

    Attributes
    ----------
    label : str
        The same label has the same look in all panels.
    x, y : sequence of float
    half_width : sequence of float or None
        Of the interval of each y; empty for none.
    is_reference : bool
        Whether to draw a plain dotted line without marks.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    half_width: Sequence[float | None] = ()
    is_reference: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes; `x_ticks` are marked on the first where they are given."""

    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    x_scale: Literal["log", "linear"] = "log"
    y_scale: Literal["log", "linear"] = "log"
    x_ticks: Sequence[float] = ()


def panels_figure(identity: str, title: str, summary: str, panels: Sequence[Panel]) -> Markup:
    """Return panels, two in a row, with one legend below.

    Parameters
    ----------
    identity : str
        Of the figure on its page.
    title, summary : str
        What it shows, for whoever cannot see it.
    panels : sequence of Panel
        At least one.
    """
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines if len(line.x)))
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw(figure: Figure) -> None:
        handles: dict[str, Any] = {}
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, place + 1)
            _plain(figure, axes, _FONT_SIZE)
            axes.set(xscale=panel.x_scale, yscale=panel.y_scale)
            axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.title)
            axes.title.set_fontsize(_FONT_SIZE)
            axes.title.set_color(_COLOURS["ink"])
            axes.title.set_parse_math(False)
            for line in (line for line in panel.lines if len(line.x)):
                handles.setdefault(line.label, _draw_line(axes, line, labels.index(line.label)))
            axes.minorticks_off()
            if panel.x_ticks:
                axes.set_xticks(panel.x_ticks, [f"{tick:g}" for tick in panel.x_ticks])
            _cut_intervals(axes, panel)
        legend = figure.legend(
            [handles[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=columns,
            frameon=False,
            fontsize=_FONT_SIZE,
            labelcolor=_COLOURS["ink"],
        )
        for text in legend.get_texts():
            text.set_parse_math(False)

    height = rows * _PANEL[1] + _PER_LINE * math.ceil(len(labels) / columns)
    drawn = drawn_figure(identity, title, summary, (columns * _PANEL[0], height), draw)
    return Markup(str(drawn).replace('class="figure"', 'class="figure wide"', 1)) if columns > 1 else drawn


def _cut_intervals(axes: Axes, panel: Panel) -> None:
    """On a logarithmic scale let no interval that reaches to zero, or far up, decide what is seen of the means."""
    seen = [value for line in panel.lines for value in line.y if value > 0]
    if panel.y_scale == "log" and seen:
        axes.set_ylim(min(seen) / 3, max(seen) * 3)


def _draw_line(axes: Axes, line: Line, place: int) -> Any:
    colour, dashes = _COLOURS[_ORDER[place % len(_ORDER)]], _DASHES[place // 2 % len(_DASHES)]
    if line.is_reference:
        return axes.plot(line.x, line.y, color=_MUTED, linestyle=(0, (1.5, 1.5)), linewidth=1.5)[0]
    heights = [half or 0.0 for half in line.half_width] or [0.0] * len(line.y)
    # On a logarithmic scale an interval that reaches below zero ends at the edge of the figure.
    lower = [min(half, value * 0.999) if value > 0 else half for value, half in zip(line.y, heights, strict=True)]
    return axes.errorbar(
        line.x,
        line.y,
        yerr=[lower, heights] if any(heights) else None,
        color=colour,
        linestyle=dashes,
        marker=_MARKERS[place % len(_MARKERS)],
        markersize=4.5,
        markeredgewidth=0.0,
        linewidth=1.6,
        elinewidth=1.0,
        ecolor=colour,
        capsize=2.0,
    )


def standalone(figure: Markup) -> str:
    """Return a figure as an SVG file: with the palette of the pages inside, light or dark as its reader has it."""
    light, dark = (
        "".join(f"--{name}:{colour};" for name, colour in colours.items()) for colours in (palette.LIGHT, palette.DARK)
    )
    style = (
        f"<style>:root{{{light}}}@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
        "svg{background:var(--ground)}text{font-family:sans-serif}</style>"
    )
    head = str(figure).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    opening, _, rest = head.partition(">")
    return f"{opening}>{style}{rest}\n"
