"""Both engines draw weighted sums of the same law, the same ones whatever Spark does, and a wrong law is seen."""

import gc
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from scipy import stats

from dpagg.errors import EnvironmentFault
from dpagg.kernels.encoding import encode_features
from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import subspace
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import Finish
from dpagg.spark.engines import (
    feature_pass,
    labelled_pass,
    map_in_arrow,
    plain_sums_pass,
    summary_pass,
    table_factor,
    tree_merge,
    weighted_sums_pass,
)

# Workers cannot import test modules, so the sabotaged classes below travel whole.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_ROWS, NUM_BAGS, NUM_PARTITIONS = 400, 20_000, 4
PARTITIONS = tuple(str(p) for p in range(NUM_PARTITIONS))
SCHEMA = Schema((Numeric("a", -1, 1), Numeric("b", 0, 10), Categorical("partition", PARTITIONS)), Label("y", 0, 5, 0.0))


@pytest.fixture(scope="module")
def table(spark):
    """Rows that know the partition into which Spark's hash of their key puts them, as many in each.

    With equal numbers a stream that is used in two partitions gives rows of both the same weights in the same bag.
    """
    rng = np.random.default_rng(5)
    candidates = spark.range(3 * NUM_ROWS).selectExpr("id", f"pmod(hash(id), {NUM_PARTITIONS}) AS p").collect()
    place = {}
    for partition in range(NUM_PARTITIONS):
        inside = [row.id for row in candidates if row.p == partition][: NUM_ROWS // NUM_PARTITIONS]
        place.update(dict.fromkeys(inside, str(partition)))
    keys = rng.permutation(list(place))
    assert len(keys) == NUM_ROWS
    features = rng.uniform(-1, 1, NUM_ROWS)
    return pa.table(
        {
            "id": keys,
            "a": features,
            "b": rng.uniform(0, 10, NUM_ROWS),
            "partition": [place[key] for key in keys],
            "y": np.clip(2 + features + rng.normal(size=NUM_ROWS), 0, 5),
        }
    )


@pytest.fixture(scope="module")
def dense(table):
    """[X y] as dense numpy, label centred as the engines centre it."""
    features, _ = encode_features(table.combine_chunks().to_batches()[0], SCHEMA)
    return np.column_stack([features, np.asarray(table["y"]) - 2.5])


@pytest.fixture
def rule(spark, table):
    return RowRule(
        SCHEMA, released=subspace(feature_pass(spark.createDataFrame(table), RowRule(SCHEMA)).factor.canonical())
    )


def faults(sums, dense):
    """Name what is wrong with sums that should have iid rows N(0, dense^T dense).

    Whitened rows are N(0, I). Each mean and second moment is a z-score; with fewer than 100 of them 5 standard errors
    fail by chance once in 20,000 runs. The squared norms are chi-square, tested at 1e-5. Neighbouring bags are
    independent, so their products have mean 0.
    """
    white = np.linalg.solve(np.linalg.qr(dense, mode="r").T, sums.T).T
    count, width = white.shape
    found = []
    if np.abs(white.mean(axis=0)).max() > 5 / np.sqrt(count):
        found.append("mean")
    moments = (white.T @ white / count - np.eye(width)) / np.where(
        np.eye(width) > 0, np.sqrt(2 / count), np.sqrt(1 / count)
    )
    if np.abs(moments).max() > 5:
        found.append("covariance")
    if stats.kstest((white**2).sum(axis=1), stats.chi2(width).cdf).pvalue < 1e-5:
        found.append("distribution")
    if abs((white[1:] * white[:-1]).mean()) > 5 / np.sqrt(count * width):
        found.append("dependent bags")
    return found


def drawn(spark, table, rule, secret, *, num_bags=NUM_BAGS, partitions=7):
    df = spark.createDataFrame(table).repartition(partitions)
    return weighted_sums_pass(
        df, rule, row_id="id", num_bags=num_bags, num_partitions=NUM_PARTITIONS, secret=secret, release_id="r"
    ).sums.totals


def test_rows_engine_has_the_law_of_the_weighted_sums(spark, table, dense, rule):
    assert faults(drawn(spark, table, rule, Secret.insecure(1)), dense) == []


def test_factor_engine_has_the_law_of_the_weighted_sums(spark, table, dense, rule):
    found = labelled_pass(spark.createDataFrame(table).repartition(3), rule)
    root = found.moments.root(rule.released)
    np.testing.assert_allclose(root.T @ root, dense.T @ dense, rtol=1e-10, atol=1e-10)
    finish = Finish(Secret.insecure(2), "r", NUM_BAGS, 0.0, rule, root)
    chunks = [finish.chunk(chunk) for chunk in range(finish.num_chunks)]
    features = np.concatenate([features for features, _ in chunks])
    labels = np.concatenate([labels for _, labels in chunks]) - 2.5 * features[:, 0]
    assert faults(np.column_stack([features, labels]), dense) == []


class OnePartitionsStream(Secret):
    """Weights of the first partition, used again in each other one."""

    def stream(self, release_id, purpose, index):
        return super().stream(release_id, purpose, 0)

    def __reduce__(self):
        return OnePartitionsStream, (self._key,)

    def __init__(self, key):
        super().__init__(key, is_private=False)


class WiderInOnePartition(OnePartitionsStream):
    """Weights of variance 1.1 in one partition."""

    def stream(self, release_id, purpose, index):
        return _Scaled(Secret.stream(self, release_id, purpose, index), np.sqrt(1.1) if index == 1 else 1.0)

    def __reduce__(self):
        return WiderInOnePartition, (self._key,)


class OneBagsWeights(OnePartitionsStream):
    """Every second bag has the weights of the bag before."""

    def stream(self, release_id, purpose, index):
        return _Repeated(Secret.stream(self, release_id, purpose, index))

    def __reduce__(self):
        return OneBagsWeights, (self._key,)


class _Scaled:
    def __init__(self, stream, scale):
        self.stream, self.scale = stream, scale

    def standard_normal(self, shape):
        return self.scale * self.stream.standard_normal(shape)


class _Repeated:
    def __init__(self, stream):
        self.stream = stream

    def standard_normal(self, shape):
        weights = self.stream.standard_normal(shape)
        weights[1::2] = weights[: len(weights) // 2 * 2 : 2]
        return weights


class OtherWeightsForLabels(RowRule):
    """Labels meet the weights of another row."""

    def labelled(self, batch):
        block = super().labelled(batch)
        block.rows[:, -1] = np.roll(block.rows[:, -1], 1)
        return block


@pytest.mark.parametrize(
    ("secret", "fault"),
    [
        (OnePartitionsStream, "covariance"),
        (WiderInOnePartition, "covariance"),
        (OneBagsWeights, "dependent bags"),
    ],
)
def test_wrong_weights_are_seen(spark, table, dense, rule, secret, fault):
    assert fault in faults(drawn(spark, table, rule, secret(bytes(range(32)))), dense)


def test_a_label_with_other_weights_is_seen(spark, table, dense, rule):
    wrong = OtherWeightsForLabels(rule.schema, released=rule.released)
    assert "covariance" in faults(drawn(spark, table, wrong, Secret.insecure(1)), dense)


def test_weights_follow_the_row_key_and_not_the_layout(spark, table, rule):
    first = drawn(spark, table, rule, Secret.insecure(1), num_bags=50, partitions=1)
    shuffled = table.take(np.random.default_rng(0).permutation(NUM_ROWS))
    np.testing.assert_allclose(
        drawn(spark, shuffled, rule, Secret.insecure(1), num_bags=50, partitions=9), first, rtol=1e-12, atol=1e-11
    )
    assert not np.allclose(drawn(spark, table, rule, Secret.insecure(2), num_bags=50), first)


def test_the_rows_engine_draws_what_the_kernel_draws(spark, table, dense, rule):
    """The Spark path equals the array path under the same streams."""
    from dpagg.kernels.weights import WeightedSums

    expected = WeightedSums.zero(30, dense.shape[1])
    keys, place = np.asarray(table["id"]), np.asarray(table["partition"])
    for partition in range(NUM_PARTITIONS):
        inside = np.flatnonzero(place == str(partition))
        rows = dense[inside[np.argsort(keys[inside])]]
        expected = expected.add(rows, Secret.insecure(1).stream("r", "weights", partition))
    found = drawn(spark, table, rule, Secret.insecure(1), num_bags=30)
    np.testing.assert_allclose(found, expected.totals, rtol=1e-12, atol=1e-12 * np.abs(expected.totals).max())


def test_rows_over_the_cap_leave_every_pass_alike(spark, rule):
    rng = np.random.default_rng(3)
    group = np.where(np.arange(300) < 3, "1", "0")
    table = pa.table(
        {"a": rng.uniform(-1, 1, 300), "b": rng.uniform(0, 10, 300), "partition": group, "y": rng.uniform(0, 5, 300)}
    )
    df = spark.createDataFrame(table).repartition(5)
    first = subspace(feature_pass(df, RowRule(SCHEMA)).factor.canonical())
    kept = feature_pass(df, RowRule(SCHEMA, selection=first, cap=0.2))
    assert (kept.summary.num_rows, kept.summary.num_over_cap) == (297, 3)
    second = subspace(kept.factor.canonical())
    assert (first.rank, second.rank) == (4, 3)  # categories 2 and 3 are never seen, category 1 is dropped
    final = RowRule(SCHEMA, selection=first, cap=0.2, released=second)
    features, _ = encode_features(table.combine_chunks().to_batches()[0], SCHEMA)
    remaining = features[3:, :3]
    leverage = np.diag(remaining @ np.linalg.solve(remaining.T @ remaining, remaining.T))
    assert summary_pass(df, final).largest_leverage == pytest.approx(leverage.max(), rel=1e-9)
    labelled = labelled_pass(df, final)
    assert labelled.summary.num_rows == 297
    features = final.expand(labelled.moments.root(second)[:, :-1])
    np.testing.assert_allclose(features.T @ features, np.pad(remaining.T @ remaining, ((0, 3), (0, 3))), atol=1e-9)


def test_plain_sums_are_sums(spark, table, dense, rule):
    df = spark.createDataFrame(table)
    found = plain_sums_pass(df.repartition(3), rule, row_id="id", num_bags=7).sums.totals
    bags = np.array([row.bag for row in df.selectExpr("pmod(xxhash64(id), 7) AS bag").collect()])
    expected = np.array([dense[bags == bag].sum(axis=0) for bag in range(7)])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_the_factor_of_a_released_table(spark):
    rows = np.random.default_rng(0).standard_normal((500, 4))
    df = spark.createDataFrame(
        [(row[:3].tolist(), float(row[3])) for row in rows], "features array<double>, label double"
    )
    factor, count = table_factor(df.repartition(6))
    assert count == 500
    np.testing.assert_allclose(factor.T @ factor, rows.T @ rows, rtol=1e-10, atol=1e-10)


def test_columns_of_doubles_arrive_as_they_were(spark):
    """They travel as one array; names, order, nulls and NaN are what they would be without it."""
    table = pa.table(
        {
            "a.b": pa.array([1.0, None, float("nan"), 4.0]),
            "id": [1, 2, 3, 4],
            "c": pa.array([None, -0.0, float("inf"), None]),
            "text": ["p", None, "r", "s"],
            "d": [5e-324, 6.0, 7.0, 8.0],
        }
    )

    def seen(batches):
        rows = [row for batch in batches for row in batch.to_pylist()]
        yield pa.record_batch({"seen": [str(sorted(rows, key=lambda row: row["id"]))]})

    df = spark.createDataFrame(table).coalesce(1)
    (row,) = map_in_arrow(df, seen, "seen string").collect()
    assert row.seen == str(table.to_pylist())
    (row,) = map_in_arrow(df.select("id", "d"), seen, "seen string").collect()
    assert row.seen == str(table.select(["id", "d"]).to_pylist())


@pytest.mark.parametrize("partitions", [1, 9])
def test_the_driver_and_a_tree_merge_alike(spark, table, partitions):
    df = spark.createDataFrame(table).select("a", "b").repartition(partitions)

    def factor(batches):
        total = Factor.zero(2)
        for batch in batches:
            total = total.add(np.column_stack([np.asarray(column) for column in batch.columns]))
        return total

    found = [tree_merge(df, factor, state_bytes) for state_bytes in (1, 1 << 40)]
    rows = np.column_stack([table["a"], table["b"]])
    for each in found:
        assert each.num_rows == NUM_ROWS
        np.testing.assert_allclose(each.triangle.T @ each.triangle, rows.T @ rows, rtol=1e-12)


def test_sums_that_fit_no_task_are_refused(spark, table, rule):
    with pytest.raises(EnvironmentFault, match="engine factor"):
        drawn(spark, table, rule, Secret.insecure(1), num_bags=100_000_000)


class Explosive(RowRule):
    """Fails with the row in its message, as a library might."""

    def features(self, batch):
        raise ValueError(f"cannot digest {batch.to_pylist()[:1]}")


def test_a_failing_kernel_shows_no_row(spark, table, rule, capfd):
    with pytest.raises(EnvironmentFault) as caught:
        feature_pass(spark.createDataFrame(table), Explosive(SCHEMA))
    shown = (
        str(caught.value)
        + capfd.readouterr().err
        + repr(caught.value.__context__ and caught.value.__suppress_context__)
    )
    assert "cannot digest" not in shown
    assert str(table["y"][0].as_py()) not in shown


def test_modules_are_not_searched_for_garbage_after_each_task(spark):
    found = tree_merge(
        spark.range(8).repartition(4), lambda batches: RowSummary(len(list(batches)) * gc.get_freeze_count())
    )
    assert found.num_rows > 10_000
