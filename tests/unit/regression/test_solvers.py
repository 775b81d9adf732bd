"""The paper's solvers: calibration, limits without noise, and degenerate inputs for every solver."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.streams import Secret
from dpagg.regression.adassp import plan_adassp
from dpagg.regression.data import ArrayData
from dpagg.regression.dp_gd import plan_gradient_descent
from dpagg.regression.hessian_mixing import HessianMixingPlan, plan_hessian_mixing
from dpagg.regression.label_gaussian import plan_label_gaussian
from dpagg.regression.linear_mixing import plan_linear_mixing
from dpagg.regression.ols import oracle
from dpagg.regression.planning import Target
from dpagg.regression.whitened_mixing import plan_whitened_mixing

SECRET = Secret.insecure(1)


def target(n: int, d: int, epsilon: float = 1.0, delta: float = 1e-6) -> Target:
    return Target(num_rows=n, num_columns=d, label_bound=1.0, epsilon=epsilon, delta=delta)


def problem(seed: int = 0, n: int = 300, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (n, d)) / np.sqrt(d)
    return x, np.clip(x @ np.linspace(-1, 1, d) + 0.05 * rng.standard_normal(n), -1, 1)


@pytest.mark.parametrize(
    ("n", "d", "epsilon", "gamma", "sigma"),
    [
        (500, 10, 0.1, 2067.34, 119.981),
        (500, 10, 1.0, 224.221, 13.9562),
        (500, 10, 10.0, 24.9694, 1.69749),
        (5000, 20, 0.1, 2836.61, 154.290),
        (5000, 20, 1.0, 300.229, 17.0842),
        (5000, 20, 10.0, 32.5163, 1.97283),
    ],
)
def test_authors_calibration(n: int, d: int, epsilon: float, gamma: float, sigma: float) -> None:
    plan = plan_hessian_mixing(target(n, d, epsilon, 1 / n**2), accounting="paper")
    assert plan.event.sketch_size == {10: 103, 20: 130}[d]
    assert plan.event.eigenvalue_floor == pytest.approx(gamma, rel=5e-6)
    assert plan.gradient_noise_std == pytest.approx(sigma, rel=5e-6)
    exact = plan_hessian_mixing(target(n, d, epsilon, 1 / n**2))
    assert 1.3 < plan.event.eigenvalue_floor / exact.event.eigenvalue_floor < 2.5
    assert 1.3 < plan.gradient_noise_std / exact.gradient_noise_std < 2.5


PLANNERS: dict[str, Callable[[Target], Any]] = {
    "ihm": plan_whitened_mixing,
    "ihm-sketch": lambda aim: plan_whitened_mixing(aim, sketch_size=20 * aim.num_columns + 40),
    "ihm-label": lambda aim: plan_whitened_mixing(aim, adjacency="change_one_label"),
    "ihm-paper": lambda aim: plan_hessian_mixing(aim, accounting="paper"),
    "ihm-authors": lambda aim: plan_hessian_mixing(aim, accounting="paper", ridge_term=False),
    "ihm-exact": plan_hessian_mixing,
    "linear-mixing": plan_linear_mixing,
    "linear-mixing-paper": lambda aim: plan_linear_mixing(aim, accounting="paper"),
    "adassp": plan_adassp,
    "adassp-paper": lambda aim: plan_adassp(aim, accounting="paper"),
    "dp-gd": plan_gradient_descent,
}


@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_meets_its_target(name: str, epsilon: float) -> None:
    plan = PLANNERS[name](target(500, 10, epsilon))
    spent = plan.event.delta(epsilon)
    assert spent <= 1e-6
    if "paper" not in name and "authors" not in name:
        assert spent > 0.99e-6


def degenerate() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(3)
    x, y = problem()
    twin = x.copy()
    twin[:, 3] = twin[:, 0]
    constant, outlier = x.copy(), 1e-3 * x
    constant[:, 2] = 0.4
    outlier[0] = [1.0, 0.0, 0.0, 0.0]
    return {
        "heavy clipping": (x, np.sign(y)),
        "collinear": (twin, y),
        "constant column": (constant, y),
        "zero column": (x * np.array([1.0, 0.0, 1.0, 1.0]), y),
        "d = 1": (x[:, :1], y),
        "n < d": (rng.uniform(-0.3, 0.3, (3, 7)), np.array([0.1, -1.0, 0.4])),
        "one row": (x[:1], y[:1]),
        "equal labels": (x, np.full(len(y), 0.7)),
        "zero labels": (x, np.zeros(len(y))),
        "outlier row": (outlier, y),
        "no features": (0 * x, y),
        "rows and labels over their bounds": (100 * x, 100 * y),
    }


@pytest.mark.parametrize("case", degenerate())
@pytest.mark.parametrize("name", PLANNERS)
@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_degenerate_data_give_finite_coefficients(name: str, case: str, epsilon: float) -> None:
    x, y = degenerate()[case]
    plan = PLANNERS[name](target(*x.shape, epsilon))
    found = plan.run(ArrayData(x, y, 1.0), SECRET, case)
    assert found.coefficients.shape == (x.shape[1],)
    assert np.isfinite(found.coefficients).all()


def quiet(plan: HessianMixingPlan, **changes: Any) -> HessianMixingPlan:
    return dataclasses.replace(plan, gradient_noise_std=1e-9, **changes)


def test_hessian_mixing_without_noise_finds_least_squares_or_with_its_term_ridge() -> None:
    x, y = problem(n=2000)
    data, aim = ArrayData(x, y, 1.0), target(2000, 4)
    plan = plan_hessian_mixing(aim, num_iterations=60, sketch_size=400)
    # Any released eigenvalue is above a floor of 1, so that nothing is added to the sketches.
    bare = dataclasses.replace(plan.event, eigenvalue_floor=1.0)
    plain = (
        quiet(plan, event=bare, eigenvalue_shift=0.0, eigenvalue_noise_std=1e-9, ridge_term=False)
        .run(data, SECRET, "a")
        .coefficients
    )
    np.testing.assert_allclose(plain, oracle(data), atol=1e-6)
    # With a released eigenvalue that is far too low, eta^2 = gamma.
    ridge = quiet(plan, eigenvalue_shift=1e9, ridge_term=True).run(data, SECRET, "a").coefficients
    added = plan.event.eigenvalue_floor
    np.testing.assert_allclose(ridge, np.linalg.solve(x.T @ x + added * np.eye(4), x.T @ y), atol=1e-6)


def test_linear_mixing_solves_its_sketch() -> None:
    x, y = problem(n=20_000)
    data = ArrayData(x, y, 1.0)
    plan = plan_linear_mixing(target(20_000, 4, 10.0), sketch_size=5000)
    found = plan.run(data, SECRET, "a").coefficients
    # Ridge by at most gamma, and the error of a sketch of 5000 rows.
    gram = x.T @ x + plan.event.eigenvalue_floor * np.eye(4)
    np.testing.assert_allclose(found, np.linalg.solve(gram, x.T @ y), atol=0.05)


def test_adassp_without_noise_is_least_squares() -> None:
    x, y = problem()
    data = ArrayData(x, y, 1.0)
    plan = plan_adassp(target(300, 4))
    event = dataclasses.replace(plan.event, eigenvalue_noise_std=1e-9, gram_noise_std=1e-9, xty_noise_std=1e-9)
    found = dataclasses.replace(plan, event=event).run(data, SECRET, "a").coefficients
    np.testing.assert_allclose(found, np.linalg.lstsq(x, y, rcond=None)[0], atol=1e-6)


def test_gradient_descent_without_noise_is_least_squares() -> None:
    x, y = problem()
    data = ArrayData(x, y, 1.0)
    plan = plan_gradient_descent(target(300, 4), num_iterations=2000, step_size=1 / 60)
    found = dataclasses.replace(plan, event=dataclasses.replace(plan.event, noise_std=1e-9)).run(data, SECRET, "a")
    np.testing.assert_allclose(found.coefficients, oracle(data), atol=1e-6)


def test_label_gaussian_is_unbiased_with_its_covariance() -> None:
    x, y = problem()
    data = ArrayData(x, y, 1.0)
    plan = plan_label_gaussian(target(300, 4), data)
    found = np.array([plan.run(data, SECRET, str(i)).coefficients for i in range(3000)])
    expected = plan.event.noise_std**2 * np.linalg.inv(x.T @ x)
    np.testing.assert_allclose(found.mean(axis=0), oracle(data), atol=5 * np.sqrt(expected.max() / 3000))
    np.testing.assert_allclose(np.cov(found.T), expected, atol=0.12 * expected.max())
    leverage = np.einsum("ij,ij->i", x @ np.linalg.inv(x.T @ x), x).max()
    assert plan.event.leverage == pytest.approx(leverage, rel=1e-6)


@pytest.mark.parametrize("planner", [plan_hessian_mixing, plan_linear_mixing])
def test_a_sketch_with_too_few_rows_is_refused(planner: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="d \\+ 2"):
        planner(target(300, 4), sketch_size=5)


def test_array_data_clips_rows_and_labels_and_refuses_what_has_no_shape() -> None:
    data = ArrayData(np.array([[3.0, 4.0], [0.1, 0.0]]), np.array([7.0, -0.5]), 2.0)
    assert data.energies().rows == pytest.approx(1.01)
    assert data.energies().labels == pytest.approx(4.25)
    for x, y, bound in ((np.zeros((2, 2)), np.zeros(3), 1.0), (np.zeros((0, 2)), np.zeros(0), 1.0),
                        (np.zeros((2, 2)), np.zeros(2), 0.0), (np.full((2, 2), np.nan), np.zeros(2), 1.0)):  # fmt: skip
        with pytest.raises(DataError):
            ArrayData(x, y, bound)
