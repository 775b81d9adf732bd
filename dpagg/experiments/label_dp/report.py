"""Files of the results: JSON, Markdown, figures, and one self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dpagg.errors import ConfigError
from dpagg.experiments.label_dp.figures import CAPTIONS, figures
from dpagg.experiments.label_dp.tables import all_tables, grids, reasons, remarks, summary_grid
from dpagg.report.panels import standalone
from dpagg.report.results import Section, as_markdown, render_results

__all__ = ["FIGURE", "render_page", "write_readme", "write_report"]

FIGURE = "label_dp.svg"
_READING = (
    "Intervals are of the mean over seeds, 95 %, by Student's t. Rows to test on are chosen by a hash of the row key. "
    "The excess share is what a model gives away of the gain of least squares over a constant."
)
BEGIN, END = "<!-- label-dp: written by `dpagg reproduce label-dp --readme` -->", "<!-- end of label-dp -->"


def write_report(result: Mapping[str, Any], out: Path) -> None:
    """Write ``label_dp.json``, ``label_dp.md``, ``label_dp.html`` and ``figures/*.svg`` into a folder."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "label_dp.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "label_dp.md").write_text(all_tables(result), encoding="utf-8")
    drawn = figures(result)
    for name, figure in drawn.items():
        (out / "figures" / f"{name}.svg").write_text(standalone(figure), encoding="utf-8")
    (out / "label_dp.html").write_text(render_page(result, drawn), encoding="utf-8")


def render_page(result: Mapping[str, Any], drawn: Mapping[str, Markup]) -> str:
    """Return the page; the same results give the same page."""
    badges = [("claim", "✖ Not private: public seeds, and losses read off the labels")]
    made_up = ", ".join(table["title"] for table in result["tables"] if table["is_synthetic"])
    if made_up:
        badges.append(("warn", f"SYNTHETIC tables among them: {made_up}"))
    sections = [
        Section("In short", (_READING,), [*result["notes"], *_skipped(result)], grids=[summary_grid(result)]),
        Section("Where the exact accounting allows fewer bags, and why", items=reasons(result)),
        Section("Where a mechanism loses to another", items=remarks(result)),
        Section("Figures", figures=[(figure, CAPTIONS[name]) for name, figure in drawn.items()]),
    ]
    sections = [section for section in sections if section.items or section.figures or section.grids]
    return render_results(
        "Label-DP by aggregation: the experiments", badges, sections + [_of_table(table) for table in result["tables"]]
    )


def _skipped(result: Mapping[str, Any]) -> list[str]:
    return [f"{part}: {why}" for part, why in result["skipped"].items()]


def _of_table(table: Mapping[str, Any]) -> Section:
    title = ("SYNTHETIC: " if table["is_synthetic"] else "") + table["title"]
    if "refused" in table:
        return Section(title, (f"{table['origin']}.", table["refused"]))
    facts = table["facts"]
    sizes = (
        f"{facts['num_rows']:,} rows to train on, {facts['num_test_rows']:,} to test on, {facts['num_columns']} "
        f"encoded columns; {facts['rows_over_cap']:,} rows over the leverage cap; δ = {facts['delta']:g}."
    )
    if facts["malformed_lines"]:
        sizes += f" {facts['malformed_lines']:,} malformed lines were left out."
    return Section(title, (f"{table['origin']}.", sizes), grids=grids(table))


def write_readme(result: Mapping[str, Any], readme: Path, command: str) -> None:
    """Put the summary between the markers of a README, and a figure beside it.

    Raises
    ------
    ConfigError
        If the README isn't there or has no markers.
    """
    text = readme.read_text(encoding="utf-8") if readme.is_file() else ""
    before, begun, rest = text.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ConfigError(
            f"{readme} has no lines {BEGIN!r} and {END!r}", path="--readme", remedy="Give the README of a checkout."
        )
    drawn = figures(result, ["excess-share"])
    grid = summary_grid(result)
    lines = [f"`{command}`", "", f"{grid.caption}:", "", as_markdown(grid), ""]
    lines += [f"- {sentence}" for sentence in [*reasons(result), *remarks(result)]]
    if "excess-share" in drawn:
        readme.with_name(FIGURE).write_text(standalone(drawn["excess-share"]), encoding="utf-8")
        lines += ["", f"![{CAPTIONS['excess-share'].split(':')[0]}]({FIGURE})"]
    body = "\n".join(lines)
    readme.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
