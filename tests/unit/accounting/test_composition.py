import dataclasses
import math

import numpy as np
import pytest

from dpagg.accounting import (
    Composition,
    GaussianRelease,
    HessianMixing,
    LabelGaussian,
    UnweightedSums,
    WeightedAggregation,
)
from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.accounting.divergence import divergence

BAGS = WeightedAggregation(num_bags=10, label_range=2.0, leverage=0.6, residual_floor=300.0, residual_bound=4.0)
SKETCH = HessianMixing(sketch_size=60, num_sketches=1, eigenvalue_floor=20.0, gaussian_mu=0.5)


def test_one_event_is_itself():
    for event in (BAGS, SKETCH, GaussianRelease(mu=0.4)):
        assert Composition(events=(event,)).delta(0.8) == pytest.approx(event.delta(0.8), rel=1e-9)


def test_sketches_compose_exactly():
    twice = Composition(events=(SKETCH, SKETCH, GaussianRelease(mu=0.3)))
    double = dataclasses.replace(SKETCH, num_sketches=2, gaussian_mu=math.sqrt(0.25 + 0.25 + 0.09))
    for epsilon in (0.0, 1.0, 4.0):
        assert twice.delta(epsilon) == pytest.approx(double.delta(epsilon), rel=1e-9)
    different = Composition(events=(SKETCH, dataclasses.replace(SKETCH, eigenvalue_floor=40.0)))
    assert SKETCH.delta(1.0) < different.delta(1.0) < Composition(events=(SKETCH, SKETCH)).delta(1.0)


def test_bags_compose_to_twice_the_bags():
    # The composition lets each release meet its own worst pair, so that it may only be a little more.
    twice, double = Composition(events=(BAGS, BAGS)), dataclasses.replace(BAGS, num_bags=20)
    for epsilon in (0.0, 0.5, 1.0, 3.0, 5.0):
        exact = double.delta(epsilon)
        assert exact * (1 - 1e-6) <= twice.delta(epsilon) <= exact * 1.006 + 1e-14


def test_bags_beside_a_gaussian_equal_the_joint_event():
    both, joint = (
        Composition(events=(BAGS, LabelGaussian(label_range=2.0, leverage=0.5, noise_std=4.0))),
        (dataclasses.replace(BAGS, gaussian_mu=math.sqrt(2) / 4)),
    )
    for epsilon in (0.0, 0.5, 2.0):
        assert joint.delta(epsilon) * (1 - 1e-6) <= both.delta(epsilon) <= joint.delta(epsilon) * 1.004


def test_nested_order_and_failures():
    other = dataclasses.replace(BAGS, num_bags=5, failure_probability=1e-4)
    flat = Composition(events=(BAGS, other, GaussianRelease(mu=0.2)))
    nested = Composition(events=(Composition(events=(GaussianRelease(mu=0.2), other)), BAGS))
    assert nested.delta(1.0) == pytest.approx(flat.delta(1.0), rel=1e-9)
    assert flat.delta(50.0) == pytest.approx(1e-4, rel=1e-6)
    assert flat.adjacency == "change_one_label"


def test_many_releases_take_the_bound_over_directions():
    # More assignments of directions than are tried one by one.
    events = tuple(dataclasses.replace(BAGS, num_bags=b, residual_floor=3000.0) for b in range(1, 8))
    together = dataclasses.replace(BAGS, num_bags=28, residual_floor=3000.0)
    whole = Composition(events=events)
    assert together.delta(0.3) * (1 - 1e-6) <= whole.delta(0.3) <= together.delta(0.3) * 2


def test_what_protects_nothing_protects_nothing_together():
    assert Composition(events=(BAGS, UnweightedSums())).delta(9.0) == 1.0


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        Composition(events=())
    with pytest.raises(ValueError, match="adjacency"):
        Composition(events=(BAGS, SKETCH))
    with pytest.raises(ValueError, match="events"):
        Composition(events=(1.0,))


def one_direction(event, epsilon, with_row):
    """Delta of one direction at any epsilon."""
    pair = event._pair()
    first, second = (pair.excess, pair.inverse_excess) if with_row else (pair.inverse_excess, pair.excess)
    return divergence(epsilon, rows=pair.rows, excess=first, inverse_excess=second)


def test_choosing_a_mechanism_after_the_fact_overspends():
    """A choice that looks safe: both options meet (epsilon, delta) together with the release they follow.

    First a Gaussian release; then, by its outcome, one of two mechanisms each of which alone with the release meets
    the target. What is spent is E[max over options of delta_option(eps - L)], which is more.
    """
    epsilon, delta = 1.0, 1e-6
    mu = 0.7 * largest_gaussian_mu(epsilon=epsilon, delta=delta)
    options = [
        HessianMixing(
            sketch_size=rows,
            num_sketches=1,
            eigenvalue_floor=calibrate_eigenvalue_floor(epsilon=epsilon, delta=delta, sketch_size=rows, gaussian_mu=mu),
            gaussian_mu=mu,
        )
        for rows in (3, 10**4)
    ]
    z = np.linspace(-9, 9, 1201)
    weight = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    after = epsilon - (mu * mu / 2 + mu * z)
    spent = []
    for with_row in (True, False):
        curves = np.array([one_direction(option, after, with_row) for option in options])
        fixed = [float(weight @ curve) for curve in curves]
        # Fixed before the release, each option meets the target: its mean over the release is the joint delta.
        for option, mean in zip(options, fixed, strict=True):
            assert mean == pytest.approx(np.exp(option._log_deltas(np.array([epsilon]))[1 - with_row, 0]), rel=1e-6)
        spent.append(float(weight @ curves.max(0)))
    assert max(spent) > 1.1 * delta
