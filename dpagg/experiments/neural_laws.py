"""The noise of the two ways to publish labels at one (epsilon, delta), and what is left of the signal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.calibration import largest_gaussian_mu
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.kernels.bags import NoisyLabels, bag_streams, weight_cap_for
from dpagg.kernels.streams import Secret
from dpagg.runs.bag_events import least_noise_std

LABEL_RANGE = 2.0  # labels in half widths of their bounds
_FRACTIONS = (1.0, 0.5)
# Caps that fewer draws meet cost more time than they save noise.
_ACCEPTANCES = (None, 0.05, 0.01)
_PUBLIC_DRAWS = 400
# A label's variance given its features, as in `BagLaw.row_variance`: it matters only to bags with hardly any noise.
ROW_VARIANCE = 0.05


@dataclass(frozen=True)
class BagNoise:
    """How the labels of bags are noised.

    Attributes
    ----------
    labels : NoisyLabels
        The mechanism.
    information : float
        Mean over weights of ``sum w^2 / variance`` a row of a bag: what a row's label tells, on average.
    """

    labels: NoisyLabels
    information: float


@cache
def additive_noise_std(epsilon: float, delta: float) -> float:
    """Return the noise a label needs by itself (the analytic Gaussian mechanism), in half widths of the bounds."""
    return LABEL_RANGE / largest_gaussian_mu(epsilon=epsilon, delta=delta)


@cache
def best_bag_noise(epsilon: float, delta: float, bag_size: int) -> BagNoise:
    """Return the noised fraction and cap on weights that leave most of the signal, each with the least noise allowed.

    Weights are those of a fixed public stream, so that nothing of the data decides.
    """
    return max(_candidates(epsilon, delta, bag_size), key=lambda found: found.information)


def _candidates(epsilon: float, delta: float, bag_size: int) -> Iterator[BagNoise]:
    for fraction in _FRACTIONS:
        bare = NoisyLabelAggregation(
            bag_size=bag_size, noised_fraction=fraction, noise_std=0.0, label_range=LABEL_RANGE
        )
        for acceptance in _ACCEPTANCES:
            if acceptance is not None:
                cap = weight_cap_for(acceptance, bag_size=bag_size, num_noised=bare.num_noised)
                bare = replace(bare, weight_cap=cap)
            noise_std = least_noise_std(bare, epsilon=epsilon, delta=delta)
            labels = NoisyLabels(bare.num_noised, noise_std, bare.weight_cap)
            yield BagNoise(labels, _information(labels, bag_size))


def _information(labels: NoisyLabels, bag_size: int) -> float:
    streams = bag_streams(Secret.insecure(0), "information", np.arange(_PUBLIC_DRAWS))
    squares = np.square([labels.weights(stream, bag_size) for stream in streams])
    return float(np.mean(squares.sum(axis=1) / variance(squares, labels))) / bag_size


def variance(squares: NDArray[np.float64], labels: NoisyLabels) -> NDArray[np.float64]:
    """Return the variance of label sums, shape (b,), from squared weights, shape (b, k)."""
    noised = squares[:, : labels.num_noised].sum(axis=1)
    return np.asarray(labels.noise_std**2 * noised + ROW_VARIANCE * squares.sum(axis=1))
