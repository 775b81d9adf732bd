"""One cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.standalone import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster; it ends with the tests."""
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()
