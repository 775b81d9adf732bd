"""Noise of a hidden level: the bound holds for the true mixture, and the level buys what it should."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import special, stats

from dpagg.accounting.calibration import largest_gaussian_mu, with_least_label_noise
from dpagg.accounting.event import Event
from dpagg.accounting.hidden_noise import HiddenNoiseAggregation, with_hidden_noise
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation, worst_label_shift
from dpagg.accounting.worst_rows import worst_rows, worst_user


def _bare(num_rows=10_000, num_bags=10_000, num_columns=10, label_range=2.0):
    leverage, bound = worst_rows(5 * num_columns / num_rows, num_rows, label_range / 2, label_range)
    return WeightedAggregation(
        num_bags=num_bags, label_range=label_range, leverage=leverage, residual_floor=0.0, residual_bound=bound
    )


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 10.0])
@pytest.mark.parametrize("num_bags", [1, 30, 10_000, 10**9])
def test_the_answer_meets_the_target_and_uses_it(epsilon, num_bags):
    delta = 1e-7
    found = with_hidden_noise(_bare(num_bags=num_bags), epsilon=epsilon, delta=delta)
    assert 0.9 * delta < found.delta(epsilon) <= delta
    assert 0 < found.failure_probability < 0.02 * delta
    assert Event.from_dict(found.to_dict()) == found


def test_the_level_costs_what_additive_noise_costs_as_bags_grow():
    """Relative excess loss against label-DP Gaussian noise on the whitened least-squares estimate."""
    for num_rows, num_columns in ((10_000, 10), (100_000, 20), (1_000_000, 20)):
        delta, residual = num_rows**-1.5, 0.05 * num_rows
        for epsilon in (0.1, 1.0, 5.0):
            num_bags = 1000 * num_rows
            found = with_hidden_noise(_bare(num_rows, num_bags, num_columns), epsilon=epsilon, delta=delta)
            loss = num_columns / (num_bags - num_columns - 1) * (1 + found.noise_mean / residual)
            mu = largest_gaussian_mu(epsilon=epsilon, delta=delta)
            best = num_columns * 4.0 * (5 * num_columns / num_rows) / (mu**2 * residual)
            assert loss / best <= 1.1


def test_it_beats_a_known_level_where_bags_are_many():
    bare = _bare(1_000_000, 1_000_000, 20)
    known = with_least_label_noise(bare, epsilon=1.0, delta=1e-9).label_noise_variance
    assert with_hidden_noise(bare, epsilon=1.0, delta=1e-9).noise_mean < known / 3
    few = _bare(1_000_000, 5, 20)
    known = with_least_label_noise(few, epsilon=1.0, delta=1e-9).label_noise_variance
    assert with_hidden_noise(few, epsilon=1.0, delta=1e-9).noise_mean > known


def test_parameters_move_delta_the_right_way():
    found = with_hidden_noise(_bare(), epsilon=1.0, delta=1e-6)

    def delta(**changes):
        return dataclasses.replace(found, **changes).delta(1.0)

    base = delta()
    assert delta(num_bags=12_000) > base and delta(label_range=2.2) > base
    assert delta(noise_floor=0.8 * found.noise_floor) > base
    assert delta(noise_std=0.7 * found.noise_std) > base  # a narrower level hides less
    assert delta(noise_mean=found.noise_mean - 2 * found.noise_std) > base  # and a lower one fails more often


def test_all_labels_of_a_user():
    event = UserAggregation(
        num_bags=1000,
        label_range=2.0,
        max_rows=5,
        leverage=0.01,
        residual_floor=0.0,
        residual_bound=worst_user(0.01, 5, 10_000, 1.0, 2.0),
    )
    found = with_hidden_noise(event, epsilon=1.0, delta=1e-6)
    assert found.adjacency == "change_one_user_labels" and found.delta(1.0) <= 1e-6
    assert Event.from_dict(found.to_dict()) == found


@pytest.mark.parametrize("larger_first", [False, True])
def test_the_bound_holds_for_the_mixture_itself(larger_first):
    """Monte Carlo of the exact likelihood ratio, the level integrated out, on a pair that attains G and q.

    One column, 200 bags, so that the level can nearly be seen and giving it away costs little: the estimate must not
    exceed the bound by more than 4 standard errors, and isn't far below it.
    """
    m, h, label_range, floor = 200, 0.004, 1.0, 6.0
    bound = 1.0
    growth = float(worst_label_shift(h, bound, label_range))
    event = HiddenNoiseAggregation(
        num_bags=m,
        label_range=label_range,
        leverage=h,
        residual_bound=bound,
        noise_floor=floor,
        noise_mean=floor + growth + 2.5 * 2.0,
        noise_std=2.0,
    )
    residuals = (0.0, growth) if not larger_first else (growth, 0.0)
    shift = label_range * math.sqrt(h)  # of the conditional mean, per unit of the whitened feature
    rng = np.random.default_rng(1)
    draws = 40_000
    level = stats.truncnorm.rvs(
        (floor - event.noise_mean) / 2.0, np.inf, loc=event.noise_mean, scale=2.0, size=draws, random_state=rng
    )
    x = rng.standard_normal((draws, m))
    y = np.sqrt(residuals[0] + level)[:, None] * rng.standard_normal((draws, m))

    # The level's density on a fine grid; the Gauss-Legendre rule is exact to many digits for so smooth a mixture.
    nodes, weights = np.polynomial.legendre.leggauss(80)
    top = event.noise_mean + 20.0
    grid = floor + (nodes + 1) / 2 * (top - floor)
    log_prior = np.log(weights) + stats.norm.logpdf(grid, event.noise_mean, 2.0)

    def log_density(residual, squares):
        variance = residual + grid
        return special.logsumexp(log_prior - m / 2 * np.log(variance) - squares[:, None] / (2 * variance), axis=1)

    loss = log_density(residuals[0], (y**2).sum(1)) - log_density(residuals[1], ((y - shift * x) ** 2).sum(1))
    for epsilon in (0.1, 0.3, 0.6):
        gains = np.maximum(0.0, -np.expm1(epsilon - loss))
        error = gains.std() / math.sqrt(draws)
        assert gains.mean() <= event.delta(epsilon) + 4 * error
        assert gains.mean() > 0.3 * event.delta(epsilon)


def test_a_label_that_cannot_change_costs_nothing():
    found = HiddenNoiseAggregation(
        num_bags=5, label_range=0.0, leverage=0.1, residual_bound=1.0, noise_floor=1.0, noise_mean=2.0, noise_std=1.0
    )
    assert found.delta(0.0) == 0.0


@pytest.mark.parametrize("changes", [{"noise_floor": 0.0}, {"noise_std": 0.0}, {"noise_mean": 0.5}, {"num_bags": 0}])
def test_parameters_out_of_range_are_refused(changes):
    good = {"num_bags": 5, "label_range": 1.0, "leverage": 0.1, "residual_bound": 1.0}
    noise = {"noise_floor": 1.0, "noise_mean": 2.0, "noise_std": 1.0}
    with pytest.raises(ValueError):
        HiddenNoiseAggregation(**{**good, **noise, **changes})
