"""Lines of a synthetic Criteo conversion log.

A click has a device, perhaps an audience, and a product with a category, a brand, a country and a partner, drawn with
Zipf's frequencies from as many values as the real log has, to an order of magnitude. Whether it led to a sale depends
mostly on device and audience; the amount on category and country, log-normal with a Pareto tail. About one click in
nine does, as in the real log. As there, the price is in the log for clicks that led to a sale.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv

__all__ = ["criteo_lines"]

Array: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.int64]

_START, _SECONDS = 1_596_439_471, 90 * 86_400
_LONGEST_DELAY = 30 * 86_400
_HEX = np.frombuffer(b"0123456789ABCDEF", dtype=np.uint8)

# (values, exponent of Zipf's law, share that is missing) of each categorical column, in the order of the log.
_CATEGORIES = {
    "product_age_group": (10, 1.0, 0.74),
    "device_type": (4, 1.3, 0.0),
    "audience_id": (350, 1.1, 0.72),
    "product_gender": (5, 1.0, 0.73),
    "product_brand": (55_000, 1.05, 0.45),
    "product_category1": (21, 0.8, 0.36),
    "product_category2": (170, 0.9, 0.37),
    "product_category3": (900, 0.9, 0.44),
    "product_category4": (1_400, 0.9, 0.67),
    "product_category5": (1_000, 0.9, 0.94),
    "product_category6": (170, 0.9, 0.99),
    "product_category7": (1, 0.0, 1.0),
    "product_country": (17, 1.3, 0.27),
    "product_id": (2_000_000, 0.8, 0.28),
    "partner_id": (312, 0.9, 0.0),
    "user_id": (13_000_000, 0.3, 0.0),
}

# How likely a sale is: the base, what returning visitors (two kinds of device) and a known audience add.
_BASE_RATE = 0.012
_DEVICE_RATE = np.array([0.0, 0.0, 0.01, 0.66])
_AUDIENCE_RATE = 0.08


def criteo_lines(rng: np.random.Generator, first: int, size: int, rows: int) -> bytes:
    """Return lines of the log as bytes.

    Parameters
    ----------
    rng : Generator
        Of these lines.
    first, size : int
        Number of the first line within the file, and how many lines.
    rows : int
        Lines of the whole file, over which its 90 days are spread.
    """
    codes = {name: _codes(rng, name, size) for name in _CATEGORIES}
    rate = _BASE_RATE + _DEVICE_RATE[codes["device_type"]] + _AUDIENCE_RATE * (codes["audience_id"] >= 0)
    sold = rng.random(size) < rate
    amount = _amounts(rng, codes, size)
    clicked = np.sort(_START + ((first + rng.random(size) * size) / rows * _SECONDS).astype(np.int64))
    clicks = np.where(rng.random(size) < 0.42, -1, np.floor(np.exp(1.6 * rng.normal(size=size) + 2.2))).astype(np.int64)
    delay = np.minimum(rng.exponential(4 * 86_400, size), _LONGEST_DELAY - 1).astype(np.int64)
    price = np.where(sold & (rng.random(size) < 0.85), amount * np.exp(0.3 * rng.normal(size=size)), 0.0)
    title = rng.poisson(2.2, size)

    columns: dict[str, pa.Array] = {
        "Sale": pa.array(sold.astype(np.int8)),
        "SalesAmountInEuro": _decimals(np.where(sold, amount, -1.0)),
        "time_delay_for_conversion": pa.array(np.where(sold, delay, -1)),
        "click_timestamp": pa.array(clicked),
        "nb_clicks_1week": pa.array(np.minimum(clicks, 100_000)),
        "product_price": _decimals(price),
    }
    for name, found in codes.items():
        if name == "partner_id":
            columns["product_title"] = _titles(rng, title)
        columns[name] = _texts(found, name)
    sink = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    csv.write_csv(pa.table(columns), sink, options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _amounts(rng: np.random.Generator, codes: dict[str, Codes], size: int) -> Array:
    """Amounts in euros: a level by category and country, log-normal about it, a Pareto tail in one of twenty."""
    category, country = codes["product_category1"], codes["product_country"]
    level = np.exp(
        3.9 + 0.35 * np.cos(1.7 * category) * (category >= 0) + 0.15 * np.sin(2.3 * country) * (country >= 0)
    )
    basket = np.exp(0.45 * rng.normal(size=size))
    basket *= np.where(rng.random(size) < 1 / 20, 1 + rng.pareto(1.6, size), 1.0)
    return np.asarray(np.maximum(level * basket, 0.5))


def _codes(rng: np.random.Generator, name: str, size: int) -> Codes:
    """Number of the value of each row, -1 where it is missing."""
    values, exponent, missing = _CATEGORIES[name]
    if missing == 1.0:
        return np.full(size, -1, dtype=np.int64)
    drawn = _zipf(rng.random(size), values, exponent)
    if missing:
        drawn[rng.random(size) < missing] = -1
    return drawn


def _zipf(uniform: Array, values: int, exponent: float) -> Codes:
    """Numbers from 0 with density (1 + x)^-exponent over the range, rounded down."""
    if exponent == 1.0:
        drawn = np.expm1(uniform * np.log1p(values))
    else:
        power = 1.0 - exponent
        drawn = (1.0 + uniform * ((1.0 + values) ** power - 1.0)) ** (1.0 / power) - 1.0
    return np.asarray(np.minimum(drawn.astype(np.int64), values - 1))


def _decimals(values: Array) -> pa.Array:
    """Numbers with two decimals at most, as the log writes them: 0.0, -1.0, 12.5."""
    return pa.array(np.round(values, 2))


def _texts(codes: Codes, column: str) -> pa.Array:
    """The hash of each value, ``-1`` where there is none."""
    values = _CATEGORIES[column][0]
    if values <= 60_000:
        texts = _all_texts(column)
        return pc.take(texts, pa.array(np.where(codes >= 0, codes, values)))
    return _marked(_hashes(codes, _salt(column)), codes < 0)


@cache
def _all_texts(column: str) -> pa.Array:
    values = _CATEGORIES[column][0]
    return pa.concat_arrays([_hashes(np.arange(values), _salt(column)), pa.array(["-1"])])


def _marked(texts: pa.Array, missing: NDArray[np.bool_]) -> pa.Array:
    return pc.if_else(pa.array(missing), pa.scalar("-1"), texts)


def _titles(rng: np.random.Generator, words: NDArray[np.int64]) -> pa.Array:
    """Hashes of words with blanks between them, ``-1`` for a product without a title."""
    hashes = _hashes(_zipf(rng.random(int(words.sum())), 500_000, 0.8), _salt("product_title"))
    offsets = np.concatenate([[0], np.cumsum(words)]).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(offsets), hashes)
    return _marked(pc.binary_join(lists, " "), words == 0)


def _salt(column: str) -> int:
    # One more than the name says: with it the four devices fall into four of eight buckets.
    return int.from_bytes(column.encode()[-8:].rjust(8, b"\0"), "big") + 1


def _hashes(codes: Codes, salt: int) -> pa.Array:
    """A text of 32 hexadecimal digits for each number: two rounds of a mixing function of 64 bits."""
    with np.errstate(over="ignore"):
        words = np.empty((len(codes), 2), dtype=">u8")
        for half in range(2):
            mixed = codes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(salt) + np.uint64(half << 32)
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            words[:, half] = mixed ^ (mixed >> np.uint64(31))
    octets = words.view(np.uint8).reshape(len(codes), 16)
    digits = np.empty((len(codes), 32), dtype=np.uint8)
    digits[:, 0::2] = _HEX[octets >> 4]
    digits[:, 1::2] = _HEX[octets & 15]
    offsets = np.arange(0, 32 * len(codes) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(digits))
