"""The page says what the certificate says, shows strings as they are, and can be read by everybody."""

from __future__ import annotations

import dataclasses
import itertools
import re
from html.parser import HTMLParser

import pytest

from dpagg.accounting.private_floor import PrivateFloor
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.report import GENERATOR, palette, render_report
from dpagg.report.numbers import number
from dpagg.report.words import promise
from tests.unit.report.examples import MECHANISMS, SCHEMA, example_certificate, example_model

BURN_DOWN = [("2026-11-27", 0.5, 3.5), ("2026-11-28", 0.4, 3.1)]
LOSSES = {"training": [(0, 2.0), (10, 1.0), (20, 0.5)], "held-out bags": [(0, 2.1), (20, 0.9)]}
LEDGER = {"dataset": "impressions", "partition": "2026-11-28", "budget": {"epsilon": 4.0, "delta": 1e-6}}

HOSTILE = (
    "<script>document.title='taken'</script>",
    '"><img src=x onerror=alert(1)>',
    "'; }</style><svg onload=alert(1)>",
    "{{ 7 * 7 }} {% raw %}",
    "$\\frac{1}{0}$ & $x^2",
    "\u202egpj.exe\u0000\u0007",
    "a" * 300,
)


class Tags(HTMLParser):
    """Elements in order with their attributes, and the text inside each kind."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self._open = [], {}, []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "wbr", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in set(self._open):
            self.text[tag] = self.text.get(tag, "") + data


@pytest.fixture(scope="module")
def everything():
    return render_report(example_certificate(ledger=LEDGER), example_model(), burn_down=BURN_DOWN, losses=LOSSES)


@pytest.fixture(scope="module", params=[*MECHANISMS, "everything"])
def page(request, everything):
    if request.param == "everything":
        return everything
    return render_report(example_certificate(request.param))


def test_structure_can_be_read_by_machines(page):
    tags = Tags(page)
    levels = [int(tag[1]) for tag, _ in tags.found if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert dict(tags.found)["html"]["lang"] == "en"
    for landmark in ("header", "main", "footer", "title"):
        assert sum(tag == landmark for tag, _ in tags.found) - (landmark == "title") * page.count("<title id") == 1
    named = [attrs["id"] for _, attrs in tags.found if "id" in attrs]
    assert len(named) == len(set(named))
    for _, attrs in tags.found:
        for reference in (attrs.get("aria-labelledby") or "").split():
            assert reference in named


def test_each_figure_has_a_name_a_description_and_a_table(page):
    tags = Tags(page)
    figures = [attrs for tag, attrs in tags.found if tag == "svg" and attrs.get("role") == "img"]
    assert all(attrs["role"] == "img" or attrs["aria-hidden"] for attrs in figures)
    assert [
        attrs for tag, attrs in tags.found if tag == "svg" and "role" not in attrs and "aria-hidden" not in attrs
    ] == []
    assert len(re.findall(r"<title id=[^>]*>[^<]+</title><desc id=[^>]*>[^<]{20,}</desc>", page)) == len(figures)
    assert len(re.findall(r"</figure>\s*<details>.*?<table>", page, re.DOTALL)) == len(figures)
    assert page.count("<caption>") == page.count("<table")
    assert all("scope" in attrs for tag, attrs in tags.found if tag == "th")


def test_nothing_is_asked_of_a_network(page):
    tags = Tags(page)
    assert {"script", "img", "iframe", "object", "form", "base"}.isdisjoint(tag for tag, _ in tags.found)
    for tag, attrs in tags.found:
        for name, value in attrs.items():
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert value.startswith(("#", "data:")), (tag, value)
            assert not name.startswith("on")
    assert "@import" not in page and not re.search(r"url\((?!#)", page)
    assert "default-src 'none'" in page and GENERATOR in page


def test_the_same_arguments_give_the_same_page(everything):
    again = render_report(example_certificate(ledger=LEDGER), example_model(), burn_down=BURN_DOWN, losses=LOSSES)
    assert again == everything


@pytest.mark.parametrize("scheme", ["LIGHT", "DARK"])
def test_text_has_contrast(scheme):
    colours = getattr(palette, scheme)
    for text in palette.TEXT:
        for ground in palette.GROUNDS:
            assert palette.contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    # The two ends of the scale, and a pair whose ratio is published by the W3C.
    assert palette.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert palette.contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def test_every_colour_is_one_of_the_palette(everything):
    without_palette = re.sub(r":root\{[^}]*\}", "", everything)
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\"'} ])", without_palette) == []
    used = set(re.findall(r"var\(--(\w+)\)", everything))
    assert used <= set(palette.LIGHT) == set(palette.DARK)


@pytest.fixture(scope="module")
def harmless():
    """Return the page of the next test with an x in the place of what is hostile."""
    schema = Schema(
        (Numeric("x", 0.0, 1.0, "indicator"), Categorical("bx", ("x", "z"), True, "drop")),
        Label("lx", 0.0, 1.0, 0.0),
        True,
    )
    same = example_certificate(
        schema=schema, ledger={**LEDGER, "dataset": "x", "partition": "x"}, input_version={"x": 1}
    )
    same["assumptions"] = [*same["assumptions"], "x"]
    same["public"] = ["x"]
    return render_report(same, example_model(schema), burn_down=[("x", 0.5, 3.5)], losses={"x": [(0, 1.0), (1, 0.5)]})


@pytest.mark.parametrize("text", HOSTILE)
def test_strings_of_others_are_shown_and_nothing_more(text, harmless):
    schema = Schema(
        (Numeric(text, 0.0, 1.0, "indicator"), Categorical("b" + text, (text, "z"), True, "drop")),
        Label("l" + text, 0.0, 1.0, 0.0),
        True,
    )
    facts = {"ledger": {**LEDGER, "dataset": text, "partition": text}, "input_version": {text: text}}
    hostile = example_certificate(schema=schema, **facts)
    hostile["assumptions"] = [*hostile["assumptions"], text]
    hostile["public"] = [text]
    page = render_report(
        hostile, example_model(schema), burn_down=[(text, 0.5, 3.5)], losses={text: [(0, 1.0), (1, 0.5)]}
    )
    # The same elements but for places to break a line, whatever the strings are.
    skeletons = [
        [tag for tag, _ in Tags(each).found if tag not in ("wbr", "path", "tspan")] for each in (page, harmless)
    ]
    assert skeletons[0] == skeletons[1]
    shown = "".join(f"\\u{ord(each):04x}" if each in "\u202e\u0000\u0007" else each for each in text)
    assert shown in Tags(page).text["li"] and shown in Tags(page).text["tbody"] and shown in Tags(page).text["h1"]
    assert not any(each in page for each in "\u202e\u0000\u0007")


def test_the_head_tells_private_from_not():
    heads = {kind: promise(example_certificate(kind)) for kind in MECHANISMS}
    assert heads["wtd-flag"].standing == "good"
    assert heads["wtd-flag"].badge == "✔ Private: ε\u00a0=\u00a01, δ\u00a0=\u00a010⁻⁶"
    assert heads["assumed"].standing == "warn" and "only if an assumption holds" in heads["assumed"].badge
    for kind in ("unweighted-sums", "seeded"):
        assert (heads[kind].standing, heads[kind].badge) == ("claim", "✖ Not private")
        assert heads[kind].meaning == ("It promises nothing to anybody.",)


def test_promise_and_terms_are_those_of_the_certificate():
    found = example_certificate("assumed")
    text = Tags(render_report(found)).text
    assert found["statement"] in text["blockquote"]
    for line in (*found["assumptions"], *found["public"]):
        assert line in text["li"]


def test_the_chance_of_a_right_guess_is_the_exact_one():
    """A Gaussian with mu = 0.2 is guessed right with probability Phi(0.1) = 0.53983 at best (Neyman and Pearson)."""
    assert "at most 54\u00a0% of the time" in promise(example_certificate("fit")).meaning[-1]


def test_a_private_floor_says_who_supplies_what():
    floor = PrivateFloor(noise_std=2.0, target=5000.0, sensitivity=100.0, failure_probability=1e-9)
    stated = {**dataclasses.asdict(floor), "released_residual_norm": 160.0, "supplied": floor.supplied(160.0)}
    page = render_report(example_certificate(private_floor=stated))
    assert (
        "160, released with noise of standard deviation 2; of the sum of squares that the promise needs, 5,000, "
        in page
    )
    assert number(floor.supplied(160.0)) in page and 0 < floor.supplied(160.0) < 5000
    bags = render_report(example_certificate("sampled-wtd-flag", bags_left_out={"over_leverage_cap": 4}))
    assert "4 for a leverage over the cap" in bags


def test_optional_sections_are_there_only_with_something_to_show(everything):
    headings = re.findall(r"<h2[^>]*>([^<]*)<", everything)
    assert headings[0] == "What was released"
    for heading in ("Coefficients", "Training", "The budget", "What it is good for"):
        assert heading in headings
    plain = re.findall(r"<h2[^>]*>([^<]*)<", render_report(example_certificate("fit")))
    assert {"Coefficients", "Training", "The budget", "What it is good for"}.isdisjoint(plain)


def test_a_training_is_told_from_a_release_and_a_fit():
    page = render_report(example_certificate("sampled-noisy-wtd-lag"), losses=LOSSES)
    assert "A neural network for sale_amount, from a private release" in Tags(page).text["h1"]
    assert "The release: a table of 1,000 bags of 10 rows" in page and 'id="training"' in page


def test_long_budgets_show_their_last_releases():
    many = [(f"release {number}", 0.001, 4 - 0.001 * number) for number in range(1, 1001)]
    page = render_report(example_certificate(ledger=LEDGER), burn_down=many)
    assert "the last 400 of 1,000" in page and "release 1000<" in page and "release 600<" not in page


def test_a_model_without_its_certificate_says_so():
    page = render_report(None, example_model())
    assert "was not at hand" in page and "✔ From a private release" in page
    with pytest.raises(ValueError, match="nothing to report"):
        render_report(None)


def test_an_event_of_a_newer_version_leaves_the_points_of_the_certificate():
    found = example_certificate()
    found["event"] = {"event": "MadeLater", "mu": 1.0}
    assert "<figure>" in render_report(found)


def test_schema_is_shown_as_declared(everything):
    rows = Tags(everything).text["tbody"]
    assert "clipped to 0 … 500" in rows and "mobile, desktop, any other" in rows
    assert "a column of its own says so" in rows and "the row is left out" in rows
    assert SCHEMA.label.name in rows
