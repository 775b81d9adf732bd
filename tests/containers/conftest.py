"""The image, built once, and the cluster of the compose file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.containers.engine import Engine, Project, missing


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Return podman with the image in its store."""
    lacks = missing()
    if lacks:
        pytest.skip(f"not here: {lacks}")
    running = Engine(tmp_path_factory.mktemp("containers"))
    try:
        running.build()
        yield running
    finally:
        running.close()


@pytest.fixture(scope="session")
def project(engine: Engine) -> Iterator[Project]:
    """Return the cluster, with the demo begun on it."""
    found = Project(engine, f"dpagg-check-{os.getpid()}")
    try:
        found.up("submit")
        yield found
    finally:
        found.down()
