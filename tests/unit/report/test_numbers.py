"""Numbers of the page against independent computations."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dpagg.regression.planning import relative_excess_loss
from dpagg.report.accuracy import accuracy
from dpagg.report.coefficients import coefficients
from dpagg.report.numbers import number, one_in, percent
from tests.unit.report.examples import example_certificate, example_model


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (0.0, "0"),
        (1_234_567, "1,234,567"),
        (17325.4, "17,325"),
        (1e-8, "10⁻⁸"),
        (9.966e-9, "9.97\u00a0×\u00a010⁻⁹"),
        (-2.5e-7, "−2.5\u00a0×\u00a010⁻⁷"),
        (3.0015e8, "300,150,000"),
        (2.5e12, "2.5\u00a0×\u00a010¹²"),
        (-0.5, "−0.5"),
        (math.inf, "infinite"),
        ("inf", "infinite"),
        (math.nan, "not known"),
        (None, "—"),
        (True, "True"),
        ("text", "text"),
    ],
)
def test_numbers_are_readable(value, shown):
    assert number(value) == shown


def test_probabilities_are_readable():
    assert one_in(1e-8) == "1 in 100 million" and one_in(1e-5) == "1 in 100,000" and one_in(0.0781) == "1 in 13"
    assert one_in(6.6e-11) == "1 in 15.2 billion" and one_in(0.75) == "75\u00a0%" and one_in(0.0) == "0\u00a0%"
    assert percent(0.000594) == "0.0594\u00a0%" and percent(12.5) == "1,250\u00a0%"


def test_expected_loss_is_that_of_sums_drawn_in_full():
    """Dense weights, dense noise, least squares by numpy: the mean over many releases."""
    rng = np.random.default_rng(5)
    n, d, m, noise, repeats = 60, 3, 25, 4.0, 3000
    features = rng.standard_normal((n, d))
    labels = features @ np.array([1.0, -2.0, 0.5]) + rng.uniform(-1, 1, n)
    best, residual, _, _ = np.linalg.lstsq(features, labels, rcond=None)
    excess = np.empty(repeats)
    for each in range(repeats):
        weights = rng.standard_normal((m, n))
        sums = weights @ labels + noise * rng.standard_normal(m)
        found = np.linalg.lstsq(weights @ features, sums, rcond=None)[0]
        excess[each] = np.sum((features @ (found - best)) ** 2) / residual[0]
    expected = relative_excess_loss(d, m, noise**2 / residual[0])
    assert abs(excess.mean() - expected) < 4 * excess.std() / math.sqrt(repeats)
    # The test can tell: without the noise, or with a degree of freedom more, it is elsewhere.
    for wrong in (relative_excess_loss(d, m, 0.0), relative_excess_loss(d, m + 3, noise**2 / residual[0])):
        assert abs(excess.mean() - wrong) > 4 * excess.std() / math.sqrt(repeats)
    assert relative_excess_loss(5, 6, 0.0) is None


def test_noise_is_spread_over_the_labels_it_stands_for():
    found = accuracy(example_certificate())
    assert found.noise_std == pytest.approx(found.noise_per_label * math.sqrt(20_000))
    assert [round(each.share_of_range, 3) for each in found.outlooks] == [0.05, 0.1, 0.2, 0.4]
    assert found.outlooks[0].paper_num_bags == math.floor(25 * 20_000 / (50**2 * math.log(1e6)))
    bags = accuracy(example_certificate("sampled-noisy-wtd-lag"))
    assert bags.noise_std == 1500 == bags.noise_per_label and bags.bag_size == 10  # each label has it
    assert bags.outlooks[0].paper_num_bags is None and bags.paper_bag_size > 0
    assert accuracy(example_certificate("unweighted-sums")) is None and accuracy(example_certificate("fit")) is None
    assert any(each.is_estimate and each.residual_std == 7.0 for each in accuracy(example_certificate(), 7.0).outlooks)


def test_intervals_are_students_and_in_the_users_units():
    model = example_model()
    lines = {line.coefficient.name: line for line in coefficients(model).lines}
    place = [column.name for column in model.schema.columns].index("price")
    half = stats.t.ppf(0.975, model.fit["degrees_of_freedom"]) * model.standard_errors[place] / 250
    middle = model.coefficients[place] / 250  # half of the range 0 … 500
    assert lines["price"].interval == pytest.approx((middle - half, middle + half))
    assert lines["price"].population_interval[0] <= lines["price"].interval[0]
    assert lines["intercept"].bar is None
    for line in lines.values():
        if line.bar is not None:
            assert 0 <= line.bar[0] <= line.bar[1] <= line.bar[2] <= 100


def test_of_disjoint_bags_one_interval_is_for_both():
    model = example_model()
    model = dataclasses.replace(model, release={**model.release, "mechanism": "sampled-wtd-flag"})
    found = coefficients(model)
    assert all(line.population_interval is None and line.interval for line in found.lines)
    assert found.population_covers is None and "sampling of rows" in found.covers


def test_intervals_cover_as_often_as_they_say():
    """Fits of many releases of one table, drawn in full; the truth is least squares on its rows."""
    from dpagg.regression.least_squares import fit_least_squares
    from dpagg.regression.model import LinearModel
    from tests.unit.report.examples import SCHEMA

    rng = np.random.default_rng(11)
    n, m, repeats = 80, 30, 500
    columns = SCHEMA.num_columns
    features = np.column_stack([np.ones(n), rng.uniform(-1, 1, (n, columns - 1))])
    labels = features @ np.linspace(3, -3, columns) + rng.standard_normal(n)
    truth = np.linalg.lstsq(features, labels, rcond=None)[0]
    widths = np.array([column.half_width for column in SCHEMA.columns])
    covered = 0
    for _ in range(repeats):
        weights = rng.standard_normal((m, n))
        sums = np.column_stack([weights @ features, weights @ labels + 2.0 * rng.standard_normal(m)])
        fit = fit_least_squares(np.linalg.qr(sums, mode="r"), m)
        lines = coefficients(LinearModel.from_fit(fit, SCHEMA, num_rows=n, label_noise_variance=4.0)).lines[1:]
        low, high = np.array([line.interval for line in lines]).T
        covered += int(((low <= (truth / widths)[1:]) & ((truth / widths)[1:] <= high)).sum())
    share = covered / (repeats * (columns - 1))
    # Coefficients of one fit go together, so no more than the number of fits counts: 4 standard errors of 500.
    assert abs(share - 0.95) < 4 * math.sqrt(0.95 * 0.05 / repeats), share


def test_a_method_that_gives_no_error_gives_no_interval():
    model = example_model()
    unknown = np.full_like(model.standard_errors, np.nan)
    bare = dataclasses.replace(
        model, standard_errors=unknown, population_standard_errors=unknown, intercept_standard_error=math.nan
    )
    found = coefficients(bare)
    assert all(line.interval is None for line in found.lines) and "nothing from which" in found.covers
    assert found.population_covers is None
