"""Independent computations of the divergence: real-space integrals of the definition, no inversion
anywhere."""

from __future__ import annotations

import mpmath as mp
import numpy as np
from scipy import special


def _chi_pdf(t, rows):
    half = mp.mpf(rows) / 2
    return mp.exp((2 * half - 1) * mp.log(t) - t * t / 2 - (half - 1) * mp.log(2) - mp.loggamma(half))


def two_ratios(epsilon, rows, up, down, digits=30):
    """E_P[(1 - exp(eps - L))+] for nu1 = 1 + up > 1 and nu2 = 1/(1 + down) < 1: closed tail over the first
    chi-square.

    Both arguments are positive excesses, so that the reversed pair is `two_ratios(eps, rows, down, up)`.
    """
    with mp.workdps(digits):
        eps, half = mp.mpf(epsilon), mp.mpf(rows) / 2
        nu1, nu2 = 1 + mp.mpf(up), 1 / (1 + mp.mpf(down))
        a1, a2 = 1 - 1 / nu1, 1 - 1 / nu2
        top = half * mp.log(nu1 * nu2) - eps

        def given(t):
            second = -a2 * t * t / 2
            cut = (top + second) / a1  # A1 / 2 must be less
            if cut <= 0:
                return mp.mpf(0)
            share_p = mp.gammainc(half, 0, cut, regularized=True)
            share_q = mp.gammainc(half, 0, cut / nu1, regularized=True)
            return share_p - mp.exp(-top - second + half * mp.log(nu1)) * share_q

        start = max(mp.mpf(0), mp.sqrt(2 * top / a2) if top < 0 else mp.mpf(0), mp.sqrt(rows) - 13)
        # sqrt substitution: at few rows the integrand starts like a power of the distance to the kink.
        edges = [0] + [mp.mpf(i) / 4 for i in (1, 2, 4, 6, 9, 12, 16, 22, 30)]
        if start < mp.sqrt(rows):
            edges = sorted({*edges, mp.sqrt(mp.sqrt(rows) - start)})
        return mp.quad(lambda v: _chi_pdf(start + v * v, rows) * given(start + v * v) * 2 * v, edges)


def one_ratio_beside_gaussian(epsilon, rows, down, mu, digits=30):
    """One ratio nu = 1/(1 + down) (any down > -1) beside a shift: closed Gaussian tail, integral over the
    chi-square."""
    with mp.workdps(digits):
        eps, mu, half = mp.mpf(epsilon), mp.mpf(mu), mp.mpf(rows) / 2
        down = mp.mpf(down)

        def given(t):
            rest = eps + half * mp.log(1 + down) - down * t * t / 2
            x = rest / mu - mu / 2
            return mp.ncdf(-x) - mp.exp(rest) * mp.ncdf(-x - mu)

        middle = mp.sqrt(rows)
        edges = sorted(
            {max(mp.mpf(0), middle - 14), *(max(mp.mpf(0), middle + i) for i in range(-12, 16, 2)), middle + 18}
        )
        return mp.quad(lambda t: _chi_pdf(t, rows) * given(t), edges)


def tensor(epsilon, rows, down, mu, nodes=600):
    """Any parts beside a shift of moderate mu: Gauss-Legendre over two chis, closed Gaussian tail; double
    precision."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    axes = []
    for m, z in zip(rows, down, strict=True):
        low, high = max(0.0, np.sqrt(m) - 11), np.sqrt(m) + 11
        t = (high - low) / 2 * x + (high + low) / 2
        log_pdf = (m - 1) * np.log(t) - t * t / 2 - (m / 2 - 1) * np.log(2) - special.gammaln(m / 2)
        axes.append((w * (high - low) / 2 * np.exp(log_pdf), -m / 2 * np.log1p(z) + z * t * t / 2))
    (w1, l1), (w2, l2) = axes
    rest = epsilon - l1[:, None] - l2[None, :]
    shift = rest / mu - mu / 2
    tail = special.ndtr(-shift) - np.exp(np.minimum(rest, 600) + special.log_ndtr(-shift - mu))
    return float(w1 @ tail @ w2)


def gaussian(epsilon, mu, digits=40):
    """Balle and Wang (2018), theorem 8."""
    with mp.workdps(digits):
        eps, mu = mp.mpf(epsilon), mp.mpf(mu)
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)


def label_pair(features, labels, row, change):
    """Variance ratios of WTD-FLAG on two tables that differ in one label, from the Gram matrices themselves.

    Returns the ratios of the bag covariances that differ from 1 (at most two) and both residual sums of
    squares.
    """
    other = labels.copy()
    other[row] += change
    grams = [np.column_stack([features, y]).T @ np.column_stack([features, y]) for y in (labels, other)]
    chol = np.linalg.cholesky(grams[0])
    ratio = np.linalg.solve(chol, np.linalg.solve(chol, grams[1]).T)
    nu = np.linalg.eigvalsh((ratio + ratio.T) / 2)
    residuals = [float(np.linalg.lstsq(features, y, rcond=None)[1][0]) for y in (labels, other)]
    return np.array([nu[-1], nu[0]]), residuals
