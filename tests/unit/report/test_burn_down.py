"""The figure of what is left: a panel a data set, the right numbers, text that stays text."""

import itertools
import xml.etree.ElementTree as ElementTree

import pytest

from dpagg.accounting import CurveTable, GaussianRelease
from dpagg.ledger import Book, Terms, spent
from dpagg.ledger.policy import Charge
from dpagg.report.burn_down import _of_partitions, _of_releases, burn_down_svg


def terms(disjoint):
    return Terms(
        dataset=f"ads {disjoint} <&>", epsilon=2.0, delta=1e-6, adjacency="change_one_label", unit="one label",
        disjoint=disjoint,
    )  # fmt: skip


def charges(count):
    event = GaussianRelease(mu=0.03)
    table = CurveTable.of(event)
    return [
        Charge(
            number=i, partition=f"day {i // 2}", release_id=str(i), stated=event.to_dict(), epsilon=0.3, delta=1e-9,
            table=table,
        )
        for i in range(count)
    ]  # fmt: skip


def test_what_is_left_falls_with_releases_and_by_partition():
    counts, left = _of_releases(terms(False), charges(100))
    assert counts[0] == 0 and counts[-1] == 100 and len(counts) <= 41
    assert left[0] == 2.0 and all(a >= b for a, b in itertools.pairwise(left))
    assert left[-1] == pytest.approx(2.0 - GaussianRelease(mu=0.3).epsilon(1e-6), rel=1e-6)
    names, left = _of_partitions(terms(True), charges(5))
    assert names == ["day 0", "day 1", "day 2"]
    assert left == [2.0 - spent(terms(True), charges(n)) for n in (2, 2, 1)]


def test_the_figure_is_an_svg_that_is_the_same_each_time():
    book = Book()
    assert "<svg" in burn_down_svg(book)
    for disjoint in (True, False):
        book.terms[terms(disjoint).dataset] = terms(disjoint)
        book._charges[terms(disjoint).dataset] = {charge.number: charge for charge in charges(7)}
    text = burn_down_svg(book)
    root = ElementTree.fromstring(text)
    said = "".join(root.itertext())
    assert "ads True <&>: budget 2 at delta 1e-06, one label" in said and "day 3" in said
    assert text == burn_down_svg(book)
