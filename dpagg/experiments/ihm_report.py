"""What the runs of the iterative Hessian mixing protocol say: gains, tables, figures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["summarise", "write_report"]

# On these sets the default's constants were chosen; the others were held out.
TUNED_ON = ("airfoil", "bike", "elevators", "forest", "kin40k", "protein", "wine")
_AUTHORS = ("ihm_authors", "linear_mixing_paper", "adassp_paper")


def summarise(cells: Sequence[dict[str, Any]], *, synthetic: Sequence[str] = ()) -> dict[str, Any]:
    """Return the cells with their gains, and the gains over all real sets.

    A gain is the mean excess training risk of ``ihm_authors`` over that of ``ihm``; its interval treats the two means
    as independent.

    Parameters
    ----------
    cells : sequence of dict
        As `dpagg.experiments.ihm_protocol` makes them.
    synthetic : sequence of str
        Names that do not count in the gains.

    Returns
    -------
    dict
        ``cells``; ``geometric_mean_gain``, ``smallest_gain`` with ``smallest_gain_interval``; ``gain_by_epsilon``;
        ``gain_on_tuned_sets``, ``gain_on_held_out_sets``; ``geometric_mean_gain_over_best_of_authors`` and its
        smallest; ``share_of_cells_paper_ihm_at_or_below`` AdaSSP and linear mixing, with the paper's update and the
        authors'.
    """
    done = [cell | _gains(cell) for cell in cells]
    real = [cell for cell in done if cell["set"] not in synthetic]
    summary: dict[str, Any] = {"cells": done}
    if not real:
        return summary
    smallest = min(real, key=lambda cell: float(cell["gain"]))
    epsilons = sorted({cell["epsilon"] for cell in real})
    return summary | {
        "geometric_mean_gain": _geometric([cell["gain"] for cell in real]),
        "smallest_gain": smallest["gain"],
        "smallest_gain_interval": smallest["gain_interval"],
        "smallest_gain_cell": [smallest["set"], smallest["epsilon"]],
        "gain_by_epsilon": {
            f"{epsilon:g}": _geometric([cell["gain"] for cell in real if cell["epsilon"] == epsilon])
            for epsilon in epsilons
        },
        "gain_on_tuned_sets": _geometric([cell["gain"] for cell in real if cell["set"] in TUNED_ON]),
        "gain_on_held_out_sets": _geometric([cell["gain"] for cell in real if cell["set"] not in TUNED_ON]),
        "geometric_mean_gain_over_best_of_authors": _geometric([cell["gain_over_best_of_authors"] for cell in real]),
        "smallest_gain_over_best_of_authors": min(cell["gain_over_best_of_authors"] for cell in real),
        "share_of_cells_paper_ihm_at_or_below": {
            ours: {
                other: float(np.mean([_excess(cell, ours) <= _excess(cell, other) for cell in real]))
                for other in ("adassp_paper", "linear_mixing_paper")
            }
            for ours in ("ihm_paper", "ihm_authors")
        },
    }


def write_report(result: dict[str, Any], out: Path) -> None:
    """Write ``ihm.json``, ``ihm.md`` and the figures into a folder."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "ihm.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "ihm.md").write_text(_tables(result))
    _figures(result["cells"], out / "figures")


def _excess(cell: dict[str, Any], method: str) -> float:
    return float(cell["methods"][method]["excess_train_risk"])


def _gains(cell: dict[str, Any]) -> dict[str, Any]:
    ours = cell["methods"]["ihm"]
    theirs = cell["methods"]["ihm_authors"]
    floor = 1e-300
    gain = max(theirs["excess_train_risk"], floor) / max(ours["excess_train_risk"], floor)
    relative = [
        method["excess_train_risk_half_width"] / max(method["excess_train_risk"], floor) for method in (ours, theirs)
    ]
    factor = math.exp(min(math.hypot(*relative), 50.0))
    best = min(_excess(cell, method) for method in _AUTHORS)
    return {
        "gain": gain,
        "gain_interval": [gain / factor, gain * factor],
        "gain_over_best_of_authors": max(best, floor) / max(ours["excess_train_risk"], floor),
    }


def _geometric(values: Sequence[float]) -> float | None:
    return float(np.exp(np.mean(np.log(values)))) if len(values) else None


def _tables(result: dict[str, Any]) -> str:
    cells = result["cells"]
    epsilons = sorted({cell["epsilon"] for cell in cells})
    names = list(dict.fromkeys(cell["set"] for cell in cells))
    at = {(cell["set"], cell["epsilon"]): cell for cell in cells}
    head = "| set | " + " | ".join(f"{epsilon:g}" for epsilon in epsilons) + " |\n| --- |" + " ---: |" * len(epsilons)
    lines = ["# Excess training risk by epsilon, delta = 1/n²", ""]
    if "geometric_mean_gain" in result:
        low, high = result["smallest_gain_interval"]
        lines += [
            f"Geometric mean gain {result['geometric_mean_gain']:.2f}, smallest {result['smallest_gain']:.2f} "
            f"(95 %: {low:.2f} to {high:.2f}, {result['smallest_gain_cell'][0]} at epsilon "
            f"{result['smallest_gain_cell'][1]:g}).",
            "",
        ]
    lines += ["## Gain: excess risk of the authors' method over that of the default", "", head]
    for name in names:
        lines.append(
            f"| {name} | " + " | ".join(f"{at[name, e]['gain']:.2f}" for e in epsilons if (name, e) in at) + " |"
        )
    for method in cells[0]["methods"] if cells else ():
        lines += ["", f"## {method}: excess risk over what least squares gains, ± 95 %", "", head]
        for name in names:
            parts = [at[name, e]["methods"][method] for e in epsilons if (name, e) in at]
            row = (f"{part['excess_share']:.3g} ± {part['excess_share_half_width']:.1g}" for part in parts)
            lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def _figures(cells: Sequence[dict[str, Any]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(cell["set"] for cell in cells):
        here = sorted((cell for cell in cells if cell["set"] == name), key=lambda cell: float(cell["epsilon"]))
        epsilons = [cell["epsilon"] for cell in here]
        figure, panels = pyplot.subplots(1, 2, figsize=(10, 4))
        for panel, value, words in zip(panels, ("train_mse", "test_mse"), ("training MSE", "test MSE"), strict=True):
            for method in here[0]["methods"]:
                means = [cell["methods"][method][value] for cell in here]
                if method == "ols":
                    panel.plot(epsilons, means, "k:", label="ols (not private)")
                    continue
                half = [cell["methods"][method][f"{value}_half_width"] for cell in here]
                style = "--" if method.endswith(("paper", "authors")) else "-"
                panel.errorbar(epsilons, means, half, fmt=style, marker=".", capsize=2, label=method)
            panel.set(xscale="log", yscale="log", xlabel="epsilon", ylabel=words)
        panels[0].set_title(f"{name}: n = {here[0]['n']:,}, d = {here[0]['d']}, delta = 1/n²")
        panels[1].legend(fontsize=7)
        figure.tight_layout()
        figure.savefig(folder / f"{name}.png", dpi=110)
        pyplot.close(figure)
