"""What a ledger is made of: frozen entries, each with the hash of the one before."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dpagg.errors import DataError, PrivacyError

VERSION = 1
START = "0" * 64
# An entry's kind. A charge is reserved, then publishing, then settled; a kind is added, never redefined.
OPENED, DATASET, RESERVED, PUBLISHING, SETTLED = "opened", "dataset", "reserved", "publishing", "settled"
KINDS = (OPENED, DATASET, RESERVED, PUBLISHING, SETTLED)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of a ledger; lines are added and never changed.

    Attributes
    ----------
    sequence : int
        Its number, from 1.
    kind : str
        ``opened``, ``dataset``, ``reserved``, ``publishing`` or ``settled``.
    previous : str
        Hash of the entry before.
    time : str
        UTC, ISO 8601; for people, nothing is decided by it.
    run : str
        Which process wrote it, a random name.
    dataset, partition, release_id : str
        What it is about; empty where it doesn't apply.
    charge : int
        Number of the ``reserved`` entry that this one belongs to; its own for ``reserved``, 0 otherwise.
    body : mapping
        What the kind needs besides, as plain JSON values.
    """

    sequence: int
    kind: str
    previous: str
    time: str
    run: str
    dataset: str = ""
    partition: str = ""
    release_id: str = ""
    charge: int = 0
    body: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def text(self) -> str:
        """The entry as canonical JSON, which is what is hashed and stored."""
        values = {"version": VERSION} | {name: getattr(self, name) for name in _FIELDS}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)

    @functools.cached_property
    def hash(self) -> str:
        """SHA-256 of :attr:`text`, hence of all entries up to this one."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_FIELDS = tuple(field.name for field in dataclasses.fields(Entry))


def parse_entry(text: str) -> Entry:
    """Return the entry of an `Entry.text`.

    Raises
    ------
    DataError
        If it is of a format version that this code doesn't know.
    PrivacyError
        If it is no entry, or not in canonical form: it was changed since.
    """
    try:
        values = json.loads(text)
        version = values.pop("version")
    except (ValueError, AttributeError, KeyError, TypeError):
        raise _broken("an entry is not readable") from None
    if version != VERSION:
        raise unknown_version(version)
    try:
        entry = Entry(**values)
        same = entry.text == text
    except (TypeError, ValueError):
        raise _broken("an entry lacks a field or has one too many") from None
    if not same or entry.kind not in KINDS:
        raise _broken(f"entry {values.get('sequence')} is not as it was written")
    return entry


def unknown_version(version: object) -> DataError:
    """Return the refusal of a ledger that another release of dpagg wrote."""
    return DataError(
        f"the ledger has format version {version}, this code knows version {VERSION}",
        path="ledger.path",
        remedy="Use the release of dpagg that wrote it, or a newer one; don't start an empty ledger instead.",
    )


def check_chain(entries: Iterable[Entry]) -> str:
    """Return the hash of the last entry, after checking that each follows the one before.

    Raises
    ------
    PrivacyError
        If an entry is missing, changed, or out of place.
    """
    previous, place = START, 0
    for place, entry in enumerate(entries, start=1):
        if entry.sequence != place or entry.previous != previous or (entry.kind == OPENED) != (place == 1):
            raise _broken(f"the chain breaks at entry {place}: an entry was changed, removed or put in")
        previous = entry.hash
    return previous


def _broken(what: str) -> PrivacyError:
    return PrivacyError(
        f"{what}; what was spent is not known any more, so nothing is charged",
        path="ledger.path",
        remedy="Run dpagg ledger check, compare with the heads that certificates carry, and restore the whole folder "
        "from a backup that is newer than the last release.",
    )
