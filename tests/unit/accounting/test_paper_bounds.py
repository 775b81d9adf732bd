import dataclasses
import math

import pytest

from dpagg.accounting import HessianMixing
from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.accounting.paper_bounds import (
    adassp_thirds,
    hessian_mixing_rdp,
    linear_mixing_rdp,
    sampled_flag_bag_size,
    sampled_noisy_bag_size,
    sheffet_num_bags,
    weighted_flag_num_bags,
)
from tests.unit.accounting import reference


@pytest.mark.parametrize(
    ("n", "k", "epsilon", "gamma", "sigma"),
    [
        (500, 103, 0.1, 2067.34, 119.981),
        (500, 103, 1, 224.221, 13.9562),
        (500, 103, 10, 24.9694, 1.69749),
        (5000, 130, 0.1, 2836.61, 154.290),
        (5000, 130, 1, 300.229, 17.0842),
        (5000, 130, 10, 32.5163, 1.97283),
    ],
)
def test_hessian_mixing_as_its_authors_calibrate(n, k, epsilon, gamma, sigma):
    ours = hessian_mixing_rdp(epsilon=epsilon, delta=n**-2, sketch_size=k, num_iterations=3)
    assert ours == pytest.approx((gamma, sigma), rel=5e-6)
    # The exact cost of what their calibration releases: well under the target (delta/10 for failures aside).
    spent = HessianMixing(
        sketch_size=k,
        num_sketches=3,
        eigenvalue_floor=ours[0],
        gaussian_mu=math.hypot(math.sqrt(3) / ours[1], math.sqrt(k) / ours[0]),
    )
    assert spent.epsilon(n**-2) < 0.8 * epsilon


def test_linear_mixing_scales_with_the_row():
    one = linear_mixing_rdp(epsilon=1.0, delta=1e-6, sketch_size=100, label_bound=0.0)
    assert linear_mixing_rdp(epsilon=1.0, delta=1e-6, sketch_size=100, label_bound=2.0) == pytest.approx(5 * one)
    assert one > calibrate_eigenvalue_floor(epsilon=1.0, delta=1e-6, sketch_size=100)


def test_shapes():
    assert (
        weighted_flag_num_bags(mean_squared_residual=0.05, num_rows=10**5, label_bound=2.0, delta=math.exp(-10)) == 125
    )
    log_term = math.log(8e6)
    assert sheffet_num_bags(least_singular_value=1.0, label_bound=1.0, epsilon=1.0, delta=1e-6) == 0
    big = sheffet_num_bags(least_singular_value=100.0, label_bound=1.0, epsilon=1.0, delta=1e-6)
    assert big == math.floor((1250 - 2 * log_term) ** 2 / (2 * log_term))
    assert sampled_flag_bag_size(epsilon=0.5, delta=math.exp(-10)) == 400
    assert sampled_noisy_bag_size(epsilon=0.5, label_bound=2.0, noised_fraction=0.25) == 64
    with pytest.raises(ValueError, match="delta"):
        weighted_flag_num_bags(mean_squared_residual=0.05, num_rows=10, label_bound=1.0, delta=1.5)


def test_adassp_in_thirds_wastes_budget():
    made = adassp_thirds(epsilon=1.0, delta=1e-6, label_bound=3.0)
    mu = 1 / made.gram_noise_std
    assert float(reference.gaussian(1 / 3, mu)) == pytest.approx(1e-6 / 3, rel=1e-9)
    assert made.xty_noise_std == pytest.approx(3 * made.gram_noise_std)
    assert made.epsilon(1e-6) < 0.6


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 50.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-5])
def test_exact_calibration_never_overspends_and_is_least(epsilon, delta):
    mu = largest_gaussian_mu(epsilon=epsilon, delta=delta)
    assert float(reference.gaussian(epsilon, mu)) <= delta * (1 + 1e-12)
    assert float(reference.gaussian(epsilon, mu * (1 + 1e-7))) > delta
    for size in (1, 100, 10**5):
        floor = calibrate_eigenvalue_floor(
            epsilon=epsilon, delta=delta, sketch_size=size, gaussian_mu=mu / 2, failure_probability=delta / 10
        )
        made = HessianMixing(
            sketch_size=size, num_sketches=1, eigenvalue_floor=floor, gaussian_mu=mu / 2, failure_probability=delta / 10
        )
        assert made.delta(epsilon) <= delta
        less = 1 + (floor - 1) * (1 - 1e-6)
        assert dataclasses.replace(made, eigenvalue_floor=less).delta(epsilon) > delta
    with pytest.raises(ValueError, match="overspends"):
        calibrate_eigenvalue_floor(epsilon=epsilon, delta=delta, sketch_size=9, gaussian_mu=mu * 1.01)
