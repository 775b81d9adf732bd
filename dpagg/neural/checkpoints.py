"""A training on disk: one file, whole or not at all."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx

from dpagg.errors import DataError, EnvironmentFault

_FORMAT, _VERSION = "dpagg-training", 2
_DIGEST_BYTES = hashlib.sha256().digest_size
_State = TypeVar("_State")
_Position = TypeVar("_Position")


def write_checkpoint(file: Path, identity: str, state: Any, position: Mapping[str, Any]) -> None:
    """Replace the checkpoint in one step: a line of JSON, the arrays, and the SHA-256 of both.

    Raises
    ------
    EnvironmentFault
        If it cannot be written; an earlier one is then left as it was.
    """
    head = {"format": _FORMAT, "version": _VERSION, "identity": identity, "position": dict(position)}
    partial = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        content = io.BytesIO()
        content.write(json.dumps(head).encode() + b"\n")  # NaN, the loss of no bags, is read back as it is
        eqx.tree_serialise_leaves(content, state)
        with partial.open("xb") as stream:
            stream.write(content.getbuffer())
            stream.write(hashlib.sha256(content.getbuffer()).digest())
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
        for abandoned in file.parent.glob(f".{file.name}.*"):  # of a process that was killed while it wrote
            abandoned.unlink(missing_ok=True)
    except OSError as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise EnvironmentFault(
            f"the checkpoint could not be written to {file}: {error.strerror}",
            path="output.path",
            remedy="Check that the folder can be written to and the disk has room; the run goes on from the last one.",
        ) from None


def read_checkpoint(file: Path, identity: str, state: _State, position: _Position) -> tuple[_State, _Position]:
    """Return the saved state and position; those given say which arrays and entries there are.

    Raises
    ------
    DataError
        If the file is damaged or of another training.
    """
    try:
        whole = file.read_bytes()
        content, digest = whole[:-_DIGEST_BYTES], whole[-_DIGEST_BYTES:]
        with io.BytesIO(content) as stream:
            head = json.loads(stream.readline())
            if (head["format"], head["version"]) != (_FORMAT, _VERSION) or head["identity"] != identity:
                raise DataError(
                    f"{file} belongs to another training",
                    path="output.path",
                    remedy="Choose a new path, or remove that folder if the training in it is no longer wanted.",
                )
            if hashlib.sha256(content).digest() != digest:
                raise ValueError
            found = head["position"]
            read = {each.name: found[each.name] for each in fields(position)}  # type: ignore[arg-type]
            there = type(position)(**{name: tuple(v) if isinstance(v, list) else v for name, v in read.items()})
            return eqx.tree_deserialise_leaves(stream, state), there
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError):
        raise DataError(
            f"the checkpoint {file} is damaged",
            path="output.path",
            remedy="Remove it: the training then begins anew and ends with the same network.",
        ) from None


def checkpoint_identity(file: Path) -> str | None:
    """Return which training a checkpoint is of; None if there is none, or it cannot be read."""
    try:
        with file.open("rb") as stream:
            return str(json.loads(stream.readline())["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
