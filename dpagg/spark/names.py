"""Names of columns in Spark SQL, and in folders."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

__all__ = ["folder_columns", "quoted"]


def quoted(name: str) -> str:
    """Return a name as Spark SQL takes it, whatever is in it."""
    return f"`{name.replace('`', '``')}`"


def folder_columns(paths: Iterable[str]) -> set[str]:
    """Return the columns, in lower case, that files get from the names of their folders (``day=3``)."""
    folders = {folder for path in paths for folder in path.split("/")[:-1] if "=" in folder}
    # Spark escapes what is special in a name, a colon for instance, one byte a character.
    return {unquote(folder.partition("=")[0], encoding="latin-1").lower() for folder in folders}
