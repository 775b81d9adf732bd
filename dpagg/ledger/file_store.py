"""A ledger in one file, for notebooks on one machine without Spark."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from dpagg.errors import DataError, EnvironmentFault
from dpagg.ledger.entries import START, Entry, check_chain, parse_entry
from dpagg.ledger.store import Conflict


class FileStore:
    """One canonical JSON object a line; written anew beside the file, made durable, and moved over it.

    Processes on one machine exclude each other by a lock on a file beside it. Locks of network file systems may not
    hold; use a Delta table where several machines charge.

    Parameters
    ----------
    path : Path
        Of the file; made at first use.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Entry, ...]:
        """See `dpagg.ledger.store.Store`."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ()
        except UnicodeDecodeError:
            raise DataError(f"{self.path} is no ledger", path="ledger.path", remedy="Give another path.") from None
        except OSError as error:
            raise EnvironmentFault(f"the ledger can't be read: {error.strerror}", path="ledger.path") from None
        # Not splitlines, which also breaks at characters that a name may hold; a cut last line must not parse.
        entries = tuple(parse_entry(line) for line in text.removesuffix("\n").split("\n"))
        check_chain(entries)
        return entries

    def append(self, entries: Sequence[Entry], previous: str) -> None:
        """See `dpagg.ledger.store.Store`."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                found = self.read()
                if (found[-1].hash if found else START) != previous:
                    raise Conflict
                self._write("".join(f"{entry.text}\n" for entry in (*found, *entries)))
        except OSError as error:
            raise EnvironmentFault(
                f"the ledger can't be written: {error.strerror}",
                path="ledger.path",
                remedy="Free space or mend the rights, then run again: a rerun knows how far the last run came.",
            ) from None

    def _write(self, text: str) -> None:
        partial = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}.unfinished")
        try:
            with partial.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path)
        finally:
            with suppress(OSError):
                partial.unlink()
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        import fcntl

        with self.path.with_name(f".{self.path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
