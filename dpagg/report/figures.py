"""Figures as inline SVG whose colours are the page's own variables, so that they follow light, dark and print."""

from __future__ import annotations

import io
import logging
import math
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from dpagg.report.numbers import claimed, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["burn_down_figure", "curve_figure", "loss_figure"]

# Matplotlib knows no CSS variables: it draws in colours that occur nowhere else, which are then exchanged.
_NAMES = ("ink", "muted", "accent", "claim", "line", "good", "warn")
_COLOURS = {name: f"#00000{place}" for place, name in enumerate(_NAMES, start=1)}
_INK, _MUTED, _ACCENT, _CLAIM, _LINE, _GOOD, _WARN = _COLOURS.values()
_SIZE = (4.6, 3.1)
_FONT_SIZE = 11.0
_DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_MARKERS = ("o", "s", "^", "D")


def curve_figure(
    epsilons: NDArray[np.float64], deltas: NDArray[np.float64], claim: tuple[float, float], summary: str
) -> Markup:
    """Return delta against epsilon on a logarithmic scale, with the claim marked.

    Parameters
    ----------
    epsilons, deltas : ndarray (k,)
        Points of the curve, in order.
    claim : (float, float)
        epsilon and delta of the certificate.
    summary : str
        What the figure shows, for whoever cannot see it.
    """

    def draw(axes: Axes) -> None:
        epsilon, delta = claim
        shown = deltas > 0
        axes.set_yscale("log")
        axes.plot(epsilons[shown], deltas[shown], color=_ACCENT, linewidth=2)
        axes.plot([epsilon, epsilon], [0, delta], color=_CLAIM, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot([0, epsilon], [delta, delta], color=_CLAIM, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.plot([epsilon], [delta], marker="D", color=_CLAIM, markersize=7, linestyle="")
        axes.annotate(
            f"claim: {claimed(epsilon, delta)}",
            (epsilon, delta),
            xytext=(9, 9),
            textcoords="offset points",
            color=_CLAIM,
            fontsize=_FONT_SIZE,
        )
        lowest = float(deltas[shown].min(initial=delta))
        axes.set_ylim(10.0 ** (math.floor(math.log10(max(lowest, delta * 1e-6))) - 0.3), 2.0)
        axes.set_xlim(0, float(epsilons[-1]))
        axes.set_xlabel("ε")
        axes.set_ylabel("δ")
        axes.yaxis.set_major_formatter(lambda value, _place: number(float(value)))
        axes.minorticks_off()

    return _drawn("curve", "The promise: δ at each ε", summary, draw)


def burn_down_figure(entries: Sequence[tuple[str, float, float]], budget: float, summary: str) -> Markup:
    """Return what was left of a budget after each release; `entries` are (label, epsilon spent, epsilon left)."""
    from matplotlib.ticker import MaxNLocator

    def draw(axes: Axes) -> None:
        places = np.arange(len(entries) + 1)
        left = [budget, *(entry[2] for entry in entries)]
        axes.step(places, left, where="post", color=_ACCENT, linewidth=2)
        axes.fill_between(places, left, step="post", color=_ACCENT, alpha=0.12, linewidth=0)
        axes.plot(places[-1:], left[-1:], marker="o", color=_ACCENT, markersize=6, clip_on=False)
        axes.axhline(budget, color=_CLAIM, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"budget: ε = {number(budget)}",
            (0, budget),
            xytext=(4, 4),
            textcoords="offset points",
            color=_CLAIM,
            fontsize=_FONT_SIZE,
        )
        axes.set_ylim(0, budget * 1.15)
        axes.set_xlim(0, max(1, len(entries)))
        axes.set_xlabel("releases")
        axes.set_ylabel("ε left")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))

    return _drawn("burn-down", "The budget: ε left after each release", summary, draw)


def loss_figure(curves: Mapping[str, Sequence[tuple[float, float]]], summary: str) -> Markup:
    """Return loss against epoch, a line a name; `curves` are (epoch, loss) in order."""

    def draw(axes: Axes) -> None:
        seen = [loss for curve in curves.values() for _, loss in curve if math.isfinite(loss)]
        logarithmic = min(seen, default=0.0) > 0 and max(seen) > 30 * min(seen)
        axes.set_yscale("log" if logarithmic else "linear")
        for place, (name, curve) in enumerate(curves.items()):
            steps, losses = zip(*curve, strict=True) if curve else ((), ())
            axes.plot(
                steps,
                losses,
                color=(_ACCENT, _CLAIM, _MUTED, _INK)[place % 4],
                linestyle=_DASHES[place % 4],
                marker=_MARKERS[place % 4],
                markevery=max(1, len(steps) // 8),
                markersize=4,
                linewidth=1.8,
                label=_short(name),
            )
        axes.set_xlabel("epoch")
        axes.set_ylabel("loss")
        axes.yaxis.set_major_formatter(lambda value, _place: number(float(value)))
        axes.minorticks_off()
        legend = axes.legend(frameon=False, fontsize=_FONT_SIZE, labelcolor=_INK)
        for text in legend.get_texts():
            text.set_parse_math(False)

    return _drawn("losses", "The training: loss at each epoch", summary, draw)


def _short(name: str) -> str:
    """Return a name that leaves room for the figure; one that begins with an underscore would have no entry."""
    return f" {name}" if name.startswith("_") else name if len(name) <= 30 else f"{name[:29]}…"


def _drawn(identity: str, title: str, summary: str, draw: Callable[[Axes], None]) -> Markup:
    def one(figure: Figure) -> None:
        axes = figure.add_subplot()
        _plain(figure, axes)
        draw(axes)

    return drawn_figure(identity, title, summary, _SIZE, one)


def drawn_figure(
    identity: str, title: str, summary: str, size: tuple[float, float], draw: Callable[[Figure], None]
) -> Markup:
    """Return what `draw` draws, in the colours of this module, as an element of a page."""
    # Without a home to keep its cache of fonts in it says so, each time. None are needed here.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": identity, "font.family": ["DejaVu Sans"]}
    # Names in other scripts: the reader's browser has the glyphs that Matplotlib misses and warns of.
    with warnings.catch_warnings(action="ignore"), mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        stream = io.StringIO()
        figure.savefig(stream, format="svg", transparent=True)
    return _inline(stream.getvalue(), identity, title, summary)


def _plain(figure: Figure, axes: Axes, font_size: float = _FONT_SIZE) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_MUTED)
    axes.tick_params(which="both", colors=_MUTED, labelcolor=_INK, labelsize=font_size)
    axes.grid(which="major", color=_LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(_INK)
        axis.label.set_fontsize(font_size)


def _inline(text: str, identity: str, title: str, summary: str) -> Markup:
    """Return an SVG document as an element of a page: named, in the page's colours, no identity twice on a page."""
    body = text[text.index("<svg") :]
    opening, _, rest = body.partition(">")
    box = re.search(r'viewBox="[^"]*"', opening)
    rest = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", rest, flags=re.DOTALL)
    rest = re.sub(r'\bid="', f'id="{identity}-', rest)
    rest = re.sub(r'(href="|url\()#', rf"\1#{identity}-", rest)
    for name, colour in _COLOURS.items():
        rest = rest.replace(colour, f"var(--{name})")
    head = (
        f'<svg class="figure" role="img" aria-labelledby="{identity}-title {identity}-desc" '
        f'{box.group() if box else ""} xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{identity}-title">{escape(title)}</title><desc id="{identity}-desc">{escape(summary)}</desc>'
    )
    return Markup(head + rest.strip())
