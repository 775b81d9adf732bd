"""Files of the results: JSON, Markdown, figures, and one self-contained page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpagg.errors import ConfigError
from dpagg.experiments.label_dp.figures import CAPTIONS, figures
from dpagg.experiments.label_dp.tables import as_markdown, grids, markdown_grid, reasons, remarks, summary_grid
from dpagg.report import GENERATOR, palette
from dpagg.report.panels import standalone

__all__ = ["FIGURE", "render_page", "write_readme", "write_report"]

FIGURE = "label_dp.svg"
BEGIN, END = "<!-- label-dp: written by `dpagg reproduce label-dp --readme` -->", "<!-- end of label-dp -->"


def write_report(result: Mapping[str, Any], out: Path) -> None:
    """Write ``label_dp.json``, ``label_dp.md``, ``label_dp.html`` and ``figures/*.svg`` into a folder."""
    (out / "figures").mkdir(parents=True, exist_ok=True)
    (out / "label_dp.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    (out / "label_dp.md").write_text(as_markdown(result), encoding="utf-8")
    drawn = figures(result)
    for name, figure in drawn.items():
        (out / "figures" / f"{name}.svg").write_text(standalone(figure), encoding="utf-8")
    (out / "label_dp.html").write_text(render_page(result, drawn), encoding="utf-8")


def render_page(result: Mapping[str, Any], drawn: Mapping[str, Markup]) -> str:
    """Return the page; the same results give the same page."""
    environment = Environment(
        loader=ChoiceLoader(
            [PackageLoader("dpagg.experiments.label_dp", "templates"), PackageLoader("dpagg.report", "templates")]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("label_dp.html.j2").render(
        generator=Markup(GENERATOR),
        palette=palette,
        synthetic=[table["title"] for table in result["tables"] if table["is_synthetic"]],
        summary=summary_grid(result),
        notes=[*result["notes"], *(f"{part}: {why}" for part, why in result["skipped"].items())],
        reasons=reasons(result),
        remarks=remarks(result),
        figures=[(name, figure, CAPTIONS[name]) for name, figure in drawn.items()],
        tables=[(table, [] if "refused" in table else grids(table)) for table in result["tables"]],
    )


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
    lines = [f"`{command}`", "", markdown_grid(summary_grid(result)), ""]
    lines += [f"- {sentence}" for sentence in [*reasons(result), *remarks(result)]]
    if "excess-share" in drawn:
        readme.with_name(FIGURE).write_text(standalone(drawn["excess-share"]), encoding="utf-8")
        lines += ["", f"![{CAPTIONS['excess-share'].split(':')[0]}]({FIGURE})"]
    body = "\n".join(lines)
    readme.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
