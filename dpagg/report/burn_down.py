"""How a budget was spent, as a figure."""

from __future__ import annotations

import io
import math
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from dpagg.ledger import Book, Terms, sharing, spent
from dpagg.ledger.policy import Charge

_MOST_POINTS = 40  # compositions of a data set whose releases all compose; each takes a fraction of a second


def burn_down_svg(book: Book) -> str:
    """Return an SVG with a panel for each data set: what is left of its budget.

    Where partitions are disjoint a bar says what is left of each partition's budget, in the order of their first
    charge; otherwise a line falls with each release. Epsilons are those at the budget's delta.
    """
    names = sorted(book.terms)
    # Text stays text, which people search and screen readers say.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpagg", "font.size": 9}):
        figure = Figure(figsize=(7.2, 2.6 * max(1, len(names))), layout="constrained")
        panels = figure.subplots(max(1, len(names)), squeeze=False)[:, 0]
        for panel, name in zip(panels, names, strict=False):
            terms, charges = book.terms[name], book.charges(name)
            if terms.disjoint:
                labels, left = _of_partitions(terms, charges)
                panel.bar(np.arange(len(left)), left, width=0.8, color="#31688e")
                panel.set_xlabel("partition, in the order of first charges")
                places: Any = (
                    np.unique(np.linspace(0, len(labels) - 1, min(6, len(labels))).astype(int)) if labels else []
                )
                panel.set_xticks(places, [labels[place] for place in places])
            else:
                counts, left = _of_releases(terms, charges)
                panel.step(counts, left, where="post", color="#31688e")
                panel.set_xlabel("releases")
            panel.axhline(terms.epsilon, color="#444444", linewidth=0.8, linestyle="--")
            panel.set_ylim(0, 1.08 * terms.epsilon)
            panel.set_ylabel("epsilon left")
            panel.set_title(f"{name}: budget {terms.epsilon:g} at delta {terms.delta:g}, {terms.unit}", loc="left")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Title": "What is left of privacy budgets"})
    return text.getvalue()


def _of_partitions(terms: Terms, charges: list[Charge]) -> tuple[list[str], list[float]]:
    partitions = list(dict.fromkeys(charge.partition for charge in charges))
    inside: dict[str, list[Charge]] = {name: [] for name in partitions}
    for charge in charges:
        inside[charge.partition].append(charge)
    return partitions, [_left(terms, inside[name]) for name in partitions]


def _of_releases(terms: Terms, charges: list[Charge]) -> tuple[list[int], list[float]]:
    counts = sorted({math.ceil(count) for count in np.linspace(0, len(charges), min(_MOST_POINTS, len(charges) + 1))})
    return counts, [_left(terms, sharing(terms, charges[:count], "")) for count in counts]


def _left(terms: Terms, charges: list[Charge]) -> float:
    return max(0.0, terms.epsilon - spent(terms, charges))
