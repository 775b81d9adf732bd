"""Every mechanism attacked at a claim of epsilon 1, delta 1e-3: the claim stands, is close, and falls if weakened.

Thresholds. An attack returns a lower bound at 95 %. For a pair whose exact epsilon is 1 a simulation of the attack on a
Gaussian release gives 0.82, 0.90 and 0.94 with 1e5, 4e5 and 1e6 draws on each side, standard deviation 0.05, 0.03 and
0.02: 0.7 is the least that is asked for, and is missed by chance in less than 1 % of runs; 1 is passed in less still.
(A mechanism with a heavier tail of losses gives fewer counts at delta, and a bound a little lower.) Weakened mechanisms
have exact epsilons from 1.14 up, so each is given the draws with which its bound is over 1 in nearly every run. Seeds
are fixed: a failure is a change of code, not bad luck.
"""

import math

import numpy as np
import pytest

from dpagg.audit.attack import attack, exact_epsilon
from dpagg.audit.bag_cases import noisy_label_aggregation, sampled_aggregation
from dpagg.audit.catalogue import CASES
from dpagg.audit.label_cases import (
    bags_law,
    column_pair,
    hidden_noise,
    intercept_pair,
    private_floor,
    residual_norm_release,
    user_aggregation,
    weighted_aggregation,
)
from dpagg.audit.row_cases import adassp, hessian_mixing, linear_mixing
from dpagg.audit.solver_cases import label_gaussian, noisy_gradient_descent, padded_sketch
from dpagg.kernels.streams import Secret

pytestmark = pytest.mark.slow

EPSILON, DELTA = 1.0, 1e-3
CLAIM = {"epsilon": EPSILON, "delta": DELTA}
SECRET = Secret.insecure(20)

# Draws, and the least bound asked for. Less is asked for where the epsilon of the attacked pair is not known (hidden
# noise).
HONEST = {
    "wtd-flag/factor": (400_000, 0.75),
    "wtd-flag/rows": (400_000, 0.75),
    "wtd-flag/no-intercept": (400_000, 0.75),
    "wtd-flag/private-floor": (400_000, 0.7),
    "wtd-flag/hidden-noise": (100_000, 0.6),
    "wtd-flag/users": (400_000, 0.7),
    "sampled-wtd-flag": (400_000, 0.7),
    "sampled-noisy-wtd-lag/any-weights": (200_000, 0.7),
    "sampled-noisy-wtd-lag/capped": (200_000, 0.7),
    "residual-norm": (400_000, 0.75),
    "hessian-mixing/rows": (400_000, 0.75),
    "hessian-mixing/share": (200_000, 0.7),
    "hessian-mixing/wishart": (100_000, 0.7),
    "hessian-mixing/eigenvalue": (200_000, 0.7),
    "linear-mixing": (400_000, 0.75),
    "adassp": (200_000, 0.75),
    "label-gaussian": (100_000, 0.7),
    "dp-gd": (100_000, 0.7),
}


def test_every_case_is_audited():
    assert set(HONEST) | {"unweighted-sums"} == set(CASES)


@pytest.mark.parametrize("name", HONEST)
def test_the_claim_stands_and_is_close(name):
    draws, least = HONEST[name]
    result = attack(CASES[name](EPSILON, DELTA), delta=DELTA, secret=SECRET, draws=draws)
    exact, shown = result.exact_epsilon, result.empirical_epsilon
    print(f"{name:26} claimed {result.claimed_epsilon:.4f} exact {exact or math.nan:.4f} shown {shown:.3f}")
    assert 0.999 < result.claimed_epsilon < 1 + 1e-6
    if result.exact_epsilon is not None:
        assert result.exact_epsilon <= result.claimed_epsilon * (1 + 1e-6)
    assert least <= result.empirical_epsilon
    assert result.holds


def test_unweighted_sums_lose_everything():
    """Not one draw of 1e5 is on the wrong side: no finite claim up to ln(1e5 / 3.7) = 10.2 would stand."""
    result = attack(CASES["unweighted-sums"](EPSILON, DELTA), delta=DELTA, secret=SECRET, draws=100_000)
    assert result.claimed_epsilon == result.exact_epsilon == math.inf
    assert result.empirical_epsilon > 10


class Altered(Secret):
    """Normals of one purpose are altered; `alter` takes and returns an array."""

    def __init__(self, alter, *purposes):
        super().__init__(bytes(range(32)), is_private=False)
        self._alter, self._purposes = alter, purposes

    def stream(self, release_id, purpose, index):
        stream = super().stream(release_id, purpose, index)
        return _Stream(stream, self._alter) if purpose in self._purposes else stream


class _Stream:
    def __init__(self, stream, alter):
        self._stream, self._alter = stream, alter

    def standard_normal(self, shape=None):
        return self._alter(self._stream.standard_normal(shape))


def scaled(factor, *purposes):
    return Altered(lambda normals: factor * normals, *purposes)


def _noise_of_a_bag(normals):
    """In `weighted_bags` the weights of a bag and its label's noise are one draw, the noise last."""
    return np.append(normals[:-1], 0.8 * normals[-1])


def _noise_of_labels(normals):
    """In `NoisyLabels.draw` sets of 16 weights come first, then the noise of 8 labels."""
    return 0.8 * normals if len(normals) == 8 else normals


def flag(**changes):
    return weighted_aggregation(**(CLAIM | {"pair": intercept_pair(2)} | changes))


WEAK = {
    "wtd-flag, noise 20 % lower": (flag, scaled(0.8, "label-noise"), 200_000),
    # Sums of larger weights drown less in the noise; their variance is 20 % more than it is accounted for.
    "wtd-flag, variance of weights 20 % off": (flag, scaled(math.sqrt(1.2), "bags"), 1_000_000),
    "wtd-flag, labels in twice the range": (lambda: flag(pair=intercept_pair(2, 2.0)), SECRET, 100_000),
    "wtd-flag by rows, noise 20 % lower": (lambda: flag(engine="rows"), scaled(0.8, "label-noise"), 200_000),
    "wtd-flag by rows, variance of weights 20 % off": (
        lambda: flag(engine="rows"),
        scaled(math.sqrt(1.2), "weights"),
        1_000_000,
    ),
    "wtd-flag by rows, labels in twice the range": (
        lambda: flag(engine="rows", pair=intercept_pair(2, 2.0)),
        SECRET,
        100_000,
    ),
    "wtd-flag without intercept, noise 20 % lower": (
        lambda: flag(pair=column_pair(0.8)),
        scaled(0.8, "label-noise"),
        200_000,
    ),
    "private floor, noise 20 % lower": (
        lambda: private_floor(pair=intercept_pair(2), **CLAIM),
        scaled(0.8, "label-noise"),
        1_000_000,
    ),
    "private floor, labels in twice the range": (
        lambda: private_floor(pair=intercept_pair(2, 2.0), **CLAIM),
        SECRET,
        100_000,
    ),
    "hidden noise, noise 20 % lower": (
        lambda: hidden_noise(pair=intercept_pair(2), **CLAIM),
        scaled(0.8, "label-noise"),
        400_000,
    ),
    "hidden noise, labels in twice the range": (
        lambda: hidden_noise(pair=intercept_pair(2, 2.0), **CLAIM),
        SECRET,
        100_000,
    ),
    "users, noise 20 % lower": (lambda: user_aggregation(**CLAIM), scaled(0.8, "label-noise"), 400_000),
    "users, labels in twice the range": (lambda: user_aggregation(range_factor=2.0, **CLAIM), SECRET, 200_000),
    "bags, noise 20 % lower": (
        lambda: sampled_aggregation(pair=intercept_pair(2), **CLAIM),
        Altered(_noise_of_a_bag, "bag"),
        400_000,
    ),
    "bags, labels in twice the range": (
        lambda: sampled_aggregation(pair=intercept_pair(2, 2.0), **CLAIM),
        SECRET,
        100_000,
    ),
    "noisy labels, noise 20 % lower": (
        lambda: noisy_label_aggregation(**CLAIM),
        Altered(_noise_of_labels, "bag"),
        200_000,
    ),
    "noisy labels, labels in twice the range": (
        lambda: noisy_label_aggregation(range_factor=2.0, **CLAIM),
        SECRET,
        100_000,
    ),
    "noisy labels of capped weights, noise 20 % lower": (
        lambda: noisy_label_aggregation(acceptance=0.05, **CLAIM),
        Altered(_noise_of_labels, "bag"),
        400_000,
    ),
    "noisy labels of capped weights, labels in twice the range": (
        lambda: noisy_label_aggregation(acceptance=0.05, range_factor=2.0, **CLAIM),
        SECRET,
        100_000,
    ),
    "residual norm, noise 20 % lower": (
        lambda: residual_norm_release(pair=intercept_pair(200), **CLAIM),
        scaled(0.8, "residual-norm"),
        400_000,
    ),
    "residual norm, labels in twice the range": (
        lambda: residual_norm_release(pair=intercept_pair(200, 2.0), **CLAIM),
        SECRET,
        100_000,
    ),
    "hessian mixing, floor 20 % lower": (lambda: hessian_mixing(floor_factor=0.8, **CLAIM), SECRET, 1_000_000),
    "hessian mixing, noise 20 % lower": (lambda: hessian_mixing(**CLAIM), scaled(0.8, "gradient"), 1_000_000),
    "hessian mixing, clipped twice as far": (lambda: hessian_mixing(range_factor=2.0, **CLAIM), SECRET, 200_000),
    "hessian mixing as Wishart, floor 20 % lower and clipped twice as far": (
        lambda: hessian_mixing(sketch="wishart", range_factor=2.0, floor_factor=0.8, **CLAIM),
        SECRET,
        100_000,
    ),
    "linear mixing, floor 20 % lower": (lambda: linear_mixing(floor_factor=0.8, **CLAIM), SECRET, 1_000_000),
    "linear mixing, labels in twice the range": (lambda: linear_mixing(range_factor=2.0, **CLAIM), SECRET, 100_000),
    "adassp, noise 20 % lower": (lambda: adassp(**CLAIM), scaled(0.8, "least", "gram", "product"), 400_000),
    "adassp, labels in twice the range": (lambda: adassp(range_factor=2.0, **CLAIM), SECRET, 200_000),
    "hessian mixing with its eigenvalue, noise 20 % lower": (
        lambda: padded_sketch(**CLAIM),
        scaled(0.8, "gradient", "eigenvalue"),
        400_000,
    ),
    "hessian mixing with its eigenvalue, clipped twice as far": (
        lambda: padded_sketch(range_factor=2.0, **CLAIM),
        SECRET,
        100_000,
    ),
    "label gaussian, noise 20 % lower": (lambda: label_gaussian(**CLAIM), scaled(0.8, "label-gaussian"), 150_000),
    "label gaussian, labels in twice the range": (lambda: label_gaussian(range_factor=2.0, **CLAIM), SECRET, 30_000),
    "gradient descent, noise 20 % lower": (
        lambda: noisy_gradient_descent(**CLAIM),
        scaled(0.8, "dp-gd"),
        100_000,
    ),
    "gradient descent, clipped twice as far": (
        lambda: noisy_gradient_descent(range_factor=2.0, **CLAIM),
        SECRET,
        30_000,
    ),
}


@pytest.mark.parametrize("fault", WEAK)
def test_a_weakened_mechanism_is_caught(fault):
    make, secret, draws = WEAK[fault]
    result = attack(make(), delta=DELTA, secret=secret, draws=draws)
    print(f"{fault:60} claimed {result.claimed_epsilon:.3f} shown {result.empirical_epsilon:.3f}")
    assert result.claimed_epsilon < 1 + 1e-6
    assert result.empirical_epsilon > result.claimed_epsilon and not result.holds


@pytest.mark.parametrize("num_rows", [2, 3, 10, 100])
def test_pairs_with_an_intercept_alone_attain_the_bound(num_rows):
    """The bound of WTD-FLAG cannot be improved without a look at labels: here is a pair that has it."""
    case = flag(pair=intercept_pair(num_rows))
    law = bags_law(intercept_pair(num_rows), case.event.num_bags, case.event.label_noise_variance)
    for epsilon in (0.1, 1.0, 3.0):
        assert law.exact_delta()(np.array([epsilon]))[0] == pytest.approx(case.event.delta(epsilon), rel=1e-7)
    assert exact_epsilon(law.exact_delta(), DELTA) == pytest.approx(1.0, abs=1e-7)
