"""Gaussian sketches ``S A`` of a tall matrix, in ways that are equal in distribution, and symmetric noise.

With iid standard normal S (m, n) the rows of ``S A`` are iid ``N(0, A^T A)``. So they can be drawn from the rows of A
with explicit weights, from its triangular factor, or, where only the Gram matrix of the sketch is wanted, as a Wishart
matrix. (Sketching parts of the rows by themselves and adding the Gram matrices is another mechanism.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sketch_share(rng: np.random.Generator, rows: Array, sketch_size: int) -> Array:
    """Return the share of a block, shape (k, d), in ``S A``: summed over all blocks it is the sketch.

    Parameters
    ----------
    rng : numpy.random.Generator
        A stream of this block alone.
    rows : ndarray of float64, shape (k, d)
        The block.
    sketch_size : int
        Rows m of the sketch.

    Returns
    -------
    ndarray of float64, shape (m, d)
    """
    share: Array = rng.standard_normal((sketch_size, len(rows))) @ rows
    return share


def sketch_rows(rng: np.random.Generator, factor: Array, num_rows: int) -> Array:
    """Return rows of the sketch, shape (num_rows, d), from ``factor``: any F with ``F.T @ F == A.T @ A``."""
    rows: Array = rng.standard_normal((num_rows, len(factor))) @ factor
    return rows


def wishart_gram(rng: np.random.Generator, factor: Array, sketch_size: int) -> Array:
    """Return the Gram matrix ``A^T S^T S A`` of a sketch, by Bartlett's decomposition in O(d^3).

    Parameters
    ----------
    rng : numpy.random.Generator
        Stream of this sketch.
    factor : ndarray of float64, shape (r, d)
        Any F with ``F.T @ F == A.T @ A``.
    sketch_size : int
        Rows m of the sketch, at least r.

    Raises
    ------
    ValueError
        If the sketch has fewer rows than the factor.

    References
    ----------
    Bartlett (1933); Anderson (2003), An Introduction to Multivariate Statistical Analysis, 7.2.
    """
    size = len(factor)
    if sketch_size < size:
        raise ValueError(f"Bartlett's decomposition needs at least {size} rows, got {sketch_size}")
    lower = np.tril(rng.standard_normal((size, size)), -1)
    lower[np.diag_indices(size)] = np.sqrt(rng.chisquare(sketch_size - np.arange(size)))
    half = lower.T @ factor
    gram: Array = half.T @ half
    return gram


def symmetric_noise(rng: np.random.Generator, width: int, noise_std: float) -> Array:
    """Return symmetric noise, shape (width, width), that is isotropic in the Frobenius norm.

    Standard deviation `noise_std` on the diagonal and ``noise_std / sqrt(2)`` off it: in the orthonormal basis of the
    symmetric matrices every coordinate has `noise_std`. So a symmetric matrix of Frobenius sensitivity s is released
    as by one Gaussian mechanism with ``mu = s / noise_std``.
    """
    square = noise_std * rng.standard_normal((width, width))
    noise: Array = (square + square.T) / 2
    return noise
