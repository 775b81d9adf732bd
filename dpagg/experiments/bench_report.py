"""The benchmark in words: a table for the README, between two markers, and a figure beside this module."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpagg.errors import ConfigError
from dpagg.experiments.bench import headline

__all__ = ["FIGURE", "as_markdown", "write_report"]

FIGURE = "dpagg/experiments/bench.svg"
BEGIN, END = "<!-- bench: written by `dpagg bench --readme` -->", "<!-- end of bench -->"

_SIDES = {
    "sql_scan": "Spark SQL scan",
    "factor": "dpagg, pass for the factor",
    "rowmatrix": "MLlib RowMatrix",
    "mllib_normal": "MLlib normal",
}


def as_markdown(result: Mapping[str, Any]) -> str:
    """Return the ratios, the seconds by number of columns, and memory, as Markdown."""
    load = result["load_average"][0]
    lines = [
        f"{result['rows']:,} rows × {result['columns']} columns of uncached Parquet, local mode, "
        f"{result['cores']} cores, warm, medians; load average {load} before.",
        "",
        "| ratio | of | |",
        "|---|---|---:|",
        *(f"| `{name}` | {text} | {value:.3g} |" for name, text, value in headline(result)),
        "",
        "| columns | rows | " + " | ".join(f"{title}, s" for title in _SIDES.values()) + " |",
        "|---:|---:|" + "---:|" * len(_SIDES),
    ]
    for row in result["by_columns"]:
        cells = " | ".join(f"{row['seconds'][side]:.2f}" for side in _SIDES)
        lines.append(f"| {row['columns']} | {row['rows']:,} | {cells} |")
    small, large = (f"{size:,}" for size in result["growth_rows"])
    peak = result["peak_rss_mb"]
    lines += [
        "",
        "| largest resident memory, MiB | JVM | a Python worker |",
        "|---|---:|---:|",
        f"| pass over {small} rows | {peak['factor_n_jvm']} | {peak['factor_n_worker']} |",
        f"| pass over {large} rows | {peak['factor_n16_jvm']} | {peak['factor_n16_worker']} |",
        f"| engine `rows`, {result['bags']:,} bags | {peak['rows_jvm']} | {peak['rows_worker']} |",
    ]
    return "\n".join(lines)


def write_report(result: Mapping[str, Any], readme: Path) -> Path:
    """Put the table between the markers of a README, and the figure where it links to; return the figure's path.

    Raises
    ------
    ConfigError
        If the README isn't there or has no markers.
    """
    text = readme.read_text() if readme.is_file() else ""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ConfigError(
            f"{readme} has no lines {BEGIN!r} and {END!r}", path="--readme", remedy="Give the README of a checkout."
        )
    figure = readme.parent / FIGURE
    _draw(result, figure)
    image = f"![Seconds of a pass by number of columns]({FIGURE})"
    readme.write_text(f"{before}{BEGIN}\n{as_markdown(result)}\n\n{image}\n{END}{after}")
    return figure


def _draw(result: Mapping[str, Any], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = result["by_columns"]
    # The same figures give the same file.
    with rc_context({"svg.hashsalt": "dpagg", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.5, 3.6), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(_SIDES)
        for number, (side, title) in enumerate(_SIDES.items()):
            places = [position + (number - (len(_SIDES) - 1) / 2) * width for position in range(len(rows))]
            bars = axes.bar(places, [row["seconds"][side] for row in rows], width, label=title)
            axes.bar_label(bars, fmt="%.2g", fontsize=7)
        axes.set_xticks(range(len(rows)), [f"{row['rows']:,} × {row['columns']}" for row in rows])
        axes.set_yscale("log")
        axes.set_xlabel("rows × columns")
        axes.set_ylabel("seconds")
        axes.legend(fontsize=8, frameon=False, ncols=2)
        axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
