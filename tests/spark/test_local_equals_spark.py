"""A table in memory is treated as Spark treats it: the same cells, releases, certificates and refusals."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from dpagg.config import HeldAggregateConfig, HeldFitConfig, validated
from dpagg.errors import DataError
from dpagg.interfaces.notebook import _Held
from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.kernels.schema import Categorical, Hashed, Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.local.reading import normalise as normalise_locally
from dpagg.local.rows import LocalRows, drawn_table
from dpagg.runs.aggregate import draw_release
from dpagg.runs.plan import plan_release
from dpagg.runs.private_fit import fit_data
from dpagg.runs.sampled import draw_sampled, plan_bags, sampled_certificate
from dpagg.spark.drawn_bags import DrawnBags
from dpagg.spark.reading import normalise
from dpagg.spark.regression_data import packed_rows
from dpagg.spark.rows import SparkRows

SEED, NUM_ROWS = 11, 3000
DECLARED = {
    "features": [
        {"name": "price", "type": "numeric", "lower": 0, "upper": 100, "missing": "indicator"},
        {"name": "age", "type": "numeric", "lower": 0, "upper": 80},
        {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"], "other": True},
        {"name": "shop", "type": "hashed", "buckets": 4},
    ],
    "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 1}},
}
PRIVACY = {"epsilon": 1.0, "delta": 1e-6}


def frame():
    """With what users have: missing and unreadable cells, values out of bounds, rare categories over the cap."""
    rng = np.random.default_rng(4)
    price = rng.uniform(-10, 120, NUM_ROWS)
    price[::17] = np.nan
    age = pd.Series(rng.integers(0, 90, NUM_ROWS).astype(str))
    age[::101] = "unknown"
    device = pd.Series(rng.choice(["mobile", "desktop"], NUM_ROWS))
    device[5:8], device[20:25] = "television", None
    sale = pd.Series(np.clip(0.3 * np.nan_to_num(price) + rng.normal(0, 9, NUM_ROWS), -5, 60).round(3).astype(str))
    sale[::50], sale[1::50] = None, "n/a"
    return pd.DataFrame(
        {
            "key": [f"k{each}" for each in rng.permutation(NUM_ROWS)],
            "price": price,
            "age": age,
            "device": device,
            "shop": rng.choice(["a", "b", "c", "d", "e"], NUM_ROWS),
            "sale": sale,
        }
    )


def both(spark, schema, row_id):
    table = frame()
    df = spark.createDataFrame(pa.Table.from_pandas(table, preserve_index=False)).repartition(3)
    return SparkRows.of(df, schema, row_id), LocalRows.of(table, schema, row_id)


def as_matrix(table):
    found = table.toArrow() if hasattr(table, "toArrow") else table
    ordered = found.sort_by("bag_id")
    columns = [np.array(ordered[name].to_pylist()).reshape(len(ordered), -1) for name in ordered.column_names]
    return np.column_stack(columns)


def same_promise(one, other):
    drop = ("draw_id", "input_version")
    one, other = ({name: value for name, value in each.items() if name not in drop} for each in (one, other))
    assert one["leverage"]["largest"] == pytest.approx(other["leverage"]["largest"], rel=1e-9)
    assert one["event"].keys() == other["event"].keys()
    exact = ("num_bags", "num_rows", "rows_left_out", "rank", "statement", "assumptions", "columns", "release_id")
    for name in exact:
        assert one.get(name) == other.get(name), name
    assert one["label_noise_variance"] == pytest.approx(other["label_noise_variance"], rel=1e-6)


@pytest.mark.parametrize("floor", [{"kind": "noise"}, {"kind": "private"}])
def test_releases_over_the_whole_table(spark, floor):
    content = {
        "schema": DECLARED,
        "mechanism": {"name": "wtd-flag", "num_bags": 500},
        "privacy": PRIVACY | {"floor": floor},
        "input": {"row_id": "key"},
    }
    config = validated(content, HeldAggregateConfig)
    drawn = []
    for rows in both(spark, config.encoding, "key"):
        plan = plan_release(config, _Held(), rows)
        assert plan.rows_left_out["missing_feature"] > 25 and plan.rows_left_out["over_leverage_cap"] >= 3
        drawn.append(draw_release(plan, config, Secret.insecure(SEED), "release"))
    on_spark, local = drawn
    one, other = (
        as_matrix(DrawnBags(spark, on_spark.finish, on_spark.sums).frame()),
        as_matrix(drawn_table(local.finish, local.sums)),
    )
    assert one.shape == other.shape == (500, 11)
    assert (np.abs(one - other).max(axis=0) <= 1e-9 * np.maximum(np.abs(one).max(axis=0), 1.0)).all()
    same_promise(on_spark.certificate, local.certificate)


@pytest.mark.parametrize(
    "mechanism",
    [
        {"name": "sampled-wtd-flag", "bag_size": 60},
        {"name": "sampled-noisy-wtd-lag", "bag_size": 10, "noised_fraction": 0.3},
    ],
)
def test_releases_of_disjoint_bags(spark, mechanism):
    content = {"schema": DECLARED, "mechanism": mechanism, "privacy": PRIVACY, "input": {"row_id": "key"}}
    config = validated(content, HeldAggregateConfig)
    found = []
    for rows in both(spark, config.encoding, "key"):
        plan = plan_bags(config, _Held(), rows, secret=Secret.insecure(SEED), release_id="release", with_labels=True)
        found.append((as_matrix(draw_sampled(plan)[0]), sampled_certificate(plan, config)))
    (one, promise), (other, local_promise) = found
    assert one.shape == other.shape and len(one) > 10
    assert (np.abs(one - other).max(axis=0) <= 1e-9 * np.maximum(np.abs(one).max(axis=0), 1.0)).all()
    for name in ("num_bags", "rows_left_out", "assumptions", "statement", "bags_left_out"):
        assert promise[name] == local_promise[name]
    assert promise["label_noise_variance"] == pytest.approx(local_promise["label_noise_variance"], rel=1e-9)


@pytest.mark.parametrize(
    ("mechanism", "adjacency"),
    [("ihm", "zero_out_one_row"), ("ihm", "change_one_label"), ("adassp", "zero_out_one_row")],
)
def test_private_fits(spark, mechanism, adjacency):
    privacy = PRIVACY | {"adjacency": adjacency, "num_rows": 3100}
    config = validated({"schema": DECLARED, "mechanism": {"name": mechanism}, "privacy": privacy}, HeldFitConfig)
    rule = BoundedRows(config.encoding)
    on_spark, local = both(spark, config.encoding, None)
    with packed_rows(on_spark.df, rule, num_rows=3100) as data:
        one = fit_data(config, rule, data, _Held(), Secret.insecure(SEED), "release")
    other = fit_data(config, rule, local.bounded(rule, 3100), _Held(), Secret.insecure(SEED), "release")
    scale = np.abs(one.model.coefficients).max()
    np.testing.assert_allclose(one.model.coefficients, other.model.coefficients, rtol=0, atol=1e-9 * scale)
    assert one.certificate["event"] == pytest.approx(other.certificate["event"])
    assert one.certificate["num_rows"] == other.certificate["num_rows"] == 3100


CELLS = [
    *(
        "1",
        " 2.5\t",
        "1e3",
        "+.5",
        "7.",
        "1d",
        "1F",
        "0x1p3",
        "1_000",
        "1,5",
        "",
        " ",
        "nan",
        "NaN",
        "Infinity",
        "-inf",
    ),
    *("1e999", "\u0661", "--1", "0x10", "1e", "true", "\u00a01", "1 2", None),
]


def encoded(table, schema):
    batch = table.combine_chunks().to_batches()[0]
    rows, keep = encode_features(batch, schema)
    return rows[keep], keep, encode_label(batch.column(schema.label.name), schema.label)


def test_cells_of_text_are_read_alike(spark):
    schema = Schema((Numeric("x", -10, 2000, "indicator"),), Label("y", 0, 50, 7.0))
    table = pa.table({"x": pa.array(CELLS, pa.string()), "y": pa.array(CELLS, pa.string())})
    df = spark.createDataFrame([(each, each) for each in CELLS], "x string, y string").coalesce(1)
    for one, other in zip(
        encoded(normalise(df, schema).toArrow(), schema), encoded(normalise_locally(table, schema), schema), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (T.BooleanType(), [True, False, None]),
        (T.DecimalType(12, 3), [decimal.Decimal("1.500"), decimal.Decimal("-0.001"), None]),
        (T.DateType(), [datetime.date(2026, 1, 2), datetime.date(1, 1, 1), None]),
        (T.LongType(), [2**53 + 1, -5, None]),
        (T.DoubleType(), [float("nan"), 1.25, None]),
        (T.TimestampType(), [datetime.datetime(2026, 1, 2), None, None]),
        (T.BinaryType(), [b"a", b"", None]),
    ],
)
@pytest.mark.parametrize("feature", [Numeric("x", -1e20, 1e20, "indicator"), Hashed("x", 64, "indicator"), None])
def test_columns_of_each_type_are_read_or_refused_alike(spark, kind, values, feature):
    df = spark.createDataFrame([(each, 1.0) for each in values], T.StructType().add("x", kind).add("y", "double"))
    table = df.coalesce(1).toArrow()
    if feature is None:  # as a key
        schema, row_id = Schema((), Label("y", 0, 5, 0)), "x"
    else:
        schema, row_id = Schema((feature,), Label("y", 0, 5, 0)), None
    found = []
    for read, given in ((normalise, df.coalesce(1)), (normalise_locally, table)):
        try:
            settled = read(given, schema, row_id)
            settled = settled.toArrow() if read is normalise else settled
            key = [] if row_id is None else [each is None for each in settled["x"].to_pylist()]
            found.append((key, *map(np.ndarray.tolist, encoded(settled, schema))))
        except DataError as error:
            found.append((error.path, error.message.partition(" expected ")[2]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("keys", "said"), [(["a", "b", "a"], "repeats an earlier row's key in 1 of 3"), (["a", None, "b"], "is null in 1")]
)
def test_keys_are_refused_alike(spark, keys, said):
    schema = Schema((), Label("y", 0, 5, 0))
    table = pa.table({"key": pa.array(keys, pa.string()), "y": [1.0, 2.0, 3.0]})
    for rows in (SparkRows.of(spark.createDataFrame(table), schema, "key"), LocalRows.of(table, schema, "key")):
        with pytest.raises(DataError, match=said):
            rows.check_key()


def test_users_have_as_many_rows_and_leverages_of_the_same_law(spark):
    """Which rows of a user take part is decided by another public hash, how many is not."""
    schema = Schema((Categorical("device", ("mobile", "desktop")),), Label("y", 0, 5, 0))
    users = np.repeat(np.arange(40), np.arange(1, 41))
    keys = np.arange(len(users))
    table = pa.table({"key": keys, "user": users, "device": ["mobile", "desktop"] * (len(users) // 2), "y": keys % 5})
    found = []
    for rows in (
        SparkRows.of(spark.createDataFrame(table), schema, "key", "user"),
        LocalRows.of(table, schema, "key", "user"),
    ):
        kept, dropped = rows.limited(10)
        found.append((dropped, kept.summary_pass(_rule(schema)).num_rows))
    assert found[0] == found[1] == (sum(range(1, 31)), 10 * 31 + sum(range(1, 10)))


def _rule(schema):
    from dpagg.kernels.rows import RowRule

    return RowRule(schema)
