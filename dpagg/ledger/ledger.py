"""Charging: read, decide, add; and again if somebody else was faster."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dpagg.accounting import CurveTable, Event
from dpagg.errors import EnvironmentFault, PrivacyError
from dpagg.ledger.book import Book, terms_body
from dpagg.ledger.entries import DATASET, OPENED, PUBLISHING, RESERVED, SETTLED, Entry
from dpagg.ledger.policy import (
    Charge,
    Terms,
    fits,
    over_budget,
    refuse_lookalike,
    refuse_other_kind,
    refuse_other_terms,
    sharing,
)
from dpagg.ledger.store import Conflict, Store

_ATTEMPTS = 30
_LONGEST_WAIT = 5.0  # seconds
_NO_BUDGET = "Give ledger.budget, or run dpagg ledger init."


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be released, and under which budget.

    Attributes
    ----------
    dataset, partition, release_id : str
        Of what, and the name of the request.
    event : Event
        What it costs at most.
    unit : str
        What it protects.
    adjacency : str
        For which neighbours.
    epsilon, delta : float
        The claim of its certificate.
    budget_epsilon, budget_delta : float, optional
        Recorded at first use, compared later.
    disjoint : bool, optional
        Whether partitions share no unit; recorded at first use (False if not given), compared later.
    """

    dataset: str
    partition: str
    release_id: str
    event: Event
    unit: str
    adjacency: str
    epsilon: float
    delta: float
    budget_epsilon: float | None = None
    budget_delta: float | None = None
    disjoint: bool | None = None


@dataclass(frozen=True)
class Receipt:
    """A charge that this process may publish under.

    Attributes
    ----------
    dataset, partition, release_id : str
        Of the charge.
    number : int
        Of its entry.
    is_new : bool
        False if an earlier run charged it and went no further.
    """

    dataset: str
    partition: str
    release_id: str
    number: int
    is_new: bool


class Ledger:
    """Budgets in a store.

    Guarantee: whatever becomes of processes and whoever charges at the same time, the charges that count include each
    release that may have left the system, and those that touch one unit stay within the budget. It rests on the
    store: entries it confirmed are durable, and of two appends after one head one fails.

    Parameters
    ----------
    store : Store
        Where entries are kept.
    sleep : callable
        Takes seconds; for tests.
    """

    def __init__(self, store: Store, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._store = store
        self._sleep = sleep
        self._run = secrets.token_hex(8)
        self._seen = Book()

    @property
    def seen(self) -> Book:
        """What the ledger said when it was last read, and what was added then."""
        return self._seen

    def book(self) -> Book:
        """Return what the ledger says now."""
        self._seen = Book(self._store.read())
        return self._seen

    def read_ahead(self) -> None:
        """Read the ledger in any thread, so that the reading of a charge finds code loaded and lines parsed.

        It raises nothing: the charge reads again, and meets what is to be met.
        """
        with suppress(Exception):
            self._store.read()

    def declare(self, terms: Terms) -> None:
        """Set the budget of a data set, or find the same one set.

        Raises
        ------
        PrivacyError
            If another one is set.
        """

        def decide(book: Book) -> list[dict[str, Any]]:
            if terms.dataset in book.terms:
                refuse_other_terms(book.terms[terms.dataset], terms_body(terms))
                return []
            refuse_lookalike(book.terms, terms.dataset)
            return [{"kind": DATASET, "dataset": terms.dataset, "body": terms_body(terms)}]

        self._commit(decide)

    def charge(self, asked: Request) -> Receipt:
        """Reserve the cost of a release; call it before the first private draw.

        A request that was charged and went no further is not charged again; if it costs something else by now (noise
        that depends on randomly chosen bags), the new cost takes the place of the old one, whose run can then not
        publish any more.

        Raises
        ------
        PrivacyError
            If it is over the budget, of another kind than the budget, or the budget given differs from that recorded.
        EnvironmentFault
            If others kept writing at the same time, or the store fails.
        """
        if asked.event.adjacency not in (asked.adjacency, "any"):
            raise ValueError(f"the event is for {asked.event.adjacency}, the request for {asked.adjacency}")
        settled: dict[str, Any] = {}
        table, stated = CurveTable.of(asked.event), asked.event.to_dict()

        def decide(book: Book) -> list[dict[str, Any]]:
            terms, new = _terms(book, asked)
            refuse_other_kind(terms, asked.adjacency, asked.unit)
            number = book.next_number + len(new) + (0 if book.entries else 1)
            earlier = book.latest(asked.dataset, asked.release_id)
            replaced = earlier if earlier is not None and earlier.state == RESERVED else None
            # As JSON values: events may hold arrays, which don't compare as a whole.
            if replaced is not None and replaced.stated == stated and replaced.partition == asked.partition:
                settled.update(number=replaced.number, is_new=False)
                return new
            charge = Charge(
                number=number,
                partition=asked.partition,
                release_id=asked.release_id,
                stated=stated,
                epsilon=asked.epsilon,
                delta=asked.delta,
                table=table,
            )
            counted = [each for each in book.charges(asked.dataset) if each is not replaced]
            shared = sharing(terms, counted, asked.partition)
            if asked.event.delta(asked.epsilon) > asked.delta or not fits(terms, [*shared, charge]):
                raise over_budget(terms, shared, charge)
            settled.update(number=number, is_new=True)
            body: dict[str, Any] = {"event": stated, "curve": {"step": table.step, "deltas": list(table.deltas)}}
            body |= {"epsilon": asked.epsilon, "delta": asked.delta}
            if replaced is not None:
                body["replaces"] = replaced.number
            return [*new, {"kind": RESERVED, **_about(asked), "charge": number, "body": body}]

        self._commit(decide)
        return Receipt(asked.dataset, asked.partition, asked.release_id, settled["number"], settled["is_new"])

    def publishing(self, receipt: Receipt) -> Entry:
        """Say that output may come into being from now on; call it before the first file is written.

        Returns
        -------
        Entry
            Its hash is the head that the certificate prints.

        Raises
        ------
        PrivacyError
            If another run publishes under this charge, or has replaced it.
        """
        return self._advance(receipt, PUBLISHING, RESERVED)

    def settle(self, receipt: Receipt) -> Entry:
        """Say that the release is complete; call it after its last file is in place. Again is no error.

        Raises
        ------
        PrivacyError
            If the charge was never publishing.
        """
        return self._advance(receipt, SETTLED, PUBLISHING)

    def _advance(self, receipt: Receipt, to: str, before: str) -> Entry:
        found: list[Entry] = []

        def decide(book: Book) -> list[dict[str, Any]]:
            charge = book.charge(receipt.dataset, receipt.number)
            there = book.entry_of(to, receipt.number)
            if there is not None and (there.run == self._run or to == SETTLED):
                found.append(there)
                return []
            if charge is None or charge.state != before or charge.release_id != receipt.release_id:
                raise PrivacyError(
                    "another run publishes this very release under the same charge; nothing of this run was kept"
                    if charge is not None
                    else "the charge of this run is not in the ledger (another run may have replaced it)",
                    path="ledger",
                    remedy="Wait for it and run again: a finished release is found, an unfinished one charged anew.",
                )
            return [{"kind": to, **_about(receipt), "charge": receipt.number}]

        # What this process saw last will do: if anybody added to it, the store refuses, and it is read again.
        added = self._commit(decide, self._seen if self._seen.entries else None)
        return added[-1] if added else found[-1]

    def _commit(self, decide: Callable[[Book], list[dict[str, Any]]], seen: Book | None = None) -> list[Entry]:
        for attempt in range(_ATTEMPTS):
            book = self.book() if seen is None else seen
            seen = None
            wanted = decide(book)
            if not wanted:
                return []
            if not book.entries:
                wanted = [{"kind": OPENED, "body": {"ledger": secrets.token_hex(16)}}, *wanted]
            previous = book.head
            entries = self._chained(book, wanted)
            # It holds these by now; if they can't be stored, who asks again must not find them in it.
            self._seen = Book()
            try:
                self._store.append(entries, previous)
            except Conflict:
                # Full jitter: those that met once should not meet again.
                self._sleep(random.SystemRandom().uniform(0.0, min(_LONGEST_WAIT, 0.1 * 2**attempt)))
                continue
            self._seen = book
            return entries
        raise EnvironmentFault(
            f"other runs were faster {_ATTEMPTS} times in writing to the ledger",
            path="ledger.path",
            remedy="Run again, with fewer at a time.",
        )

    def _chained(self, book: Book, wanted: list[dict[str, Any]]) -> list[Entry]:
        entries: list[Entry] = []
        number, previous = book.next_number, book.head
        now = datetime.now(UTC).isoformat(timespec="seconds")
        for values in wanted:
            entry = Entry(sequence=number, previous=previous, time=now, run=self._run, **values)
            entries.append(entry)
            number, previous = number + 1, entry.hash
        # What would not be read back is not written either.
        for entry in entries:
            book.add(entry)
        return entries


def _about(asked: Request | Receipt) -> dict[str, Any]:
    return {"dataset": asked.dataset, "partition": asked.partition, "release_id": asked.release_id}


def _terms(book: Book, asked: Request) -> tuple[Terms, list[dict[str, Any]]]:
    """Return the terms of the data set, and the entry that records them if there is none."""
    recorded = book.terms.get(asked.dataset)
    if recorded is not None:
        given = {"epsilon": asked.budget_epsilon, "delta": asked.budget_delta, "disjoint": asked.disjoint}
        refuse_other_terms(recorded, given)
        return recorded, []
    refuse_lookalike(book.terms, asked.dataset)
    if asked.budget_epsilon is None or asked.budget_delta is None:
        raise PrivacyError(f"{asked.dataset!r} has no budget yet", path="ledger.budget", remedy=_NO_BUDGET)
    terms = Terms(
        dataset=asked.dataset,
        epsilon=asked.budget_epsilon,
        delta=asked.budget_delta,
        adjacency=asked.adjacency,
        unit=asked.unit,
        disjoint=bool(asked.disjoint),
    )
    return terms, [{"kind": DATASET, "dataset": terms.dataset, "body": terms_body(terms)}]
