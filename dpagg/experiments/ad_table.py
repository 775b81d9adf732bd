"""A synthetic table of ad impressions with the sales attributed to them, for the demo and for tests.

The table imitates what an ad-measurement team joins each day: impressions of a retargeting campaign, shown
to visitors who had looked at a product before, and what each of them bought in the weeks that followed.

How a row is made (everything from one seeded generator):

- A visitor has an unseen *intent*, a standard normal. It moves what is seen (how far the visitor got in the
  shop, product pages viewed, earlier purchases) and the sale, so features explain sales only in part.
- Device, country, hour and product category have unequal shares, down to about one percent; a few values
  are not among the declared categories. Three percent of the categories are unknown. Prices are
  log-normal around a level that depends on the category. Visitors without an account have no account age.
- A sale happens with a probability logistic in stage, views, purchases, price, discount, device, hour and
  intent; nearly three quarters of the rows have none, with an amount of 0. One in two hundred amounts was
  lost in tracking and is null.
- The amount is the discounted price times a basket factor: log-normal, with a Pareto tail (index 2.5) in one
  sale of twenty, so amounts are heavy-tailed. Means do not depend on the encoded features linearly: a linear
  model is misspecified, as it is in life.

The bounds in `ad_schema` are round numbers such as a shop could state beforehand; they were not computed
from the table. About one sale in sixty lies above the label's upper bound and is clipped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

__all__ = ["ad_schema", "ad_table"]

_DEVICES = {"mobile": 0.60, "desktop": 0.31, "tablet": 0.07, "tv": 0.012, "console": 0.008}
_COUNTRIES = {
    "JP": 0.33,
    "US": 0.26,
    "GB": 0.13,
    "DE": 0.11,
    "FR": 0.10,
    "NL": 0.03,
    "SE": 0.025,
    "KR": 0.015,
}
_CATEGORIES = {"fashion": 0.31, "home": 0.24, "electronics": 0.20, "beauty": 0.14, "sports": 0.11}
_HOURS = {"day": 0.47, "evening": 0.40, "night": 0.13}
_STAGES = ("viewed", "wishlist", "cart", "checkout")
_DISCOUNTS = {0.0: 0.55, 0.1: 0.20, 0.2: 0.15, 0.3: 0.07, 0.5: 0.03}

_PRICE_LEVEL = {"fashion": 42.0, "home": 55.0, "electronics": 90.0, "beauty": 28.0, "sports": 50.0}
_STAGE_EFFECT = np.array([-2.2, -0.6, 1.5, 3.2])
_DEVICE_EFFECT = {"mobile": -0.15, "desktop": 0.25, "tablet": 0.1, "tv": -0.8, "console": -0.6}
_HOUR_EFFECT = {"day": 0.0, "evening": 0.2, "night": -0.2}
_COUNTRY_BASKET = {
    "JP": 1.0, "US": 1.15, "GB": 1.05, "DE": 1.1, "FR": 1.0, "NL": 1.05, "SE": 1.1, "KR": 0.95
}  # fmt: skip


def ad_table(num_rows: int = 200_000, *, seed: int) -> pa.Table:
    """Make a table of ad impressions and attributed sales; see the module's text.

    Parameters
    ----------
    num_rows : int
        Rows, at least 1.
    seed : int
        Of the generator: one seed and one number of rows give one table.

    Returns
    -------
    pyarrow.Table
        ``impression_id`` (int64, unique), ``device``, ``country``, ``category`` (nullable), ``hour``,
        ``stage`` (text), ``price``, ``discount``, ``account_age_days`` (nullable; float64), ``past_views``,
        ``past_purchases`` (int64), ``sale_amount`` (float64, nullable, the label).

    Raises
    ------
    ValueError
        If `num_rows` is below 1.
    """
    if num_rows < 1:
        raise ValueError(f"num_rows must be at least 1, got {num_rows}")
    rng = np.random.default_rng(seed)
    intent = rng.normal(size=num_rows)
    device = _draw(rng, _DEVICES, num_rows)
    country = _draw(rng, _COUNTRIES, num_rows)
    category = _draw(rng, _CATEGORIES, num_rows)
    hour = _draw(rng, _HOURS, num_rows)
    discount = _draw(rng, _DISCOUNTS, num_rows)

    stage = np.searchsorted([0.35, 1.0, 2.1], 0.75 * intent + rng.normal(size=num_rows))
    past_views = rng.poisson(np.exp(0.8 + 0.45 * intent) * rng.gamma(1.5, 1 / 1.5, num_rows))
    has_account = rng.random(num_rows) < 0.72
    account_age = np.minimum(rng.gamma(1.3, 420.0, num_rows), 4000.0).round()
    past_purchases = np.where(
        has_account, rng.poisson(0.0018 * np.minimum(account_age, 1500) * np.exp(0.35 * intent)), 0
    )
    price = np.round(_lookup(category, _PRICE_LEVEL) * np.exp(0.45 * rng.normal(size=num_rows)), 2)

    logit = (
        -0.9
        + _STAGE_EFFECT[stage]
        + 0.25 * np.log1p(past_views)
        + 0.3 * np.log1p(past_purchases)
        + 1.5 * discount
        - 0.25 * np.log(price / 50.0)
        + _lookup(device, _DEVICE_EFFECT)
        + _lookup(hour, _HOUR_EFFECT)
        + 0.5 * intent
    )
    sold = rng.random(num_rows) < 1 / (1 + np.exp(-logit))
    basket = np.exp(0.3 * rng.normal(size=num_rows) - 0.045)
    basket *= np.where(rng.random(num_rows) < 0.05, 1 + rng.pareto(2.5, num_rows), 1.0)
    amount = price * (1 - discount) * basket * _lookup(country, _COUNTRY_BASKET)
    sale = np.where(sold, np.round(amount, 2), 0.0)

    return pa.table(
        {
            "impression_id": pa.array(rng.permutation(num_rows).astype(np.int64) + 1_000_000_000),
            "device": pa.array(device),
            "country": pa.array(country),
            "category": pa.array(category, mask=rng.random(num_rows) < 0.03),
            "hour": pa.array(hour),
            "stage": pa.array(np.array(_STAGES)[stage]),
            "price": pa.array(price),
            "discount": pa.array(discount),
            "account_age_days": pa.array(account_age, mask=~has_account),
            "past_views": pa.array(past_views.astype(np.int64)),
            "past_purchases": pa.array(past_purchases.astype(np.int64)),
            "sale_amount": pa.array(sale, mask=rng.random(num_rows) < 0.005),
        }
    )


def ad_schema() -> dict[str, Any]:
    """Return the ``schema`` section of a configuration for `ad_table`: 25 encoded columns."""
    return {
        "intercept": True,
        "features": [
            {
                "name": "device",
                "type": "categorical",
                "categories": ["mobile", "desktop", "tablet"],
                "other": True,
            },
            {
                "name": "country",
                "type": "categorical",
                "categories": ["JP", "US", "GB", "DE", "FR"],
                "other": True,
            },
            {
                "name": "category",
                "type": "categorical",
                "categories": ["fashion", "home", "electronics", "beauty", "sports"],
                "missing": "indicator",
            },
            {"name": "hour", "type": "categorical", "categories": ["day", "evening", "night"]},
            {"name": "stage", "type": "categorical", "categories": list(_STAGES)},
            {"name": "price", "type": "numeric", "lower": 0, "upper": 300},
            {"name": "discount", "type": "numeric", "lower": 0, "upper": 0.5},
            {
                "name": "account_age_days",
                "type": "numeric",
                "lower": 0,
                "upper": 3650,
                "missing": "indicator",
            },
            {"name": "past_views", "type": "numeric", "lower": 0, "upper": 30},
            {"name": "past_purchases", "type": "numeric", "lower": 0, "upper": 20},
        ],
        "label": {"name": "sale_amount", "lower": 0, "upper": 200, "missing": {"constant": 0}},
    }


def _draw(rng: np.random.Generator, shares: Mapping[Any, float], size: int) -> NDArray[Any]:
    return np.array(list(shares))[rng.choice(len(shares), size=size, p=list(shares.values()))]


def _lookup(values: NDArray[Any], table: dict[str, float]) -> NDArray[np.float64]:
    keys, inverse = np.unique(values, return_inverse=True)
    return np.array([table[str(key)] for key in keys])[inverse]
