"""The page as a browser shows it: on a desk, on a phone, in the dark, on paper, and with hostile names."""

from __future__ import annotations

import re

import pytest

from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.report import render_report
from tests.browser import Page, browser, browser_command
from tests.unit.report.examples import example_certificate, example_model

COMMAND = browser_command()
pytestmark = pytest.mark.skipif(COMMAND is None, reason="no Chromium or Chrome on PATH (Debian: apt install chromium)")

HOSTILE = "</title></style><script>document.title='taken'</script><img src='https://example.invalid/x' onerror=\"x()\">"
LEDGER = {"dataset": "impressions", "partition": "2026-11-28", "budget": {"epsilon": 4.0, "delta": 1e-6}}

# Every piece of text that is shown, with its contrast by WCAG 2 against the nearest ground that is painted.
CONTRASTS = """
(() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const luminance = rgb => rgb.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  while (walker.nextNode()) {
    const node = walker.currentNode, own = node.parentElement;
    if (!node.textContent.trim() || ["title", "desc", "style"].includes(own.localName)) continue;
    if (!own.getClientRects().length) continue;
    const style = getComputedStyle(own);
    const text = parse(own.namespaceURI.endsWith("svg") ? style.fill : style.color);
    let ground = own;
    while (ground && parse(getComputedStyle(ground).backgroundColor)[3] === 0) ground = ground.parentElement;
    const back = ground ? parse(getComputedStyle(ground).backgroundColor) : [255, 255, 255];
    const [low, high] = [luminance(text), luminance(back)].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), node.textContent.trim().slice(0, 40)]);
  }
  return found;
})()
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    losses = {"training": [(step, 2 / (1 + step)) for step in range(20)], "held-out": [(0, 2.0), (19, 0.4)]}
    whole = render_report(
        example_certificate(ledger=LEDGER), example_model(), burn_down=[("a", 0.5, 3.5), ("b", 0.4, 3.1)], losses=losses
    )
    (folder / "whole.html").write_text(whole)
    schema = Schema(
        (Numeric(HOSTILE, 0.0, 1.0, "drop"), Categorical("c", (HOSTILE, "z"), True, "drop")),
        Label(HOSTILE + "y", 0, 1, 0),
        True,
    )
    hostile = render_report(
        example_certificate(schema=schema, ledger={**LEDGER, "dataset": HOSTILE}),
        example_model(schema),
        burn_down=[(HOSTILE, 0.5, 3.5)],
        losses={HOSTILE: [(0, 1.0), (1, 0.5)]},
    )
    (folder / "hostile.html").write_text(hostile)
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser(COMMAND) as found:
        yield found


@pytest.fixture
def tab(chromium):
    return Page(chromium)


@pytest.mark.parametrize("name", ["whole", "hostile"])
@pytest.mark.parametrize("dark", [False, True])
def test_the_browser_has_nothing_to_complain_of_and_asks_for_nothing(tab, files, name, dark):
    address = (files / f"{name}.html").as_uri()
    tab.open(address, dark=dark)
    assert tab.requests() == [address]
    assert tab.complaints() == []
    assert tab.evaluate("document.title") != "taken"
    assert tab.evaluate("document.querySelectorAll('script, img, iframe').length") == 0
    assert tab.evaluate("document.compatMode") == "CSS1Compat"


def test_the_policy_refuses_what_a_page_with_a_hole_would_ask_for(tab, files):
    """The two checks above can fail: a request and a complaint are seen when there is one."""
    page = (files / "whole.html").read_text().replace("<main>", '<main><img src="https://example.invalid/x" alt="">')
    (files / "hole.html").write_text(page)
    tab.open((files / "hole.html").as_uri())
    tab.wait_for("Log.entryAdded")  # it may come after the page
    assert any("Content Security Policy" in said for said in tab.complaints())


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_contrast(tab, files, dark):
    tab.open((files / "whole.html").as_uri(), dark=dark)
    tab.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
    seen = tab.evaluate(CONTRASTS)
    assert len(seen) > 150
    assert [each for each in seen if each[0] < 4.5] == []
    dark_ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark_ground != "rgb(255, 255, 255)") is dark


def test_a_phone_shows_it_without_sideways_scrolling(tab, files):
    tab.open((files / "whole.html").as_uri(), width=390, height=844, mobile=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    sizes = "[...document.querySelectorAll('body, body :not(svg *)')].map(each => getComputedStyle(each).fontSize)"
    assert min(float(size.removesuffix("px")) for size in tab.evaluate(sizes)) >= 12
    # Text of a figure shrinks with it, and some of it is turned.
    boxes = "[...document.querySelectorAll('svg.figure text')].map(each => each.getBoundingClientRect())"
    heights = tab.evaluate(f"{boxes}.map(box => Math.max(box.width, box.height))")
    assert min(heights) >= 12


def test_names_without_end_do_not_widen_the_page(tab, files):
    tab.open((files / "hostile.html").as_uri(), width=390, height=844, mobile=True)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_figures_are_named_for_those_who_cannot_see_them(tab, files):
    tab.open((files / "whole.html").as_uri())
    tab.call("Accessibility.enable")
    nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
    pictures = [each for each in nodes if each.get("role", {}).get("value") in ("image", "img")]
    assert len(pictures) == 3
    for each in pictures:
        assert each["name"]["value"] and len(each["description"]["value"]) > 30


def test_on_paper_it_is_light_and_shows_the_tables(tab, files, tmp_path):
    tab.open((files / "whole.html").as_uri(), dark=True)
    tab.pdf(tmp_path / "page.pdf")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 3 <= pages <= 12
    tab.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    rows = tab.evaluate("[...document.querySelectorAll('details tr')].map(row => row.getBoundingClientRect().height)")
    assert len(rows) > 20 and min(rows) > 0
