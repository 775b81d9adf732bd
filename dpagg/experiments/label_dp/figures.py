"""The figures of the experiments: axes and panels as the label-DP paper describes its own, a panel a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from dpagg.experiments.label_dp.allowed import BOUNDS
from dpagg.experiments.label_dp.results import MECHANISMS
from dpagg.report.panels import Line, Panel, panels_figure

__all__ = ["CAPTIONS", "NAMES", "figures"]

NAMES = {
    "wtd-flag": "WTD-FLAG, noise floor, m = n",
    "wtd-flag-assumed": "WTD-FLAG without noise, assumed floor",
    "sampled-wtd-flag": "Sampled-WTD-FLAG",
    "label-gaussian": "LabelGaussian",
    "label-noise": "noise on each label",
}
CAPTIONS = {
    "bags-allowed": "Bags m that each bound allows against ε. The floor that bounds assume is the mean squared "
    "residual of the table itself.",
    "excess-share": "Excess share against ε: what a model gives away of the gain of least squares over a constant, on "
    "the rows to train on. 0 is least squares, 1 a constant.",
    "test-mse": "Mean squared error on the rows to test on, against ε, beside least squares on all labels and a "
    "constant.",
    "factor": "The factor θ by which the loss exceeds that of least squares, against the number of bags m, beside the "
    "expected d/(m − d − 1) · (1 + τ²/r²); without noise each m costs the ε that the exact accounting says.",
    "networks": "Test error of a network over that of a constant, against the number of bags, for each bag size at ε = "
    "3; bags of one row are noise on each label.",
}


def figures(result: Mapping[str, Any], names: Sequence[str] = tuple(CAPTIONS)) -> dict[str, Markup]:
    """Return figures by name; those without data are left out.

    Parameters
    ----------
    result : mapping
        As `dpagg.experiments.label_dp.results.summarise` returns it.
    names : sequence of str
        Which to draw.
    """
    panels_of: dict[str, Callable[[Mapping[str, Any]], Panel | None]] = {
        "bags-allowed": _allowed,
        "excess-share": lambda table: _losses(table, "excess_share", "excess share", ()),
        "test-mse": lambda table: _losses(table, "test_mse", "test MSE", ("least_squares", "constant")),
        "factor": _factor,
        "networks": _networks,
    }
    drawn = {}
    for name in names:
        panel_of = panels_of[name]
        panels = [panel for table in result["tables"] if "facts" in table and (panel := panel_of(table)) is not None]
        if panels:
            titles = "; ".join(panel.title.replace("\n", ", ") for panel in panels)
            summary = f"{CAPTIONS[name]} Panels: {titles}. The numbers stand in tables."
            drawn[name] = panels_figure(name, CAPTIONS[name].split(".")[0].split(":")[0], summary, panels)
    return drawn


def _title(table: Mapping[str, Any]) -> str:
    mark = "SYNTHETIC: " if table["is_synthetic"] else ""
    return f"{mark}{table['title']}\nn = {table['facts']['num_rows']:,}, d = {table['facts']['num_columns']}"


def _allowed(table: Mapping[str, Any]) -> Panel | None:
    points = table["bags_allowed"]
    if not points:
        return None
    lines = []
    for bound, words in BOUNDS.items():
        shown = [(point["epsilon"], point["allowed"][bound]) for point in points if point["allowed"][bound] >= 1]
        lines.append(Line(words, *_columns(shown)))
    epsilons = [point["epsilon"] for point in points]
    lines.append(Line("n", epsilons, [table["facts"]["num_kept"]] * len(epsilons), is_reference=True))
    return Panel(_title(table), "ε", "bags m", lines, x_ticks=epsilons)


def _losses(table: Mapping[str, Any], name: str, words: str, references: Sequence[str]) -> Panel | None:
    lines = []
    series: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    for each in table["losses"]:
        if "refused" not in each:
            series.setdefault((each["mechanism"], each["bag_size"]), []).append(each)
    sizes = sorted(size for _, size in series if size is not None)
    for mechanism in MECHANISMS:
        for (found, size), points in series.items():
            if found == mechanism:
                lines.append(_measured(_label(mechanism, size, sizes), points, "epsilon", name))
    if not lines:
        return None
    epsilons = sorted({each["epsilon"] for points in series.values() for each in points})
    for reference in references:
        level = table["facts"][reference][name]
        label = {"least_squares": "least squares on all labels", "constant": "a constant"}[reference]
        lines.append(Line(label, epsilons, [level] * len(epsilons), is_reference=True))
    return Panel(_title(table), "ε", words, lines, x_ticks=epsilons)


def _label(mechanism: str, size: int | None, sizes: Sequence[int]) -> str:
    """Bag sizes differ from table to table; their place among those of a table says how a line looks."""
    if size is None:
        return NAMES[mechanism]
    place = "smallest" if size == sizes[0] else "largest" if size == sizes[-1] else "middle"
    return f"{NAMES[mechanism]}, {place} bags"


def _factor(table: Mapping[str, Any]) -> Panel | None:
    lines = []
    for floor, words in (("assume", "without noise, ε as m costs"), ("noise", "noise floor, ε = 1")):
        points = [point for point in table["factor"] if point["floor"] == floor]
        if points:
            lines.append(_measured(f"θ {words}", points, "num_bags", "theta"))
            expected = [(p["num_bags"], p["expected"]) for p in points if p["expected"] is not None]
            lines.append(Line("expected", *_columns(expected), is_reference=True))
    return Panel(_title(table), "bags m", "θ", lines) if lines else None


def _networks(table: Mapping[str, Any]) -> Panel | None:
    points = [point for point in table["networks"] if "refused" not in point]
    if not points:
        return None
    lines = []
    for size in sorted({point["bag_size"] for point in points}):
        mine = sorted((p for p in points if p["bag_size"] == size and not p["is_clean"]), key=lambda p: p["num_bags"])
        words = f"bags of {size}" if size > 1 else "noise on each label"
        lines.append(_measured(words, mine, "num_bags", "share_of_constant"))
    counts = [min(point["num_bags"] for point in points), max(point["num_bags"] for point in points)]
    for clean in (point for point in points if point["is_clean"]):
        lines.append(Line("clean labels", counts, [clean["share_of_constant"]["mean"]] * 2, is_reference=True))
    linear = table["facts"]["least_squares"]["test_mse"] / table["facts"]["constant"]["test_mse"]
    lines.append(Line("least squares on all labels", counts, [linear] * 2, is_reference=True))
    return Panel(_title(table), "bags m", "test MSE over a constant's", lines, y_scale="linear")


def _measured(label: str, points: Iterable[Mapping[str, Any]], x: str, y: str) -> Line:
    """Values at or below zero have no place on a logarithmic scale."""
    shown = [(point[x], point[y]["mean"], point[y]["half_width"]) for point in points if point[y]["mean"] > 0]
    at, values, halves = (list(column) for column in zip(*shown, strict=True)) if shown else ([], [], [])
    return Line(label, at, values, [half if half is not None and math.isfinite(half) else None for half in halves])


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
