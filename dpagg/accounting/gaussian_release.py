"""Releases that are one Gaussian mechanism: shifts of known size under normal noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpagg.accounting.event import Pair, _PairEvent, require, require_count, require_nonnegative


def gaussian_pair(mu: float) -> Pair:
    """Pair of a pure shift."""
    return Pair(rows=(1.0,), excess=(0.0,), inverse_excess=(0.0,), mu=mu)


@dataclass(frozen=True, kw_only=True)
class GaussianRelease(_PairEvent):
    """A value with normal noise, in units of its sensitivity; holds for either adjacency.

    Guarantee: the two data sets of a pair shift the mean by at most ``mu`` standard deviations. Source: Balle
    and Wang (2018), theorem 8: ``delta = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)``.

    Parameters
    ----------
    mu
        l2 sensitivity over standard deviation.

    Raises
    ------
    ValueError
        If ``mu`` is negative or not finite.
    """

    adjacency: ClassVar[str] = "any"

    mu: float

    def __post_init__(self) -> None:
        require_nonnegative(mu=self.mu)

    def _pair(self) -> Pair:
        return gaussian_pair(self.mu)


@dataclass(frozen=True, kw_only=True)
class LabelGaussian(_PairEvent):
    """Normal noise on the whitened least-squares statistics ``R^-T X^T y``.

    Guarantee: one label changes by at most ``label_range`` (adjacency ``change_one_label``), which moves the
    statistics by ``|R^-T x_i| D = sqrt(h_i) D``. The best additive-noise estimator when leverages are equal.

    Parameters
    ----------
    label_range
        D, the declared upper minus lower label bound.
    leverage
        Largest leverage of a row.
    noise_std
        Standard deviation on each coordinate, units of the label.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "change_one_label"

    label_range: float
    leverage: float
    noise_std: float

    def __post_init__(self) -> None:
        require_nonnegative(label_range=self.label_range, noise_std=self.noise_std)
        require(0 <= self.leverage <= 1 + 1e-9, f"leverage must lie in [0, 1], got {self.leverage!r}")

    def _pair(self) -> Pair:
        return gaussian_pair(_ratio(self.label_range * math.sqrt(self.leverage), self.noise_std))


@dataclass(frozen=True, kw_only=True)
class AdaSSP(_PairEvent):
    """Least eigenvalue, Gram matrix and ``X^T y``, each with normal noise: exactly one Gaussian mechanism.

    Guarantee: one row is zeroed out (adjacency ``zero_out_one_row``), rows of X have norm at most 1 and
    labels size at most ``label_bound``. Sensitivities: 1 for the least eigenvalue (Weyl); 1 for the Gram
    matrix in the Frobenius norm, hence at most 1 for its upper triangle drawn once; ``label_bound`` for ``X^T
    y``. Source: Wang (2018), *Revisiting Differentially Private Linear Regression*, algorithm 2, which splits
    the budget into thirds.

    Parameters
    ----------
    label_bound
        C_Y, largest absolute label.
    eigenvalue_noise_std, gram_noise_std, xty_noise_std
        Standard deviations of the three releases.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "zero_out_one_row"

    label_bound: float
    eigenvalue_noise_std: float
    gram_noise_std: float
    xty_noise_std: float

    def __post_init__(self) -> None:
        require_nonnegative(
            label_bound=self.label_bound,
            eigenvalue_noise_std=self.eigenvalue_noise_std,
            gram_noise_std=self.gram_noise_std,
            xty_noise_std=self.xty_noise_std,
        )

    def _pair(self) -> Pair:
        shifts = (
            _ratio(1.0, self.eigenvalue_noise_std),
            _ratio(1.0, self.gram_noise_std),
            _ratio(self.label_bound, self.xty_noise_std),
        )
        return gaussian_pair(math.hypot(*shifts))


@dataclass(frozen=True, kw_only=True)
class NoisyGradientDescent(_PairEvent):
    """Full gradients of clipped residuals, each with normal noise.

    Guarantee: one row is zeroed out (adjacency ``zero_out_one_row``), rows of X have norm at most 1, so that
    a gradient ``X^T clip_C(y - X theta)`` moves by at most C. Later gradients depend on released ones only,
    so that ``mu^2 = T (C / sigma)^2``.

    Parameters
    ----------
    num_iterations
        T.
    residual_clip
        C.
    noise_std
        Standard deviation on each coordinate of each gradient.

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """

    adjacency: ClassVar[str] = "zero_out_one_row"

    num_iterations: int
    residual_clip: float
    noise_std: float

    def __post_init__(self) -> None:
        require_count("num_iterations", self.num_iterations)
        require_nonnegative(residual_clip=self.residual_clip, noise_std=self.noise_std)

    def _pair(self) -> Pair:
        return gaussian_pair(math.sqrt(self.num_iterations) * _ratio(self.residual_clip, self.noise_std))


def _ratio(sensitivity: float, noise_std: float) -> float:
    if sensitivity == 0:
        return 0.0
    return sensitivity / noise_std if noise_std > 0 else math.inf
