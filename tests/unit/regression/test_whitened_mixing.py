"""The default solver: its guarantee by replay on neighbours, its accuracy, and inputs that are degenerate."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.streams import Secret
from dpagg.regression import whitened_mixing
from dpagg.regression.data import ArrayData
from dpagg.regression.estimate import EstimateStatus
from dpagg.regression.label_gaussian import plan_label_gaussian
from dpagg.regression.planning import Target
from dpagg.regression.whitened_mixing import WhitenedMixingPlan, plan_whitened_mixing

Array = np.ndarray


def problem(seed: int, n: int = 400, d: int = 5, noise: float = 0.1) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)) @ np.diag(np.geomspace(1.0, 0.05, d))
    x /= np.linalg.norm(x, axis=1).max()
    signal = x @ rng.standard_normal(d) / x.std()
    return x, np.clip(0.2 * signal + noise * rng.standard_normal(n), -1, 1)


def target(x: Array, epsilon: float = 1.0) -> Target:
    return Target(num_rows=len(x), num_columns=x.shape[1], label_bound=1.0, epsilon=epsilon, delta=1e-6)


class Replay:
    """Runs a plan on one data set and then on a neighbour with the first run's releases forced onto it.

    So both runs ask the same adaptive questions, and the shifts of the answers, in units of their noise, are the
    whole privacy loss.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.transcript: list[tuple[str, Array, float, Array]] = []
        self.shifts: list[tuple[str, float, float]] = []
        self.position: int | None = None
        original = whitened_mixing._Run._release

        def spy(run: Any, value: Array, sensitivity: float, share: float, purpose: str, index: int = 0) -> Any:
            if self.position is None:
                released, std = original(run, value, sensitivity, share, purpose, index)
                self.transcript.append((purpose, np.array(value), std, np.array(released)))
                return released, std
            name, before, std, released = self.transcript[self.position]
            self.position += 1
            assert name == purpose
            shift = float(np.linalg.norm(np.asarray(value) - before))
            self.shifts.append((purpose, shift / sensitivity, shift / std))
            return released, std

        monkeypatch.setattr(whitened_mixing._Run, "_release", spy)

    def loss(self, plan: WhitenedMixingPlan, data: ArrayData, neighbour: ArrayData, seed: int) -> float:
        """Root of the summed squares of shift / std."""
        self.transcript, self.shifts, self.position = [], [], None
        plan.run(data, Secret.insecure(seed), "r")
        self.position = 0
        plan.run(neighbour, Secret.insecure(seed), "r")
        assert self.position == len(self.transcript)
        return math.sqrt(sum(spent**2 for _, _, spent in self.shifts))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_a_row_costs_no_more_than_the_plan_says(monkeypatch: pytest.MonkeyPatch, seed: int, epsilon: float) -> None:
    x, y = problem(seed)
    rng = np.random.default_rng(100 + seed)
    direction = rng.standard_normal(x.shape[1])
    x[0], y[0] = direction / np.linalg.norm(direction), rng.choice([-1.0, 1.0])
    masked = x.copy(), y.copy()
    masked[0][0], masked[1][0] = 0.0, 0.0
    plan = plan_whitened_mixing(target(x, epsilon))
    replay = Replay(monkeypatch)
    loss = replay.loss(plan, ArrayData(x, y, 1.0), ArrayData(*masked, 1.0), seed)
    assert max(ratio for _, ratio, _ in replay.shifts) <= 1 + 1e-9
    assert loss <= plan.mu * (1 + 1e-9)
    # A row this far out is what the bounds are for: they are not much larger than needed.
    assert loss > 0.8 * plan.mu
    assert plan.event.delta(epsilon) <= plan.target.delta < plan.event.delta(0.99 * epsilon)


@pytest.mark.parametrize("seed", range(6))
def test_a_label_costs_no_more_than_the_plan_says(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    x, y = problem(seed)
    x[0] = x[0] / np.linalg.norm(x[0])
    y[0] = 1.0
    other = y.copy()
    other[0] = -1.0
    plan = plan_whitened_mixing(target(x), adjacency="change_one_label")
    replay = Replay(monkeypatch)
    loss = replay.loss(plan, ArrayData(x, y, 1.0), ArrayData(x, other, 1.0), seed)
    assert max(ratio for _, ratio, _ in replay.shifts) <= 1 + 1e-9
    assert 0.5 * plan.mu < loss <= plan.mu * (1 + 1e-9)


def test_every_release_has_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = problem(1)
    plan = plan_whitened_mixing(target(x))
    replay = Replay(monkeypatch)
    deviations: dict[str, list[float]] = {}
    for seed in range(300):
        replay.transcript, replay.position = [], None
        plan.run(ArrayData(x, y, 1.0), Secret.insecure(seed), "r")
        for name, value, std, released in replay.transcript:
            noise = (released - value) / std
            if noise.ndim == 2:
                noise = np.concatenate([np.diag(noise), np.sqrt(2) * noise[np.triu_indices(len(noise), 1)]])
            deviations.setdefault(name, []).extend(noise.tolist())
    assert set(deviations) == {"row-energy", "label-energy", "hessian", "gradient", "squares"}
    for noise in deviations.values():
        # Five times the standard error of a variance estimate.
        assert np.mean(np.square(noise)) == pytest.approx(1.0, abs=5 * math.sqrt(2 / len(noise)))


def excess(x: Array, y: Array, theta: Array) -> float:
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    return float(np.mean((x @ (theta - best)) ** 2) / np.mean((x @ best) ** 2))


def mean_excess(plan: WhitenedMixingPlan, x: Array, y: Array, runs: int = 10) -> float:
    data = ArrayData(x, y, 1.0)
    return float(np.mean([excess(x, y, plan.run(data, Secret.insecure(i), "r").coefficients) for i in range(runs)]))


def test_finds_least_squares_where_noise_is_small() -> None:
    x, y = problem(2, n=50_000)
    assert mean_excess(plan_whitened_mixing(target(x, 8.0)), x, y) < 2e-4
    assert mean_excess(plan_whitened_mixing(target(x, 8.0), sketch_size=140), x, y) < 2e-3


def test_is_no_worse_than_zero_where_noise_is_all() -> None:
    x, y = problem(3, n=60)
    plan = plan_whitened_mixing(target(x, 0.05))
    assert mean_excess(plan, x, y, 40) < 1.1
    statuses = {plan.run(ArrayData(x, y, 1.0), Secret.insecure(i), "r").status for i in range(20)}
    assert EstimateStatus.NOISE_DOMINATES in statuses


def test_one_long_row_and_bad_condition_cost_little() -> None:
    x, y = problem(4, n=20_000)
    x /= 30.0
    alone = mean_excess(plan_whitened_mixing(target(x)), x, y)
    x[0] *= 1 / np.linalg.norm(x[0])
    data, plan = ArrayData(x, y, 1.0), plan_whitened_mixing(target(x))
    found = [plan.run(data, Secret.insecure(i), "r").coefficients for i in range(10)]
    # Least squares would follow the one row; the default stays with the other 19,999.
    assert alone < 0.01
    assert np.mean([excess(x[1:], y[1:], theta) for theta in found]) < 0.01


def test_label_dp_comes_near_the_best_additive_noise() -> None:
    x = np.sign(problem(5, n=5000)[0]) / math.sqrt(5)
    y = np.clip(x @ np.array([0.5, -0.3, 0.2, 0.1, 0.4]) + 0.2 * np.random.default_rng(0).standard_normal(5000), -1, 1)
    aim, data = target(x), ArrayData(x, y, 1.0)
    yardstick = plan_label_gaussian(aim, data)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    theirs = np.mean(
        [np.sum((x @ (yardstick.run(data, Secret.insecure(i), "r").coefficients - best)) ** 2) for i in range(100)]
    )
    expected = x.shape[1] * yardstick.event.noise_std**2
    assert theirs == pytest.approx(expected, rel=0.35)
    plan = plan_whitened_mixing(aim, adjacency="change_one_label")
    ours = np.mean(
        [np.sum((x @ (plan.run(data, Secret.insecure(i), "r").coefficients - best)) ** 2) for i in range(30)]
    )
    assert ours < 1.2 * theirs


def test_standard_errors_cover() -> None:
    x, y = problem(6, n=20_000)
    plan, data = plan_whitened_mixing(target(x, 4.0)), ArrayData(x, y, 1.0)
    best = np.linalg.lstsq(x, y, rcond=None)[0]
    scores = []
    for i in range(60):
        found = plan.run(data, Secret.insecure(i), "r")
        assert (found.population_standard_errors > found.standard_errors).all()
        scores.append((found.coefficients - best) / found.standard_errors)
    assert 0.5 < np.sqrt(np.mean(np.square(scores))) < 2.0


def test_sketches_are_charged_by_the_exact_curve() -> None:
    x, _ = problem(7)
    plan = plan_whitened_mixing(target(x), sketch_size=50)
    assert plan.event.to_dict()["event"] == "HessianMixing"
    assert plan.event.to_dict()["num_sketches"] == 2
    assert 0.99e-6 < plan.event.delta(1.0) <= 1e-6


def test_norm_bound_holds_and_is_post_processing() -> None:
    x, y = problem(8, n=5000)
    plan, data = plan_whitened_mixing(target(x, 4.0)), ArrayData(x, y, 1.0)
    free = plan.run(data, Secret.insecure(1), "r")
    held = plan.run(data, Secret.insecure(1), "r", norm_bound=0.5 * float(np.linalg.norm(free.coefficients)))
    assert held.status is EstimateStatus.BOUND_ACTIVE
    assert np.linalg.norm(held.coefficients) == pytest.approx(0.5 * np.linalg.norm(free.coefficients))
    loose = plan.run(data, Secret.insecure(1), "r", norm_bound=1e9)
    np.testing.assert_array_equal(loose.coefficients, free.coefficients)


def test_one_secret_and_release_draw_one_model() -> None:
    x, y = problem(9)
    plan, data = plan_whitened_mixing(target(x)), ArrayData(x, y, 1.0)
    first = plan.run(data, Secret.insecure(1), "a").coefficients
    np.testing.assert_array_equal(first, plan.run(data, Secret.insecure(1), "a").coefficients)
    assert np.abs(first - plan.run(data, Secret.insecure(1), "b").coefficients).max() > 0
    assert np.abs(first - plan.run(data, Secret.insecure(2), "a").coefficients).max() > 0


def test_refuses_what_it_was_not_planned_for() -> None:
    x, y = problem(10)
    plan = plan_whitened_mixing(target(x))
    with pytest.raises(DataError, match="400 rows, 5 columns"):
        plan.run(ArrayData(x[:-1], y[:-1], 1.0), Secret.insecure(0), "r")
    with pytest.raises(ConfigError, match="d \\+ 2"):
        plan_whitened_mixing(target(x), sketch_size=6)
    with pytest.raises(ConfigError, match="epsilon"):
        target(x, 0.0)
