"""The label-DP experiments without Spark: bounds and reasons, kept results, recognised files, what is shown."""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy import stats

from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.errors import ConfigError, DataError, EnvironmentFault, PrivacyError
from dpagg.experiments.label_dp.allowed import BOUNDS, REASONS, bags_allowed, bags_worth, bare_event, least_epsilon
from dpagg.experiments.label_dp.cases import find_cases
from dpagg.experiments.label_dp.cells import Cells
from dpagg.experiments.label_dp.label_files import find_census, find_criteo
from dpagg.experiments.label_dp.report import BEGIN, END, write_readme, write_report
from dpagg.experiments.label_dp.results import interval, summarise
from dpagg.experiments.label_dp.tables import remarks
from dpagg.regression.planning import relative_excess_loss

FACTS = {
    "num_rows": 36_619,
    "num_test_rows": 9_111,
    "num_columns": 10,
    "num_features": 9,
    "rank": 10,
    "num_kept": 36_462,
    "rows_over_cap": 157,
    "malformed_lines": 2,
    "largest_leverage": 0.00396,
    "label_range": 2.0,
    "label_magnitude": 1.0,
    "delta": 1e-8,
    "mean_squared_residual": 0.16,
    "least_singular_value": 3.0,
    "least_squares": {"train_mse": 0.16, "test_mse": 0.17},
    "constant": {"train_mse": 0.4, "test_mse": 0.41},
    "r_squared": 0.6,
}
NOISE = {"num_bags": 36_462, "noise_variance": 12_000.0}


def test_worth_is_the_number_of_bags_without_noise_that_loses_the_same() -> None:
    worth = bags_worth(FACTS, 36_462, 12_000.0)
    residuals = FACTS["mean_squared_residual"] * FACTS["num_kept"]
    expected = relative_excess_loss(10, 36_462, 12_000.0 / residuals)
    assert 10 / (worth - 10 - 1) == pytest.approx(expected)
    assert bags_worth(FACTS, 36_462, 0.0) == pytest.approx(36_462)
    assert bags_worth(FACTS, 11, 0.0) == 0.0


@pytest.mark.parametrize("num_bags", [50, 5_000])
def test_the_epsilon_of_a_number_of_bags_allows_them_and_a_smaller_one_does_not(num_bags: int) -> None:
    epsilon = least_epsilon(FACTS, num_bags)
    event = dataclasses.replace(bare_event(FACTS), num_bags=num_bags)
    assert event.delta(epsilon) <= 1e-8 < event.delta(0.99 * epsilon)


def test_ratios_are_of_the_bags_that_are_shown_and_fewer_is_explained() -> None:
    small, large = (bags_allowed(FACTS, epsilon, NOISE) for epsilon in (0.1, 3.0))
    for found in (small, large):
        allowed = found["allowed"]
        assert set(allowed) == set(BOUNDS)
        assert found["ratios"]["exact_over_paper"] == pytest.approx(allowed["exact"] / allowed["paper"])
        assert allowed["exact_bounded"] >= allowed["exact"]
        assert found["ratios"]["exact_over_sheffet"] is None and allowed["sheffet"] == 0
    # gamma n / (B^2 ln 1/delta)
    assert small["allowed"]["paper"] == large["allowed"]["paper"] == int(0.16 * 36_462 / math.log(1e8))
    assert small["fewer"] == {"paper": "epsilon"} and large["fewer"] == {}
    assert set(small["fewer"].values()) <= set(REASONS)


def test_sheffets_bound_of_whole_rows_is_the_smaller_one_and_explains() -> None:
    # Large, and so well conditioned that a bound with B for labels allows more than any accounting of labels could.
    facts = FACTS | {"num_kept": 12_800_000, "largest_leverage": 5e-5, "least_singular_value": 600.0}
    found = bags_allowed(facts, 0.3, NOISE)
    assert found["allowed"]["sheffet"] > found["allowed"]["exact"] > found["allowed"]["sheffet_rows"]
    assert found["fewer"]["sheffet"] == "rows"


def test_noise_on_each_label_is_a_bag_of_one_and_costs_a_gaussian() -> None:
    event = NoisyLabelAggregation(bag_size=1, noised_fraction=1, noise_std=5.0, label_range=2.0)
    mu, epsilon = 2.0 / 5.0, 0.7
    at = epsilon / mu - mu / 2
    gaussian = stats.norm.sf(at) - math.exp(epsilon) * stats.norm.sf(at + mu)
    assert event.delta(epsilon) == pytest.approx(gaussian, rel=1e-9)


def test_results_are_kept_as_they_come_and_found_again(tmp_path) -> None:
    file, asked, calls = tmp_path / "cells" / "a.jsonl", {"what": "wtd-flag", "epsilon": 1.0}, []

    def find():
        calls.append(1)
        return {"excess_share": 0.25}

    for _ in range(2):
        assert Cells(file, {"rows": 10}).once(asked, find) == {"excess_share": 0.25}
    assert len(calls) == 1
    assert Cells(file, {"rows": 11}).get(asked) is None
    with file.open("a") as stream:
        stream.write('{"asked": {"what": "cut sho')  # killed here
    cells = Cells(file, {"rows": 10})
    assert cells.get(asked) == {"excess_share": 0.25}

    def refuse():
        raise PrivacyError("no bags")

    def fail():
        raise EnvironmentFault("the disk is full")

    assert cells.once({"what": "other"}, refuse) == {"refused": "no bags"}
    with pytest.raises(EnvironmentFault):
        cells.once({"what": "third"}, fail)
    again = Cells(file, {"rows": 10})
    assert again.get({"what": "other"}) == {"refused": "no bags"} and again.get({"what": "third"}) is None


CRITEO = "\t".join(["1", "20.5", "100", "1596439473", "3", "19.9", *(["-1"] * 17)]) + "\n"


def test_the_papers_tables_are_recognised_by_what_is_in_them(tmp_path) -> None:
    assert find_criteo(tmp_path) is None and find_census(tmp_path) is None
    (tmp_path / "notes.txt").write_text("nothing\tof\tthis\n")
    (tmp_path / "picture.csv").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"YEAR,HRSWORK1\n")[:9])
    folder = tmp_path / "Criteo_Conversion_Search"
    folder.mkdir()
    (folder / "CriteoSearchData").write_text(CRITEO)
    assert find_criteo(tmp_path) == folder / "CriteoSearchData"
    with gzip.open(tmp_path / "usa_00003.dat.gz", "wt") as stream:
        stream.write("194001\n")
    (tmp_path / "usa_00003.xml").write_text('<var ID="AGE" name="AGE"/><var ID="HRSWORK1" name="HRSWORK1"/>')
    found = find_census(tmp_path)
    assert found is not None and found.codebook == tmp_path / "usa_00003.xml" and found.columns == ("AGE", "HRSWORK1")
    (tmp_path / "usa_00001.csv").write_text('"YEAR","AGE","HRSWORK1"\n1940,30,40\n')
    found = find_census(tmp_path)
    assert found is not None and found.codebook is None and found.file.name == "usa_00001.csv"


def test_says_what_is_there_and_stands_in_for_what_is_not(tmp_path) -> None:
    data, scratch = tmp_path / "data", tmp_path / "scratch"
    data.mkdir()
    (data / "CriteoSearchData").write_text(CRITEO)
    (data / "mine.yaml").write_text("input: {path: x}\n")
    (data / "small").mkdir()
    with gzip.open(data / "small" / "data.csv.gz", "wt") as stream:
        np.savetxt(stream, np.random.default_rng(0).normal(size=(50, 3)), delimiter=",")
    found = find_cases(data, scratch, synthetic=1000)
    assert [(case.name, case.is_synthetic) for case in found.cases] == [("criteo", False), ("census", True)]
    assert not scratch.exists()  # nothing is made before it is needed
    notes = " ".join(found.notes)
    assert "census is not there" in notes and "mine.yaml is not a configuration" in notes and "small" in notes
    named = find_cases(data, scratch, sets=["small"], synthetic=1000)
    (case,) = named.cases
    label = case.config.encoding.label
    rows = np.loadtxt(data / "small" / "data.csv.gz", delimiter=",")
    assert label.lower < rows[:, -1].min() and label.upper > rows[:, -1].max()
    with pytest.raises(DataError, match="criteo"):
        find_cases(data, scratch, sets=["nowhere"])
    with pytest.raises(DataError, match="nothing to run on"):
        find_cases(scratch.parent / "data" / "small", scratch)
    with pytest.raises(ConfigError):
        find_cases(data / "mine.yaml", scratch)


def drawn(what: str, values: list[float], **asked):
    for seed, value in enumerate(values):
        found = {"excess_share": value, "train_mse": 0.16 + 0.24 * value, "test_mse": 0.17 + 0.24 * value}
        found |= {"num_bags": 36_462, "label_noise_std": 3.0, "delta_at_epsilon": 9e-9, "private": False}
        found |= {"epsilon": asked.get("epsilon", 1.0)}
        yield {"asked": {"what": what, "seed": seed} | asked, "found": found}


def a_table(**changes):
    found = [{"asked": {"what": "bags-allowed"}, "found": bags_allowed(FACTS, e, NOISE)} for e in (0.1, 1.0)]
    for epsilon, base in ((0.1, 0.2), (1.0, 0.02)):
        found += drawn("wtd-flag", [base, 1.1 * base, 0.9 * base], epsilon=epsilon)
        found += drawn("label-gaussian", [0.5 * base] * 3, epsilon=epsilon)
        found += drawn("sampled-wtd-flag", [5.0, 6.0, 7.0], epsilon=epsilon, bag_size=300)
        found += drawn("label-noise", [3.0, 3.0, 3.0], epsilon=epsilon)
    found.append({"asked": {"what": "wtd-flag-assumed", "epsilon": 0.1, "seed": 0}, "found": {"refused": "1 bag"}})
    found += drawn("factor", [0.01, 0.02], floor="assume", num_bags=500)
    for count in (100, 400):
        losses = {"test_mse": 0.3, "constant_test_mse": 0.41}
        asked = {"what": "networks", "epsilon": 3.0, "bag_size": 8, "num_bags": count}
        found += [{"asked": asked | {"seed": seed}, "found": losses} for seed in (0, 1)]
    table = {"name": "a", "title": "<b>A</b> & co", "is_synthetic": True, "origin": "made up"}
    return table | {"facts": FACTS, "found": found} | changes


def test_means_have_intervals_by_students_t() -> None:
    low, high = stats.t.interval(0.95, 2, loc=2.0, scale=1.0 / math.sqrt(3))
    found = interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2.0 and found["half_width"] == pytest.approx((high - low) / 2)
    assert interval([1.0]) == {"mean": 1.0, "half_width": None}


def test_checks_notice_losses_that_rise_with_epsilon() -> None:
    checks = summarise([a_table()])["tables"][0]["checks"]
    assert all(checks["falls_with_epsilon_within_intervals"].values())
    assert checks["wtd_flag_excess_share_at_epsilon_1"]["mean"] == pytest.approx(0.02)
    table = a_table()
    table["found"] += drawn("wtd-flag", [0.3, 0.31, 0.32], epsilon=3.0)
    assert not summarise([table])["tables"][0]["checks"]["falls_with_epsilon_within_intervals"]["wtd-flag"]


def test_a_difference_within_the_intervals_is_said_to_be_one() -> None:
    table = a_table()
    table["found"] = [each for each in table["found"] if each["asked"]["what"] != "label-gaussian"]
    table["found"] += drawn("label-gaussian", [0.19, 0.2, 0.18], epsilon=0.1)
    table["found"] += drawn("label-gaussian", [0.01, 0.01, 0.01], epsilon=1.0)
    said = " ".join(remarks(summarise([table])))
    assert "LabelGaussian, on average, within the intervals: <b>A</b> & co at ε = 0.1." in said
    assert "LabelGaussian, beyond the intervals of both: <b>A</b> & co at ε = 1." in said


def test_page_and_tables_say_what_is_made_up_and_that_nothing_is_private(tmp_path) -> None:
    result = summarise([a_table(), a_table(is_synthetic=False, title="B")], skipped={"networks": "no jax"})
    json.dumps(result, allow_nan=False)
    write_report(result, tmp_path)
    page, text = (tmp_path / "label_dp.html").read_text(), (tmp_path / "label_dp.md").read_text()
    assert "Not private" in page and "SYNTHETIC: &lt;b&gt;A&lt;/b&gt; &amp; co" in page and "<b>A</b>" not in page
    assert "SYNTHETIC: B" not in page and "no jax" in page and "2 malformed lines were left out" in page
    assert "NOT PRIVATE" in text and "## SYNTHETIC: <b>A</b>" in text and "| refused |" in text
    beyond = "loses more than noise on each label, beyond the intervals of both: <b>A</b>"
    assert f"Sampled-WTD-FLAG, at its best bag size, {beyond}" in text
    assert "labels and predictions of at most B" in text  # why the exact accounting allows fewer
    assert not re.search(r"<script|https?://(?!www\.w3\.org)", page)
    for name in ("bags-allowed", "excess-share", "test-mse", "factor", "networks"):
        figure = (tmp_path / "figures" / f"{name}.svg").read_text()
        used, known = set(re.findall(r"var\((--\w+)\)", figure)), set(re.findall(r"(--\w+):#", figure))
        assert used <= known and "#00000" not in figure
        root = ET.fromstring(figure)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "SYNTHETIC" in ET.tostring(root, encoding="unicode")


def test_the_readme_gets_summary_and_figure_between_its_markers(tmp_path) -> None:
    readme = tmp_path / "README.md"
    with pytest.raises(ConfigError, match="has no lines"):
        write_readme(summarise([a_table()]), readme, "dpagg reproduce label-dp")
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    for _ in range(2):
        write_readme(summarise([a_table()]), readme, "dpagg reproduce label-dp")
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert text.count("| table |") == 1 and "![" in text and (tmp_path / "label_dp.svg").exists()
