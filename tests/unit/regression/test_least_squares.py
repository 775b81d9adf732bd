"""Fits from a factor against dense numpy, scipy's optimiser and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import optimize

from dpagg.regression.least_squares import FitStatus, LinearFit, fit_bounded_least_squares, fit_least_squares

Array = NDArray[np.float64]


def factor_of(features: Array, label: Array) -> Array:
    stacked = np.column_stack([features, label])
    width = stacked.shape[1]
    return np.linalg.qr(np.vstack([stacked, np.zeros((width, width))]), mode="r")


def problem(seed: int, m: int = 60, d: int = 5) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(m, d)) @ rng.normal(size=(d, d))
    return features, features @ rng.normal(size=d) + rng.normal(size=m)


def release(rng: np.random.Generator, x: Array, y: Array, m: int, tau: float) -> tuple[Array, Array]:
    """A WTD-FLAG release with explicit weights."""
    weights = rng.normal(size=(m, len(x)))
    return weights @ x, weights @ y + tau * rng.normal(size=m)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_matches_dense_least_squares(seed: int) -> None:
    features, label = problem(seed)
    fit = fit_least_squares(factor_of(features, label), 60)
    expected, rss, _, _ = np.linalg.lstsq(features, label)
    assert fit.status is FitStatus.OK
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-10)
    assert fit.residual_variance == pytest.approx(rss[0] / 55, rel=1e-10)
    np.testing.assert_allclose(
        fit.covariance, rss[0] / 55 * np.linalg.inv(features.T @ features), rtol=1e-8, atol=1e-14
    )


def test_signs_of_the_factor_do_not_matter() -> None:
    features, label = problem(4)
    factor = factor_of(features, label)
    flipped = factor * np.array([1, -1, 1, -1, -1, -1.0])[:, None]
    np.testing.assert_allclose(
        fit_least_squares(flipped, 60).coefficients, fit_least_squares(factor, 60).coefficients, rtol=1e-12
    )


def test_a_tiny_column_is_not_taken_for_an_absent_one() -> None:
    features, label = problem(5)
    scaled = features * np.array([1, 1e-9, 1, 1, 1])
    fit = fit_least_squares(factor_of(scaled, label), 60)
    assert fit.status is FitStatus.OK
    expected = np.linalg.lstsq(features, label)[0] / np.array([1, 1e-9, 1, 1, 1])
    np.testing.assert_allclose(fit.coefficients, expected, rtol=1e-6)


def test_dependent_and_empty_columns_are_named_and_get_the_least_norm() -> None:
    rng = np.random.default_rng(6)
    base = rng.normal(size=(80, 3))
    # Columns 1 and 3 add up to column 0; column 4 is empty; column 2 stands alone.
    features = np.column_stack([base[:, 0] + base[:, 1], base[:, 0], base[:, 2], base[:, 1], np.zeros(80)])
    label = features @ np.array([1.0, 2.0, 3.0, 4.0, 0.0]) + rng.normal(size=80)
    fit = fit_least_squares(factor_of(features, label), 80, column_names=["sum", "a", "alone", "b", "empty"])
    assert fit.status is FitStatus.RANK_DEFICIENT
    assert fit.undetermined == ((0, 1, 3), (4,))
    assert fit.rank == 3 and fit.degrees_of_freedom == 77
    assert "sum, a, b are linearly dependent" in fit.message and "empty is zero in every bag" in fit.message
    np.testing.assert_allclose(fit.coefficients, np.linalg.pinv(features) @ label, atol=1e-10)
    errors = fit.standard_errors
    assert np.isnan(errors[[0, 1, 3, 4]]).all()
    single = fit_least_squares(factor_of(features[:, [1, 2, 3]], label), 80)
    assert errors[2] == pytest.approx(single.standard_errors[1], rel=1e-9)


@pytest.mark.parametrize("m", [0, 1, 4, 5])
def test_too_few_bags(m: int) -> None:
    features, label = problem(7)
    fit = fit_least_squares(factor_of(features[:m], label[:m]), m)
    assert fit.status is FitStatus.TOO_FEW_BAGS
    assert "Release more bags" in fit.message
    assert np.isnan(fit.residual_variance) and np.isnan(fit.covariance).all()
    assert np.isfinite(fit.coefficients).all()


@pytest.mark.parametrize(
    ("factor", "m"),
    [(np.eye(3)[:2], 5), (np.full((3, 3), np.nan), 5), (np.ones((3, 3)), 5), (np.eye(3), -1), (np.eye(1), 5)],
)
def test_bad_factors_are_refused(factor: Array, m: int) -> None:
    with pytest.raises(ValueError):
        fit_least_squares(factor, m)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("rank_deficient", [False, True])
def test_bounded_fit_meets_the_optimality_conditions(share: float, rank_deficient: bool) -> None:
    features, label = problem(8)
    if rank_deficient:
        features[:, 3] = features[:, 1] - 2 * features[:, 2]
    factor = factor_of(features, label)
    bound = share * float(np.linalg.norm(fit_least_squares(factor, 60).coefficients))
    fit = fit_bounded_least_squares(factor, 60, bound)
    assert fit.status is FitStatus.BOUND_ACTIVE and fit.norm_bound == bound
    theta = fit.coefficients
    assert np.linalg.norm(theta) == pytest.approx(bound, rel=1e-12)
    # Convex problem: the gradient is lam * theta with lam >= 0, and that is sufficient.
    score = features.T @ (label - features @ theta)
    ridge = float(score @ theta) / bound**2
    assert ridge > 0
    np.testing.assert_allclose(score, ridge * theta, atol=1e-8 * np.linalg.norm(features.T @ label))


def test_bounded_fit_is_not_beaten_by_a_general_optimiser() -> None:
    features, label = problem(9)
    factor = factor_of(features, label)
    bound = 0.4 * float(np.linalg.norm(fit_least_squares(factor, 60).coefficients))
    fit = fit_bounded_least_squares(factor, 60, bound)

    def loss(theta: Array) -> float:
        return float(((label - features @ theta) ** 2).sum())

    rival = optimize.minimize(
        loss,
        np.zeros(5),
        constraints={"type": "ineq", "fun": lambda theta: bound**2 - theta @ theta},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 1000},
    )
    assert rival.success
    np.testing.assert_allclose(fit.coefficients, rival.x, atol=1e-5)
    assert loss(fit.coefficients) <= loss(rival.x) * (1 + 1e-9)


def test_a_loose_bound_changes_nothing() -> None:
    features, label = problem(10)
    factor = factor_of(features, label)
    fit, free = fit_bounded_least_squares(factor, 60, 1e6), fit_least_squares(factor, 60)
    assert fit.status is FitStatus.OK and fit.norm_bound == 1e6
    np.testing.assert_array_equal(fit.coefficients, free.coefficients)


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan")])
def test_bad_bounds_are_refused(bound: float) -> None:
    with pytest.raises(ValueError, match="norm_bound"):
        fit_bounded_least_squares(np.eye(3), 10, bound)


def skewed_table(rng: np.random.Generator, n: int) -> tuple[Array, Array]:
    """Rows with residuals that are skewed and of unequal variance, which the errors must not mind."""
    x = np.column_stack([np.ones(n), rng.normal(size=n), rng.random(n) < 0.1]).astype(np.float64)
    return x, x @ np.array([0.3, 1.0, -2.0]) + (1 + 3 * np.abs(x[:, 1])) * (rng.exponential(size=n) - 1)


def z_scores(
    x: Array, y: Array, *, bound: float | None, repetitions: int, m: int, noise: float
) -> tuple[Array, list[LinearFit]]:
    """Errors of fits on fresh releases, about the fit on the original rows, in standard errors."""

    def fitted(factor: Array, rows: int) -> LinearFit:
        if bound is None:
            return fit_least_squares(factor, rows)
        return fit_bounded_least_squares(factor, rows, bound)

    rng = np.random.default_rng(11)
    tau = noise * float(np.linalg.norm(y - x @ np.linalg.lstsq(x, y)[0]))
    target = fitted(factor_of(x, y), len(y)).coefficients
    fits = [fitted(factor_of(*release(rng, x, y, m, tau)), m) for _ in range(repetitions)]
    return np.array([(fit.coefficients - target) / fit.standard_errors for fit in fits]), fits


def test_standard_errors_cover_the_solution_on_the_original_rows() -> None:
    x, y = skewed_table(np.random.default_rng(10), 80)
    scores, fits = z_scores(x, y, bound=None, repetitions=1000, m=40, noise=1.5)
    # Exactly Student t with 37 degrees of freedom: 95 % within 2.026; 1000 draws have a deviation of 0.7 %.
    assert fits[0].degrees_of_freedom == 37
    coverage = (np.abs(scores) < 2.026).mean(axis=0)
    assert (np.abs(coverage - 0.95) < 0.025).all(), coverage
    # Power: errors that are 20 % too small or too large would be seen.
    for wrong in (0.8, 1.25):
        off = (np.abs(scores) < 2.026 * wrong).mean(axis=0)
        assert (np.abs(off - 0.95) > 0.025).all(), off


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_standard_errors_of_a_bound_fit(bound: float) -> None:
    rng = np.random.default_rng(14)
    x = np.column_stack([np.ones(80), rng.normal(size=(80, 2)) @ np.array([[1.0, 0.5], [0.0, 0.7]])])
    y = x @ np.array([1.0, 2.0, -1.5]) + rng.normal(size=80)
    scores, fits = z_scores(x, y, bound=bound, repetitions=600, m=400, noise=0.4)
    assert all(fit.status is FitStatus.BOUND_ACTIVE for fit in fits)
    # First order only; 600 draws have a deviation of 0.9 %.
    coverage = (np.abs(scores) < 1.96).mean(axis=0)
    assert (np.abs(coverage - 0.95) < 0.03).all(), coverage
    # Power: errors that are 20 % too small or too large would be seen.
    for wrong in (0.8, 1.25):
        off = (np.abs(scores) < 1.96 * wrong).mean(axis=0)
        assert (np.abs(off - 0.95) > 0.02).all(), off


def test_row_residual_variance_removes_the_label_noise() -> None:
    rng = np.random.default_rng(12)
    x, y = skewed_table(rng, 300)
    residual = float(((y - x @ np.linalg.lstsq(x, y)[0]) ** 2).sum())
    f, label = release(rng, x, y, 20_000, np.sqrt(2 * residual))
    fit = fit_least_squares(factor_of(f, label), 20_000)
    # s^2 has a relative standard deviation of sqrt(2 / 20000) = 1 %, three times that after removing two
    # thirds of it.
    assert fit.row_residual_variance(300, 2 * residual) == pytest.approx(residual / 297, rel=0.12)
    assert fit.row_residual_variance(300, 1e9 * residual) == 0.0
    assert np.isnan(fit.row_residual_variance(3, 0.0))


def test_population_errors_cover_the_population() -> None:
    rng = np.random.default_rng(13)
    truth = np.array([0.5, 1.0, -2.0])
    scores, narrow = [], []
    for _ in range(400):
        x = np.column_stack([np.ones(200), rng.normal(size=(200, 2))])
        y = x @ truth + rng.normal(size=200)
        f, label = release(rng, x, y, 300, 10.0)
        fit = fit_least_squares(factor_of(f, label), 300)
        scores.append((fit.coefficients - truth) / np.sqrt(np.diag(fit.population_covariance(200, 100.0))))
        narrow.append((fit.coefficients - truth) / fit.standard_errors)
    coverage = (np.abs(np.array(scores)) < 1.96).mean(axis=0)
    assert (np.abs(coverage - 0.95) < 0.04).all(), coverage
    assert ((np.abs(np.array(narrow)) < 1.96).mean(axis=0) < 0.92).all()
