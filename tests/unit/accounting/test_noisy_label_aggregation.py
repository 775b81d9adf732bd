import mpmath as mp
import numpy as np
import pytest

from dpagg.accounting import NoisyLabelAggregation
from dpagg.accounting.calibration import calibrate_bag_size
from dpagg.accounting.noisy_label_aggregation import log_gaussian_delta
from tests.unit.accounting import reference


def event(**changes):
    return NoisyLabelAggregation(
        **{"bag_size": 40, "noised_fraction": 0.25, "noise_std": 1.0, "label_range": 1.0, **changes}
    )


def by_student(epsilon, count, scale):
    """E over Student's t of the Gaussian delta, mpmath."""
    with mp.workdps(25):
        n = mp.mpf(count)
        constant = 2 * mp.gamma((n + 1) / 2) / (mp.sqrt(n * mp.pi) * mp.gamma(n / 2))
        density = lambda t: constant * (1 + t * t / n) ** (-(n + 1) / 2)  # noqa: E731
        given = lambda t: reference.gaussian(epsilon, t * scale / mp.sqrt(n), digits=25)  # noqa: E731
        # t = exp(v): the tail is a power of t.
        integrand = lambda v: density(mp.exp(v)) * given(mp.exp(v)) * mp.exp(v)  # noqa: E731
        return float(mp.quad(integrand, [-12, -6, -3, -1.5, 0, 1, 2, 3, 5, 8, 14, 30, 60]))


def test_reference_value_of_the_design():
    assert event().delta(0.5) == pytest.approx(0.02333, abs=5e-6)


@pytest.mark.parametrize(
    ("count", "size", "epsilon", "sigma"),
    [(10, 40, 0.5, 1.0), (3, 40, 1.0, 2.0), (60, 100, 0.2, 0.5), (1, 9, 0.5, 1.0)],
)
def test_equals_mpmath(count, size, epsilon, sigma):
    made = event(bag_size=size, noised_fraction=count / size, noise_std=sigma)
    assert made.num_noised == count
    if count > 1:  # with one noised label the noised row itself is worse
        assert made.delta(epsilon) == pytest.approx(by_student(epsilon, count, 1 / sigma), rel=1e-8)


def test_noised_rows_by_simulation():
    # Every label noised: R^2 = w^2 / sum of w^2.
    rng = np.random.default_rng(7)
    weights = rng.standard_normal((200_000, 5))
    ratio = np.abs(weights[:, 0]) / np.sqrt((weights**2).sum(1))
    made = event(bag_size=5, noised_fraction=1.0, noise_std=0.8)
    for epsilon in (0.1, 1.0):
        sample = np.exp(log_gaussian_delta(np.full(ratio.size, epsilon), ratio / 0.8))
        assert made.delta(epsilon) == pytest.approx(sample.mean(), abs=4 * sample.std() / np.sqrt(sample.size))


def test_one_noised_label_alone():
    assert event(bag_size=1, noised_fraction=1.0).delta(0.7) == pytest.approx(
        float(reference.gaussian(0.7, 1.0)), rel=1e-9
    )


def test_edges():
    assert event(noised_fraction=0.01).delta(5.0) == 1.0
    assert event(noise_std=0.0).delta(5.0) == 1.0
    assert event(label_range=0.0).delta(0.0) == 0.0
    assert event(bag_size=100, noised_fraction=0.29).num_noised == 29
    with pytest.raises(ValueError, match="noised_fraction"):
        event(noised_fraction=1.2)


def test_bag_size_is_least():
    target = {"noised_fraction": 0.25, "noise_std": 1.0, "label_range": 1.0}
    size = calibrate_bag_size(epsilon=1.0, delta=1e-5, **target)
    assert event(bag_size=size).delta(1.0) <= 1e-5 < event(bag_size=size - 4).delta(1.0)
    with pytest.raises(ValueError, match="no bag"):
        calibrate_bag_size(epsilon=0.1, delta=1e-12, most=50, **target)


@pytest.mark.parametrize(
    ("epsilon", "mu"), [(0.0, 0.3), (1.0, 0.1), (5.0, 0.5), (50.0, 7.0), (3.0, 10.0), (0.01, 1e-3)]
)
def test_gaussian_delta_in_logarithms(epsilon, mu):
    value = np.exp(log_gaussian_delta(np.array([epsilon]), np.array([mu])))[0]
    assert value == pytest.approx(float(reference.gaussian(epsilon, mu)), rel=1e-10)
