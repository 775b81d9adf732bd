"""A ledger as its entries tell it: data sets, charges, and how far each came."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from dpagg.accounting import CurveTable
from dpagg.errors import PrivacyError
from dpagg.ledger.entries import DATASET, PUBLISHING, RESERVED, SETTLED, START, Entry
from dpagg.ledger.policy import Charge, Terms


class Book:
    """What a chain of entries says; the entries are checked one by one as they come.

    Parameters
    ----------
    entries : iterable of Entry
        In order, from the first.

    Raises
    ------
    PrivacyError
        If an entry doesn't fit those before it.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = []
        self.terms: dict[str, Terms] = {}
        self._charges: dict[str, dict[int, Charge]] = {}
        for entry in entries:
            self.add(entry)

    @property
    def head(self) -> str:
        """Hash of the last entry."""
        return self.entries[-1].hash if self.entries else START

    @property
    def next_number(self) -> int:
        """Sequence number of the entry to come."""
        return len(self.entries) + 1

    def charges(self, dataset: str) -> list[Charge]:
        """Return what counts against the budget of a data set, in order."""
        return list(self._charges.get(dataset, {}).values())

    def charge(self, dataset: str, number: int) -> Charge | None:
        """Return a charge that counts, None if there is none of that number."""
        return self._charges.get(dataset, {}).get(number)

    def latest(self, dataset: str, release_id: str) -> Charge | None:
        """Return the last charge for a request."""
        found = [charge for charge in self.charges(dataset) if charge.release_id == release_id]
        return found[-1] if found else None

    def entry_of(self, kind: str, charge: int) -> Entry | None:
        """Return the entry of a kind that belongs to a charge."""
        return next((entry for entry in self.entries if entry.kind == kind and entry.charge == charge), None)

    def add(self, entry: Entry) -> None:
        """Take one more entry in.

        Raises
        ------
        PrivacyError
            If it makes no sense after those before it.
        """
        try:
            if entry.kind == DATASET:
                self._declare(entry)
            elif entry.kind == RESERVED:
                self._reserve(entry)
            elif entry.kind in (PUBLISHING, SETTLED):
                self._advance(entry)
        except (KeyError, TypeError, ValueError):
            raise _senseless(entry) from None
        self.entries.append(entry)

    def _declare(self, entry: Entry) -> None:
        if entry.dataset in self.terms:
            raise _senseless(entry)
        self.terms[entry.dataset] = Terms(dataset=entry.dataset, **entry.body)
        self._charges[entry.dataset] = {}

    def _reserve(self, entry: Entry) -> None:
        charges = self._charges[entry.dataset]
        replaced = entry.body.get("replaces")
        if entry.charge != entry.sequence:
            raise _senseless(entry)
        if replaced is not None:
            if charges[replaced].state != RESERVED or charges[replaced].release_id != entry.release_id:
                raise _senseless(entry)
            del charges[replaced]
        curve = entry.body["curve"]
        charges[entry.sequence] = Charge(
            number=entry.sequence,
            partition=entry.partition,
            release_id=entry.release_id,
            stated=entry.body["event"],
            epsilon=float(entry.body["epsilon"]),
            delta=float(entry.body["delta"]),
            table=CurveTable(float(curve["step"]), tuple(map(float, curve["deltas"]))),
        )

    def _advance(self, entry: Entry) -> None:
        charges = self._charges[entry.dataset]
        before = RESERVED if entry.kind == PUBLISHING else PUBLISHING
        if charges[entry.charge].state != before:
            raise _senseless(entry)
        charges[entry.charge] = dataclasses.replace(charges[entry.charge], state=entry.kind)


def terms_body(terms: Terms) -> dict[str, Any]:
    """Return terms as the body of an entry."""
    return {name: value for name, value in dataclasses.asdict(terms).items() if name != "dataset"}


def _senseless(entry: Entry) -> PrivacyError:
    return PrivacyError(
        f"entry {entry.sequence} ({entry.kind}) does not follow from those before it, so nothing is charged",
        path="ledger.path",
        remedy="Run dpagg ledger check.",
    )
