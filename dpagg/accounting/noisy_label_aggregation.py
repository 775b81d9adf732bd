"""Sampled-Noisy-WTD-LAg: features and weights of a bag are public, a few of its labels carry noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from dpagg.accounting.capped_weights import STEP, density_with_noise, density_without_noise, ratios
from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import Event, require, require_count, require_nonnegative

_CUT = 92.0  # mass is followed until it is exp(-92) = 1e-40
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True, kw_only=True)
class NoisyLabelAggregation(Event):
    """One weighted label sum a bag beside its features and weights, noise on N = floor(rho k) labels first.

    Guarantee: one label changes by at most ``label_range`` (adjacency ``change_one_label``). Given the
    weights the sum is Gaussian with ``mu = R D / sigma``, ``R = |w_i| / sqrt(sum over noised of w^2)``. For a
    row without noise ``R sqrt(N)`` is the size of a Student t with N degrees of freedom; for a noised row
    ``R^2`` is Beta(1/2, (N-1)/2); under a cap see :mod:`dpagg.accounting.capped_weights`. Weights are public
    and don't depend on labels, so that delta is the mean over them, the larger of the two kinds of row.
    Source: *Label Differential Privacy via Aggregation* (2023), Sampled-Noisy-WTD-LAg; accounting README,
    "Noisy labels".

    Parameters
    ----------
    bag_size
        Rows k of a bag.
    noised_fraction
        rho in ``[0, 1]``; exactly ``floor(rho k)`` labels of each bag carry noise.
    noise_std
        sigma, units of the label.
    label_range
        D, the declared upper minus lower label bound.
    weight_cap
        If weights are redrawn, without a look at labels, until the largest R of the bag is at most this. Then the
        mean is over R of weights that met it.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_label"

    bag_size: int
    noised_fraction: float
    noise_std: float
    label_range: float
    weight_cap: float | None = None

    def __post_init__(self) -> None:
        require_count("bag_size", self.bag_size)
        require(0 <= self.noised_fraction <= 1, f"noised_fraction must lie in [0, 1], got {self.noised_fraction}")
        require_nonnegative(noise_std=self.noise_std, label_range=self.label_range)
        if self.weight_cap is not None:
            require_nonnegative(weight_cap=self.weight_cap)

    @property
    def num_noised(self) -> int:
        """Labels of each bag that carry noise."""
        # A product such as 0.29 * 100 must not lose a row to rounding; a row more is never claimed than is
        # meant.
        return math.floor(round(self.noised_fraction * self.bag_size, 9))

    @property
    def label_noise_variance(self) -> float:
        """Variance of the noise on a label that carries some, squared units of the label."""
        return self.noise_std**2

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        if self.label_range == 0:
            value = np.where(epsilon >= 0, -np.inf, 0.0)
        elif self.num_noised == 0 or self.noise_std == 0:
            value = np.zeros_like(epsilon)
        else:
            scale = self.label_range / self.noise_std
            if self.weight_cap is None:
                value = np.maximum(self._mean_without_noise(epsilon, scale), self._mean_with_noise(epsilon, scale))
            else:
                value = self._mean_over_capped(epsilon, scale, self.weight_cap)
        return np.stack([value, value])  # a shift of a Gaussian is symmetric

    def _mean_without_noise(self, epsilon: FloatArray, scale: float) -> FloatArray:
        count = self.num_noised
        if count == self.bag_size:
            return np.full(epsilon.shape, -np.inf)
        # v = ln(t^2/N): density of ln(chi2_1 / chi2_N), e^(v/2) / (B(1/2, N/2) (1 + e^v)^((N+1)/2)).
        v = np.arange(-2 * _CUT, 2 * _CUT / count + 4, STEP)
        log_density = v / 2 - (count + 1) / 2 * np.logaddexp(0, v) - special.betaln(0.5, count / 2)
        return _mean(epsilon, np.exp(v / 2) * scale, log_density, np.exp(-_CUT))

    def _mean_with_noise(self, epsilon: FloatArray, scale: float) -> FloatArray:
        count = self.num_noised
        if count == 1:
            return log_gaussian_delta(epsilon, np.full_like(epsilon, scale))
        # v = logit(R^2), R^2 ~ Beta(1/2, (N-1)/2).
        v = np.arange(-2 * _CUT, 2 * _CUT / (count - 1) + 4, STEP)
        log_density = -np.logaddexp(0, -v) / 2 - (count - 1) / 2 * np.logaddexp(0, v)
        log_density -= special.betaln(0.5, (count - 1) / 2)
        return _mean(epsilon, np.sqrt(special.expit(v)) * scale, log_density, np.exp(-_CUT))

    def _mean_over_capped(self, epsilon: FloatArray, scale: float, cap: float) -> FloatArray:
        worst = log_gaussian_delta(epsilon, np.full_like(epsilon, cap * scale))
        count = self.num_noised
        if cap * cap * count <= 1:
            return worst  # no weights meet it
        at, log_step = ratios(cap)

        def mean(density: FloatArray) -> FloatArray:
            with np.errstate(divide="ignore"):
                return _mean(epsilon, at * scale, np.log(density) + log_step, 0.0)

        value = np.full(epsilon.shape, -np.inf)
        if count < self.bag_size:
            value = mean(density_without_noise(cap, count, self.bag_size - count))
        if cap >= 1:
            noised = self._mean_with_noise(epsilon, scale)
        else:
            density = density_with_noise(cap, count)
            noised = worst if density is None else mean(density)
        return np.asarray(np.minimum(np.maximum(value, noised), worst), dtype=float)


def log_gaussian_delta(epsilon: FloatArray, mu: FloatArray) -> FloatArray:
    """``ln`` of the Gaussian mechanism's delta at epsilon >= 0, rounded up; shapes broadcast.

    ``Phi(-x) - e^eps Phi(-x - mu)`` with ``x = eps/mu - mu/2`` is ``phi(x) [M(x) - M(x + mu)]``, ``M`` Mills'
    ratio.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        x = epsilon / mu - mu / 2
        near = special.log_ndtr(-x)
        ratio = np.exp(epsilon + special.log_ndtr(-x - mu) - near)
        # For x of 0 and more both terms through scaled complements, which neither under- nor overflow.
        root = math.sqrt(0.5)
        mills = special.erfcx(x * root)
        scaled = 1 - special.erfcx((x + mu) * root) / mills
        share = np.where(x > 0, scaled, 1 - ratio)
        out = near + np.log(np.maximum(share, 0.0) + 8 * np.finfo(float).eps)
    # Beyond reach (x infinite) delta is 0; without noise (mu infinite) it is 1.
    out = np.where(np.isnan(out), np.where(mu > 0, 0.0, -np.inf), out)
    return np.asarray(np.minimum(np.where(mu == 0, -np.inf, out), 0.0), dtype=float)


def _mean(epsilon: FloatArray, mu: FloatArray, log_density: FloatArray, cut: float) -> FloatArray:
    """Trapezoid mean of the Gaussian delta on a lattice of ``STEP``; halving error and cut mass added."""
    out = np.empty(epsilon.shape)
    for i, eps in enumerate(epsilon):
        terms = np.exp(log_density + log_gaussian_delta(np.full_like(mu, eps), mu)) * STEP
        total = terms.sum()
        error = abs(total - 2 * terms[::2].sum())
        # What is cut: no shift below the lattice can matter more than its first term, none above, where the density
        # falls as exp(-v) or ends, than its last, and no other mass than `cut`.
        out[i] = total * (1 + 1e-13) + error + 4 * (terms[0] + terms[-1]) / STEP + cut
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.minimum(out, 1.0)), dtype=float)
