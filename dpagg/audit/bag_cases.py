"""Attacks on disjoint bags: the attacker knows that the row is in the bag, and all the others in it."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import optimize, special

from dpagg.accounting.calibration import with_least_label_noise
from dpagg.accounting.divergence import divergence
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.audit.attack import Case
from dpagg.audit.label_cases import LABEL_LOWER, LABEL_UPPER, LabelPair, bags_law, bare_event, labelled_rows, words
from dpagg.kernels.bags import NoisyLabels, bag_streams, weight_cap_for, weighted_bags
from dpagg.kernels.streams import Secret

FloatArray = NDArray[np.float64]

# Keying a stream for each of a million bags would take most of the time, so releases take turns at these.
_STREAMS = 64


def sampled_aggregation(*, epsilon: float, delta: float, pair: LabelPair) -> Case:
    """Sampled-WTD-FLAG with the least label noise that meets (epsilon, delta); the pair is one bag."""
    bare, bag_size = bare_event(pair, 1), pair.first.num_rows
    event = with_least_label_noise(
        SampledAggregation(
            bag_size=bag_size,
            label_range=bare.label_range,
            leverage=bare.leverage,
            residual_floor=0.0,
            residual_bound=bare.residual_bound,
        ),
        epsilon=epsilon,
        delta=delta,
    )
    noise_std = math.sqrt(event.label_noise_variance)
    law = bags_law(pair, 1, event.label_noise_variance)

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> FloatArray:
        rule, _, rows = labelled_rows(pair.schema, table)
        drawn = weighted_bags(np.tile(rows, (count, 1, 1)), _streams(secret, release_id, count))
        labels = drawn.labels + rule.label_center * drawn.features[:, 0] + noise_std * drawn.noise
        return np.column_stack([drawn.features, labels])[:, None]

    return Case(
        name="sampled-wtd-flag",
        inputs=f"one bag of {words(pair)}",
        event=event,
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=law.log_ratio,
        exact_delta=law.exact_delta(),
    )


def noisy_label_aggregation(
    *,
    epsilon: float,
    delta: float,
    bag_size: int = 16,
    noised_fraction: float = 0.5,
    acceptance: float | None = None,
    range_factor: float = 1.0,
) -> Case:
    """Sampled-Noisy-WTD-LAg with the least noise that meets (epsilon, delta); the label of the worst row changes.

    That row is one without noise where weights are drawn once. With an `acceptance` they are drawn again until they
    meet the cap that this share of the draws meets, and a noised row is worse: with all weights under the cap, those of
    noised rows, which make up the norm, come closer to it.
    """
    label_range = LABEL_UPPER - LABEL_LOWER
    num_noised = math.floor(round(noised_fraction * bag_size, 9))
    cap = None
    if acceptance is not None:
        cap = weight_cap_for(acceptance, bag_size=bag_size, num_noised=num_noised)

    def event(noise_std: float) -> NoisyLabelAggregation:
        return NoisyLabelAggregation(
            bag_size=bag_size,
            noised_fraction=noised_fraction,
            noise_std=noise_std,
            label_range=label_range,
            weight_cap=cap,
        )

    noise_std = float(optimize.brentq(lambda std: event(std).delta(epsilon) - delta, 0.1, 1e4, xtol=1e-9)) + 1e-9
    kernel = NoisyLabels(num_noised, noise_std, cap)
    before, after = np.full(bag_size, LABEL_UPPER), np.full(bag_size, LABEL_UPPER)
    # Rows that get noise come first, so the last one has none and hides behind the others' noise alone.
    after[-1 if cap is None else 0] -= range_factor * label_range
    changed = "another one" if cap is None else "one of these"

    def draw(labels: FloatArray, count: int, secret: Secret, release_id: str) -> tuple[FloatArray, FloatArray]:
        return kernel.draw(np.tile(labels, (count, 1)), _streams(secret, release_id, count))

    def log_ratio(release: tuple[FloatArray, FloatArray]) -> FloatArray:
        weights, sums = release
        variance = noise_std**2 * np.square(weights[:, :num_noised]).sum(1)
        middle = sums - weights @ ((before + after) / 2)
        return np.asarray(middle * (weights @ (before - after)) / variance)

    def exact_delta(epsilons: FloatArray) -> FloatArray:
        # The changed weight over the root of the noised ones' mean square is a Student t.
        log_t = np.arange(-20.0, 20.0, 0.02)
        t, freedom = np.exp(log_t), num_noised
        density = 2 * np.exp(-special.betaln(0.5, freedom / 2)) * freedom**-0.5
        density = density * (1 + t * t / freedom) ** (-(freedom + 1) / 2)
        mu = t * abs(before - after).max() / (noise_std * math.sqrt(freedom))
        one, none = np.ones(1), np.zeros(1)
        inner = divergence(epsilons[:, None], rows=one, excess=none, inverse_excess=none, mu=mu[None])
        return np.asarray((inner * density * t).sum(1) * 0.02)

    return Case(
        name="sampled-noisy-wtd-lag/any-weights" if cap is None else "sampled-noisy-wtd-lag/capped",
        inputs=f"one bag of {bag_size} rows, {num_noised} of them with noise; the label of {changed} moves",
        event=event(noise_std),
        pair=(before, after),
        draw=draw,
        log_ratio=log_ratio,
        exact_delta=exact_delta if cap is None else None,
    )


def _streams(secret: Secret, release_id: str, count: int) -> list[np.random.Generator]:
    streams = bag_streams(secret, release_id, np.arange(_STREAMS))
    return [streams[i % _STREAMS] for i in range(count)]
