"""One suite for every event: what a caller may rely on, whatever the mechanism."""

import dataclasses
import json
import math

import numpy as np
import pytest

from dpagg import accounting
from dpagg.accounting import (
    AdaSSP,
    Composition,
    Event,
    GaussianRelease,
    HessianMixing,
    LabelGaussian,
    LinearMixing,
    NoisyGradientDescent,
    NoisyLabelAggregation,
    SampledAggregation,
    UnweightedSums,
    UserAggregation,
    WeightedAggregation,
)
from tests.unit.accounting import reference

BAGS = WeightedAggregation(
    num_bags=40,
    label_range=1.0,
    leverage=(0.5, 0.1),
    residual_floor=90.0,
    residual_bound=(1.0, 2.0),
    failure_probability=1e-7,
)
SKETCH = HessianMixing(sketch_size=60, num_sketches=2, eigenvalue_floor=30.0, gaussian_mu=0.4, failure_probability=1e-6)
EVENTS = [
    BAGS,
    SampledAggregation(
        bag_size=30, label_range=1.0, leverage=0.2, residual_floor=30.0, residual_bound=1.0, gaussian_mu=0.1
    ),
    UserAggregation(num_bags=20, label_range=1.0, max_rows=3, leverage=0.4, residual_floor=900.0, residual_bound=4.0),
    NoisyLabelAggregation(bag_size=40, noised_fraction=0.25, noise_std=1.0, label_range=1.0),
    NoisyLabelAggregation(bag_size=40, noised_fraction=0.25, noise_std=1.0, label_range=1.0, weight_cap=0.6),
    SKETCH,
    LinearMixing(sketch_size=60, eigenvalue_floor=80.0, label_bound=1.0, gaussian_mu=0.2),
    AdaSSP(label_bound=2.0, eigenvalue_noise_std=4.0, gram_noise_std=5.0, xty_noise_std=6.0),
    NoisyGradientDescent(num_iterations=10, residual_clip=0.5, noise_std=3.0),
    LabelGaussian(label_range=1.0, leverage=0.2, noise_std=0.7),
    GaussianRelease(mu=0.9),
    UnweightedSums(),
    Composition(events=(SKETCH, GaussianRelease(mu=0.3), SKETCH)),
    Composition(events=(BAGS, GaussianRelease(mu=0.3), BAGS)),
]
private = [event for event in EVENTS if not isinstance(event, UnweightedSums)]


def named(events):
    return pytest.mark.parametrize("event", events, ids=[f"{type(e).__name__}-{i}" for i, e in enumerate(events)])


@named(EVENTS)
def test_delta_is_a_privacy_curve(event):
    grid = np.array([-60.0, -8.0, -1.0, -0.1, 0.0, 0.1, 0.5, 1.0, 3.0, 8.0, 60.0])
    curve = event.curve(grid)
    assert curve.shape == grid.shape
    assert np.all((curve >= np.maximum(0.0, -np.expm1(np.minimum(grid, 0)))) & (curve <= 1))
    assert np.all(np.diff(curve) <= 1e-12)
    assert curve[7] == pytest.approx(event.delta(1.0), rel=1e-12)
    assert event.curve(grid.reshape(1, -1)).shape == (1, grid.size)
    # Convex in exp(epsilon), as every hockey-stick curve is.
    x, y = np.exp(grid[4:10]), curve[4:10]
    assert np.all(np.diff(np.diff(y) / np.diff(x)) >= -1e-12)
    # Both directions are in the curve: delta(-e) = 1 - exp(-e) + exp(-e) delta(e).
    assert curve[2] == pytest.approx(-math.expm1(-1.0) + math.exp(-1.0) * curve[7], rel=1e-12)


@named(EVENTS)
def test_ends_of_the_curve(event):
    assert event.delta(-math.inf) == 1.0
    if isinstance(event, UnweightedSums):
        assert event.delta(math.inf) == 1.0
    else:
        assert event._failure <= event.delta(math.inf) <= min(event.delta(300.0), event._failure * (1 + 1e-6) + 1e-8)
    with pytest.raises(ValueError, match="NaN"):
        event.delta(math.nan)


@named(private)
def test_epsilon_inverts_delta_and_never_overspends(event):
    for epsilon in (0.2, 1.0, 2.5):
        delta = event.delta(epsilon)
        found = event.epsilon(delta)
        assert found <= epsilon + 1e-9
        assert event.delta(found) <= delta
    assert event.epsilon(1.0) == 0.0
    assert event.epsilon(event.delta(0.0)) == 0.0
    if event._failure:
        assert event.epsilon(event._failure / 2) == math.inf


@named(EVENTS)
def test_epsilon_refuses_what_is_no_probability(event):
    for delta in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="delta"):
            event.epsilon(delta)


@named(EVENTS)
def test_survives_json(event):
    written = json.loads(json.dumps(event.to_dict(), allow_nan=False))
    assert written["event"] == type(event).__name__
    again = Event.from_dict(written)
    assert again == event
    assert hash(again) == hash(event)
    assert again.delta(0.7) == event.delta(0.7)
    with pytest.raises(ValueError, match="unknown event"):
        Event.from_dict({**written, "event": "Nothing"})
    with pytest.raises(ValueError, match="surprise"):
        Event.from_dict({**written, "surprise": 1})


@named(EVENTS)
def test_is_frozen_and_keyword_only(event):
    fields = dataclasses.fields(event)
    if fields:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(event, fields[0].name, 1)
        with pytest.raises(TypeError):
            type(event)(1)
    assert type(event).__name__ in accounting.__all__
    assert event.adjacency in {"change_one_label", "change_one_user_labels", "zero_out_one_row", "any"}


@named(private)
def test_privacy_loss_distribution_is_pessimistic_and_close(event):
    pld = event.to_pld()
    for epsilon in (0.0, 0.3, 1.0, 2.0):
        exact, built = event.delta(epsilon), pld.get_delta_for_epsilon(epsilon)
        assert exact * (1 - 1e-9) <= built <= exact * 1.002 + 1e-14


def test_the_rest_of_a_privacy_loss_distribution():
    with pytest.raises(ValueError, match="discretization"):
        BAGS.to_pld(discretization=0.0)
    # Sketches keep their directions: composing twice is close to twice the sketches.
    twice = SKETCH.to_pld(discretization=1e-3).self_compose(2)
    double = dataclasses.replace(SKETCH, num_sketches=4, gaussian_mu=0.4 * math.sqrt(2), failure_probability=2e-6)
    assert twice.get_delta_for_epsilon(1.0) == pytest.approx(double.delta(1.0), rel=2e-3)
    assert twice.get_delta_for_epsilon(1.0) >= double.delta(1.0) * (1 - 1e-6)


def test_gaussians_are_balle_and_wang():
    cases = {
        GaussianRelease(mu=0.9): 0.9,
        LabelGaussian(label_range=2.0, leverage=0.25, noise_std=4.0): 0.25,
        AdaSSP(label_bound=3.0, eigenvalue_noise_std=2.0, gram_noise_std=4.0, xty_noise_std=6.0): 0.75,
        NoisyGradientDescent(num_iterations=9, residual_clip=0.5, noise_std=3.0): 0.5,
    }
    for event, mu in cases.items():
        for epsilon in (0.0, 0.4, 2.0):
            assert event.delta(epsilon) == pytest.approx(float(reference.gaussian(epsilon, mu)), rel=1e-10)
    assert GaussianRelease(mu=0.0).delta(0.0) == 0.0
    assert LabelGaussian(label_range=1.0, leverage=0.5, noise_std=0.0).delta(9.0) == 1.0
    assert NoisyGradientDescent(num_iterations=2, residual_clip=0.0, noise_std=0.0).delta(0.0) == 0.0


def test_sketches():
    assert SKETCH._failure == 1e-6
    bare = dataclasses.replace(SKETCH, failure_probability=0.0)
    # With the row first: variance 1 against 1 - 1/30.
    directions = [
        float(reference.one_ratio_beside_gaussian(0.6, 120, 1 / 29, 0.4)),
        float(reference.one_ratio_beside_gaussian(0.6, 120, -1 / 30, 0.4)),
    ]
    assert np.exp(bare._log_deltas(np.array([0.6])))[:, 0] == pytest.approx(directions, rel=1e-9)
    assert bare.delta(0.6) == pytest.approx(max(directions), rel=1e-9)
    # [X y] with labels up to 1: a row of squared norm 2 against twice the floor.
    mixing = LinearMixing(sketch_size=120, eigenvalue_floor=60.0, label_bound=1.0, gaussian_mu=0.4)
    assert mixing.delta(0.6) == pytest.approx(bare.delta(0.6), rel=1e-12)
    assert HessianMixing(sketch_size=5, num_sketches=1, eigenvalue_floor=1.0).delta(3.0) == 1.0
    with pytest.raises(ValueError, match="sketch_size"):
        dataclasses.replace(SKETCH, sketch_size=0)


def test_one_bag_of_a_sample_is_wtd_flag_with_one_bag():
    rows = {"label_range": 1.0, "leverage": (0.5, 0.1), "residual_floor": 20.0, "residual_bound": (1.0, 2.0)}
    assert SampledAggregation(bag_size=30, **rows).delta(0.4) == WeightedAggregation(num_bags=1, **rows).delta(0.4)


@pytest.mark.parametrize("seed", range(5))
def test_user_bound_dominates_changes_of_several_labels(seed):
    from dpagg.accounting.divergence import divergence
    from dpagg.accounting.weighted_aggregation import residual_bound_cauchy_schwarz

    rng = np.random.default_rng(seed)
    n, g = 25, 3
    features = rng.standard_normal((n, 2))
    basis = np.linalg.qr(features)[0]
    leverage = (basis**2).sum(1)
    bound = residual_bound_cauchy_schwarz(leverage, n, 1.0)
    rows = rng.choice(n, g, replace=False)
    labels = rng.uniform(-1, 1, n)
    other = labels.copy()
    other[rows] = rng.choice([-1.0, 1.0], g)
    grams = [np.column_stack([features, y]).T @ np.column_stack([features, y]) for y in (labels, other)]
    nu = np.linalg.eigvals(np.linalg.solve(grams[0], grams[1])).real
    nu = np.array([max(nu.max(), 1.0), min(nu.min(), 1.0)])
    residuals = [float(np.linalg.lstsq(features, y, rcond=None)[1][0]) for y in (labels, other)]
    event = UserAggregation(
        num_bags=6,
        label_range=2.0,
        max_rows=g,
        leverage=float(leverage[rows].sum()),
        residual_floor=min(residuals),
        residual_bound=float(bound[rows].sum()),
    )
    up, down = nu - 1, 1 / nu - 1
    for epsilon in (0.0, 1.0):
        real = max(float(divergence(epsilon, rows=6, excess=a, inverse_excess=b)) for a, b in ((up, down), (down, up)))
        assert real <= event.delta(epsilon) * (1 + 1e-9)


def test_unweighted_sums_protect_nothing():
    assert UnweightedSums().delta(100.0) == 1.0
    assert UnweightedSums().epsilon(0.999) == math.inf
