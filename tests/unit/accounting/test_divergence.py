import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from dpagg.accounting.divergence import divergence, log_divergence, loss_steepness
from tests.unit.accounting import reference


def both_ratios(epsilon, rows, up, down, mu=0.0):
    """Divergence for nu1 = 1 + up >= 1 and nu2 = 1/(1 + down) <= 1."""
    up, down = np.asarray(up, float), np.asarray(down, float)
    return divergence(
        epsilon,
        rows=np.asarray(rows)[..., None],
        excess=np.stack([up, -down / (1 + down)], -1),
        inverse_excess=np.stack([-up / (1 + up), down], -1),
        mu=mu,
    )


def one_ratio(epsilon, rows, down, mu=0.0):
    return float(divergence(epsilon, rows=rows, excess=[-down / (1 + down)], inverse_excess=[down], mu=mu))


def random_points(seed, count, most_rows=1000):
    """Points over all scales whose delta is neither 0 nor 1."""
    rng = np.random.default_rng(seed)
    while count:
        rows = int(np.floor(10 ** rng.uniform(0, np.log10(most_rows))))
        scale = np.sqrt(2 / rows) * 10 ** rng.uniform(-6, 1)
        up, down = scale * 10 ** rng.uniform(-2, 0.3, 2)
        spread = np.sqrt(rows / 2 * (up**2 / (1 + up) ** 2 + down**2))
        epsilon = max(0.0, rng.uniform(-0.5, 7) * spread)
        if -36 < log_divergence(epsilon, rows=rows, excess=[up, -down / (1 + down)],
                                inverse_excess=[-up / (1 + up), down]) < -1e-3:  # fmt: skip
            count -= 1
            yield epsilon, rows, up, down


def check_two_ratios(epsilon, rows, up, down):
    actual = float(both_ratios(epsilon, rows, up, down))
    if actual < 1e-25:
        return  # the reference itself loses digits there
    expected = reference.two_ratios(epsilon, rows, up, down, digits=40)
    assert actual == pytest.approx(float(expected), rel=1e-9)
    # Never below: rounding goes up.
    assert actual >= expected * (1 - 1e-13)


@pytest.mark.parametrize(
    ("epsilon", "rows", "up", "down"),
    [
        (1.0, 1, 0.5, 0.25),
        (0.3, 1, 2.0, 3.0),
        (0.0, 1, 1e-3, 1e-3),
        (20.0, 5, 10.0, 10.0),
        (1e-9, 3, 1e-9, 1e-10),
        (0.1, 1000, 0.03, 0.01),
        (50.0, 40, 1.0, 1.5),
        *random_points(1, 6),
    ],
)
def test_equals_mpmath_with_two_ratios(epsilon, rows, up, down):
    check_two_ratios(epsilon, rows, up, down)
    check_two_ratios(epsilon, rows, down, up)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_equals_mpmath_on_many_random_points(seed):
    for epsilon, rows, up, down in random_points(100 + seed, 10):
        check_two_ratios(epsilon, rows, up, down)
        check_two_ratios(epsilon, rows, down, up)


@pytest.mark.parametrize(
    ("epsilon", "rows", "down", "mu"),
    [
        (1.0, 1, 0.5, 0.3),
        (1.0, 60, 1 / 19, 0.5),
        (1.0, 60, -1 / 20, 0.5),
        (2.0, 1000, 0.02, 0.1),
        (0.3, 3, 2.0, 1.5),
        (5.0, 100, 0.05, 0.5),
        (0.0, 2, -0.9, 0.2),
    ],
)
def test_equals_mpmath_with_one_ratio_beside_a_shift(epsilon, rows, down, mu):
    expected = reference.one_ratio_beside_gaussian(epsilon, rows, down, mu)
    assert one_ratio(epsilon, rows, down, mu) == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "rows", "down", "mu"),
    [(1.0, (5, 5), (0.3, -0.2), 0.5), (0.5, (1, 1), (0.4, -0.3), 1.0), (2.0, (30, 200), (0.1, 0.05), 0.7)],
)
def test_equals_a_tensor_rule_with_all_three_parts(epsilon, rows, down, mu):
    d = np.array(down)
    actual = divergence(epsilon, rows=rows, excess=-d / (1 + d), inverse_excess=d, mu=mu)
    assert float(actual) == pytest.approx(reference.tensor(epsilon, rows, down, mu), rel=1e-10)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.0, 0.3), (1.0, 0.1), (0.01, 1e-3), (50.0, 7.0), (3.0, 10.0), (1e-3, 1e-4)]
)
def test_a_pure_shift_is_the_gaussian_mechanism(epsilon, mu):
    assert one_ratio(epsilon, 1, 0.0, mu) == pytest.approx(float(reference.gaussian(epsilon, mu)), rel=1e-11)


@pytest.mark.parametrize("rows", [10**4, 10**6])
def test_equals_incomplete_gammas_at_many_rows(rows):
    down = 0.7 / np.sqrt(rows)
    for epsilon in (0.0, 0.4, 1.2):
        cut = (epsilon + rows / 2 * np.log1p(down)) / down
        there = special.gammaincc(rows / 2, cut) - np.exp(epsilon) * special.gammaincc(rows / 2, cut * (1 + down))
        assert one_ratio(epsilon, rows, down) == pytest.approx(there, rel=1e-8)


def test_tends_to_a_gaussian_at_ten_billion_rows():
    # L is normal in the limit, mu^2 = rows (x1^2 + x2^2) / 2; the skewness left is of order 1/sqrt(rows).
    rows, mu = 10**10, 0.8
    x = mu / np.sqrt(rows)
    for epsilon in (0.0, 0.5, 2.0):
        assert both_ratios(epsilon, rows, x, x) == pytest.approx(float(reference.gaussian(epsilon, mu)), rel=2e-4)


@pytest.mark.parametrize("excess", [1e-12, 1e-10, 1e-8])
def test_tiny_ratios_keep_their_digits(excess):
    # One row at epsilon 0: total variation of N(0, 1) and N(0, 1 + x) is x exp(-1/2) / sqrt(2 pi) to first
    # order.
    expected = excess * np.exp(-0.5) / np.sqrt(2 * np.pi)
    assert one_ratio(0.0, 1, excess) == pytest.approx(expected, rel=3 * excess + 1e-10)


def test_negative_epsilon_is_the_definition():
    # E_P[(1 - exp(eps - L))+] at eps < 0 by the same real-space integral.
    for epsilon in (-0.2, -1.5, -8.0):
        expected = reference.one_ratio_beside_gaussian(epsilon, 20, 0.3, 0.4)
        assert one_ratio(epsilon, 20, 0.3, 0.4) == pytest.approx(float(expected), rel=1e-9)
        assert one_ratio(epsilon, 20, 0.3, 0.4) >= -np.expm1(epsilon)


def test_a_bounded_loss_ends_where_it_must():
    # nu > 1: L is at most rows/2 ln nu.
    rows, up = 6, 0.5
    end = rows / 2 * np.log1p(up)
    at = lambda e: float(divergence(e, rows=rows, excess=[up], inverse_excess=[-up / (1 + up)]))  # noqa: E731
    assert at(end) == 0.0
    assert at(end + 1) == 0.0
    expected = reference.two_ratios(end - 1e-3, rows, up, 1e-30)
    assert at(end - 1e-3) == pytest.approx(float(expected), rel=1e-8)


@pytest.mark.parametrize(
    ("epsilon", "rows", "gamma", "mu", "delta"),
    [(1.0, 60, 20, 0.5, 0.01611), (0.5, 300, 100, 0.8, 0.16295), (0.8, 12, 4, 0.3, 0.10700)],
)
def test_reference_values_of_the_design(epsilon, rows, gamma, mu, delta):
    down = 1 / (gamma - 1)
    worse = max(one_ratio(epsilon, rows, down, mu), one_ratio(epsilon, rows, -1 / gamma, mu))
    assert worse == pytest.approx(delta, abs=5e-6)


@pytest.mark.parametrize("seed", range(2))
def test_no_input_is_too_extreme(seed):
    """Always a number in range, whatever the scales; and the Gaussian-free bound of total variation at most
    1."""
    rng = np.random.default_rng(seed)
    count = 2000
    rows = np.floor(10 ** rng.uniform(0, 10, count))
    up, down = 10 ** rng.uniform(-12, 12, (2, count))
    mu = np.where(rng.random(count) < 0.5, 0.0, 10 ** rng.uniform(-12, 3, count))
    epsilon = rng.choice([-1, 1], count) * 10 ** rng.uniform(-9, 2.5, count)
    value = both_ratios(epsilon, rows, up, down, mu)
    assert np.all(value >= np.maximum(0, -np.expm1(epsilon)) * (1 - 1e-15))
    assert np.all(value <= 1)
    larger = both_ratios(epsilon, rows, up * 1.5, down * 1.5, mu)
    assert np.all(larger >= value * (1 - 1e-9))


positive = st.floats(-4, 1).map(lambda v: 10.0**v)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10**6), positive, positive, st.floats(0, 3), st.floats(0, 5), st.floats(1.0, 2.0))
def test_monotone_in_everything(rows, up, down, mu, epsilon, factor):
    scale = 1 / np.sqrt(rows)
    base = both_ratios(epsilon, rows, up * scale, down * scale, mu)
    slack = 1 - 1e-9
    assert both_ratios(epsilon * factor, rows, up * scale, down * scale, mu) <= base / slack
    assert both_ratios(epsilon, rows + 1, up * scale, down * scale, mu) >= base * slack
    assert both_ratios(epsilon, rows, up * scale * factor, down * scale, mu) >= base * slack
    assert both_ratios(epsilon, rows, up * scale, down * scale * factor, mu) >= base * slack
    assert both_ratios(epsilon, rows, up * scale, down * scale, mu * factor) >= base * slack


def test_vectors_equal_scalars():
    epsilon = np.array([[-1.0, 0.0], [0.5, 2.0]])
    rows = np.array([[1, 2], [30, 400]])
    together = both_ratios(epsilon, rows, np.full((2, 2), 0.2), np.full((2, 2), 0.1), 0.3)
    assert together.shape == (2, 2)
    for index in np.ndindex(2, 2):
        assert together[index] == pytest.approx(
            float(both_ratios(epsilon[index], rows[index], 0.2, 0.1, 0.3)), rel=1e-12
        )


@pytest.mark.parametrize(
    "bad", [{"rows": 0}, {"excess": [-1.5]}, {"excess": [np.nan]}, {"mu": np.inf}, {"epsilon": np.nan}]
)
def test_nonsense_is_refused(bad):
    arguments = {"epsilon": 1.0, "rows": 3, "excess": [0.1], "inverse_excess": [-0.1 / 1.1], "mu": 0.0, **bad}
    with pytest.raises(ValueError, match=next(iter(bad))):
        log_divergence(arguments.pop("epsilon"), **arguments)


@pytest.mark.parametrize(
    ("rows", "down", "at"), [(5, 0.3, 2.0), (50, 0.02, 0.6), (50, 0.02, 0.4), (3, -0.5, -1.0), (1000, 0.01, 5.0)]
)
def test_steepness_of_a_gamma_density(rows, down, at):
    # X = down A / 2: -f'/f = 1/down - (rows/2 - 1)/x.
    slope, error = loss_steepness(at, rows=rows, inverse_excess=[down])
    assert float(slope) == pytest.approx(1 / down - (rows / 2 - 1) / at, rel=1e-9, abs=1e-9)
    assert float(error) < 1e-6 * (1 + abs(float(slope)))


def test_steepness_of_a_sum_by_convolution():
    # Numerical convolution of two gammas, derivative by differences.
    rows, down, step = 7, (0.3, -0.2), 1e-4
    x = np.arange(-15, 15, step)
    parts = []
    for z in down:
        scaled = 2 * x / z
        density = np.where(scaled > 0, np.exp((rows / 2 - 1) * np.log(np.maximum(scaled, 1e-300)) - scaled / 2), 0)
        parts.append(density / density.sum())
    density = np.convolve(parts[0][: x.size], parts[1], mode="same")
    for at in (-1.0, 0.3, 2.0):
        i = round((at + 15) / step)
        expected = -(density[i + 50] - density[i - 50]) / (100 * step) / density[i]
        slope, _ = loss_steepness(x[i], rows=rows, inverse_excess=list(down))
        assert float(slope) == pytest.approx(expected, rel=2e-3, abs=2e-3)
