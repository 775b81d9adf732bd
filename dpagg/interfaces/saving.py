"""A release in a folder of its own: one Parquet file, the certificate and its page, whole or not at all."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpagg.errors import ConfigError, EnvironmentFault
from dpagg.runs.model_file import local_path
from dpagg.runs.reports import RELEASE_REPORT, release_page

__all__ = ["check_free", "save_release"]

_CERTIFICATE = "_certificate.json"


def check_free(path: str) -> Path:
    """Return a path on this machine where nothing is.

    Raises
    ------
    ConfigError
        If something is there, or it is on another file system.
    """
    target = local_path(path)
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists", path="output", remedy="Choose a new path: nothing is ever overwritten.")
    return target


def save_release(table: pa.Table, certificate: dict[str, Any], path: str) -> None:
    """Write a release, its certificate and its page into a new folder.

    Raises
    ------
    ConfigError
        If something is at the path.
    EnvironmentFault
        If it can't be written; nothing is left then.
    """
    target = check_free(path)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    page = release_page(certificate)
    text = json.dumps(certificate, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        staging.mkdir(parents=True)
        try:
            pq.write_table(table, staging / "release.parquet")
            (staging / _CERTIFICATE).write_text(text, encoding="utf-8")
            if page is not None:
                (staging / RELEASE_REPORT).write_text(page, encoding="utf-8")
            os.rename(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFault(
            f"the release could not be written to {target}: {error.strerror}",
            path="output",
            remedy="Check that the folder can be written to and the disk has room; nothing was left there.",
        ) from None
