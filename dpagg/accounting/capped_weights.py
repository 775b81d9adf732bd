"""Law of one weight of a bag over the noise in its sum, where weights were redrawn until all of them met a cap."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from dpagg.accounting.divergence import FloatArray

STEP = 0.02
_LATTICE = np.arange(-25.0, 37.0, STEP)
_FALL = 50.0  # integrands are followed until they are exp(-50) of their peak
_LEAST_NOISED = 4  # with fewer noised rows the series below converges too slowly
_MOST_TERMS, _MOST_BOUNDED = 2048, 1 << 20
_LEAST_TILT = -30.0


def ratios(cap: float) -> tuple[FloatArray, FloatArray]:
    """Return R between 0 and the cap on a lattice in ``v = logit(R / cap)`` with `STEP`, and ``ln dR/dv``."""
    return cap * special.expit(_LATTICE), math.log(cap) + special.log_expit(_LATTICE) + special.log_expit(-_LATTICE)


@lru_cache(maxsize=64)
def density_without_noise(cap: float, noised: int, plain: int) -> FloatArray:
    """Return an upper bound, tight to 1e-12, of the density of R at `ratios` for one of `plain` rows without noise.

    Given the noised rows' norm s the others are independent normals cut at cap s, and the noised rows' own direction,
    which decides whether they meet the cap, doesn't depend on s. So with ``A(s) = P(|w| <= cap s)`` the density is
    ``int f(s) A^(plain-1) 2 s phi(R s) ds / int f(s) A^plain ds``, f that of chi with `noised` degrees of freedom.

    Parameters
    ----------
    cap
        Largest R, positive.
    noised, plain
        Numbers of rows with and without noise, at least 1.
    """
    at, _ = ratios(cap)

    def log_terms(t: FloatArray, ratio: FloatArray | float, power: int) -> FloatArray:
        # s = sqrt(noised) exp(t); a constant factor of both integrals is left out.
        square = noised * np.exp(2 * t)
        inside = np.log1p(-special.erfc(cap * np.sqrt(square / 2)))
        small = cap * np.sqrt(square / 2) < 0.5
        inside = np.where(small, np.log(special.erf(cap * np.sqrt(square / 2))), inside)
        value = noised * (t - np.expm1(2 * t) / 2) + power * inside + (plain - power) * t
        return np.asarray(value - square * np.square(ratio) / 2)

    ends = [
        _support(lambda t, r=r, p=p: float(log_terms(np.array(t), r, p)), cap, plain / noised)  # type: ignore[misc]
        for r, p in ((0.0, plain), (0.0, plain - 1), (cap, plain - 1))
    ]
    # Every integrand is log-concave in t, so those of ratios in between lie in between.
    step = min(high - mode for _, mode, high in ends) / 30
    t = np.arange(min(low for low, _, _ in ends), max(high for _, _, high in ends) + step, step)
    peak = max(float(log_terms(t, 0.0, p).max()) for p in (plain, plain - 1))
    accepted, error = _halved(np.exp(log_terms(t, 0.0, plain) - peak))
    accepted = (accepted - error) * (1 - 1e-13)
    total, error = _halved(np.exp(log_terms(t, at[:, None], plain - 1) - peak))
    return np.asarray(math.sqrt(2 * noised / math.pi) * (total + error) * (1 + 1e-13) / accepted)


def _support(log_value: Callable[[float], float], cap: float, plain_share: float) -> tuple[float, float, float]:
    """Mode of a log-concave function, and where it has fallen by `_FALL` on both sides."""
    bounds = (-3.0 - math.log1p(cap), 1.0 + math.log1p(plain_share))
    mode = float(optimize.minimize_scalar(lambda t: -log_value(t), bounds=bounds, method="bounded").x)
    target = log_value(mode) - _FALL

    def reach(sign: int) -> float:
        far = 1e-6
        while log_value(mode + sign * far) > target:
            far *= 2
        return mode + sign * far

    found = [optimize.brentq(lambda t: log_value(t) - target, mode, reach(sign)) for sign in (-1, 1)]
    return float(found[0]), mode, float(found[1])


def _halved(terms: FloatArray) -> tuple[FloatArray, FloatArray]:
    total = terms.sum(-1)
    return total, abs(total - 2 * terms[..., ::2].sum(-1))


@lru_cache(maxsize=64)
def density_with_noise(cap: float, noised: int) -> FloatArray | None:
    """Return an upper bound of the density of R at `ratios` for one of `noised` rows, or None where it has none.

    The smaller of two. One is the density without a cap over a lower bound of the chance ``1 - noised P(R > cap)`` that
    all meet it: nearly exact for high caps, where the other has too many terms. That one:

    ``R^2 / cap^2`` are numbers y of density ``y^(-1/2)`` on [0, 1], given that they add up to ``T = 1 / cap^2``; rows
    without noise don't matter. With h_M(x) the density of the sum of M of them the density of R is
    ``(2 / cap) h_(noised-1)(T - y) / h_noised(T)``. As h lives on [0, M], it is a Fourier series of its transform,
    ``g(s)^M`` with ``g(s) = sqrt(pi / s) erf(sqrt(s))``, exactly; on a line through the saddle point of h_noised it is
    nearly free of cancellation, and the terms left out are bounded by
    ``|g(s)| <= sqrt(pi / |s|) (1 + exp(-Re s) / (sqrt(pi) Re sqrt(s)))``.

    Parameters
    ----------
    cap
        Largest R. Below ``noised^(-1/2)`` no weights meet it; from 1 up it says nothing about noised rows.
    noised
        Number of noised rows; for fewer than 4 there is the first bound only.
    """
    if not 1 < 1 / cap**2 < noised:
        return None
    found = [bound for bound in (_by_chance(cap, noised), _by_series(cap, noised)) if bound is not None]
    return np.asarray(np.min(found, axis=0)) if found else None


def _by_chance(cap: float, noised: int) -> FloatArray | None:
    # R^2 is Beta(1/2, (noised - 1) / 2) without a cap. At most one R is over a cap of 2^(-1/2) or more, so that the
    # chance is exact there.
    missed = noised * float(special.betainc((noised - 1) / 2, 0.5, (1 - cap) * (1 + cap))) * (1 + 1e-10)
    if missed >= 1:
        return None
    at, _ = ratios(cap)
    log_density = (noised - 3) / 2 * np.log1p(-np.square(at)) - special.betaln(0.5, (noised - 1) / 2)
    return np.asarray(2 * np.exp(log_density) / (1 - missed) * (1 + 1e-11))


def _by_series(cap: float, noised: int) -> FloatArray | None:
    if noised < _LEAST_NOISED:
        return None
    target, rows = 1 / cap**2, noised - 1
    at, _ = ratios(cap)

    def exponent(a: float) -> float:
        return a * target + noised * math.log(_transform(a))

    tilt = float(optimize.minimize_scalar(exponent, bounds=(_LEAST_TILT, noised), method="bounded").x)
    period, size = noised + 1.0, _transform(tilt)

    def left(highest: float) -> float:
        # A bound of what both series have beyond.
        rest = math.exp(-tilt) / np.sqrt(complex(tilt, highest)).real / math.sqrt(math.pi)
        base = math.sqrt(math.pi) * (1 + rest) / size
        power = rows * math.log(base) + (1 - rows / 2) * math.log(highest)
        return period / math.pi * math.exp(min(power, 700.0)) / (rows / 2 - 1)

    highest = 2 * math.pi / period * 64
    while left(highest) > 1e-15 and highest * period < 2 * math.pi * _MOST_BOUNDED:
        highest *= 2
    omega = 2 * math.pi / period * np.arange(1, math.ceil(highest * period / (2 * math.pi)) + 1)
    root = np.sqrt(tilt + 1j * omega)
    quotient = math.sqrt(math.pi) * special.erf(root) / root / size
    sizes = np.abs(quotient) ** rows  # those of one row more are smaller, as |quotient| <= 1
    kept = min(int(np.searchsorted(-sizes, -1e-19)), max(_MOST_TERMS, int(20 * math.sqrt(noised))))
    kept = max(kept, 1)
    error = 2 * sizes[kept:].sum() + left(highest) + 1e-14 * (1 + 2 * sizes[:kept].sum())
    omega, quotient = omega[:kept], quotient[:kept]
    powers = np.exp(rows * np.log(quotient)) * np.exp(1j * omega * target)
    whole = 1 + 2 * float((powers * quotient).sum().real) - error
    if whole <= 0:
        return None
    squares = np.square(at / cap)
    series = np.concatenate(
        [1 + 2 * (np.exp(-1j * part[:, None] * omega) @ powers).real for part in np.array_split(squares, 16)]
    )
    return np.asarray(2 / cap * np.exp(-tilt * squares) / size * (np.maximum(series, 0) + error) / whole)


def _transform(a: float) -> float:
    """``int_0^1 y^(-1/2) exp(-a y) dy``."""
    root = math.sqrt(abs(a))
    if root < 1e-4:
        return 2 - 2 * a / 3
    if a > 0:
        return math.sqrt(math.pi) / root * math.erf(root)
    return 2 * math.exp(-a) * float(special.dawsn(root)) / root
