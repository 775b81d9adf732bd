"""A model as a file: found again, never overwritten, written whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.regression.model import LinearModel
from dpagg.runs.reports import existing_report

__all__ = ["FitResult", "earlier_model", "local_path", "model_certificate", "write_model"]


@dataclass(frozen=True)
class FitResult:
    """A fitted model and where it is.

    Attributes
    ----------
    path : str
        Of the model file.
    model : LinearModel
        The model.
    is_new : bool
        False if the file held this very model already.
    """

    path: str
    model: LinearModel
    is_new: bool

    @property
    def status_text(self) -> str:
        """What became of the fit, in words."""
        return str(self.model.fit["message"])

    @property
    def report(self) -> Path | None:
        """Where the page of the model is, if it could be written."""
        return existing_report(Path(self.path))

    def coefficients(self) -> list[dict[str, Any]]:
        """Return ``name``, ``coefficient``, ``standard_error`` (both in the user's units) and ``meaning``.

        One entry a column, the intercept first, even where none was declared: centring makes one. An
        undetermined error is NaN.
        """
        return [
            {
                "name": each.name,
                "coefficient": each.coefficient,
                "standard_error": each.standard_error,
                "meaning": each.meaning,
            }
            for each in self.model.user_coefficients()
        ]

    def summary(self) -> dict[str, Any]:
        """Return what a person or a scheduler wants to know, as plain JSON values."""
        rows, page = self.coefficients(), self.report
        for row in rows:
            if not np.isfinite(row["standard_error"]):
                row["standard_error"] = None
        return {
            "path": self.path,
            "written": "now" if self.is_new else "earlier: the file holds this model already",
            **({} if page is None else {"report": str(page)}),
            "release": dict(self.model.release),
            "fit": dict(self.model.fit),
            "coefficients": rows,
        }


def local_path(path: str) -> Path:
    """Return the path of a model file; refused with a `ConfigError` if it is not on this machine."""
    stripped = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if "://" in stripped:
        raise ConfigError(
            f"{path} is not on this machine's file system",
            path="output.path",
            remedy="A model file is written by the driver: give a local path, and copy it from there.",
        )
    return Path(stripped)


def earlier_model(target: Path) -> LinearModel | None:
    """Return the model that is at the path, None if nothing is; a `ConfigError` if something else is."""
    if not os.path.lexists(target):
        return None
    try:
        return LinearModel.from_dict(json.loads(target.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, DataError):
        raise ConfigError(
            f"{target} exists and is not a model of this version",
            path="output.path",
            remedy="Choose a new path; nothing is ever overwritten.",
        ) from None


def model_certificate(target: Path) -> dict[str, Any]:
    """Return the certificate inside a model file that `earlier_model` found to be one; empty if it has none."""
    found = json.loads(target.read_text(encoding="utf-8")).get("certificate")
    return found if isinstance(found, dict) else {}


def write_model(target: Path, document: Mapping[str, Any]) -> None:
    """Write all of a model file or nothing, and never over another one.

    Raises
    ------
    ConfigError
        If something is at the path by now.
    EnvironmentFault
        If the file cannot be written.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("x", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            _publish(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"the model could not be written to {target}: {error.strerror}",
            path="output.path",
            remedy="Check that the folder can be written to and the disk has room; nothing was left there.",
        ) from None


def _publish(partial: Path, target: Path) -> None:
    """Give a finished file its name, in one step and only if the name is free."""
    try:
        try:
            os.link(partial, target)
        except FileExistsError:
            raise
        except OSError:  # a file system without hard links
            with target.open("x", encoding="utf-8") as stream:
                stream.write(partial.read_text(encoding="utf-8"))
    except FileExistsError:
        raise ConfigError(
            f"{target} came into being while this run was under way, by another run perhaps; it was not replaced",
            path="output.path",
            remedy="Choose a new path.",
        ) from None
