"""The 1940 census of the United States as IPUMS USA hands it out: columns, codes, and what follows from the label.

The label is ``HRSWORK1``, hours at work in the week of March 24 to 30, 1940: 0 for who was not at work or not asked
(under 14), at most 98. ``UHRSWORK``, usual hours, does not exist for 1940. An extract is CSV with a header, or fixed
width with the DDI codebook (XML) that comes with it, often gzipped; take a rectangular extract of persons. Codes in
fixed width are padded (``02``), in CSV they are not (``2``): features name them without.

References
----------
Ruggles and others, IPUMS USA, doi.org/10.18128/D010: the pages of the variables say which codes 1940 has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpagg.experiments.label_tables.criteo import refuse_label_derived

__all__ = ["LABEL", "LABEL_DERIVED", "census_config", "census_features", "census_input", "census_schema"]

LABEL = "HRSWORK1"
LABEL_DERIVED = {
    "hrswork1": "it is the label",
    "hrswork2": "it is the label in intervals",
}

# General codes (one variable a concept), 0 being "not in universe" where there is such a code. States as FIPS numbers
# them: 48 of them and the District of Columbia; Alaska and Hawaii were not states in 1940.
STATES = tuple(str(code) for code in range(1, 57) if code not in (2, 3, 7, 14, 15, 43, 52))
CODES: dict[str, tuple[str, ...]] = {
    "SEX": ("1", "2"),
    "MARST": ("1", "2", "3", "4", "5", "6"),
    "RACE": ("1", "2", "3", "4", "5", "6", "7"),
    "EDUC": tuple(str(code) for code in range(12)),
    "CLASSWKR": ("0", "1", "2"),
    "URBAN": ("1", "2"),
    "FARM": ("1", "2"),
    "STATEFIP": STATES,
}
# Hundreds of codes each; 0 is "not in universe" in IND1950.
_BUCKETS = {"OCC1950": 32, "IND1950": 32}
# An unknown age; of the other features only OCC1950 has this code, for who has no occupation.
_MISSING_AGE = "999"


def census_input(path: str, *, codebook: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the ``input`` section that reads an extract: fixed width if there is a codebook, else CSV with a header.

    Parameters
    ----------
    path : str
        The extract, gzipped or not.
    codebook : str, optional
        Its DDI codebook.
    **options
        Further settings, which replace or add to the section.
    """
    stored: dict[str, Any] = {"format": "csv"} if codebook is None else {"format": "fixed-width", "codebook": codebook}
    return {"path": path, **stored, "null_values": [_MISSING_AGE], **options}


def census_features(*, exclude: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the features: age and weeks worked in 1939 as numbers, coded answers as categories, jobs in buckets.

    A code that is not listed has a column of its own (``other``). Employment status is not among them: who is not at
    work has no hours, so that it would leave little to predict.

    Parameters
    ----------
    exclude : sequence of str
        Columns to leave out.
    """
    features: list[dict[str, Any]] = [
        {"name": "AGE", "type": "numeric", "lower": 0, "upper": 100, "missing": "indicator"},
        {"name": "WKSWORK1", "type": "numeric", "lower": 0, "upper": 52, "missing": "indicator"},
    ]
    features += [
        {"name": name, "type": "categorical", "categories": list(codes), "other": True, "missing": "indicator"}
        for name, codes in CODES.items()
    ]
    features += [
        {"name": name, "type": "hashed", "buckets": buckets, "missing": "indicator"}
        for name, buckets in _BUCKETS.items()
    ]
    return [feature for feature in features if feature["name"] not in exclude]


def census_schema(features: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the ``schema`` section: features, and hours from 0 to 98, the top code of 1940.

    Parameters
    ----------
    features : sequence of dict, optional
        As in a configuration; `census_features` by default.

    Raises
    ------
    PrivacyError
        If a feature follows from the label.
    """
    chosen = census_features() if features is None else list(features)
    refuse_label_derived(chosen, LABEL_DERIVED)
    return {
        "intercept": True,
        "features": chosen,
        "label": {"name": LABEL, "lower": 0, "upper": 98, "missing": {"constant": 0}},
    }


def census_config(
    path: str,
    output: str,
    *,
    codebook: str | None = None,
    mechanism: dict[str, Any] | None = None,
    privacy: dict[str, Any] | None = None,
    features: Sequence[dict[str, Any]] | None = None,
    **input_options: Any,
) -> dict[str, Any]:
    """Return a whole configuration of ``dpagg aggregate`` over an extract, for `dpagg.config.parse_config`.

    Parameters
    ----------
    path, output : str
        The extract, and where the release goes.
    codebook : str, optional
        Of a fixed-width extract.
    mechanism, privacy : dict, optional
        Sections of the configuration; WTD-FLAG with a million bags, and epsilon 1 with delta 1e-13, by default.
    features : sequence of dict, optional
        As `census_schema` takes them.
    **input_options
        For `census_input`.

    Raises
    ------
    PrivacyError
        If a feature follows from the label.
    """
    return {
        "input": census_input(path, codebook=codebook, **input_options),
        "schema": census_schema(features),
        "mechanism": mechanism or {"name": "wtd-flag", "num_bags": 1_000_000},
        "privacy": privacy or {"epsilon": 1.0, "delta": 1e-13},
        "output": {"path": output},
    }
