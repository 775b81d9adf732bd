import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpagg.accounting import WeightedAggregation
from dpagg.accounting.calibration import calibrate_label_noise, calibrate_num_bags, calibrate_residual_floor
from dpagg.accounting.divergence import divergence
from dpagg.accounting.label_change import LabelChange, variance_excess
from dpagg.accounting.weighted_aggregation import residual_bound_cauchy_schwarz, worst_label_shift
from tests.unit.accounting import reference


def event(**changes):
    settings = {
        "num_bags": 50,
        "label_range": 2.0,
        "leverage": 0.05,
        "residual_floor": 400.0,
        "residual_bound": 3.0,
    }
    return WeightedAggregation(**{**settings, **changes})


def exact_pair(ratios, epsilon, rows):
    """Both directions for two measured ratios (one at least 1, one at most 1)."""
    nu = np.array([max(ratios[0], 1.0), min(ratios[1], 1.0)])
    up, down = nu - 1, 1 / nu - 1
    return [float(divergence(epsilon, rows=rows, excess=a, inverse_excess=b)) for a, b in ((up, down), (down, up))]


@pytest.mark.parametrize("seed", range(20))
def test_the_ratios_are_those_of_the_gram_matrices(seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(6, 30)), int(rng.integers(1, 5))
    features = rng.standard_normal((n, d))
    labels = rng.uniform(-1, 1, n)
    row, change = int(rng.integers(n)), float(rng.uniform(-2, 2))
    ratios, (before, after) = reference.label_pair(features, labels, row, change)
    leverage = float(features[row] @ np.linalg.solve(features.T @ features, features[row]))
    if after < before:  # the curve starts from the smaller residual sum: exchange the data sets
        before, after, ratios = after, before, 1 / ratios[::-1]
    up, _ = variance_excess(np.array(after / before - 1), np.array(change**2 * leverage / before))
    assert 1 + up == pytest.approx(ratios, rel=1e-8)


@pytest.mark.parametrize(("s", "q"), [(1e-9, 1e-12), (1e-3, 1e-6), (0.0, 1e-8), (5.0, 0.1), (1e6, 1e6), (1e-4, 40.0)])
def test_ratio_excesses_at_thirty_digits(s, q):
    import mpmath as mp

    with mp.workdps(60):
        total = mp.mpf(s) + mp.mpf(q)
        root = mp.sqrt(total**2 + 4 * mp.mpf(q))
        x = [(total + root) / 2, (total - root) / 2]
        expected = [[float(v) for v in x], [float(1 / (1 + v) - 1) for v in x]]
    actual = variance_excess(np.array(s), np.array(q))
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-14)


@pytest.mark.parametrize("kind", ["plain", "intercept", "outlier", "collinear", "one bag"])
@pytest.mark.parametrize("seed", range(6))
def test_dominates_random_neighbours(seed, kind):
    """A real table, a real change of one label: the certified delta is never less, whichever row and direction."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 40))
    features = rng.standard_normal((n, 2))
    half_range, lower, upper = 1.0, -1.0, 1.0
    if kind == "intercept":
        features[:, 0] = 1.0
        lower, upper = 4.0, 6.0  # far from 0: only the half range counts
    if kind == "outlier":
        features[0] *= 1e4  # leverage next to 1
    kept = features
    if kind == "collinear":
        features = np.column_stack([features, features @ [1.0, -2.0]])  # the same span, so the same leverages
    leverage = np.einsum("ij,ij->i", np.linalg.qr(kept)[0], np.linalg.qr(kept)[0])
    bound = residual_bound_cauchy_schwarz(leverage, n, half_range)
    bags = 1 if kind == "one bag" else int(rng.integers(1, 30))
    for _ in range(5):
        labels = rng.uniform(lower, upper, n)
        row = 0 if kind == "outlier" else int(rng.integers(n))
        change = float(rng.choice([lower, upper]) - labels[row])
        ratios, residuals = reference.label_pair(kept, labels, row, change)
        claimed = WeightedAggregation(
            num_bags=bags,
            label_range=upper - lower,
            leverage=leverage,
            residual_floor=min(residuals),
            residual_bound=bound,
        )
        assert np.all(np.abs(labels - features @ np.linalg.lstsq(features, labels, rcond=None)[0]) <= bound + 1e-9)
        for epsilon in (0.0, 0.3, 2.0):
            assert max(exact_pair(ratios, epsilon, bags)) <= claimed.delta(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_certified_value_is_the_maximum_over_the_curve(seed):
    rng = np.random.default_rng(seed)
    rows = float(np.floor(10 ** rng.uniform(0, 6)))
    shift = 10 ** rng.uniform(-2, 1.5) / rows ** rng.uniform(0.3, 1)
    spread = 10 ** rng.uniform(-2, 2) * (np.sqrt(shift) if rng.random() < 0.5 else shift)
    mu = 0.0 if rng.random() < 0.6 else float(10 ** rng.uniform(-2, 0.5))
    sigma2 = rows / 2 * ((spread + shift) ** 2 + 2 * shift) / (1 + spread) + mu**2
    epsilon = np.array([min(100.0, max(0.0, rng.uniform(-1, 6)) * np.sqrt(sigma2) + rng.uniform(0, 0.5) * sigma2)])
    change = LabelChange(rows=rows, spread=spread, shift=shift, mu=mu)
    certified, apart = change.log_delta(epsilon)[0], change.log_deltas(epsilon)[:, 0]
    s = np.concatenate([np.linspace(0, spread, 300), np.geomspace(1e-6, 1, 100) * spread])
    up, down = variance_excess(s, np.full_like(s, shift))
    dense = np.array(
        [
            np.max(divergence(epsilon[0], rows=rows, excess=a, inverse_excess=b, mu=mu))
            for a, b in ((up, down), (down, up))
        ]
    )
    assert np.all(np.exp(apart) >= dense * (1 - 1e-9))
    assert np.exp(certified) >= dense.max() * (1 - 1e-9)
    if certified > -600:
        # A grid of 400 misses an interior maximum by its square; the certificate may add 1e-9.
        assert np.exp(certified) <= dense.max() * (1 + 2e-3)


def test_interior_maximum_is_found():
    # Here neither end of the curve is the worst.
    change = LabelChange(rows=10, spread=1.0, shift=10.0)
    epsilon = np.array([1.0])
    start = LabelChange(rows=10, spread=0.0, shift=10.0).log_delta_at_corner(epsilon)[0]
    assert change.log_delta(epsilon)[0] > change.log_delta_at_corner(epsilon)[0] + 1e-3
    assert change.log_delta(epsilon)[0] >= start


def test_delta_equals_mpmath_at_the_worst_corner():
    made = event(num_bags=60, label_range=1.0, leverage=0.02, residual_floor=80.0, residual_bound=1.5)
    s = float(worst_label_shift(0.02, 1.5, 1.0)) / 80.0
    q = 0.02 / 80.0
    up, down = variance_excess(np.array(s), np.array(q))
    for epsilon in (0.1, 0.5, 1.0, 1.8):
        pair = [reference.two_ratios(epsilon, 60, up[0], down[1]), reference.two_ratios(epsilon, 60, down[1], up[0])]
        assert made.delta(epsilon) == pytest.approx(float(max(pair)), rel=1e-8)
    assert made.delta(1.8) < 1e-12


@pytest.mark.parametrize(
    ("n", "d", "epsilon", "cauchy_schwarz", "bounded"),
    [
        (10**4, 10, 1.0, 15, 684),
        (10**5, 20, 1.0, 1122, 36608),
        (10**6, 20, 1.0, 99373, 2.947e6),
        (10**6, 20, 0.1, 1048, 34735),
    ],
)
def test_reference_points_of_the_design(n, d, epsilon, cauchy_schwarz, bounded):
    # The design's prototype certified in coarser steps, so that the exact answer is a little more.
    h = 5 * d / n
    for bound, expected in ((residual_bound_cauchy_schwarz(h, n, 1.0), cauchy_schwarz), (2.0, bounded)):
        bags = calibrate_num_bags(
            epsilon=epsilon,
            delta=n**-1.5,
            label_range=2.0,
            leverage=h,
            residual_floor=0.05 * n,
            residual_bound=bound,
        )
        assert expected <= bags <= expected * 1.002
        made = event(num_bags=bags, leverage=h, residual_floor=0.05 * n, residual_bound=bound)
        assert made.delta(epsilon) <= n**-1.5
        assert dataclasses.replace(made, num_bags=bags + 1).delta(epsilon) > n**-1.5


@pytest.mark.parametrize(
    ("n", "d", "bags", "most"),
    [(10**4, 10, 4 * 10**6, 0.0073), (10**5, 20, 10**5, 0.0022), (10**6, 20, 10**6, 9.3e-5), (10**4, 10, 10**4, 0.031)],
)
def test_noise_floor_loses_no_more_than_the_design_says(n, d, bags, most):
    h, mean_square = 5 * d / n, 0.05
    noise = calibrate_label_noise(
        epsilon=1.0,
        delta=n**-1.5,
        num_bags=bags,
        label_range=2.0,
        leverage=h,
        residual_bound=residual_bound_cauchy_schwarz(h, n, 1.0),
    )
    excess = d / (bags - d - 1) * (1 + noise / (mean_square * n))
    assert 0.7 * most < excess <= most


def test_edges():
    assert event(residual_floor=0.0).delta(5.0) == 1.0
    assert event(residual_floor=0.0).epsilon(0.5) == np.inf
    assert event(label_range=0.0).delta(0.0) == 0.0
    assert event(label_range=0.0, failure_probability=0.1).delta(0.0) == 0.0
    assert event(failure_probability=1e-3).delta(40.0) == pytest.approx(1e-3)
    assert event(leverage=0.0, residual_bound=0.0).delta(0.0) == 0.0
    assert event(residual_floor=1e-300).delta(1.0) == pytest.approx(1.0)
    assert event(leverage=1.0, residual_bound=0.0).delta(1.0) > event(leverage=0.9, residual_bound=0.0).delta(1.0)
    assert 0 < event(num_bags=1).delta(0.1) < 1


def test_noise_and_floor_are_the_same_thing():
    assert event(label_noise_variance=100.0).delta(0.4) == event(residual_floor=500.0).delta(0.4)


def test_only_undominated_rows_are_kept():
    made = event(leverage=[0.1, 0.5, 0.2, 0.7, 0.7], residual_bound=[1.0, 4.0, 5.0, 4.5, 2.0])
    assert made.leverage == (0.7, 0.2)
    assert made.residual_bound == (4.5, 5.0)
    same = event(leverage=[0.7, 0.2], residual_bound=[4.5, 5.0])
    assert made == same
    assert hash(made) == hash(same)


def test_worst_label_shift_is_the_maximum_over_changes():
    rng = np.random.default_rng(0)
    h, e = rng.uniform(0, 1, 200), rng.uniform(0, 3, 200)
    h[:3] = 0.0, 1.0, 1 - 1e-12
    change = np.linspace(0, 1.7, 20001)[:, None]
    brute = (change * (2 * e - change * (1 - h))).max(0)
    assert worst_label_shift(h, e, 1.7) == pytest.approx(brute, rel=1e-7, abs=1e-8)


def test_residual_bound_is_reached():
    # The row of the hat matrix tells which labels make the residual largest.
    rng = np.random.default_rng(4)
    features = rng.choice([-1.0, 1.0], (16, 2))
    hat = features @ np.linalg.solve(features.T @ features, features.T)
    for i in range(16):
        weights = -hat[i]
        weights[i] += 1
        labels = np.sign(weights)
        bound = float(residual_bound_cauchy_schwarz(hat[i, i], 16, 1.0))
        assert abs(weights @ labels) <= bound + 1e-12
    # Equal entries off the diagonal: Cauchy-Schwarz is an equality.
    ones = np.ones((9, 1)) / 3
    weights = np.eye(9)[0] - (ones @ ones.T)[0]
    assert np.abs(weights).sum() == pytest.approx(float(residual_bound_cauchy_schwarz(1 / 9, 9, 1.0)))


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 10**6),
    st.floats(0.01, 10),
    st.floats(0, 0.99),
    st.floats(-2, 3).map(lambda v: 10**v),
    st.floats(0, 4),
    st.floats(1.0, 1.5),
)
def test_monotone(bags, label_range, leverage, floor_per_bag, epsilon, factor):
    base = event(
        num_bags=bags,
        label_range=label_range,
        leverage=leverage,
        residual_floor=floor_per_bag * np.sqrt(bags),
        residual_bound=label_range,
    )
    here, slack = base.delta(epsilon), 1 + 3e-9
    assert 0 <= here <= 1
    assert base.delta(epsilon * factor) <= here * slack
    changes = [
        {"num_bags": bags + 1},
        {"label_range": label_range * factor},
        {"leverage": min(1.0, leverage * factor)},
        {"residual_bound": label_range * factor},
        {"gaussian_mu": 0.1},
        {"failure_probability": 1e-3},
        {"residual_floor": base.residual_floor / factor},
    ]
    for change in changes:
        assert dataclasses.replace(base, **change).delta(epsilon) >= here / slack, change


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("bags", [1, 100, 10**7])
@pytest.mark.parametrize("delta", [1e-15, 1e-6])
def test_calibrated_noise_is_least_and_enough(epsilon, bags, delta):
    rows = {"leverage": [0.01, 0.6, 1.0], "residual_bound": [3.0, 5.0, 0.0]}
    noise = calibrate_label_noise(epsilon=epsilon, delta=delta, num_bags=bags, label_range=2.0, **rows)
    made = event(num_bags=bags, residual_floor=0.0, **rows)
    assert dataclasses.replace(made, label_noise_variance=noise).delta(epsilon) <= delta
    assert dataclasses.replace(made, label_noise_variance=noise * (1 - 1e-6)).delta(epsilon) > delta
    floor = calibrate_residual_floor(epsilon=epsilon, delta=delta, num_bags=bags, label_range=2.0, **rows)
    assert floor == pytest.approx(noise, rel=1e-9)


def test_calibration_where_nothing_or_everything_is_allowed():
    rows = {"label_range": 2.0, "leverage": 0.3, "residual_bound": 2.0}
    assert calibrate_num_bags(epsilon=0.1, delta=1e-9, residual_floor=1.0, **rows) == 0
    assert calibrate_num_bags(epsilon=5.0, delta=0.1, residual_floor=1e15, most=1000, **rows) == 1000
    assert calibrate_label_noise(epsilon=9.0, delta=0.9, num_bags=1, residual_floor=1e9, **rows) == 0.0
    with pytest.raises(ValueError, match="overspends"):
        calibrate_label_noise(epsilon=1.0, delta=1e-6, num_bags=1, gaussian_mu=3.0, **rows)
    with pytest.raises(ValueError, match="overspends"):
        calibrate_label_noise(epsilon=1.0, delta=1e-6, num_bags=1, failure_probability=1e-5, **rows)


@pytest.mark.parametrize(
    "bad",
    [
        {"num_bags": 0},
        {"num_bags": 1.5},
        {"label_range": -1.0},
        {"leverage": 1.1},
        {"residual_floor": np.nan},
        {"residual_bound": [-1.0]},
        {"failure_probability": 1.0},
        {"gaussian_mu": np.inf},
    ],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        event(**bad)
