"""From a release in Delta to a model file, and every way in which that is refused."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from dpagg.config import FitConfig, SchemaConfig
from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.regression.model import LinearModel
from dpagg.runs.fit import FitResult, run_fit
from dpagg.runs.model_file import write_model
from dpagg.spark.delta import CERTIFICATE_PROPERTY, publish

SCHEMA = {
    "intercept": True,
    "features": [
        {"name": "price", "type": "numeric", "lower": 0.0, "upper": 50.0, "missing": "indicator"},
        {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"], "other": True},
    ],
    "label": {"name": "sale", "lower": 0.0, "upper": 10.0, "missing": {"constant": 0.0}},
}
BAGS, WIDTH, ROWS = 400, 5, 1000


def sums(seed: int, bags: int = BAGS, dead_column: int | None = None) -> NDArray[np.float64]:
    """Weighted sums of a made-up table, label last, with some noise on it."""
    table = np.random.default_rng(99)
    device = table.integers(3, size=ROWS)
    price = table.uniform(-1, 1, ROWS)
    x = np.column_stack([np.ones(ROWS), price, table.random(ROWS) < 0.1, device == 1, device == 2]).astype(float)
    if dead_column is not None:
        x[:, dead_column] = 0.0
    y = x @ np.array([4.0, 2.0, -1.0, 0.5, 1.5]) + table.normal(size=ROWS)
    draw = np.random.default_rng(seed)
    weights = draw.normal(size=(bags, ROWS))
    return np.column_stack([weights @ x, weights @ y + 3.0 * draw.normal(size=bags)])


def make_release(
    spark: SparkSession, path: Path, rows: NDArray[np.float64], *, partitions: int = 3, **changes: Any
) -> str:
    """Publish sums as `dpagg aggregate` does, with as much of a certificate as a fit reads."""
    columns = SchemaConfig.model_validate(SCHEMA).to_kernel().columns
    certificate = {
        "release_id": "r1",
        "mechanism": "wtd-flag",
        "adjacency": "change_one_label",
        "private": True,
        "epsilon": 1.0,
        "delta": 1e-8,
        "num_bags": len(rows),
        "num_rows": ROWS,
        "label_noise_variance": 9.0,
        "columns": [vars(column) for column in columns],
        "schema": SCHEMA,
        "input_version": None,
        "config_digest": "c1",
        "code_version": "0",
    } | changes
    table = pa.table(
        {
            "bag_id": np.arange(len(rows)),
            "features": pa.array(list(rows[:, :-1]), pa.list_(pa.float64())),
            "label": rows[:, -1],
        }
    )
    df = spark.createDataFrame(table, "bag_id bigint, features array<double>, label double")
    comments = dict.fromkeys(df.columns, "")
    publish(df.repartition(partitions), str(path), certificate, comments)
    return str(path)


def fit(spark: SparkSession, release: str, output: Path | str, **method: Any) -> FitResult:
    content: dict[str, Any] = {"release": {"path": release}, "output": {"path": str(output)}}
    if method:
        content["method"] = method
    return run_fit(FitConfig.model_validate(content), spark)


@pytest.fixture(scope="module")
def release(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_release(spark, tmp_path_factory.mktemp("release") / "table", sums(1))


def test_fit_equals_dense_least_squares(spark: SparkSession, release: str, tmp_path: Path) -> None:
    output = tmp_path / "made" / "model.json"
    result = fit(spark, release, output)
    rows = sums(1)
    features, label = rows[:, :-1], rows[:, -1]
    beta, rss, _, _ = np.linalg.lstsq(features, label)
    errors = np.sqrt(np.diag(rss[0] / (BAGS - WIDTH) * np.linalg.inv(features.T @ features)))
    np.testing.assert_allclose(result.model.coefficients, beta, rtol=1e-9)
    np.testing.assert_allclose(result.model.standard_errors, errors, rtol=1e-9)

    document = json.loads(output.read_text())
    np.testing.assert_allclose([c["coefficient"] for c in document["encoded"]["columns"]], beta, rtol=1e-9)
    price, device = document["user_units"]["features"]
    assert price["per_unit"] == pytest.approx(beta[1] / 25)
    assert document["user_units"]["intercept"] == pytest.approx(beta[0] - beta[1])
    assert [category["offset"] for category in device["categories"]] == [0.0, pytest.approx(beta[3])]
    assert document["release"]["epsilon"] == 1.0 and document["release"]["release_id"] == "r1"
    assert document["fit"]["status"] == "ok" and document["fit"]["num_bags"] == BAGS
    np.testing.assert_array_equal(LinearModel.from_dict(document).coefficients, result.model.coefficients)
    assert stat.S_IMODE(output.stat().st_mode) & 0o400
    assert [entry.name for entry in output.parent.iterdir()] == ["model.json"]


def test_summary_is_json_and_coefficients_are_in_the_users_units(
    spark: SparkSession, release: str, tmp_path: Path
) -> None:
    result = fit(spark, release, tmp_path / "model.json")
    rows = result.coefficients()
    assert [row["name"] for row in rows] == [
        "intercept",
        "price",
        "price:missing",
        "device=desktop",
        "device:other",
    ]
    assert rows[1]["coefficient"] == pytest.approx(result.model.coefficients[1] / 25)
    assert rows[1]["standard_error"] == pytest.approx(result.model.standard_errors[1] / 25)
    summary = json.loads(json.dumps(result.summary(), allow_nan=False))
    assert summary["fit"]["status"] == "ok" and summary["written"] == "now"
    assert "400 bags" in result.status_text


def test_running_again_is_done_and_another_model_is_refused(spark: SparkSession, release: str, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    fit(spark, release, output)
    before = output.read_bytes()
    again = fit(spark, release, output)
    assert not again.is_new and output.read_bytes() == before
    with pytest.raises(ConfigError, match="another model"):
        fit(spark, release, output, name="bounded-least-squares", norm_bound=1.0)
    # Another draw from the same configuration has the same identity and other numbers.
    redrawn = make_release(spark, tmp_path / "redrawn", sums(2))
    with pytest.raises(ConfigError, match="another model"):
        fit(spark, redrawn, output)
    assert output.read_bytes() == before


def test_rounding_does_not_make_another_model(spark: SparkSession, release: str, tmp_path: Path) -> None:
    output = tmp_path / "model.json"
    fit(spark, release, output)
    document = json.loads(output.read_text())
    document["encoded"]["columns"][1]["coefficient"] *= 1 + 1e-13
    output.write_text(json.dumps(document))
    assert not fit(spark, release, output).is_new
    document["encoded"]["columns"][1]["coefficient"] *= 1 + 1e-4
    output.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="another model"):
        fit(spark, release, output)


@pytest.mark.parametrize("content", ["{}", "[]", "not json", '{"format": "dpagg-linear-model", "version": 99}'])
def test_a_foreign_file_at_the_output_is_kept(spark: SparkSession, release: str, tmp_path: Path, content: str) -> None:
    output = tmp_path / "model.json"
    output.write_text(content)
    with pytest.raises(ConfigError, match="not a model") as caught:
        fit(spark, release, output)
    assert caught.value.path == "output.path" and caught.value.exit_code == 2
    assert output.read_text() == content


def test_a_folder_or_a_remote_output_is_refused(spark: SparkSession, release: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exists"):
        fit(spark, release, tmp_path)
    with pytest.raises(ConfigError, match="file system"):
        fit(spark, release, "s3://bucket/model.json")
    result = fit(spark, release, f"file://{tmp_path}/model.json")
    assert result.path == f"{tmp_path}/model.json" and (tmp_path / "model.json").exists()


def test_an_output_that_cannot_be_written_is_an_environment_fault(
    spark: SparkSession, release: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="could not be written"):
        fit(spark, release, tmp_path / "file" / "model.json")


def test_bounded_fit(spark: SparkSession, release: str, tmp_path: Path) -> None:
    result = fit(spark, release, tmp_path / "model.json", name="bounded-least-squares", norm_bound=2.0)
    assert result.model.fit["status"] == "bound_active" and result.model.fit["norm_bound"] == 2.0
    assert np.linalg.norm(result.model.coefficients) == pytest.approx(2.0)
    assert not fit(spark, release, tmp_path / "model.json", name="bounded-least-squares", norm_bound=2.0).is_new


def test_a_column_left_out_of_the_release_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = make_release(spark, tmp_path / "table", sums(3, dead_column=4))
    result = fit(spark, path, tmp_path / "model.json")
    assert result.model.fit["status"] == "rank_deficient"
    assert "device:other is zero in every bag" in result.status_text
    assert result.model.coefficients[4] == 0.0
    assert np.isnan(result.coefficients()[4]["standard_error"])
    assert result.summary()["coefficients"][4]["standard_error"] is None
    json.dumps(result.summary(), allow_nan=False)


def test_too_few_bags_still_gives_a_file(spark: SparkSession, tmp_path: Path) -> None:
    path = make_release(spark, tmp_path / "table", sums(4, bags=3))
    result = fit(spark, path, tmp_path / "model.json")
    assert result.model.fit["status"] == "too_few_bags" and "Release more bags" in result.status_text
    assert not fit(spark, path, tmp_path / "model.json").is_new


def test_no_release_and_no_certificate(spark: SparkSession, release: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no Delta table"):
        fit(spark, str(tmp_path / "nothing"), tmp_path / "model.json")
    bare = str(tmp_path / "bare")
    spark.read.format("delta").load(release).write.format("delta").save(bare)
    with pytest.raises(DataError, match="no certificate") as caught:
        fit(spark, bare, tmp_path / "model.json")
    assert caught.value.exit_code == 4 and "dpagg aggregate" in str(caught.value)
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mechanism": "unweighted-sums"}, ConfigError, "expected one of wtd-flag"),
        ({"columns": []}, DataError, "does not describe its columns"),
        ({"schema": {}}, DataError, "does not describe its columns"),
        ({"num_bags": BAGS + 1}, DataError, "what its certificate says"),
    ],
)
def test_a_certificate_that_does_not_fit_is_refused(
    spark: SparkSession, tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    path = make_release(spark, tmp_path / "table", sums(1), **changes)
    with pytest.raises(error, match=text):
        fit(spark, path, tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize("kind", ["nan", "null", "short", "narrow"])
def test_a_table_that_was_changed_is_refused(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    rows = sums(1)
    if kind == "narrow":
        path = make_release(spark, tmp_path / "table", rows[:, 1:])
    else:
        path = make_release(spark, tmp_path / "table", rows)
        change = {
            "nan": f"UPDATE delta.`{path}` SET label = double('NaN') WHERE bag_id = 7",
            "null": f"UPDATE delta.`{path}` SET label = NULL WHERE bag_id = 7",
            "short": f"DELETE FROM delta.`{path}` WHERE bag_id = 7",
        }[kind]
        spark.sql(change)
    with pytest.raises(DataError, match="what its certificate says"):
        fit(spark, path, tmp_path / "model.json")
    assert not (tmp_path / "model.json").exists()


def test_a_table_of_other_columns_is_refused(spark: SparkSession, release: str, tmp_path: Path) -> None:
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{release}`").head()
    assert detail is not None
    text = detail["properties"][CERTIFICATE_PROPERTY]
    path = str(tmp_path / "table")
    frame = spark.createDataFrame([(1, 2.0)], "bag_id bigint, features double")
    frame.writeTo(f"delta.`{path}`").using("delta").tableProperty(CERTIFICATE_PROPERTY, text).create()
    with pytest.raises(DataError, match="does not have the columns features"):
        fit(spark, path, tmp_path / "model.json")


def test_a_model_that_came_first_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model.json"
    write_model(target, {"first": 1})
    with pytest.raises(ConfigError, match="came into being"):
        write_model(target, {"second": 2})
    assert json.loads(target.read_text()) == {"first": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]
