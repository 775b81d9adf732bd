"""The Criteo Sponsored Search Conversion Log: how its file is read, and which of its columns follow from labels.

One line a click, tab-separated, without a header: 15,995,634 lines of 23 columns over 90 days, sorted by time of click.
``-1`` stands for a missing value. Categories are hashes in hexadecimal, so features put them into buckets.

References
----------
Tallis, Yadav (2018), Reacting to variations in product demand: an application for conversion rate prediction in
sponsored search. The log: ailab.criteo.com/criteo-sponsored-search-conversion-log-dataset
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpagg.errors import PrivacyError

__all__ = ["COLUMNS", "LABEL", "LABEL_DERIVED", "criteo_config", "criteo_features", "criteo_input", "criteo_schema"]

COLUMNS = (
    "Sale",
    "SalesAmountInEuro",
    "time_delay_for_conversion",
    "click_timestamp",
    "nb_clicks_1week",
    "product_price",
    "product_age_group",
    "device_type",
    "audience_id",
    "product_gender",
    "product_brand",
    "product_category1",
    "product_category2",
    "product_category3",
    "product_category4",
    "product_category5",
    "product_category6",
    "product_category7",
    "product_country",
    "product_id",
    "product_title",
    "partner_id",
    "user_id",
)
LABEL = "SalesAmountInEuro"

# The price is in the log for clicks that led to a sale, and 0 for nearly all others: it tells the label.
LABEL_DERIVED = {
    "sale": "it says whether there was a sale",
    "salesamountineuro": "it is the label",
    "time_delay_for_conversion": "it is -1 where there was no sale",
    "product_price": "the log has a price other than 0 for clicks that led to a sale only",
}

# 400 euros is a round number that nearly all sales are under; declared, not computed from a file.
_LABEL_UPPER = 400.0

# (column, buckets): about twice the number of values where there are few, a fixed number where there are thousands.
_BUCKETS = {
    "device_type": 8,
    "product_age_group": 8,
    "product_gender": 8,
    "product_country": 16,
    "audience_id": 16,
    "product_category1": 16,
    "product_brand": 16,
    "partner_id": 16,
}


def criteo_input(path: str, **options: Any) -> dict[str, Any]:
    """Return the ``input`` section that reads the log at a path; further settings replace or add to it."""
    return {
        "path": path,
        "format": "csv",
        "header": False,
        "delimiter": "\t",
        "quote": "none",
        "null_values": ["-1", "-1.0"],
        "column_names": list(COLUMNS),
        **options,
    }


def criteo_features(*, exclude: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the features: clicks of the week as a number, categories in buckets, each with a column for missing ones.

    Parameters
    ----------
    exclude : sequence of str
        Columns to leave out.
    """
    features: list[dict[str, Any]] = [
        {"name": "nb_clicks_1week", "type": "numeric", "lower": 0, "upper": 2000, "missing": "indicator"}
    ]
    features += [
        {"name": name, "type": "hashed", "buckets": buckets, "missing": "indicator"}
        for name, buckets in _BUCKETS.items()
    ]
    return [feature for feature in features if feature["name"] not in exclude]


def criteo_schema(
    features: Sequence[dict[str, Any]] | None = None, *, label_upper: float = _LABEL_UPPER
) -> dict[str, Any]:
    """Return the ``schema`` section: features, and the sale amount between 0 (no sale) and a declared bound.

    Parameters
    ----------
    features : sequence of dict, optional
        As in a configuration; `criteo_features` by default.
    label_upper : float
        Largest amount in euros; larger ones are clipped.

    Raises
    ------
    PrivacyError
        If a feature follows from the label: it would tell what the release protects.
    """
    chosen = criteo_features() if features is None else list(features)
    refuse_label_derived(chosen, LABEL_DERIVED)
    return {
        "intercept": True,
        "features": chosen,
        "label": {"name": LABEL, "lower": 0, "upper": label_upper, "missing": {"constant": 0}},
    }


def criteo_config(
    path: str,
    output: str,
    *,
    mechanism: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    features: Sequence[dict[str, Any]] | None = None,
    label_upper: float = _LABEL_UPPER,
    **input_options: Any,
) -> dict[str, Any]:
    """Return a whole configuration of ``dpagg aggregate`` over the log, for `dpagg.config.parse_config`.

    Parameters
    ----------
    path, output : str
        The log (a file or a folder of files, gzipped or not), and where the release goes.
    mechanism, privacy : dict, optional
        Sections of the configuration; WTD-FLAG with a million bags, and epsilon 1 with delta 1e-12, by default.
    features, label_upper
        As `criteo_schema` takes them.
    **input_options
        For `criteo_input`.

    Raises
    ------
    PrivacyError
        If a feature follows from the label.
    """
    return {
        "input": criteo_input(path, **input_options),
        "schema": criteo_schema(features, label_upper=label_upper),
        "mechanism": mechanism or {"name": "wtd-flag", "num_bags": 1_000_000},
        "privacy": privacy or {"epsilon": 1.0, "delta": 1e-12},
        "output": {"path": output},
    }


def refuse_label_derived(features: Sequence[dict[str, Any]], derived: dict[str, str]) -> None:
    """Refuse features that follow from the label; case doesn't count, as Spark compares names.

    Raises
    ------
    PrivacyError
        For the first of them.
    """
    for position, feature in enumerate(features):
        reason = derived.get(str(feature.get("name", "")).lower())
        if reason is not None:
            raise PrivacyError(
                f"{feature['name']!r} can't be a feature: {reason}",
                path=f"schema.features[{position}]",
                remedy="Leave it out: features are public under label-DP.",
            )
