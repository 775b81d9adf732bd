"""Tables of curves and their composition: never under the truth, and close to it."""

import dataclasses
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from dpagg.accounting import (
    ComposedCurve,
    Composition,
    CurveTable,
    GaussianRelease,
    HessianMixing,
    HiddenNoiseAggregation,
    LabelGaussian,
    NoisyLabelAggregation,
    SampledAggregation,
    UnweightedSums,
    WeightedAggregation,
    composed,
)

BAGS = WeightedAggregation(num_bags=10, label_range=2.0, leverage=0.6, residual_floor=300.0, residual_bound=4.0)
HIDDEN = HiddenNoiseAggregation(
    num_bags=500, label_range=2.0, leverage=0.001, residual_bound=1.5, noise_floor=5.0, noise_mean=60.0, noise_std=8.0
)
ALL = [
    BAGS,
    HIDDEN,
    dataclasses.replace(BAGS, num_bags=5, failure_probability=1e-6),
    SampledAggregation(bag_size=60, label_range=1.0, leverage=0.3, residual_floor=40.0, residual_bound=1.5),
    NoisyLabelAggregation(bag_size=30, noised_fraction=0.5, noise_std=4.0, label_range=1.0, weight_cap=0.6),
    HessianMixing(sketch_size=60, num_sketches=1, eigenvalue_floor=200.0, gaussian_mu=0.5),
    GaussianRelease(mu=1e-4),
    GaussianRelease(mu=3.0),
]


@pytest.mark.parametrize("event", ALL, ids=lambda event: f"{type(event).__name__}-{event.delta(0.5):.0e}")
def test_a_table_is_never_under_the_curve_and_close_to_it(event):
    table = CurveTable.of(event)
    reach = table.step * (len(table.deltas) - 1)
    for epsilon in np.concatenate([np.linspace(0, reach, 57), [2 * reach]]):
        exact = event.delta(epsilon)
        assert table.delta(epsilon) >= exact * (1 - 1e-9)
        if exact > 1e-11 and exact > 2 * event._failure:
            assert table.delta(epsilon) <= 1.1 * exact
    for delta in (1e-3, 1e-5, 1e-8):
        found, exact = table.epsilon(delta), event.epsilon(delta)
        assert exact <= found or math.isclose(exact, found, rel_tol=1e-9, abs_tol=1e-9)
        assert found <= exact * 1.01 + 1e-12 or exact == math.inf


@settings(max_examples=12, deadline=None)
@given(
    mus=st.lists(st.floats(1e-3, 1.5), min_size=2, max_size=25),
    delta=st.sampled_from([1e-2, 1e-5, 1e-9, 1e-14]),
)
def test_gaussian_releases_compose_to_the_root_of_their_squares(mus, delta):
    curve = ComposedCurve([CurveTable.of(GaussianRelease(mu=mu)) for mu in mus], delta)
    exact = GaussianRelease(mu=math.hypot(*mus))
    assert exact.epsilon(delta) <= curve.epsilon(delta) <= 1.005 * exact.epsilon(delta) + 1e-9
    for epsilon in (0.0, 0.3, exact.epsilon(delta), 2 * exact.epsilon(delta)):
        assert curve.delta(epsilon) >= exact.delta(epsilon) * (1 - 1e-9)


def test_a_thousand_releases_compose_within_two_thousandths():
    table = CurveTable.of(GaussianRelease(mu=0.02))
    exact = GaussianRelease(mu=0.02 * math.sqrt(1000))
    for delta in (1e-6, 1e-12):
        found = ComposedCurve([table] * 1000, delta).epsilon(delta)
        assert exact.epsilon(delta) < found < 1.002 * exact.epsilon(delta)


@pytest.mark.parametrize("times", [2, 10])
def test_bags_compose_to_as_many_times_the_bags(times):
    together = dataclasses.replace(BAGS, num_bags=10 * times)
    curve = ComposedCurve([CurveTable.of(BAGS)] * times, 1e-6)
    # Each release may meet its own worst direction, so that the composition may only be a little more.
    assert together.epsilon(1e-6) <= curve.epsilon(1e-6) <= 1.02 * together.epsilon(1e-6)
    if times == 2:
        assert curve.epsilon(1e-6) == pytest.approx(Composition(events=(BAGS, BAGS)).epsilon(1e-6), rel=5e-3)


def test_different_mechanisms_compose_as_dp_accounting_has_it():
    events = [BAGS, HIDDEN, HIDDEN, LabelGaussian(label_range=2.0, leverage=0.5, noise_std=4.0)]
    plds = [event.to_pld(discretization=1e-3) for event in events]
    whole: privacy_loss_distribution.PrivacyLossDistribution = plds[0]
    for pld in plds[1:]:
        whole = whole.compose(pld)
    curve = ComposedCurve([CurveTable.of(event) for event in events], 1e-6)
    for epsilon in (0.5, 2.0, 3.0):
        assert curve.delta(epsilon) == pytest.approx(whole.get_delta_for_epsilon(epsilon), rel=0.03)
    assert curve.epsilon(1e-6) == pytest.approx(whole.get_epsilon_for_delta(1e-6), rel=5e-3)


def test_a_large_release_among_many_small_ones():
    exact = GaussianRelease(mu=math.hypot(4.0, 0.01 * math.sqrt(500)))
    small = CurveTable.of(GaussianRelease(mu=0.01))
    curve = ComposedCurve([CurveTable.of(GaussianRelease(mu=4.0)), *[small] * 500], 1e-8)
    assert exact.epsilon(1e-8) <= curve.epsilon(1e-8) <= 1.02 * exact.epsilon(1e-8)


def test_failures_add_up_and_what_protects_nothing_protects_nothing():
    failing = dataclasses.replace(BAGS, failure_probability=1e-6)
    curve = ComposedCurve([CurveTable.of(failing)] * 3, 1e-5)
    assert curve.delta(100.0) == pytest.approx(3e-6, rel=1e-5)
    assert curve.epsilon(2.9e-6) == math.inf
    bare = ComposedCurve([CurveTable.of(BAGS), CurveTable.of(UnweightedSums())], 1e-5)
    assert bare.delta(5.0) == 1.0 and bare.epsilon(0.5) == math.inf
    nothing = ComposedCurve([CurveTable.of(GaussianRelease(mu=0.0))] * 2, 1e-5)
    assert nothing.delta(0.0) < 1e-12


def test_one_and_gaussians_are_exact():
    two = [GaussianRelease(mu=0.3), LabelGaussian(label_range=2.0, leverage=0.5, noise_std=4.0)]
    tables = [CurveTable.of(event) for event in two]
    exact = GaussianRelease(mu=math.hypot(0.3, math.sqrt(2) / 4))
    assert composed(two, tables, 1e-6).delta(1.0) == pytest.approx(exact.delta(1.0), rel=1e-12)
    assert composed([BAGS], [CurveTable.of(BAGS)], 1e-6).delta(1.0) == BAGS.delta(1.0)
    mixed = composed([BAGS, two[0]], [CurveTable.of(BAGS), tables[0]], 1e-6)
    assert isinstance(mixed, ComposedCurve)


@pytest.mark.parametrize(
    ("step", "deltas"), [(0.0, (0.1, 0.0)), (1.0, (0.1,)), (1.0, (0.1, 0.2)), (1.0, (1.1, 0.2)), (math.nan, (0.1, 0.0))]
)
def test_nonsense_is_refused(step, deltas):
    with pytest.raises(ValueError, match=r"step|table|deltas"):
        CurveTable(step, deltas)
