"""Sketches drawn three ways have one distribution; symmetric noise has the stated law."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dpagg.kernels.sketches import sketch_rows, sketch_share, symmetric_noise, wishart_gram

DRAWS = 4000
ROWS = np.random.default_rng(0).standard_normal((30, 3)) @ np.array([[1.0, 0.5, 0.0], [0.0, 0.3, 0.2], [0.0, 0.0, 2.0]])
FACTOR = np.linalg.qr(ROWS, mode="r")


def from_weights(rng: np.random.Generator, size: int) -> np.ndarray:
    sketch = sketch_share(rng, ROWS[:13], size) + sketch_share(rng, ROWS[13:], size)
    return sketch.T @ sketch


def from_factor(rng: np.random.Generator, size: int) -> np.ndarray:
    # Sketch rows owned by two executors: shares of Z R, whose Gram matrices add.
    parts = (sketch_rows(rng, FACTOR, size - 2), sketch_rows(rng, FACTOR, 2))
    return sum(part.T @ part for part in parts)


def from_bartlett(rng: np.random.Generator, size: int) -> np.ndarray:
    return wishart_gram(rng, FACTOR, size)


def statistics(draw: Callable[[np.random.Generator, int], np.ndarray], seed: int, size: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(DRAWS):
        gram = draw(rng, size)
        values = np.linalg.eigvalsh(gram)
        found.append([gram[0, 1], gram[2, 2], values[0], values[-1]])
    return np.array(found)


@pytest.mark.parametrize("size", [4, 12])
@pytest.mark.parametrize("other", [from_factor, from_bartlett])
def test_equal_in_distribution(other: Callable[[np.random.Generator, int], np.ndarray], size: int) -> None:
    # Four Kolmogorov-Smirnov tests in each of four cases, fixed seeds; each has size 1e-4.
    ours, theirs = statistics(from_weights, 1, size), statistics(other, 2, size)
    for k in range(4):
        assert stats.ks_2samp(ours[:, k], theirs[:, k]).pvalue > 1e-4


def test_the_test_sees_a_sketch_that_is_two_percent_too_wide() -> None:
    ours = statistics(from_weights, 1, 12)
    wide = statistics(lambda rng, size: 1.02**2 * from_bartlett(rng, size), 3, 12)
    assert min(stats.ks_2samp(ours[:, k], wide[:, k]).pvalue for k in range(4)) < 1e-4


def test_gram_has_the_wishart_moments() -> None:
    rng = np.random.default_rng(5)
    grams = np.array([wishart_gram(rng, FACTOR, 7) for _ in range(20_000)])
    gram = ROWS.T @ ROWS
    np.testing.assert_allclose(grams.mean(axis=0), 7 * gram, atol=0.03 * 7 * gram.max())
    variance = 7 * (gram**2 + np.outer(np.diag(gram), np.diag(gram)))
    np.testing.assert_allclose(grams.var(axis=0), variance, rtol=0.06)


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 3"):
        wishart_gram(np.random.default_rng(0), FACTOR, 2)


def test_symmetric_noise_is_isotropic_in_the_frobenius_norm() -> None:
    rng = np.random.default_rng(6)
    noise = np.array([symmetric_noise(rng, 3, 2.0) for _ in range(20_000)])
    np.testing.assert_array_equal(noise, noise.transpose(0, 2, 1))
    # In the orthonormal basis every direction has variance 4: also that of an arbitrary unit matrix.
    direction = np.array([[1.0, 2.0, 0.0], [2.0, -1.0, 0.5], [0.0, 0.5, 3.0]])
    direction /= np.linalg.norm(direction)
    projected = np.einsum("kij,ij->k", noise, direction)
    assert stats.kstest(projected / 2.0, "norm").pvalue > 1e-3
    np.testing.assert_allclose(noise.std(axis=0), 2.0 * np.where(np.eye(3) > 0, 1, np.sqrt(0.5)), rtol=0.03)
