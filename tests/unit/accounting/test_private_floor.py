"""The private floor: never over what both neighbours have, and one guarantee whatever is released."""

import numpy as np
import pytest

from dpagg.accounting.private_floor import PrivateFloor, calibrate_private_floor
from dpagg.accounting.weighted_aggregation import WeightedAggregation
from dpagg.accounting.worst_rows import worst_rows

EPSILON, DELTA = 1.0, 1e-6


def _event(num_rows=10_000, num_bags=100):
    leverage, bound = worst_rows(20 / num_rows, num_rows, 0.5, 1.0)
    return WeightedAggregation(
        num_bags=num_bags, label_range=1.0, leverage=leverage, residual_floor=0.0, residual_bound=bound
    )


@pytest.fixture(scope="module")
def split():
    return calibrate_private_floor(
        _event(), epsilon=EPSILON, delta=DELTA, sensitivity=1.0, budget_share=0.2, failure_share=0.1
    )


def test_the_guarantee_does_not_depend_on_what_was_released(split):
    noised, floor = split
    for released in (-100.0, 0.0, 50.0, 300.0, 1e6):
        settled = floor.settle(noised, released)
        assert settled.residual_floor + settled.label_noise_variance == pytest.approx(floor.target, rel=1e-12)
        assert settled.delta(EPSILON) <= DELTA * (1 + 1e-9)
    assert floor.settle(noised, 1e6).label_noise_variance == 0
    assert floor.settle(noised, 0.0).label_noise_variance == floor.target


def test_the_release_of_the_norm_is_within_the_event(split):
    noised, floor = split
    assert floor.sensitivity / floor.noise_std <= noised.gaussian_mu
    assert noised.failure_probability == pytest.approx(0.1 * DELTA)
    assert 0.5 * DELTA < noised.delta(EPSILON) <= DELTA


def test_the_floor_fails_no_more_often_than_it_says():
    """Under the larger of two neighbours the smaller one is below the floor with the failure probability at most."""
    floor = PrivateFloor(noise_std=9.0, sensitivity=1.0, failure_probability=0.1, target=1e9)
    rng = np.random.default_rng(0)
    smaller, larger = 60.0, 61.0
    draws = 200_000
    released = larger + floor.noise_std * rng.standard_normal(draws)
    over = np.array([floor.supplied(r) > smaller**2 for r in released]).mean()
    slack = 4 * np.sqrt(0.1 * 0.9 / draws)
    assert 0.1 - slack < over < 0.1 + slack  # tight: without the sensitivity it would be far over


def test_the_norm_moves_by_less_than_a_label():
    rng = np.random.default_rng(1)
    x = np.column_stack([np.ones(30), rng.normal(size=(30, 2))])
    rest = np.eye(30) - x @ np.linalg.pinv(x)
    for _ in range(200):
        y, other = (labels := rng.uniform(size=30)), labels.copy()
        other[rng.integers(30)] = rng.uniform()
        assert abs(np.linalg.norm(rest @ y) - np.linalg.norm(rest @ other)) <= np.abs(y - other).max() + 1e-12
