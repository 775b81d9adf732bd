"""Table and figure of the experiments with networks, from the cells of their trainings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.experiments.neural_laws import additive_noise_std, best_bag_noise

_DELTA = 1e-5
# Half width of a 95 % interval of a mean in standard errors, by degrees of freedom (Student's t).
_T95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}


def summarise(cells: Path) -> list[dict[str, Any]]:
    """Return one entry a setting: excess shares of bags and of noise on each label of the same rows.

    The excess share of a training is ``(MSE - oracle's MSE) / (constant's MSE - oracle's MSE)`` on test rows of its
    seed's split: 0 is as good as clean labels, 1 no better than a constant.
    """
    trainings = [json.loads(line) for line in cells.read_text().splitlines()]
    oracle = {(each["table"], each["seed"]): each["mse"] for each in trainings if each["method"] == "oracle"}
    settings: dict[tuple[Any, ...], dict[int, float]] = {}
    for each in trainings:
        best = oracle.get((each["table"], each["seed"]))
        if each["method"] == "oracle" or best is None:
            continue
        setting = tuple(each[name] for name in ("table", "epsilon", "num_rows", "bag_size"))
        share = (each["mse"] - best) / (each["constant_mse"] - best)
        settings.setdefault(setting, {})[each["seed"]] = share
    found = []
    for (table, epsilon, rows, size), shares in settings.items():
        if size is None:
            continue
        # The baseline of the same rows: bags leave out fewer rows than one bag has.
        beside = next(
            values
            for (name, level, there, none), values in settings.items()
            if (name, level, none) == (table, epsilon, None) and 0 <= there - rows < size
        )
        found.append(
            {
                "table": table,
                "epsilon": epsilon,
                "bag_size": size,
                "num_bags": rows // size,
                "num_rows": rows,
                "bags": _interval(list(shares.values())),
                "additive": _interval(list(beside.values())),
                "gain": _interval([beside[seed] - share for seed, share in shares.items() if seed in beside]),
                "signal": rows * best_bag_noise(epsilon, _DELTA, size).information,
                "signal_additive": rows / additive_noise_std(epsilon, _DELTA) ** 2,
            }
        )
    return sorted(found, key=lambda each: (each["table"], each["epsilon"], each["bag_size"], -each["num_rows"]))


def _interval(values: Any) -> dict[str, float]:
    numbers = np.asarray(values, dtype=float)
    if len(numbers) < 2:
        return {"mean": float(numbers.mean()) if len(numbers) else math.nan, "half_width": math.nan}
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return {"mean": float(numbers.mean()), "half_width": _T95.get(len(numbers) - 1, 2.0) * error}


def write_report(cells: Path, out: Path) -> None:
    """Write ``summary.json``, ``table.md`` and ``neural_utility.svg``."""
    found = summarise(cells)
    if not found:
        return
    better = sum(entry["gain"]["mean"] > 0 for entry in found)
    clearly = sum(entry["gain"]["mean"] > entry["gain"]["half_width"] for entry in found)
    worse = sum(-entry["gain"]["mean"] > entry["gain"]["half_width"] for entry in found)
    counts = {"settings": len(found), "better": better, "clearly_better": clearly, "clearly_worse": worse}
    (out / "summary.json").write_text(json.dumps({**counts, "cells": found}, indent=1) + "\n")
    (out / "table.md").write_text(markdown(found))
    draw(found, out / "neural_utility.svg")


def markdown(found: list[dict[str, Any]]) -> str:
    """Return a table: one line a table, epsilon and number of rows, one column a bag size."""
    sizes = sorted({entry["bag_size"] for entry in found})
    lines = [
        "| table | ε | rows | " + " | ".join(f"k = {size}" for size in sizes) + " | noise on each label |",
        "|---|---:|---:|" + "---:|" * (len(sizes) + 1),
    ]
    groups: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    for entry in found:
        # Bags of any size leave out a few rows only.
        groups.setdefault((entry["table"], entry["epsilon"], round(math.log2(entry["num_rows"]) * 8)), []).append(entry)
    for (table, epsilon, _), entries in sorted(groups.items(), key=lambda each: (each[0][0], each[0][1], -each[0][2])):
        by_size = {entry["bag_size"]: entry for entry in entries}
        shares = [_shown(by_size[size]["bags"]) if size in by_size else "" for size in sizes]
        rows = max(entry["num_rows"] for entry in entries)
        lines.append(f"| {table} | {epsilon:g} | {rows:,} | {' | '.join(shares)} | {_shown(entries[0]['additive'])} |")
    return "\n".join(lines) + "\n"


def _shown(interval: Mapping[str, float]) -> str:
    return f"{interval['mean']:.3f} ± {interval['half_width']:.3f}"


def draw(found: list[dict[str, Any]], file: Path) -> None:
    """Draw excess share against what is left of the signal, a panel a table."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables = list(dict.fromkeys(entry["table"] for entry in found))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpagg"}):
        figure, panels = pyplot.subplots(1, len(tables), figsize=(4.2 * len(tables), 4.2), squeeze=False, sharey=True)
        markers = dict(zip(sorted({entry["bag_size"] for entry in found}), "osv^DP*", strict=False))
        for panel, table in zip(panels[0], tables, strict=True):
            here = [entry for entry in found if entry["table"] == table]
            for epsilon, color in ((1.0, "tab:orange"), (3.0, "tab:blue")):
                for size, marker in markers.items():
                    mine = [e for e in here if e["epsilon"] == epsilon and e["bag_size"] == size]
                    if mine:
                        panel.errorbar([e["signal"] for e in mine], [e["bags"]["mean"] for e in mine],
                                       yerr=[e["bags"]["half_width"] for e in mine], fmt=marker, color=color,
                                       markersize=5, capsize=2, label=f"bags of {size}, ε = {epsilon:g}")  # fmt: skip
                points = {e["signal_additive"] // 1: e for e in here if e["epsilon"] == epsilon and e["bag_size"] == 8}
                panel.errorbar([e["signal_additive"] for e in points.values()],
                               [e["additive"]["mean"] for e in points.values()],
                               yerr=[e["additive"]["half_width"] for e in points.values()], fmt="x", color=color,
                               capsize=2, label=f"noise on each label, ε = {epsilon:g}")  # fmt: skip
            panel.axhline(1.0, color="grey", linewidth=0.6)
            panel.axhline(0.0, color="grey", linewidth=0.6)
            # Beyond twice the constant's loss nothing is learned but noise.
            panel.set(xscale="log", title=table, xlabel="rows × information a label", ylim=(-0.05, 2.0))
        panels[0][0].set_ylabel("excess share (0: clean labels, 1: a constant)")
        panels[0][-1].legend(fontsize=6)
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None, "Title": "Excess test error against what is left of the signal"})
        pyplot.close(figure)
