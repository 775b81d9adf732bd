"""What the certificate of every release says besides its event."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import secrets
from typing import Any

import dpagg
from dpagg.config import AggregateConfig, PrivateFitConfig
from dpagg.errors import PrivacyError
from dpagg.kernels.streams import Secret
from dpagg.runs.rows import Source


def input_terms(config: AggregateConfig | PrivateFitConfig) -> list[str]:
    """Return what a reviewer has to accept about how the input is stored and joined."""
    terms = []
    window = config.input.attribution_window
    holders = [name for name, table in (config.input.tables or {}).items() if table.labels]
    if holders:
        terms.append(
            f"Of the joined tables, {', '.join(holders)} hold labels and the others nothing that was derived from one. "
            "Which rows there are and their features were settled by the query with the former empty; whatever the "
            "query is, they decide labels only."
        )
    elif config.input.sql is not None:
        terms.append(
            "The query that makes the input was written so that neither which rows there are, nor whether a row key "
            "repeats, nor any feature depends on a label: no filter, no inner join, no count of labels. It is not "
            "checked."
        )
    if re.search(r"\bover\b", config.input.sql or "", re.IGNORECASE):
        terms.append(
            "Rows that the query's windows put in an order don't tie in it, or a tie changes nothing: each pass over "
            "the input sees the same table. It is not checked."
        )
    if window is not None:
        terms.append(
            f"Labels of {window.event_date} may arrive until {window.last_day.isoformat()}; "
            + ("the release was made before, on request." if window.is_open else "the release was made after it.")
        )
    return terms


_TEXT = {"csv": "CSV", "json": "JSON lines", "fixed-width": "text of fixed width"}


def text_terms(config: AggregateConfig) -> list[str]:
    """Return what a reviewer has to accept about an input that is text."""
    stored = {config.input.format, *(table.format for table in (config.input.tables or {}).values())}
    kinds = [name for kind, name in _TEXT.items() if kind in stored]
    if not kinds:
        return []
    counted = (
        " Lines that have not the columns of the table were left out and counted."
        if config.input.malformed == "drop"
        else ""
    )
    return [
        f"The input is {' and '.join(kinds)} with a well-formed text of the label in every row: a label cell with an "
        "unclosed quote, a line break, an unquoted delimiter or too many characters would shift the cells, and so the "
        f"number of rows.{counted} Parquet and Delta have no such case."
    ]


def refuse_open_window(config: AggregateConfig | PrivateFitConfig, allowed: bool) -> None:
    """Refuse a release while labels of its rows may still arrive.

    Raises
    ------
    PrivacyError
        Unless it is allowed.
    """
    window = config.input.attribution_window
    if window is None or allowed or not window.is_open:
        return
    raise PrivacyError(
        f"labels of {window.event_date} may arrive until {window.last_day.isoformat()}, and a release now would have "
        "to be made, and paid for, again for those that come late",
        path="input.attribution_window",
        remedy=f"Run it after {window.last_day.isoformat()}, or with --allow-open-window.",
    )


def request_id(config: AggregateConfig | PrivateFitConfig, table: Source, insecure_seed: int | None) -> str:
    """Name a request whose table a program holds, and whose answer it may write anywhere.

    The table's version makes each request another one, unless a public seed asks for the same answer again.
    """
    asked = config.asked()
    del asked["output"]
    identity = json.dumps(["held", asked, table.version, insecure_seed], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(identity.encode()).hexdigest()


def release_facts(config: AggregateConfig, table: Source, secret: Secret, release_id: str) -> dict[str, Any]:
    """Return identity, schema, bounds and origin of a release, as plain JSON values."""
    schema = config.encoding
    declared = config.public_dict()["schema"]
    return {
        # Whoever removes a release and runs again has two draws of one request.
        "release_id": release_id,
        "draw_id": secrets.token_hex(16),
        "declared_bounds": {"label": [schema.label.lower, schema.label.upper], "features": declared["features"]},
        "columns": [dataclasses.asdict(column) for column in schema.columns],
        "label": {"name": schema.label.name, "lower": schema.label.lower, "upper": schema.label.upper},
        "schema": declared,
        "randomness": "operating system" if secret.is_private else "public seed: not private",
        "input_version": table.version,
        "config_digest": config.digest(),
        "code_version": dpagg.__version__,
    }
