"""How a configuration error says what was given: short, and never a whole section of the file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

_LONGEST = 60


def shown(value: object) -> str:
    """Return a setting as a message shows it: a scalar cut short, the bare kind of anything else."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def dotted(location: Iterable[str | int]) -> str:
    """Return a location as ``schema.features[0].lower``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word most like the given one, or None if none is like it."""
    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``Did you mean ...?``, or the list of known words if none is like the given one."""
    names = sorted(known)
    found = nearest(word, names)
    if found is not None:
        return f"Did you mean {found}?"
    return f"Known here: {', '.join(names)}." if names else "Nothing can be set here."
