"""Reading a ledger: what was spent on which data set, and whether it is as it was left."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpagg.errors import ConfigError, DataError, DpaggError, EnvironmentFault
from dpagg.ledger import Book, Ledger, Terms, largest_spend
from dpagg.ledger.entries import PUBLISHING
from dpagg.ledger.policy import folded
from dpagg.runs.certificates import load_certificate
from dpagg.runs.charging import ledger_store
from dpagg.spark.ledger_store import DeltaStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def init_ledger(spark: SparkSession, path: str, terms: Terms) -> dict[str, Any]:
    """Set the budget of a data set before its first release.

    Raises
    ------
    PrivacyError
        If another budget is set already.
    """
    ledger = Ledger(ledger_store(spark, path))
    ledger.declare(terms)
    return describe_book(ledger.book())


def show_ledger(spark: SparkSession, path: str, figure: Path | None = None) -> dict[str, Any]:
    """Return what was spent, as plain JSON values; and draw what is left, if a file for that is given.

    Raises
    ------
    DataError
        If there is no ledger.
    PrivacyError
        If it was changed since it was written.
    EnvironmentFault
        If the figure can't be written.
    """
    book = Ledger(ledger_store(spark, path)).book()
    if not book.entries:
        raise DataError(f"no ledger at {path}", remedy="dpagg ledger init makes one, and so does the first release.")
    if figure is not None:
        from dpagg.report.burn_down import burn_down_svg

        try:
            figure.write_text(burn_down_svg(book), encoding="utf-8")
        except OSError as error:
            raise EnvironmentFault(f"the figure can't be written to {figure}: {error.strerror}") from None
    return describe_book(book)


def describe_book(book: Book) -> dict[str, Any]:
    """Return data sets with budget, spend and states of their charges; epsilons at the budget's delta."""
    described = []
    for name, terms in sorted(book.terms.items()):
        charges = book.charges(name)
        largest, where = largest_spend(terms, charges)
        described.append(
            {
                "dataset": name,
                "budget": {"epsilon": terms.epsilon, "delta": terms.delta},
                "adjacency": terms.adjacency,
                "unit": terms.unit,
                "disjoint_partitions": terms.disjoint,
                "largest_spend": largest,
                "in_partition": where,
                "remaining": max(0.0, terms.epsilon - largest),
                "sum_of_claims": sum(charge.epsilon for charge in charges),
                "partitions": len({folded(charge.partition) for charge in charges}),
                "charges": dict(Counter(charge.state for charge in charges)),
            }
        )
    opened = book.entries[0].body.get("ledger") if book.entries else None
    return {"ledger": opened, "entries": len(book.entries), "head": book.head, "datasets": described}


def check_ledger(
    spark: SparkSession, path: str, certificates: Sequence[Path] = (), *, recompute: bool = False
) -> dict[str, Any]:
    """Check chain, head, log, and that the ledger knows the releases whose certificates are given.

    With `recompute` the curve of each charge is computed again from its event, which takes a fraction of a second each.

    Returns
    -------
    dict
        ``holds`` and the checks, each with what was wrong.

    Raises
    ------
    DataError
        If there is no ledger, or a certificate can't be read.
    ConfigError
        If a certificate has no ledger in it.
    """
    checks: list[dict[str, Any]] = []
    store = ledger_store(spark, path)
    book = None
    try:
        book = Book(store.read())
        checks.append({"check": "chain, head and commits", "holds": True, "found": f"{len(book.entries):,} entries"})
    except DpaggError as error:
        checks.append({"check": "chain, head and commits", "holds": False, "found": error.message})
    if book is not None and not book.entries:
        raise DataError(f"no ledger at {path}", remedy="dpagg ledger init makes one, and so does the first release.")
    if isinstance(store, DeltaStore):
        try:
            history = store.history()
        except DpaggError:
            history = []
        whole = [commit["version"] for commit in reversed(history)] == list(range(len(history)))
        strange = sorted({commit["operation"] for commit in history} - store.expected_operations)
        whole = bool(history) and whole and not strange
        found = f"{len(history):,} commits" + (
            f", among them {', '.join(strange)}, not by this dpagg" if strange else ""
        )
        checks.append(
            {"check": "history from its first commit", "holds": bool(history) and whole and not strange, "found": found}
        )
    if recompute and book is not None:
        wrong = understated(book)
        found = f"too low in entries {', '.join(map(str, wrong[:8]))}" if wrong else "as the events have them, or above"
        checks.append({"check": "curves of all charges", "holds": not wrong, "found": found})
    for file in certificates:
        checks.append(_known(book, file))
    return {"holds": all(check["holds"] for check in checks), "checks": checks}


def understated(book: Book) -> list[int]:
    """Return the entries whose table of deltas, or whose claim, is below the curve of the event that they state."""
    wrong = []
    for charge in (charge for name in book.terms for charge in book.charges(name)):
        deltas = np.array(charge.table.deltas)
        exact = charge.event.curve(charge.table.step * np.arange(deltas.size))
        claim = charge.event.delta(charge.epsilon)
        if (exact > deltas * (1 + 1e-9)).any() or claim > charge.delta * (1 + 1e-9):
            wrong.append(charge.number)
    return wrong


def _known(book: Book | None, file: Path) -> dict[str, Any]:
    stated = load_certificate(file).get("ledger")
    if not isinstance(stated, dict):
        raise ConfigError(f"the certificate of {file} names no ledger", remedy="It was released without one.")
    number = stated.get("entry")
    entries = [] if book is None else book.entries
    entry = entries[number - 1] if isinstance(number, int) and 0 < number <= len(entries) else None
    holds = entry is not None and entry.hash == stated.get("head") and entry.kind == PUBLISHING
    return {
        "check": f"release of {json.dumps(str(file))}",
        "holds": holds,
        "found": f"entry {number}" if holds else f"entry {number} is missing or another one",
    }
