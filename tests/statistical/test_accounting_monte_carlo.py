"""Exact deltas against simulation: the joint Gaussian likelihood ratio of real neighbouring tables.

Each estimate is the mean of (1 - exp(eps - L))+ over draws from one data set, so that four standard errors are
passed by chance in 1 of 16,000 comparisons; seeds are fixed. Deltas are kept around 1e-3 to 1, where 400,000 draws see
a few per cent: a wrong scale of 20 % in any variance is far outside.
"""

import numpy as np
import pytest
from scipy import special

from dpagg.accounting import HessianMixing, NoisyLabelAggregation, WeightedAggregation
from dpagg.accounting.divergence import divergence
from dpagg.accounting.label_change import variance_excess

pytestmark = pytest.mark.slow
DRAWS = 400_000


def log_density(values, gram):
    """Sum over bags of ln N(value; 0, gram) without constants; values (draws, bags, columns)."""
    inverse = np.linalg.inv(gram)
    quadratic = np.einsum("nbi,ij,nbj->n", values, inverse, values)
    return -0.5 * quadratic - 0.5 * values.shape[1] * np.linalg.slogdet(gram)[1]


def simulated(rng, gram_p, gram_q, bags, epsilons):
    """Means and standard errors of (1 - exp(eps - L))+ with draws from P."""
    values = rng.standard_normal((DRAWS, bags, len(gram_p))) @ np.linalg.cholesky(gram_p).T
    loss = log_density(values, gram_p) - log_density(values, gram_q)
    spent = np.maximum(0.0, -np.expm1(np.asarray(epsilons)[:, None] - loss))
    return spent.mean(1), spent.std(1) / np.sqrt(DRAWS)


@pytest.mark.parametrize("bags", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(3))
def test_wtd_flag_on_real_neighbours(seed, bags):
    rng = np.random.default_rng(1000 * seed + bags)
    features = rng.standard_normal((8, 2))
    labels = rng.uniform(-1, 1, 8)
    row, change = int(rng.integers(8)), float(rng.choice([-1.5, 1.5]))
    other = labels.copy()
    other[row] += change
    grams, residuals = [], []
    for y in (labels, other):
        table = np.column_stack([features, y])
        grams.append(table.T @ table)
        residuals.append(float(np.linalg.lstsq(features, y, rcond=None)[1][0]))
    if residuals[0] > residuals[1]:
        grams, residuals = grams[::-1], residuals[::-1]
    leverage = float(features[row] @ np.linalg.solve(features.T @ features, features[row]))
    up, down = variance_excess(np.array(residuals[1] / residuals[0] - 1), np.array(change**2 * leverage / residuals[0]))
    epsilons = [0.0, 0.5, 1.5]
    for (p, q), (first, second) in zip([grams, grams[::-1]], [(up, down), (down, up)], strict=True):
        exact = divergence(epsilons, rows=bags, excess=first, inverse_excess=second)
        mean, error = simulated(rng, p, q, bags, epsilons)
        assert np.all(np.abs(mean - exact) <= 4 * error + 1e-12), (mean, exact, error)
        # Power: 20 % more noise than there is would be seen.
        wrong = divergence(epsilons, rows=1.2 * bags, excess=first, inverse_excess=second)
        assert np.any(np.abs(mean - wrong) > 4 * error)
    # The event that knows only the bounds covers the pair.
    event = WeightedAggregation(
        num_bags=bags,
        label_range=1.5,
        leverage=leverage,
        residual_floor=residuals[0],
        residual_bound=float(np.max(np.abs(labels))) + 1.5,
    )
    for i, epsilon in enumerate(epsilons):
        assert event.delta(epsilon) >= mean[i] - 4 * error[i]


@pytest.mark.parametrize(("rows", "gamma", "mu"), [(12, 4.0, 0.3), (40, 20.0, 0.7)])
def test_sketch_beside_a_gaussian(rows, gamma, mu):
    rng = np.random.default_rng(rows)
    event = HessianMixing(sketch_size=rows, num_sketches=1, eigenvalue_floor=gamma, gaussian_mu=mu)
    ratio = 1 - 1 / gamma
    epsilons = np.array([0.0, 0.4, 1.0])
    exact = np.exp(event._log_deltas(epsilons))
    for direction, (here, there) in enumerate([(1.0, ratio), (ratio, 1.0)]):
        energy = here * rng.chisquare(rows, DRAWS)
        sketch = -0.5 * energy * (1 / here - 1 / there) - rows / 2 * np.log(here / there)
        loss = sketch + mu * mu / 2 + mu * rng.standard_normal(DRAWS)
        spent = np.maximum(0.0, -np.expm1(epsilons[:, None] - loss))
        mean, error = spent.mean(1), spent.std(1) / np.sqrt(DRAWS)
        assert np.all(np.abs(mean - exact[direction]) <= 4 * error)


def test_noisy_labels_from_their_weights():
    rng = np.random.default_rng(11)
    event = NoisyLabelAggregation(bag_size=12, noised_fraction=0.5, noise_std=1.0, label_range=1.5)
    weights = rng.standard_normal((DRAWS, 12))
    std = np.sqrt((weights[:, :6] ** 2).sum(1))
    for row in (0, 11):  # a noised row, a row without noise
        mu = np.abs(weights[:, row]) * 1.5 / std
        loss = mu * mu / 2 + mu * rng.standard_normal(DRAWS)
        for epsilon in (0.2, 1.0):
            spent = np.maximum(0.0, -np.expm1(epsilon - loss))
            mean, error = spent.mean(), spent.std() / np.sqrt(DRAWS)
            assert mean <= event.delta(epsilon) + 4 * error
            if row == 11:  # the worse kind
                assert abs(mean - event.delta(epsilon)) <= 4 * error


@pytest.mark.parametrize(("size", "noised", "cap"), [(16, 8, 0.546), (10, 5, 0.75), (40, 30, 0.4), (6, 6, 0.6)])
def test_noisy_labels_from_weights_that_met_a_cap(size, noised, cap):
    """20,000,000 draws of bags; the Gaussian delta given the weights from its formula."""
    rng = np.random.default_rng(17)
    std, epsilons = 1.2, np.array([0.3, 1.0])
    sums, squares, count = np.zeros((2, 2)), np.zeros((2, 2)), 0
    for _ in range(200):
        weights = rng.standard_normal((100_000, size))
        found = np.abs(weights) / np.sqrt((weights[:, :noised] ** 2).sum(1))[:, None]
        found = found[found.max(1) <= cap]
        count += len(found)
        for kind, row in enumerate((0, size - 1)):
            mu = found[:, row] / std
            for i, epsilon in enumerate(epsilons):
                below = special.ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * special.ndtr(-mu / 2 - epsilon / mu)
                sums[kind, i] += below.sum()
                squares[kind, i] += (below**2).sum()
    mean = sums / count
    error = np.sqrt((squares / count - mean**2) / count)
    event = NoisyLabelAggregation(
        bag_size=size, noised_fraction=noised / size, noise_std=std, label_range=1.0, weight_cap=cap
    )
    worst = mean.argmax(0)
    for i, epsilon in enumerate(epsilons):
        assert abs(event.delta(epsilon) - mean[worst[i], i]) <= 4 * error[worst[i], i] + 1e-3 * mean[worst[i], i]
        assert error[worst[i], i] < 0.01 * mean[worst[i], i]
