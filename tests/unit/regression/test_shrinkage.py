"""Shrinking against a brute-force posterior mean, and its limits."""

from __future__ import annotations

import numpy as np

from dpagg.regression.shrinkage import shrink_factors


def test_equals_the_posterior_mean_by_brute_force() -> None:
    observed, variance, strength, bound = np.array([3.0, -0.5]), np.array([1.0, 4.0]), np.array([2.0, 1.0]), 20.0
    mean, total = np.zeros(2), 0.0
    for spread in (0.0, 0.5, 1.0):
        share = strength**spread / sum(strength**spread)
        for k, energy in enumerate([0.0, *np.geomspace(1e-3, 1.0, 20) * bound]):
            likelihood, posterior = (4.0 if k == 0 else 1.0), []
            for i in range(2):
                prior = energy * share[i]
                likelihood *= np.exp(-0.5 * observed[i] ** 2 / (prior + variance[i])) / np.sqrt(prior + variance[i])
                posterior.append(prior / (prior + variance[i]) * observed[i])
            mean, total = mean + likelihood * np.array(posterior), total + likelihood
    np.testing.assert_allclose(shrink_factors(observed, variance, strength, bound) * observed, mean / total, rtol=1e-10)


def test_keeps_what_has_no_noise_and_drops_what_is_noise() -> None:
    strength = np.ones(10)
    signal = np.full(10, 3.0)
    assert shrink_factors(signal, 1e-9, strength, 90.0).min() > 0.999
    noise = np.random.default_rng(0).standard_normal((200, 10))
    kept = [np.mean((shrink_factors(row, 1.0, strength, 100.0) * row) ** 2) for row in noise]
    assert np.mean(kept) < 0.05
    # A bound on the energy far below the noise: whatever is seen cannot be signal.
    assert shrink_factors(100 * noise[0], 1e4, strength, 1.0).max() < 1e-3


def test_a_direction_without_rows_changes_nothing() -> None:
    assert shrink_factors(np.zeros(0), 1.0, np.ones(0), 1.0).shape == (0,)
