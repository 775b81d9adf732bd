"""Where entries are kept: what a ledger needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dpagg.ledger.entries import Entry


class Conflict(Exception):
    """Somebody else added an entry first; read again and decide anew."""


class Store(Protocol):
    """Entries that outlive the process and that many processes add to."""

    def read(self) -> tuple[Entry, ...]:
        """Return all entries in order; none if there is no ledger yet.

        Raises
        ------
        PrivacyError
            If entries are missing or were changed.
        DataError
            If the format is unknown, or something else is there.
        EnvironmentFault
            If it can't be read.
        """

    def append(self, entries: Sequence[Entry], previous: str) -> None:
        """Add entries at once, durably, if `previous` is still the hash of the last one.

        Raises
        ------
        Conflict
            If it isn't; nothing was added.
        EnvironmentFault
            If it can't be written. The entries may or may not be there then.
        """
