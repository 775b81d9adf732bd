"""Names of columns in Spark SQL."""

from __future__ import annotations

__all__ = ["quoted"]


def quoted(name: str) -> str:
    """Return a name as Spark SQL takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"
