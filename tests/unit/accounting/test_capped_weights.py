import dataclasses
import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from dpagg.accounting import NoisyLabelAggregation
from dpagg.accounting.capped_weights import STEP, density_with_noise, density_without_noise, ratios
from dpagg.accounting.noisy_label_aggregation import log_gaussian_delta


def event(noised, plain, cap, **changes):
    size = noised + plain
    values = {"bag_size": size, "noised_fraction": noised / size, "noise_std": 1.0, "label_range": 1.0}
    return NoisyLabelAggregation(**(values | {"weight_cap": cap} | changes))


def gaussian(epsilon, ratio):
    return np.exp(log_gaussian_delta(np.full(np.shape(ratio), epsilon), np.asarray(ratio, dtype=float)))


@pytest.mark.parametrize(("noised", "plain", "cap"), [(4, 6, 0.67), (1, 3, 1.4), (10, 30, 0.4), (2000, 1, 0.08)])
def test_density_of_a_row_without_noise_equals_mpmath(noised, plain, cap):
    found = density_without_noise(cap, noised, plain)
    at, _ = ratios(cap)
    with mp.workdps(25):
        root = mp.sqrt(noised)
        chi = lambda s: (s / root) ** (noised - 1) * mp.exp((noised - s * s) / 2)  # noqa: E731
        meets = lambda s: mp.erf(cap * s / mp.sqrt(2))  # noqa: E731
        ends = [mp.mpf(0), root * 0.8, root, root * 1.2, root * 1.6, root * 2.5, root + 15]
        whole = mp.quad(lambda s: chi(s) * meets(s) ** plain, ends)
        for i in (0, 1200, 1300, -1):
            r = mp.mpf(float(at[i]))
            part = mp.quad(
                lambda s, r=r: chi(s) * meets(s) ** (plain - 1) * 2 * s * mp.npdf(r * s),
                ends,
            )
            assert found[i] == pytest.approx(float(part / whole), rel=1e-9)
            assert found[i] >= float(part / whole) * (1 - 1e-14)


def cap_on_a_sphere(x):
    """P(all |u| <= x) for a point on the unit sphere in three dimensions, by the share of each meridian."""

    def share(z):
        radius = math.sqrt(1 - z * z)
        largest = min(1.0, x / radius)
        return max(0.0, 4 / math.pi * math.asin(largest) - 1) if largest < 1 else 1.0

    kinks = sorted({p for p in (math.sqrt(max(0.0, 1 - 2 * x * x)), math.sqrt(max(0.0, 1 - x * x))) if 0 < p < x})
    return integrate.quad(share, 0, x, points=kinks or None, epsabs=1e-12, limit=200)[0]


@pytest.mark.parametrize("cap", [0.55, 0.67, 0.75, 0.95])
def test_density_of_one_of_four_noised_rows_by_geometry(cap):
    """Given |u| = r the other three lie on a sphere of radius sqrt(1 - r^2)."""

    def unscaled(r):
        largest = cap / math.sqrt(1 - r * r)
        return math.sqrt(1 - r * r) * (cap_on_a_sphere(largest) if largest < 1 else 1.0)

    least = math.sqrt(max(0.0, 1 - 3 * cap * cap))
    kinks = sorted(p for j in (1, 2) if least < (p := math.sqrt(max(0.0, 1 - j * cap * cap))) < cap)
    whole = integrate.quad(unscaled, least, cap, points=kinks or None, limit=200)[0]
    found, (at, _) = density_with_noise(cap, 4), ratios(cap)
    for r in np.linspace(least, cap, 7)[1:-1]:
        bound = np.interp(r, at, found)
        assert unscaled(r) / whole * (1 - 1e-3) <= bound <= unscaled(r) / whole * 1.2


@pytest.mark.parametrize(("noised", "cap"), [(5, 0.6), (8, 0.546), (50, 0.315), (50, 0.9), (2000, 0.08)])
def test_density_of_noised_rows_is_one(noised, cap):
    """It has mass 1 and the second moment that noised rows share equally."""
    found, (at, log_step) = density_with_noise(cap, noised), ratios(cap)
    mass = found * np.exp(log_step) * STEP
    assert mass.sum() == pytest.approx(1, abs=1e-9 if noised > 5 else 1e-4)
    assert (mass * at**2).sum() == pytest.approx(1 / noised, rel=1e-9 if noised > 5 else 1e-3)


def test_no_density_where_the_cap_is_out_of_reach_or_says_nothing():
    assert density_with_noise(0.3, 10) is None
    assert density_with_noise(1.0, 10) is None
    assert density_with_noise(0.6, 3) is None


@pytest.mark.parametrize(("noised", "plain", "cap"), [(8, 8, 0.546), (5, 5, 0.62), (4, 6, 0.67), (12, 0, 0.45)])
def test_mean_over_simulated_weights(noised, plain, cap):
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((200_000, noised + plain))
    found = np.abs(weights) / np.sqrt((weights[:, :noised] ** 2).sum(1))[:, None]
    found = found[found.max(1) <= cap]
    made = event(noised, plain, cap, noise_std=0.5)
    for epsilon in (0.1, 1.0):
        means, errors = [], []
        for rows in (found[:, :noised], found[:, noised:]):
            if rows.shape[1]:
                spent = gaussian(epsilon, 2 * rows).mean(1)
                means.append(spent.mean())
                errors.append(spent.std() / math.sqrt(len(spent)))
        worst = int(np.argmax(means))
        room = 0.03 if noised == 4 else 0.0  # where the series is cut its rest is counted as lost
        assert means[worst] - 4 * errors[worst] <= made.delta(epsilon)
        assert made.delta(epsilon) <= (means[worst] + 4 * errors[worst]) * (1 + room)


def test_the_only_noised_row_is_its_own_noise():
    assert event(1, 3, 1.2).delta(0.5) == pytest.approx(event(1, 3, None).delta(0.5), rel=0.6)
    assert event(1, 0, 1.2).delta(0.5) == pytest.approx(float(gaussian(0.5, 1.0)), rel=1e-9)


@pytest.mark.parametrize("cap", [0.72, 0.8, 0.95, 0.999])
def test_two_noised_rows_on_the_circle(cap):
    """Their weights' direction is an angle, between the two at which one of them meets the cap."""
    angle = np.linspace(math.acos(cap), math.asin(cap), 20_001)
    found = event(2, 0, cap).delta(0.5)
    exact = np.trapezoid(gaussian(0.5, np.cos(angle)), angle) / np.ptp(angle)
    assert exact * (1 - 1e-8) <= found <= float(gaussian(0.5, cap)) * (1 + 1e-9)
    if cap > 0.9:  # what the bound leaves out: the other row may not be over the cap either
        assert found <= exact * 1.6


@pytest.mark.parametrize("cap", [0.6, 0.72, 0.9, 0.99])
def test_three_noised_rows_on_the_sphere(cap):
    """One coordinate is uniform, and the other two lie on a circle of what is left."""
    ratio = np.linspace(0, cap, 20_001)
    scaled = np.minimum(cap / np.sqrt(1 - ratio**2), 1)
    law = np.where(scaled < 0.5**0.5, 0, 4 / math.pi * np.arcsin(scaled) - 1)
    found = event(3, 0, cap).delta(0.5)
    exact = np.trapezoid(law * gaussian(0.5, ratio), ratio) / np.trapezoid(law, ratio)
    assert exact * (1 - 1e-6) <= found <= float(gaussian(0.5, cap)) * (1 + 1e-9)
    if cap > 0.8:  # as above
        assert found <= exact * (1.3 if cap < 0.95 else 1.05)


@pytest.mark.parametrize(("noised", "cap"), [(1000, 0.95), (1694, 0.834), (50_000, 0.1)])
def test_a_high_cap_costs_nothing(noised, cap):
    """Hardly any weights are over it, so that neither law differs from the one without."""
    for epsilon in (0.0, 1.0):
        free = event(noised, 1, None, noise_std=0.05).delta(epsilon)
        assert event(noised, 1, cap, noise_std=0.05).delta(epsilon) <= free * (1 + 1e-6)


def test_weights_that_cannot_be():
    """A cap that nothing meets is still charged as one."""
    assert event(10, 30, 0.3).delta(0.5) == pytest.approx(float(gaussian(0.5, 0.3)), rel=1e-9)
    assert event(10, 30, 0.0).delta(0.5) == 0.0


@pytest.mark.parametrize(("noised", "plain"), [(1, 4), (5, 5), (10, 30), (40, 0), (300, 100)])
def test_a_cap_without_effect_is_no_cap(noised, plain):
    free = event(noised, plain, None)
    for epsilon in (0.0, 0.5, 2.0):
        # The chance of a weight over a cap of 1e5 is about 1e-5 with one noised row.
        assert event(noised, plain, 1e5).delta(epsilon) == pytest.approx(free.delta(epsilon), rel=1e-4)


caps = st.tuples(st.integers(4, 60), st.integers(0, 60), st.floats(1.2, 3.5), st.floats(0.2, 5.0))


@settings(max_examples=12, deadline=None)
@given(caps, st.floats(0.0, 4.0))
def test_at_most_the_charge_at_the_cap_and_monotone(values, epsilon):
    noised, plain, factor, std = values
    cap = factor / math.sqrt(noised)
    made = event(noised, plain, cap, noise_std=std)
    found = made.delta(epsilon)
    assert found <= float(gaussian(epsilon, cap / std)) * (1 + 1e-9)
    assert made.delta(epsilon + 0.1) <= found
    assert dataclasses.replace(made, noise_std=1.1 * std).delta(epsilon) <= found


def test_small_deltas_keep_their_relative_accuracy():
    """At a delta of 1e-30 against quadrature over the law of noised rows, all of which have noise."""
    made = event(5, 0, 0.75, noise_std=1.0)
    at, log_step = ratios(0.75)
    # Caps around single weights don't meet for 0.75 > 2^-1/2, so that at most one weight is over the cap.
    over = special.betainc(2.0, 0.5, 1 - 0.75**2)

    def unscaled(r):
        largest = 0.75 / math.sqrt(1 - r * r)
        missed = 4 * special.betainc(1.5, 0.5, 1 - largest**2) if largest < 1 else 0.0
        return (1 - r * r) * (1 - missed) * 2 / special.beta(0.5, 2.0)

    law = np.array([unscaled(r) for r in at]) / (1 - 5 * over)
    exact = (law * gaussian(8.0, at) * np.exp(log_step)).sum() * STEP
    assert exact < 1e-20
    assert exact * (1 - 1e-6) <= made.delta(8.0) <= exact * 1.01
