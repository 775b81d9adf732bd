"""A scratch directory that no row outlives: removed at exit, or by the next run after a kill."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from dpagg.errors import EnvironmentFault

_PREFIX = "dpagg-scratch-"


def make_scratch(parent: Path | None = None) -> Path:
    """Make a directory for what Spark spills, readable by this user only, and remove it at exit.

    Directories of earlier runs that were killed are removed too: a live run holds a lock on its own.

    Parameters
    ----------
    parent
        Where to make it; the system's temporary directory by default.

    Raises
    ------
    EnvironmentFault
        If the parent does not exist, is not writable or is full.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    try:
        _remove_abandoned(parent)
        # Renamed only once locked, so that no other run takes it for an abandoned one.
        fresh = Path(tempfile.mkdtemp(prefix="dpagg-new-", dir=parent))
        lock = os.open(fresh / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        scratch = fresh.rename(parent / (_PREFIX + fresh.name.removeprefix("dpagg-new-")))
    except OSError as fault:
        raise EnvironmentFault(
            f"Cannot make a scratch directory ({fault.strerror})",
            remedy="Set TMPDIR or the local directory of the session to a writable place with free space.",
        ) from None
    atexit.register(_remove_own, scratch, lock, os.getpid())
    return scratch


def _remove_own(scratch: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:  # a forked child runs the handlers of its parent
        return
    shutil.rmtree(scratch, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for each in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, a live run's, or gone already
            if each.stat().st_uid != os.getuid():
                continue
            lock = os.open(each / "lock", os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(lock)
