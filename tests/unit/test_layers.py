"""Imports point downward, each library has its one place, and ``import dpagg`` loads nothing large."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

import dpagg

ROOT = Path(__file__).resolve().parents[2]
LARGE = (
    "pyspark",
    "delta",
    "sklearn",
    "jax",
    "matplotlib",
    "pandas",
    "scipy",
    "numpy",
    "pyarrow",
    "pydantic",
)

# What each pure layer may import from outside; None is anything.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "kernels": {"numpy", "pyarrow", "randomgen"},
    "accounting": {"numpy", "scipy", "dp_accounting"},
    "regression": {"numpy", "scipy"},
    "ledger": set(),
    "audit": {"numpy", "scipy", "pyarrow"},
    "report": {"numpy", "scipy", "matplotlib", "jinja2", "markupsafe"},
}
# The one place of a library.
PLACES = {
    "jax": "neural",
    "jaxlib": "neural",
    "optax": "neural",
    "equinox": "neural",
    "sklearn": "interfaces",
    "jinja2": "report",
}


def _lint(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(directory)},
    )


def test_contracts_hold():
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("kernels/factor.py", "from dpagg import config"),
        ("kernels/factor.py", "import dpagg.accounting.divergence"),
        ("runs/plan.py", "from delta import DeltaTable"),
        ("audit/laws.py", "import dpagg.spark.engines"),
        ("report/page.py", "import dpagg.spark.delta"),
        ("unplaced.py", "import dpagg.errors"),
    ],
)
def test_contracts_notice(tmp_path, module, line):
    shutil.copytree(ROOT / "dpagg", tmp_path / "dpagg", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "dpagg" / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = _lint(tmp_path)
    assert done.returncode != 0
    named = f"dpagg.{module.removesuffix('.py').replace('/', '.')}"
    assert named in done.stdout or module.removesuffix(".py") in done.stdout, done.stdout


@pytest.fixture(scope="module")
def third_party() -> dict[str, set[str]]:
    """Libraries imported by each module of the package."""
    graph = grimp.build_graph(
        "dpagg", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )
    return {
        module: {
            name
            for name in graph.find_modules_directly_imported_by(module)
            if not name.startswith("dpagg") and name not in sys.stdlib_module_names
        }
        for module in graph.modules
        if module == "dpagg" or module.startswith("dpagg.")
    }


@pytest.mark.parametrize("layer", ALLOWED)
def test_pure_layers_import_only_what_they_may(third_party, layer):
    prefix = f"dpagg.{layer}"
    seen = {m: libraries for m, libraries in third_party.items() if m == prefix or m.startswith(prefix + ".")}
    assert seen
    assert {m: libraries - ALLOWED[layer] for m, libraries in seen.items() if libraries - ALLOWED[layer]} == {}


@pytest.mark.parametrize("library", PLACES)
def test_libraries_have_one_place(third_party, library):
    users = {module for module, libraries in third_party.items() if library in libraries}
    assert {user for user in users if not user.startswith(f"dpagg.{PLACES[library]}")} == set()


def test_nothing_in_the_package_imports_jobs_or_tests(third_party):
    assert not [m for m, libraries in third_party.items() if libraries & {"jobs", "tests"}]


def test_a_table_in_memory_needs_no_spark():
    script = """
import pandas as pd, dpagg
table = pd.DataFrame({"x": range(60), "y": range(60)})
declared = {"features": [{"name": "x", "type": "numeric", "lower": 0, "upper": 60}],
            "label": {"name": "y", "lower": 0, "upper": 60, "missing": {"constant": 0}}}
release = dpagg.aggregate(table, schema=declared, privacy={"epsilon": 1, "delta": 1e-4})
dpagg.fit(release).predict(table)
dpagg.plan(table, schema=declared, privacy={"epsilon": 1, "delta": 1e-4})._repr_html_()
dpagg.fit(table, schema=declared,
          privacy={"epsilon": 1, "delta": 1e-4, "adjacency": "zero_out_one_row", "num_rows": 60})
"""
    assert _loaded(f"exec({script!r})").isdisjoint({"pyspark", "py4j", "delta", "sklearn", "jax", "matplotlib"})


def _loaded(statement: str) -> set[str]:
    script = f"import sys; {statement}; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_large():
    assert _loaded("import dpagg").isdisjoint(LARGE)
    # The check sees what is loaded.
    assert "numpy" in _loaded("import dpagg.kernels.factor")


def test_importing_the_command_line_loads_neither_spark_nor_learners():
    assert _loaded("import dpagg.cli").isdisjoint({"pyspark", "delta", "sklearn", "jax", "matplotlib"})


def test_public_names_resolve_and_agree_with_the_static_imports():
    for name in dpagg.__all__:
        assert getattr(dpagg, name).__name__ == name
    tree = ast.parse((ROOT / "dpagg" / "__init__.py").read_text())
    static = {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert static == dpagg._HOMES
    assert set(dpagg.__all__) == set(static) <= set(dir(dpagg))


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'aggregat'"):
        _ = dpagg.aggregat
