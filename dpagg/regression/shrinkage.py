"""Shrinking released estimates towards zero: post-processing, free of privacy cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shrink_factors"]

Array = NDArray[np.float64]

# Energies of the prior, as shares of the largest possible one; how it may be spread over the directions.
_ENERGIES = np.concatenate([[0.0], np.geomspace(1e-3, 1.0, 20)])
_SPREADS = (0.0, 0.5, 1.0)
# No signal at all is as likely beforehand as four energies, so that pure noise is shrunk to nearly nothing.
_WEIGHT_OF_NOTHING = 4.0


def shrink_factors(observed: Array, noise_variance: Array | float, strength: Array, energy_bound: float) -> Array:
    """Return the factors in [0, 1) by which a Bayesian shrinks unbiased estimates of known noise variance.

    ``observed_i = w_i + N(0, noise_variance_i)`` with prior ``w_i ~ N(0, t p_i)``, where t runs over a grid from 0 to
    `energy_bound` and ``p_i`` is proportional to ``strength_i ** a`` for a in 0, 1/2, 1. The factor is the posterior
    mean of ``t p_i / (t p_i + noise_variance_i)`` over (t, a), each weighted by its marginal likelihood.

    Parameters
    ----------
    observed : ndarray, shape (d,)
        Estimates in coordinates in which the loss is the sum of squares.
    noise_variance : ndarray, shape (d,), or float
        Positive.
    strength : ndarray, shape (d,)
        Positive; how much a coefficient of given size weighs in each direction (eigenvalue of the Gram matrix).
    energy_bound : float
        Largest plausible sum of squares of w, positive.

    Returns
    -------
    ndarray, shape (d,)
    """
    variance = np.broadcast_to(np.asarray(noise_variance, dtype=float), observed.shape)
    shares = np.stack([strength**a / np.sum(strength**a) for a in _SPREADS])
    prior = energy_bound * _ENERGIES[:, None, None] * shares  # (energies, spreads, d)
    total = prior + variance
    log_likelihood = -0.5 * np.sum(np.log(total) + observed**2 / total, axis=2)
    log_likelihood[0] += np.log(_WEIGHT_OF_NOTHING)
    weights = np.exp(log_likelihood - log_likelihood.max())
    factors: Array = np.einsum("es,esd->d", weights / weights.sum(), prior / total)
    return factors
