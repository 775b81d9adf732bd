"""Bags on Spark: exact, disjoint, chosen by the secret alone, of the right law, and what is wrong with them shows."""

import logging
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from scipy import stats

from dpagg.errors import EnvironmentFault
from dpagg.kernels import bags as kernel
from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking
from dpagg.kernels.encoding import encode_features
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.spark.bagging import bag_leverages, noisy_label_bags, rank_pass, routed_rows, weighted_bag_sums
from dpagg.spark.engines import spark_faults

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUM_ROWS, BAG_SIZE, NUM_BAGS = 1000, 8, 100
SCHEMA = Schema((Numeric("a", -1, 1), Categorical("c", ("u", "v"))), Label("y", 0, 5, 0.0))


def make_table(num_rows=NUM_ROWS, seed=5):
    rng = np.random.default_rng(seed)
    a = rng.uniform(-1, 1, num_rows)
    a[::50] = np.nan  # left out for a missing feature, as are infinite ones
    a[25::150], a[75::150] = np.inf, -np.inf
    a[1] = 1e308  # finite, so clipped
    return pa.table(
        {
            "id": rng.permutation(num_rows) - 200,
            "a": pa.array(a, mask=np.arange(num_rows) == 7),  # and null
            "c": rng.choice(["u", "v"], num_rows),
            "y": np.clip(2 + np.nan_to_num(a) + rng.normal(size=num_rows), 0, 5),
        }
    )


@pytest.fixture(scope="module")
def table():
    return make_table()


@pytest.fixture(scope="module")
def dense(table):
    """Keys and [X y] of the rows that take part, label in the user's units."""
    features, keep = encode_features(table.combine_chunks().to_batches()[0], SCHEMA)
    return np.asarray(table["id"])[keep], np.column_stack([features, np.asarray(table["y"])])[keep]


def ranking(seed=1, release_id="r"):
    return Ranking(RowRule(SCHEMA), "id", Secret.insecure(seed), release_id)


def laid_out(df, how, num_tasks=3, num_bags=NUM_BAGS):
    counted = rank_pass(df, how)
    return BagLayout.of(counted.counts, bag_size=BAG_SIZE, num_bags=num_bags, num_tasks=num_tasks)


def expected_bags(dense, how, num_bags=NUM_BAGS):
    """Rows of each bag by an independent sort of all ranks, shape (m, k, d + 1)."""
    keys, rows = dense
    ranks = how.secret.ranks(how.release_id, [int(key).to_bytes(8, "little", signed=True) for key in keys])
    return rows[np.argsort(ranks[:, 0])][: num_bags * BAG_SIZE].reshape(num_bags, BAG_SIZE, -1)


def test_weighted_sums_are_those_of_dense_numpy(spark, table, dense):
    df, how = spark.createDataFrame(table), ranking()
    counted = rank_pass(df, how)
    assert (counted.summary.num_rows, counted.summary.num_missing) == (965, 35) and counted.counts.sum() == 965
    found = weighted_bag_sums(df, how, laid_out(df, how)).toPandas().sort_values("bag_id")
    assert found["bag_id"].tolist() == list(range(NUM_BAGS))
    for bag, rows in enumerate(expected_bags(dense, how)):
        drawn = how.secret.stream("r", "bag", bag).standard_normal(BAG_SIZE + 1)
        row = found.iloc[bag]
        np.testing.assert_allclose([*row["features"], row["label"]], drawn[:-1] @ rows, rtol=1e-9, atol=1e-9)
        assert row["noise"] == drawn[-1]
        hat = rows[:, :-1] @ np.linalg.pinv(rows[:, :-1])
        np.testing.assert_allclose(row["leverage"], np.diag(hat).max(), rtol=1e-6)
    measured = bag_leverages(df.drop("y"), how, laid_out(df, how)).toPandas().sort_values("bag_id")
    np.testing.assert_allclose(measured["leverage"], found["leverage"], rtol=1e-9)


def test_noisy_bags_are_those_of_dense_numpy(spark, table, dense):
    df, how = spark.createDataFrame(table), ranking()
    labels = NoisyLabels(num_noised=3, noise_std=2.0, weight_cap=1.5)
    found = noisy_label_bags(df, how, laid_out(df, how), labels).toPandas().sort_values("bag_id")
    for bag, rows in enumerate(expected_bags(dense, how)):
        row, stream = found.iloc[bag], how.secret.stream("r", "bag", bag)
        weights = labels.weights(stream, BAG_SIZE)
        noise = np.concatenate([2.0 * stream.standard_normal(3), np.zeros(5)])
        np.testing.assert_array_equal(np.stack(row["features"]), rows[:, :-1])
        np.testing.assert_array_equal(row["weights"], weights)
        np.testing.assert_allclose(row["label"], weights @ (rows[:, -1] + noise), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("num_tasks", "layout"), [(1, "as is"), (7, "repartitioned"), (40, "as is")])
def test_bags_depend_neither_on_tasks_nor_on_the_order_of_rows(spark, table, num_tasks, layout):
    df, how = spark.createDataFrame(table), ranking()
    first = weighted_bag_sums(df, how, laid_out(df, how)).toPandas().sort_values("bag_id")
    again = df.repartition(5).sortWithinPartitions("y") if layout == "repartitioned" else df
    second = weighted_bag_sums(again, how, laid_out(again, how, num_tasks)).toPandas().sort_values("bag_id")
    np.testing.assert_allclose(np.stack(first["features"]), np.stack(second["features"]), rtol=1e-12)
    np.testing.assert_allclose(first["label"], second["label"], rtol=1e-9, atol=1e-9)


def test_labels_decide_neither_bags_nor_weights_nor_noise(spark, table):
    """Other labels, many of them missing or absurd: the same everything else, bit for bit."""
    how, labels = ranking(), NoisyLabels(num_noised=3, noise_std=2.0, weight_cap=1.5)
    rng = np.random.default_rng(0)
    other = table.set_column(3, "y", pa.array(np.where(rng.uniform(size=NUM_ROWS) < 0.5, np.nan, 1e9)))
    found = []
    for each in (table, other):
        df = spark.createDataFrame(each)
        layout = laid_out(df, how)
        sums = weighted_bag_sums(df, how, layout).drop("label").toPandas().sort_values("bag_id")
        noisy = noisy_label_bags(df, how, layout, labels).drop("label").toPandas().sort_values("bag_id")
        found.append([np.stack(sums["features"]), sums["noise"], sums["leverage"], np.stack(noisy["weights"])])
        found[-1].append(np.stack([np.stack(rows) for rows in noisy["features"]]))
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("cast", ["string", "binary", "int", "decimal(20,0)", "date"])
def test_keys_of_every_type_make_bags(spark, table, cast):
    df = spark.createDataFrame(table)
    if cast == "date":
        df = df.selectExpr("date_add(date'2020-01-01', cast(id as int)) AS id", "a", "c", "y")
    else:
        df = df.withColumn("id", df["id"].cast("string").cast(cast) if cast == "binary" else df["id"].cast(cast))
    how = ranking()
    rows = routed_rows(df, how, laid_out(df, how), with_label=False)
    assert rows.count() >= NUM_BAGS * BAG_SIZE
    assert weighted_bag_sums(df, how, laid_out(df, how)).count() == NUM_BAGS


def test_one_shuffle_and_no_secret_in_the_plan(spark, table):
    df, how = spark.createDataFrame(table), ranking()
    sums = weighted_bag_sums(df, how, laid_out(df, how))
    plan = sums._jdf.queryExecution().toString()
    executed = sums._jdf.queryExecution().executedPlan().toString()
    assert executed.count("Exchange") == 1 and executed.count("ArrowEvalPython") == 1
    key = how.secret._key
    for text in (key.hex(), str(int.from_bytes(key, "little")), repr(key)[2:-1]):
        assert text not in plan


def test_a_changed_input_stops_the_draw_without_a_value(spark, table, capfd, caplog):
    df, how = spark.createDataFrame(table), ranking()
    layout = laid_out(df, how)
    with caplog.at_level(logging.DEBUG), pytest.raises(EnvironmentFault) as raised, spark_faults():
        weighted_bag_sums(df.where("id % 10 != 3"), how, layout).collect()
    assert "counted" not in str(raised.value)
    assert not any("counted" in text for text in (*capfd.readouterr(), caplog.text))


# What can be wrong with bags, and one look at a release that finds each. Rows are one-hot in their own place, so a
# released sum shows the weight of every single row.


def faults_of_membership(weights, labels):
    """Name what is wrong with weights (m, n): a row's weight in a bag, 0 outside of it.

    Weights that are iid N(0, 1) repeat with probability 0. A choice of rows that ignores labels picks as many rows
    from the upper half of labels as from the lower one: hypergeometric, at 1e-6.
    """
    found = set()
    used = weights != 0
    if (used.sum(axis=0) > 1).any():
        found.add("overlap")
    if (used.sum(axis=1) != BAG_SIZE).any():
        found.add("size")
    values = weights[used]
    if len(np.unique(values)) < len(values):
        found.add("weights used again")
    chosen, upper = used.any(axis=0), labels > np.median(labels)
    law = stats.hypergeom(len(labels), int(upper.sum()), int(chosen.sum()))
    picked = int(upper[chosen].sum())
    if 2 * min(law.cdf(picked), law.sf(picked - 1)) < 1e-6:
        found.add("choice by label")
    return found


def drawn_weights(*, rank=None, step=BAG_SIZE, streams=kernel.bag_streams, seed=0, num_rows=400, num_bags=20):
    """Weights of a release over one-hot rows, by the kernels, with the ranks or streams of a saboteur."""
    secret = Secret.insecure(seed)
    labels = np.random.default_rng(seed).normal(size=num_rows)
    ranks = secret.ranks("r", [b"%d" % row for row in range(num_rows)])
    order = np.argsort(ranks[:, 0] if rank is None else rank(ranks[:, 0], labels))
    rows = np.zeros((num_bags, BAG_SIZE, num_rows + 1))
    for bag in range(num_bags):
        rows[bag, np.arange(BAG_SIZE), order[bag * step : bag * step + BAG_SIZE]] = 1.0
    released = kernel.weighted_bags(rows, streams(secret, "r", np.arange(num_bags)))
    weights = np.where(np.abs(released.features) > 1e-12, released.features, 0.0)
    return weights, labels


@pytest.mark.parametrize("seed", range(20))
def test_honest_bags_have_no_fault(seed):
    assert faults_of_membership(*drawn_weights(seed=seed)) == set()


def test_overlapping_bags_are_seen():
    assert "overlap" in faults_of_membership(*drawn_weights(step=BAG_SIZE - 1))


def test_weights_used_again_are_seen():
    assert "weights used again" in faults_of_membership(
        *drawn_weights(streams=lambda secret, release, bags: kernel.bag_streams(secret, release, bags // 2))
    )


def test_a_choice_by_label_is_seen():
    assert "choice by label" in faults_of_membership(*drawn_weights(rank=lambda ranks, labels: -labels))


def test_a_bag_too_small_is_seen():
    weights, labels = drawn_weights()
    weights[3, np.flatnonzero(weights[3])[0]] = 0.0
    assert faults_of_membership(weights, labels) == {"size"}


class WrongRows(NoisyLabels):
    """Puts the noise on as many rows as it should, but on the last ones."""

    def draw(self, labels, streams):
        weights, sums = super().draw(labels[:, ::-1], streams)
        return weights[:, ::-1], sums


class Quieter(NoisyLabels):
    def draw(self, labels, streams):
        return NoisyLabels(self.num_noised, 0.8 * self.noise_std, self.weight_cap).draw(labels, streams)


class ByLabel(NoisyLabels):
    """Noises the rows of the largest labels."""

    def draw(self, labels, streams):
        weights, sums = np.empty_like(labels), np.empty(len(labels))
        for bag, stream in enumerate(streams):
            order = np.argsort(-labels[bag])
            drawn, total = super().draw(labels[bag : bag + 1, order], [stream])
            weights[bag, order], sums[bag] = drawn[0], total[0]
        return weights, sums


def noise_fault(spark, rule):
    """Whether (released sum - weighted labels) / (sigma * norm of the first weights) is not N(0, 1), at 2e-4.

    Kolmogorov-Smirnov sees the body of the law, the sum of squares its scale and tails.
    """
    table = make_table(8000, seed=2)
    df, how = spark.createDataFrame(table), ranking()
    layout = laid_out(df, how, num_bags=900)
    found = noisy_label_bags(df, how, layout, rule).toPandas().sort_values("bag_id")
    features, keep = encode_features(table.combine_chunks().to_batches()[0], SCHEMA)
    dense = (np.asarray(table["id"])[keep], np.column_stack([features, np.asarray(table["y"])])[keep])
    labels = expected_bags(dense, how, 900)[:, :, -1]
    weights = np.stack(found["weights"])
    noise = (found["label"] - (weights * labels).sum(axis=1)) / (
        rule.noise_std * np.sqrt((weights[:, : rule.num_noised] ** 2).sum(axis=1))
    )
    energy = stats.chi2(len(noise)).cdf((noise**2).sum())
    return bool(stats.kstest(noise, "norm").pvalue < 1e-4 or min(energy, 1 - energy) < 5e-5)


@pytest.mark.parametrize(
    ("kind", "is_wrong"), [(NoisyLabels, False), (WrongRows, True), (Quieter, True), (ByLabel, True)]
)
def test_noise_on_the_wrong_rows_is_seen(spark, kind, is_wrong):
    assert noise_fault(spark, kind(2, 1.5, None)) is is_wrong


def test_the_law_of_weighted_sums_over_many_seeds(dense):
    """Sums of a fixed bag are N(0, [X y]^T [X y]): all second moments within 5 standard errors, norms chi-square."""
    _, rows = dense
    bag = rows[:BAG_SIZE]
    sums = []
    for seed in range(4000):
        drawn = kernel.weighted_bags(bag[None], kernel.bag_streams(Secret.insecure(seed), "r", np.array([0])))
        sums.append([*drawn.features[0], drawn.labels[0]])
    white = np.array(sums) @ np.linalg.inv(np.linalg.cholesky(bag.T @ bag)).T
    width = white.shape[1]
    moments = white.T @ white / len(white) - np.eye(width)
    assert np.abs(moments).max() < 5 * np.sqrt(2 / len(white))
    assert stats.kstest((white**2).sum(axis=1), "chi2", args=(width,)).pvalue > 1e-5


def test_where_a_row_lands_tells_nothing(dense):
    """Over many secrets each row is in each bag, and in each place of it, equally often: chi-square at 1e-6."""
    keys = [b"%d" % row for row in range(40)]
    places = np.zeros((40, 40))
    for seed in range(3000):
        order = np.argsort(Secret.insecure(seed).ranks("r", keys)[:, 0])
        places[np.arange(40), order] += 1
    assert stats.chisquare(places.ravel(), ddof=2 * 40 - 2).pvalue > 1e-6
