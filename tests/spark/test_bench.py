"""The benchmark at sizes that take seconds: every figure is there and means what it says."""

import math

import pytest

from dpagg.errors import ConfigError
from dpagg.experiments.bench import BenchSizes, headline, run_bench
from dpagg.experiments.bench_report import BEGIN, END, FIGURE, write_report

pytestmark = pytest.mark.slow

RATIOS = {
    "factor_vs_sql_scan",
    "factor_vs_mllib_normal",
    "factor_vs_rowmatrix",
    "aggregate_vs_scan",
    "rows_vs_limit",
    "limit_vs_model",
    "growth_n16",
    "growth_m1000",
}


@pytest.fixture(scope="module")
def result(spark, tmp_path_factory):
    return run_bench(spark, tmp_path_factory.mktemp("bench"), BenchSizes.quick())


def test_every_figure_is_there(result):
    sizes = BenchSizes.quick()
    assert {name for name, _, _ in headline(result)} == RATIOS
    assert all(math.isfinite(result[name]) for name in RATIOS)
    assert all(result[name] > 0 for name in RATIOS - {"growth_n16"})  # no time is left there beside the start-up
    assert all(size > 0 for size in result["peak_rss_mb"].values())
    assert [row["columns"] for row in result["by_columns"]] == [3, 4]
    seconds = result["seconds"]
    assert result["factor_vs_sql_scan"] == pytest.approx(seconds["factor"] / seconds["sql_scan"], rel=0.01)
    assert result["rows_vs_limit"] == pytest.approx(seconds["rows"] / seconds["limit"], rel=0.01)
    assert result["growth_m1000"] == pytest.approx(seconds["aggregate_m1000"] / seconds["aggregate"], rel=0.01)
    assert result["growth_rows"] == [10 * sizes.num_rows // 16, 10 * sizes.num_rows]


def test_the_readme_holds_table_and_figure(result, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nan older table\n{END}\nafter\n")
    figure = write_report(result, readme)
    text = readme.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "an older table" not in text
    assert FIGURE in text and all(f"`{name}`" in text for name in RATIOS)
    assert figure == tmp_path / FIGURE and "<svg" in figure.read_text()
    write_report(result, readme)
    assert readme.read_text() == text


def test_a_readme_without_markers_is_left_alone(result, tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text("mine\n")
    with pytest.raises(ConfigError, match="bench"):
        write_report(result, readme)
    assert readme.read_text() == "mine\n"
