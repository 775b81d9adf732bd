"""Reading certificates back: what a release promises, in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpagg.accounting.certificate import FORMAT, VERSION
from dpagg.errors import DataError


def load_certificate(file: Path) -> dict[str, Any]:
    """Return the certificate in a file, or in the folder of a release.

    Raises
    ------
    DataError
        If there is none, or of a version that this code does not know.
    """
    if file.is_dir():
        file = file / "_certificate.json"
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        raise DataError(f"no certificate at {file}", remedy="Give the _certificate.json of a release.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise DataError(f"{file} isn't readable as JSON", remedy="Give the _certificate.json of a release.") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{file} is no certificate of a release", remedy="Give the _certificate.json of a release.")
    if found.get("version") != VERSION:
        raise DataError(
            f"{file} has certificate version {found.get('version')}, this code reads version {VERSION}",
            remedy="Read it with the release of dpagg that wrote it, or a newer one.",
        )
    return found


def describe_certificate(certificate: dict[str, Any]) -> str:
    """Return a certificate in words, one screen long."""
    left_out = certificate["rows_left_out"]
    lines = [
        certificate["statement"],
        "",
        f"mechanism    {certificate['mechanism']} (engine {certificate['engine']}), {certificate['num_bags']:,} bags",
        f"protects     {certificate['unit']} ({certificate['adjacency']})",
        f"claim        epsilon {certificate['epsilon']}, delta {certificate['delta']:g} "
        f"(computed: {certificate['delta_at_epsilon']:.3g})",
        f"rows         {certificate['num_rows']:,}; left out for a missing feature {left_out['missing_feature']:,}, "
        f"for a leverage over the cap {left_out['over_leverage_cap']:,}, "
        f"over the limit of their unit {left_out['over_unit_limit']:,}",
        f"label        {certificate['label']['name']}, clipped to {certificate['label']['lower']:g} … "
        f"{certificate['label']['upper']:g}; noise variance {certificate['label_noise_variance']:.6g} a bag "
        f"({certificate['label_noise_level']})",
        f"randomness   {certificate['randomness']}",
        "",
        "To be accepted by a reviewer:",
        *(f"  - {line}" for line in certificate["assumptions"]),
        "Not protected:",
        *(f"  - {line}" for line in certificate["public"]),
        "Curve (epsilon: delta):",
        *(f"  {point['epsilon']:<8g} {point['delta']:.3g}" for point in certificate["curve"]),
    ]
    return "\n".join(lines)
