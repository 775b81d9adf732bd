"""The wheel and the sdist hold what they should, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import dpagg

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parents[2]


def built(source, out):
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), "-t", "sdist", "-t", "wheel"]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


@pytest.fixture(scope="module")
def distributions(tmp_path_factory):
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def names(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_is_the_package_with_all_its_files(distributions):
    wheel, _ = distributions
    package = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "dpagg").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    info = f"dpagg-{dpagg.__version__}.dist-info"
    found = names(wheel)
    assert {name for name in found if not name.startswith(f"{info}/")} == package
    assert {"dpagg/py.typed", "dpagg/spark/log4j2.properties"} <= found
    assert {f"{info}/{name}" for name in ("METADATA", "entry_points.txt", "licenses/LICENSE")} <= found
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_string(archive.read(f"{info}/METADATA").decode())
        assert b"dpagg = dpagg.cli:main" in archive.read(f"{info}/entry_points.txt")
    assert metadata["Version"] == dpagg.__version__ and "3.11" in metadata["Requires-Python"]
    assert {"sklearn", "neural"} <= set(metadata.get_all("Provides-Extra"))


def test_the_sdist_builds_the_same_wheel_and_has_what_work_on_it_needs(distributions, tmp_path):
    wheel, sdist = distributions
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    for name in ("README.md", "LICENSE", "Makefile", "pyproject.toml", "conf/constraints.txt", "jobs/aggregate.py"):
        assert (source / name).is_file(), name
    assert (source / "tests" / "conftest.py").is_file()
    unwanted = {"__pycache__", ".venv", "build", "spark-warehouse", ".git"}
    assert not [file for file in source.rglob("*") if unwanted & set(file.relative_to(source).parts)]
    again, _ = built(source, tmp_path / "dist")
    assert names(again) == names(wheel)
