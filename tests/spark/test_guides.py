"""The guides, followed as they stand: README.md and those that it lists."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from dpagg.experiments.ad_table import ad_table
from dpagg.runs.certificates import load_certificate
from tests.guides import CHAINS, ROOT, Reader

# Whose reader has a table of impressions, and one of new ones to predict.
IMPRESSIONS = ("README", "networks")
BY_DEFAULT = ("README", "first")


@pytest.fixture
def here(spark, tmp_path, monkeypatch):
    """An empty directory that Python and Spark are in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    paths = spark._jvm.org.apache.hadoop.fs
    files = paths.FileSystem.get(spark.sparkContext._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(paths.Path(str(tmp_path)))
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    files.setWorkingDirectory(before)


def follow(chain, here, **manner):
    if chain in IMPRESSIONS:
        for seed, name in enumerate(("impressions", "new")):
            (here / "data" / name).mkdir(parents=True)
            pq.write_table(ad_table(2_000, seed=seed), here / "data" / name / "part.parquet")
    reader = Reader(**manner)
    for document in CHAINS[chain]:
        reader.follow(document)


@pytest.mark.parametrize("chain", BY_DEFAULT)
def test_guides(here, chain):
    follow(chain, here)
    made = {"README": ["aggregates", "notebook", "from_spark"], "first": ["orders"]}
    assert all(load_certificate(here / "out" / name)["private"] for name in made[chain])


@pytest.mark.slow
@pytest.mark.parametrize("chain", CHAINS)
def test_guides_with_what_takes_long(here, chain):
    follow(chain, here, is_patient=True)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_first_guides_typed_into_a_shell(here):
    follow("first", here, in_shell=True)
