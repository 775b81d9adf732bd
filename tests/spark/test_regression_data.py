"""Rows in Spark answer a solver as rows in arrays do; sketches over executors have the law of the driver's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from scipy import stats

from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.kernels.sketches import wishart_gram
from dpagg.kernels.streams import Secret
from dpagg.regression.adassp import plan_adassp
from dpagg.regression.data import ArrayData
from dpagg.regression.dp_gd import plan_gradient_descent
from dpagg.regression.hessian_mixing import plan_hessian_mixing
from dpagg.regression.label_gaussian import plan_label_gaussian
from dpagg.regression.linear_mixing import plan_linear_mixing
from dpagg.regression.planning import Target
from dpagg.regression.whitened_mixing import plan_whitened_mixing
from dpagg.spark.reading import normalise
from dpagg.spark.regression_data import SparkData, packed_rows

Array = NDArray[np.float64]
NUM_ROWS = 3000
SCHEMA = Schema(
    (Numeric("price", 0, 100, "drop"), Numeric("age", 0, 80, "indicator"), Categorical("device", ("a", "b", "c"))),
    Label("sale", 0, 50, 0.0),
)
SECRET = Secret.insecure(5)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    price, age = rng.uniform(-5, 110, NUM_ROWS), rng.uniform(0, 80, NUM_ROWS)
    table = pd.DataFrame({"price": price, "age": age, "device": rng.choice(["a", "b", "c"], NUM_ROWS)})
    table["sale"] = 0.3 * price + 0.1 * age + rng.normal(0, 6, NUM_ROWS)
    table.loc[::50, "price"] = None
    table.loc[::70, "age"] = None
    return table


@pytest.fixture(scope="module")
def rule() -> BoundedRows:
    return BoundedRows(SCHEMA, row_bound=1.6)


@pytest.fixture(scope="module")
def arrays(table: pd.DataFrame, rule: BoundedRows) -> ArrayData:
    return ArrayData(*rule.encode(pa.RecordBatch.from_pandas(table)), 1.0)


def frame(spark: SparkSession, table: pd.DataFrame, partitions: int = 3) -> DataFrame:
    return normalise(spark.createDataFrame(table).repartition(partitions), SCHEMA)


def test_every_solver_draws_the_same_from_spark_as_from_arrays(
    spark: SparkSession, table: pd.DataFrame, rule: BoundedRows, arrays: ArrayData
) -> None:
    target = Target(NUM_ROWS, SCHEMA.num_columns, 1.0, 2.0, 1e-7)
    with packed_rows(frame(spark, table), rule, num_rows=NUM_ROWS, rows_a_block=700) as data:
        for of_spark, of_arrays in (
            (data.factor(), arrays.factor()),
            (data.gram(RowShape(None, 0.5)), arrays.gram(RowShape(None, 0.5))),
            (data.largest_norm(np.eye(6)[:, :2]), arrays.largest_norm(np.eye(6)[:, :2])),
            (data.energies().rows, arrays.energies().rows),
            (data.energies().labels, arrays.energies().labels),
        ):
            np.testing.assert_allclose(of_spark, of_arrays, rtol=1e-12, atol=1e-12)
        query = ResidualQuery(np.linspace(0, 1, 6), RowShape(None, 0.7), 0.2)
        ours, theirs = data.residual_sums(query), arrays.residual_sums(query)
        np.testing.assert_allclose(ours.gradient, theirs.gradient, rtol=1e-12, atol=1e-12)
        assert ours.squares == pytest.approx(theirs.squares, rel=1e-12)
        plans = {
            "ihm": plan_whitened_mixing(target),
            "ihm, sketched": plan_whitened_mixing(target, sketch_size=40),
            "ihm, labels": plan_whitened_mixing(target, adjacency="change_one_label"),
            "ihm-paper": plan_hessian_mixing(target),
            "linear-mixing": plan_linear_mixing(target),
            "adassp": plan_adassp(target),
            "dp-gd": plan_gradient_descent(target, num_iterations=4),
            "label-gaussian": plan_label_gaussian(target, arrays),
        }
        for name, plan in plans.items():
            found = plan.run(data, SECRET, name)
            expected = plan.run(arrays, SECRET, name)
            np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-12, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(found.standard_errors, expected.standard_errors, rtol=1e-9, err_msg=name)


def test_blocks_are_kept_once_counted_and_released(spark: SparkSession, table: pd.DataFrame, rule: BoundedRows) -> None:
    persistent = spark.sparkContext._jsc.getPersistentRDDs
    before = len(persistent())
    with packed_rows(frame(spark, table, 2), rule, rows_a_block=512) as data:
        # Masked rows count, and show in no block's size.
        assert data.num_rows == NUM_ROWS
        assert len(persistent()) == before + 1
        sizes = data.blocks.map(len).collect()
        assert sum(sizes) == NUM_ROWS * 7 * 8 and max(sizes) == 512 * 7 * 8
    assert len(persistent()) == before
    with pytest.raises(RuntimeError, match="on purpose"), packed_rows(frame(spark, table, 2), rule) as data:
        data.energies()
        raise RuntimeError("on purpose")
    assert len(persistent()) == before


def test_declared_rows_are_not_compared(spark: SparkSession, table: pd.DataFrame, rule: BoundedRows) -> None:
    with packed_rows(frame(spark, table), rule, num_rows=17) as data:
        assert data.num_rows == 17


def test_sketches_over_executors_have_the_law_of_the_driver(spark: SparkSession) -> None:
    # Many sketches are drawn in one: the rows of S X are iid, so that each group of them is a sketch of its own.
    schema = Schema((Numeric("x", -1, 1), Numeric("z", -1, 1)), Label("y", -1, 1, 0.0))
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 40)
    table = pd.DataFrame({"x": x, "z": np.clip(0.5 * x + rng.normal(0, 0.3, 40), -1, 1), "y": rng.uniform(-1, 1, 40)})
    group, groups = 6, 2000
    rows, _ = BoundedRows(schema).encode(pa.RecordBatch.from_pandas(table))
    gram = rows.T @ rows
    df = normalise(spark.createDataFrame(table).repartition(2), schema)
    with packed_rows(df, BoundedRows(schema), num_rows=40, rows_a_block=7) as data:
        sketch = data.weighted_sketch(SECRET, "r", "sketch", group * groups)
        factor = data.factor()[:3, :3]
        again = data.weighted_sketch(SECRET, "r", "sketch", group * groups)
        np.testing.assert_allclose(again, sketch, rtol=1e-12, atol=1e-12)
        owned = [data.owned_sketch_gram(factor, SECRET, f"r{i}", "sketch", 200) for i in range(30)]
        shares = own_shares(data, factor, group, groups)

    def statistics(grams: Array) -> Array:
        values = np.linalg.eigvalsh(grams)
        return np.column_stack([grams[:, 0, 1], grams[:, 2, 2], values[:, 0], values[:, -1]])

    weighted = statistics(np.einsum("gki,gkj->gij", *[sketch.reshape(groups, group, 3)] * 2))
    driver = np.random.default_rng(7)
    bartlett = statistics(np.array([wishart_gram(driver, factor, group) for _ in range(groups)]))
    # Four Kolmogorov-Smirnov tests a pair with fixed seeds; each has size 1e-4.
    for one, other in ((weighted, bartlett), (statistics(shares), bartlett)):
        assert min(stats.ks_2samp(one[:, k], other[:, k]).pvalue for k in range(4)) > 1e-4
    wide = 1.05**2 * bartlett
    assert min(stats.ks_2samp(weighted[:, k], wide[:, k]).pvalue for k in range(4)) < 1e-4
    # Sums over executors: mean and variance of the Wishart law with 200 degrees of freedom, and all draws differ.
    mean = np.mean(owned, axis=0)
    spread = np.sqrt(200 * (gram**2 + np.outer(np.diag(gram), np.diag(gram))) / 30)
    assert (np.abs(mean - 200 * gram) < 4.5 * spread).all()
    ratio = np.var([each[0, 0] for each in owned], ddof=1) / (400 * gram[0, 0] ** 2)
    assert stats.chi2.ppf(1e-4, 29) / 29 < ratio < stats.chi2.ppf(1 - 1e-4, 29) / 29


def own_shares(data: SparkData, factor: Array, group: int, groups: int) -> Array:
    """Many owned sketches by the same arithmetic, as one job: a sketch a call would take a minute."""
    from dpagg.kernels.sketches import sketch_rows

    def gram(index: int) -> Array:
        first = sketch_rows(SECRET.stream(f"many{index}", "sketch/rows", 0), factor, group // 2)
        second = sketch_rows(SECRET.stream(f"many{index}", "sketch/rows", 1), factor, group - group // 2)
        return first.T @ first + second.T @ second

    one: Callable[[int], Array] = gram
    context = data.blocks.context
    assert context.defaultParallelism == 2
    np.testing.assert_allclose(
        data.owned_sketch_gram(factor, SECRET, "many3", "sketch", group), gram(3), rtol=1e-12, atol=1e-14
    )
    return np.array(context.parallelize(range(groups), 2).map(one).collect())
