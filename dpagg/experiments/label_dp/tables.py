"""The results as tables: for the page, and as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dpagg.experiments.label_dp.allowed import BOUNDS, REASONS
from dpagg.experiments.label_dp.figures import NAMES
from dpagg.report.numbers import number
from dpagg.report.results import Grid, as_markdown

__all__ = ["all_tables", "grids", "reasons", "remarks", "summary_grid"]


def grids(table: Mapping[str, Any]) -> list[Grid]:
    """Return the tables of one data set; those without rows are left out."""
    found = [_allowed(table), _ratios(table), _losses(table, "excess_share"), _losses(table, "test_mse")]
    found += [_factor(table), _networks(table)]
    return [grid for grid in found if grid.rows]


def summary_grid(result: Mapping[str, Any]) -> Grid:
    """Return one line a data set: what stands in the README."""
    rows = []
    for table in result["tables"]:
        if "refused" in table:
            continue
        at_one = {each["epsilon"]: each for each in table["bags_allowed"]}.get(1.0)
        shares = {
            (each["mechanism"], each["bag_size"]): each["excess_share"]
            for each in table["losses"]
            if each["epsilon"] == 1.0 and "refused" not in each
        }
        sampled = [share for (mechanism, _), share in shares.items() if mechanism == "sampled-wtd-flag"]
        best = min(sampled, key=lambda share: float(share["mean"]), default=None)
        facts = table["facts"]
        rows.append(
            (
                ("SYNTHETIC " if table["is_synthetic"] else "") + table["title"],
                number(facts["num_rows"]),
                number(facts["num_columns"]),
                f"{facts['r_squared']:.2f}",
                *(
                    "" if at_one is None else _ratio(at_one["ratios"][name])
                    for name in ("exact_over_paper", "noise_worth_over_paper", "exact_over_sheffet_rows")
                ),
                *(_mean(shares.get((mechanism, None))) for mechanism in ("wtd-flag", "label-gaussian", "label-noise")),
                _mean(best),
            )
        )
    head = (
        "table",
        "rows",
        "d",
        "R²",
        "bags, exact / paper",
        "noise floor's worth / paper",
        "bags, exact / Sheffet",
        "WTD-FLAG",
        "LabelGaussian",
        "noise on each label",
        "best Sampled-WTD-FLAG",
    )
    return Grid("At ε = 1: bags allowed over those of the papers' bounds, and excess shares, ± 95 %", head, tuple(rows))


def reasons(result: Mapping[str, Any]) -> list[str]:
    """Return, in words, where the exact accounting allows fewer bags than a bound of the papers, and why."""
    at: dict[tuple[str, str], list[str]] = {}
    for table in result["tables"]:
        found: dict[tuple[str, str], list[float]] = {}
        for point in table.get("bags_allowed", []):
            for both in point["fewer"].items():
                found.setdefault(both, []).append(point["epsilon"])
        for both, epsilons in found.items():
            at.setdefault(both, []).append(_places(table, epsilons))
    names = {"paper": "the paper's bound", "sheffet": "Sheffet's bound, B bounding labels only"}
    return [
        f"Fewer than {names[bound]}: {'; '.join(places)}. {REASONS[reason]}" for (bound, reason), places in at.items()
    ]


_RIVALS = (
    ("wtd-flag", "label-gaussian"),
    ("wtd-flag", "wtd-flag-assumed"),
    ("wtd-flag-assumed", "wtd-flag"),
    ("sampled-wtd-flag", "label-noise"),
)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Return where a simpler mechanism, or another of the same kind, does better, in words."""
    worse: dict[tuple[str, str, bool], list[str]] = {}
    useless = []
    for table in result["tables"]:
        best: dict[float, dict[str, Mapping[str, Any]]] = {}
        for each in table.get("losses", []):
            if "refused" not in each:
                here, share = best.setdefault(each["epsilon"], {}), each["excess_share"]
                if share["mean"] < here.get(each["mechanism"], {"mean": float("inf")})["mean"]:
                    here[each["mechanism"]] = share
        for ours, other in _RIVALS:
            both = {e: (here[ours], here[other]) for e, here in best.items() if ours in here and other in here}
            for beyond in (True, False):
                where = [
                    epsilon
                    for epsilon, (own, others) in both.items()
                    if others["mean"] < own["mean"] and (_end(others, 1) < _end(own, -1)) == beyond
                ]
                if where:
                    worse.setdefault((ours, other, beyond), []).append(_places(table, where))
        hopeless = [epsilon for epsilon, here in best.items() if min(share["mean"] for share in here.values()) >= 1.0]
        if hopeless:
            useless.append(_places(table, hopeless))
    found = []
    for (ours, other, beyond), places in sorted(worse.items(), key=lambda item: not item[0][2]):
        at = ", at its best bag size," if ours == "sampled-wtd-flag" else ""
        how = "beyond the intervals of both" if beyond else "on average, within the intervals"
        found.append(f"{NAMES[ours]}{at} loses more than {NAMES[other]}, {how}: {'; '.join(places)}.")
    return found + ([f"No mechanism is better than a constant: {'; '.join(useless)}."] if useless else [])


def _end(interval: Mapping[str, Any], side: int) -> float:
    return float(interval["mean"]) + side * float(interval["half_width"] or 0.0)


def _places(table: Mapping[str, Any], epsilons: Sequence[float]) -> str:
    return f"{table['title']} at ε = {', '.join(f'{epsilon:g}' for epsilon in sorted(epsilons))}"


def all_tables(result: Mapping[str, Any]) -> str:
    """Return all tables as Markdown."""
    lines = ["# Label-DP by aggregation", ""]
    lines += ["Releases were drawn from public seeds and losses read off the labels: NOT PRIVATE.", ""]
    lines += [as_markdown(summary_grid(result)), ""]
    for sentence in [*result["notes"], *reasons(result), *remarks(result)]:
        lines += [f"- {sentence}"]
    for table in result["tables"]:
        mark = "SYNTHETIC: " if table["is_synthetic"] else ""
        lines += ["", f"## {mark}{table['title']}", "", f"{table['origin']}."]
        if "refused" in table:
            lines += ["", table["refused"]]
            continue
        for grid in grids(table):
            lines += ["", f"### {grid.caption}", "", as_markdown(grid)]
    return "\n".join(lines) + "\n"


def _allowed(table: Mapping[str, Any]) -> Grid:
    points = table["bags_allowed"]
    rows = tuple(
        (words, *(number(int(point["allowed"][bound])) for point in points)) for bound, words in BOUNDS.items()
    )
    return Grid("Bags allowed", ("bound", *_epsilons(points)), rows if points else ())


_RATIOS = {
    "exact_over_paper": "exact, any labels, over the paper's",
    "exact_bounded_over_paper": "exact, residuals at most 2B, over the paper's",
    "noise_worth_over_paper": "noise floor's worth over the paper's",
    "exact_over_sheffet": "exact, any labels, over Sheffet's, B for labels",
    "exact_over_sheffet_rows": "exact, any labels, over Sheffet's, B for rows",
    "noise_worth_over_sheffet_rows": "noise floor's worth over Sheffet's, B for rows",
}


def _ratios(table: Mapping[str, Any]) -> Grid:
    points = table["bags_allowed"]
    rows = tuple((words, *(_ratio(point["ratios"][name]) for point in points)) for name, words in _RATIOS.items())
    return Grid("How many times more bags", ("ratio", *_epsilons(points)), rows if points else ())


def _losses(table: Mapping[str, Any], name: str) -> Grid:
    epsilons = sorted({each["epsilon"] for each in table["losses"]})
    series: dict[tuple[str, int | None], dict[float, Mapping[str, Any]]] = {}
    for each in table["losses"]:
        series.setdefault((each["mechanism"], each["bag_size"]), {})[each["epsilon"]] = each
    rows = []
    for (mechanism, size), points in series.items():
        words = NAMES[mechanism] + ("" if size is None else f", k = {size:,}")
        rows.append((words, *("" if e not in points else _cell(points[e], name) for e in epsilons)))
    if rows and name == "test_mse":
        for reference, words in (("least_squares", "least squares on all labels"), ("constant", "a constant")):
            rows.append((words, *[number(table["facts"][reference]["test_mse"])] * len(epsilons)))
    caption = {"excess_share": "Excess share, ± 95 %", "test_mse": "Test MSE, ± 95 %"}[name]
    if any("refused" in cell for row in rows for cell in row):
        caption += "; refused: no more bags are allowed than there are columns"
    return Grid(caption, ("mechanism", *(f"ε = {e:g}" for e in epsilons)), tuple(rows))


def _cell(entry: Mapping[str, Any], name: str) -> str:
    return "refused" if "refused" in entry else _shown(entry[name])


def _factor(table: Mapping[str, Any]) -> Grid:
    rows = tuple(
        (
            "without noise" if each["floor"] == "assume" else "noise floor",
            number(each["num_bags"]),
            f"{each['epsilon']:.3g}",
            _shown(each["theta"]),
            number(each["expected"]),
        )
        for each in table["factor"]
    )
    return Grid("Excess factor θ", ("floor", "bags m", "ε", "θ, ± 95 %", "expected"), rows)


def _networks(table: Mapping[str, Any]) -> Grid:
    rows = tuple(
        (
            "clean labels" if each["is_clean"] else f"{each['bag_size']:,}",
            number(each["num_bags"]),
            *(("refused", "") if "refused" in each else (_shown(each["test_mse"]), _shown(each["share_of_constant"]))),
        )
        for each in table["networks"]
    )
    return Grid("Networks at ε = 3", ("bag size k", "bags m", "test MSE, ± 95 %", "over a constant's"), rows)


def _epsilons(points: Sequence[Mapping[str, Any]]) -> list[str]:
    return [f"ε = {point['epsilon']:g}" for point in points]


def _ratio(value: float | None) -> str:
    return "bound is 0" if value is None else number(value)


def _mean(share: Mapping[str, Any] | None) -> str:
    if share is None:
        return ""
    half = share["half_width"]
    return number(share["mean"], 2) + ("" if half is None else f" ± {number(half, 1)}")


def _shown(interval: Mapping[str, Any]) -> str:
    half = interval["half_width"]
    return number(interval["mean"]) + ("" if half is None else f" ± {number(half, 1)}")
