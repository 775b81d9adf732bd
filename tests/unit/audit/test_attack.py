"""The attack itself: its statistics against known numbers, and one quick audit of WTD-FLAG that can fail."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from dpagg.accounting.gaussian_release import GaussianRelease
from dpagg.audit.attack import Case, attack, clopper_pearson, exact_epsilon
from dpagg.audit.catalogue import CASES, cases
from dpagg.audit.laws import RowsLaw, shift_delta, shift_log_ratio
from dpagg.kernels.streams import Secret

SECRET = Secret.insecure(3)


def _normal(mu, claim=None):
    """A Gaussian release, drawn here."""
    return Case(
        name="normal",
        inputs="0 against mu",
        event=GaussianRelease(mu=mu if claim is None else claim),
        pair=(0.0, mu),
        draw=lambda mean, count, secret, release: mean + secret.stream(release, "x", 0).standard_normal(count),
        log_ratio=lambda x: shift_log_ratio(x[:, None], np.zeros(1), np.array([mu]), 1.0),
        exact_delta=shift_delta(mu),
        block=10_000,
    )


def test_bounds_of_a_probability_are_those_of_the_binomial():
    """At the bounds the observed count is just as unlikely as it may be."""
    for hits, draws in [(0, 50), (1, 50), (25, 50), (50, 50), (700, 100_000)]:
        low, high = (float(bound) for bound in clopper_pearson(np.array(hits), draws, 0.025))
        assert low == 0 if hits == 0 else stats.binom.sf(hits - 1, draws, low) == pytest.approx(0.025, rel=1e-9)
        assert high == 1 if hits == draws else stats.binom.cdf(hits, draws, high) == pytest.approx(0.025, rel=1e-9)


def test_lower_bound_is_over_the_truth_no_more_often_than_it_says():
    """A Gaussian of exact epsilon 0.76 at delta 0.02; 60 audits at confidence 60 %, so that the rate can be seen."""
    case, delta = _normal(0.5), 0.02
    truth = case.event.epsilon(delta)
    found = [attack(case, delta=delta, secret=Secret.insecure(i), draws=2000, confidence=0.6) for i in range(60)]
    assert all(r.claimed_epsilon == truth and r.exact_epsilon == pytest.approx(truth, abs=1e-7) for r in found)
    over = np.mean([r.empirical_epsilon > truth for r in found])
    # 0.4 + 3 standard errors; the bound also misses the best threshold, so the rate is well under.
    assert over < 0.4 + 3 * math.sqrt(0.24 / 60)
    assert np.median([r.empirical_epsilon for r in found]) > 0.6 * truth


def test_the_threshold_is_chosen_on_other_draws_than_those_counted():
    seen = []

    def draw(mean, count, secret, release):
        seen.append((mean, release, count))
        return mean + secret.stream(release, "x", 0).standard_normal(count)

    attack(dataclasses.replace(_normal(0.5), draw=draw), delta=0.01, secret=SECRET, draws=25_000)
    assert len({release for _, release, _ in seen}) == len(seen)
    for mean in (0.0, 0.5):
        counts = {
            stage: sum(c for m, release, c in seen if m == mean and f" {stage} " in release)
            for stage in ("choose", "count")
        }
        assert counts == {"choose": 12_500, "count": 25_000}


def test_a_false_claim_is_refuted_and_a_true_one_is_not():
    delta = 1e-2
    honest = attack(_normal(0.6), delta=delta, secret=SECRET, draws=50_000)
    false = attack(_normal(0.6, claim=0.4), delta=delta, secret=SECRET, draws=50_000)
    assert honest.holds and not false.holds
    assert honest.empirical_epsilon == false.empirical_epsilon  # the claim doesn't enter the counts


def test_both_directions_are_tried():
    """Variance 4 against 1 is told from its wide side; exchanged, from the same one."""
    wide, narrow = np.array([[4.0]]), np.array([[1.0]])
    found = []
    for first, second in ((wide, narrow), (narrow, wide)):
        law = RowsLaw(1, first, second)
        case = Case(
            name="variance",
            inputs="",
            event=GaussianRelease(mu=9.0),
            pair=(first, second),
            draw=lambda v, count, secret, r: np.sqrt(v) * secret.stream(r, "x", 0).standard_normal((count, 1, 1)),
            log_ratio=law.log_ratio,
            exact_delta=law.exact_delta(),
        )
        found.append(attack(case, delta=1e-2, secret=SECRET, draws=20_000))
    assert [r.direction for r in found] == ["first", "second"]
    assert found[0].exact_epsilon == pytest.approx(found[1].exact_epsilon, rel=1e-7)
    assert all(r.empirical_epsilon > 2 for r in found)


def test_likelihood_ratios_are_those_of_scipy():
    rng = np.random.default_rng(0)
    roots = rng.normal(size=(2, 4, 4))
    first, second = (root @ root.T + np.eye(4) for root in roots)
    rows = rng.normal(size=(7, 5, 4))
    found = RowsLaw(5, first, second).log_ratio(rows)
    expected = [
        sum(stats.multivariate_normal(cov=c).logpdf(r) @ np.array([1] * 5) * s for c, s in ((first, 1), (second, -1)))
        for r in rows
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    x, a, b = rng.normal(size=(6, 3)), rng.normal(size=3), rng.normal(size=3)
    ratio = [stats.multivariate_normal(m, 4 * np.eye(3)).logpdf(x) for m in (a, b)]
    np.testing.assert_allclose(shift_log_ratio(x, a, b, 2.0), ratio[0] - ratio[1], rtol=1e-9)


def test_exact_delta_of_a_pair_is_what_its_draws_show():
    """Mean of (1 - exp(eps - L))+ over draws, both directions, within 4 standard errors."""
    rng = np.random.default_rng(1)
    first, second = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([[1.5, 0.2], [0.2, 1.4]])
    law, count = RowsLaw(6, first, second), 200_000
    for direction, (cov, sign) in enumerate(((first, 1), (second, -1))):
        rows = rng.normal(size=(count, 6, 2)) @ np.linalg.cholesky(cov).T
        for epsilon in (-0.5, 0.3, 1.0):
            values = np.maximum(-np.expm1(epsilon - sign * law.log_ratio(rows)), 0)
            error = 4 * values.std() / math.sqrt(count)
            assert law.deltas(np.array([epsilon]))[direction, 0] == pytest.approx(values.mean(), abs=error)


def test_exact_epsilon_is_the_root_of_a_curve():
    assert exact_epsilon(lambda e: np.exp(-e), 1e-3) == pytest.approx(math.log(1000), rel=1e-8)
    assert exact_epsilon(lambda e: 0 * e + 1e-4, 1e-3) == 0.0
    assert exact_epsilon(np.ones_like, 1e-3) == math.inf


def test_senseless_audits_are_refused():
    for wrong in ({"delta": 0.0}, {"delta": 1.0}, {"draws": 10}, {"confidence": 1.0}):
        with pytest.raises(ValueError, match="need delta"):
            attack(_normal(0.5), **({"delta": 1e-2, "secret": SECRET} | wrong))


def test_cases_by_mechanism():
    assert set(cases("wtd-flag")) >= {"wtd-flag/factor", "wtd-flag/rows"}
    assert cases("wtd-flag/rows") == ["wtd-flag/rows"] and cases("nothing") == [] and cases() == list(CASES)
    for name, make in CASES.items():
        assert make(1.0, 1e-2).name == name


class LessNoise(Secret):
    """Noise on labels with four fifths of its standard deviation."""

    def stream(self, release_id, purpose, index):
        stream = super().stream(release_id, purpose, index)
        return _Scaled(stream, 0.8) if purpose == "label-noise" else stream


class _Scaled:
    def __init__(self, stream, scale):
        self.stream, self.scale = stream, scale

    def standard_normal(self, shape):
        return self.scale * self.stream.standard_normal(shape)


def test_quick_audit_of_wtd_flag():
    """Seeded, so it cannot fail by chance; tests/statistical says what to expect of fresh draws."""
    case = CASES["wtd-flag/factor"](1.0, 1e-3)
    result = attack(case, delta=1e-3, secret=SECRET, draws=200_000)
    assert result.claimed_epsilon == pytest.approx(1.0, abs=1e-9)
    assert result.exact_epsilon == pytest.approx(1.0, abs=1e-6)  # the pair attains the bound
    assert 0.7 <= result.empirical_epsilon and result.holds
    weak = attack(case, delta=1e-3, secret=LessNoise(bytes(range(32)), is_private=False), draws=200_000)
    assert weak.empirical_epsilon > 1.05 and not weak.holds
    assert not weak.to_dict()["holds"]
