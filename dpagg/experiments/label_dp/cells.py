"""Results of an experiment, kept one line each as soon as they are there, so that a rerun goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpagg.errors import DpaggError, EnvironmentFault

__all__ = ["Cells"]


class Cells:
    """What was found of one table, by what was asked.

    Parameters
    ----------
    file : Path or None
        JSON lines; None keeps results in memory only. Lines of other settings stay in it and don't count.
    settings : mapping
        What all results depend on, as JSON values.
    """

    def __init__(self, file: Path | None, settings: Mapping[str, Any]) -> None:
        self._file = file
        self._settings = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()
        self._found: dict[str, dict[str, Any]] = {}
        if file is None:
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        for line in text.splitlines():
            try:
                stored = json.loads(line)
                if stored["settings"] == self._settings:
                    self._found[_name(stored["asked"])] = stored["found"]
            except (ValueError, KeyError, TypeError):  # a run was killed while it wrote this line
                continue
        if text and not text.endswith("\n"):
            with file.open("a", encoding="utf-8") as stream:
                stream.write("\n")

    def get(self, asked: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return what was found, None if it is not there yet."""
        return self._found.get(_name(asked))

    def once(self, asked: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return what was found earlier, or find and keep it.

        What the run refuses (too few bags, no noise that will do) is a result as well: ``{"refused": why}``.
        """
        earlier = self.get(asked)
        if earlier is not None:
            return earlier
        try:
            found = find()
        except EnvironmentFault:
            raise
        except DpaggError as error:
            found = {"refused": str(error)}
        # As it will be read again.
        line = json.dumps({"asked": dict(asked), "found": found, "settings": self._settings}, allow_nan=False)
        if self._file is not None:
            with self._file.open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
        self._found[_name(asked)] = json.loads(line)["found"]
        return self._found[_name(asked)]


def _name(asked: Mapping[str, Any]) -> str:
    return json.dumps(dict(asked), sort_keys=True)
