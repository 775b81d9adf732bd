"""What a model takes from the certificate of the release that it is made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from dpagg.config import SchemaConfig
from dpagg.errors import ConfigError, DataError
from dpagg.kernels.schema import Schema

_CARRIED = (
    "release_id",
    "mechanism",
    "adjacency",
    "private",
    "epsilon",
    "delta",
    "label_noise_variance",
    "input_version",
    "config_digest",
    "code_version",
)


def carried_facts(certificate: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a model says of its release: it is post-processing, so the release's guarantee is its own."""
    return {name: certificate[name] for name in _CARRIED}


def release_schema(certificate: Mapping[str, Any], mechanisms: Sequence[str]) -> Schema:
    """Return the schema of a release, checked against the columns that its certificate lists.

    Raises
    ------
    ConfigError
        If the release is of no mechanism that is wanted here.
    DataError
        If the certificate is not as this code writes it.
    """
    mechanism = certificate.get("mechanism")
    if mechanism not in mechanisms:
        raise ConfigError(
            f"the release is of mechanism {mechanism!r}, expected {'one of ' if len(mechanisms) > 1 else ''}"
            f"{', '.join(mechanisms)}",
            path="release.path",
            remedy=f"Give a release made with mechanism.name: {mechanisms[0]}.",
        )
    absent = [name for name in (*_CARRIED, "num_bags", "num_rows") if name not in certificate]
    try:
        schema = SchemaConfig.model_validate(certificate["schema"]).to_kernel()
        described = [dataclasses.asdict(column) for column in schema.columns]
    except (KeyError, ValidationError) as error:
        raise _unknown_certificate() from error
    if absent or described != certificate.get("columns"):
        raise _unknown_certificate()
    return schema


def _unknown_certificate() -> DataError:
    return DataError(
        "the certificate of the release does not describe its columns as this dpagg does",
        path="release.path",
        remedy="Use the dpagg that made the release (code_version in its certificate).",
    )
