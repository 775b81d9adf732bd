"""Numbers as people read them."""

from __future__ import annotations

import math

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_WORDS = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"))


def number(value: object, digits: int = 3) -> str:
    """Return a number with its thousands apart, or as a multiple of a power of ten; other values as they are."""
    if value is None:
        return "—"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "infinite" if value == "inf" else str(value)  # JSON has no infinity
    if not math.isfinite(value):
        return "infinite" if value > 0 else "not known"
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size and not 1e-4 <= size < 1e9:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        power = f"10{str(int(exponent)).translate(_SUPERSCRIPT)}"
        return power if mantissa == "1" else f"{mantissa.replace('-', '−')}\u00a0×\u00a0{power}"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def percent(share: float) -> str:
    """Return a share in per cent, three digits."""
    value = 100.0 * share
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{number(value)}\u00a0%"
    return f"{value:,.0f}\u00a0%" if value >= 1000 else f"{value:.3g}\u00a0%"


def claimed(epsilon: object, delta: object) -> str:
    """Return a pair of epsilon and delta that no line break tears apart."""
    return f"ε\u00a0=\u00a0{number(epsilon)}, δ\u00a0=\u00a0{number(delta)}"


def one_in(probability: float) -> str:
    """Return a small probability as ``1 in 100 million``."""
    if not 0 < probability < 0.5:
        return percent(probability)
    count = 1.0 / probability
    for size, word in _WORDS:
        if count >= size * (1 - 1e-9):
            return f"1 in {number(float(f'{count / size:.3g}'))} {word}"
    return f"1 in {float(f'{count:.3g}'):,.0f}"
