"""Bags cut the rows in order of a secret rank, and what is released of a bag is what its weights make of it."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpagg.kernels.bags import (
    NUM_BUCKETS,
    BagLayout,
    NoisyLabels,
    bag_spaces,
    bag_streams,
    bucket_of,
    key_bytes,
    weight_cap_for,
    weight_ratio,
    weighted_bags,
)
from dpagg.kernels.streams import Secret

SECRET = Secret.insecure(3)


def cut(ranks, rows, bag_size, num_bags, num_tasks, block=7):
    """Bags as tasks make them: routed, sorted within a task, cut."""
    counts = np.bincount(bucket_of(ranks), minlength=NUM_BUCKETS)
    layout = BagLayout.of(counts, bag_size=bag_size, num_bags=num_bags, num_tasks=num_tasks)
    positions, tasks = layout.route(ranks)
    bags = {}
    for task in range(layout.num_tasks):
        mine = positions[tasks == task]
        mine = mine[np.lexsort((ranks[mine, 1], ranks[mine, 0]))]
        blocks = (rows[mine[i : i + block]] for i in range(0, len(mine), block))
        for numbers, found in layout.bags(task, blocks):
            bags.update(zip(numbers.tolist(), found, strict=True))
    return bags


@settings(max_examples=60, deadline=None)
@given(
    num_rows=st.integers(1, 300),
    bag_size=st.integers(1, 40),
    num_tasks=st.integers(1, 9),
    crowded=st.booleans(),
    seed=st.integers(0, 5),
    data=st.data(),
)
def test_bags_are_the_rows_in_order_of_rank_cut_every_k(num_rows, bag_size, num_tasks, crowded, seed, data):
    if bag_size > num_rows:
        bag_size = num_rows
    num_bags = data.draw(st.integers(1, num_rows // bag_size))
    rng = np.random.default_rng(seed)
    ranks = rng.integers(0, 2**63 - 1, (num_rows, 2))
    if crowded:  # many rows a bucket, and rows of equal first number
        ranks[:, 0] = rng.integers(0, 5, num_rows) << 47
    rows = np.arange(2.0 * num_rows).reshape(num_rows, 2)
    bags = cut(ranks, rows, bag_size, num_bags, num_tasks)
    order = np.lexsort((ranks[:, 1], ranks[:, 0]))[: num_bags * bag_size]
    assert sorted(bags) == list(range(num_bags))
    np.testing.assert_array_equal(np.concatenate([bags[bag] for bag in range(num_bags)]), rows[order])


def test_a_row_more_or_less_than_counted_is_noticed():
    ranks = SECRET.ranks("r", [b"%d" % i for i in range(50)])
    layout = BagLayout.of(np.bincount(bucket_of(ranks), minlength=NUM_BUCKETS), bag_size=5, num_bags=9, num_tasks=1)
    rows = np.zeros((int(layout.num_rows[0]), 2))
    assert len(list(layout.bags(0, [rows]))) > 0
    for wrong in (rows[1:], np.zeros((len(rows) + 1, 2)), rows[:3]):
        with pytest.raises(ValueError, match="counted"):
            list(layout.bags(0, [wrong]))
    with pytest.raises(ValueError, match="do not fit"):
        BagLayout.of(np.ones(NUM_BUCKETS, int), bag_size=NUM_BUCKETS, num_bags=2, num_tasks=1)


def test_a_rank_is_keyed_blake2b_of_release_and_key():
    key = hashlib.blake2b(b"3", digest_size=32).digest()
    message = (1).to_bytes(8, "little") + b"r" + b"row"
    digest = hashlib.blake2b(message, key=key, digest_size=16, person=b"dpagg.rank").digest()
    expected = [int.from_bytes(digest[i : i + 8], "little") >> 1 for i in (0, 8)]
    assert SECRET.ranks("r", [b"row"]).tolist() == [expected]
    assert SECRET.ranks("r", []).shape == (0, 2)


def test_ranks_are_uniform_and_of_one_release_and_one_secret():
    keys = key_bytes(pa.array(np.arange(20_000)))
    ranks = SECRET.ranks("r", keys)
    assert stats.kstest(ranks[:, 0] / 2.0**63, "uniform").pvalue > 1e-4
    for others in (SECRET.ranks("s", keys), Secret.insecure(4).ranks("r", keys)):
        assert abs(stats.spearmanr(ranks[:, 0], others[:, 0]).statistic) < 0.03


def test_different_keys_have_different_bytes():
    assert key_bytes(pa.array([0, 1, 256, -1])) == [x.to_bytes(8, "little", signed=True) for x in (0, 1, 256, -1)]
    assert key_bytes(pa.array([0, 1, 256, -1])[1:3]) == [x.to_bytes(8, "little") for x in (1, 256)]
    assert key_bytes(pa.array(["a", "é"])) == [b"a", "é".encode()]
    assert key_bytes(pa.array([b"\0", b"\0\0"])) == [b"\0", b"\0\0"]


@pytest.mark.parametrize("kind", ["full", "zero column", "collinear", "tiny column", "few rows"])
def test_leverages_of_bags_against_pinv(kind):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(6, 30, 4))
    if kind == "zero column":
        rows[::2, :, 1] = 0
    if kind == "collinear":
        rows[:, :, 2] = 2 * rows[:, :, 0] - rows[:, :, 3]
    if kind == "tiny column":
        rows[:, :, 2] = 1e-8 * (np.arange(30) == 7)
    if kind == "few rows":
        rows = rows[:, :3]
    spaces = bag_spaces(rows)
    for bag in range(6):
        expected = np.diag(rows[bag] @ np.linalg.pinv(rows[bag], rcond=1e-12))
        np.testing.assert_allclose(spaces.leverages[bag], expected, rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(spaces.coordinates[bag] @ spaces.basis[bag].T, rows[bag], atol=1e-12)
    if kind == "tiny column":
        assert spaces.leverages[:, 7].min() > 0.9999


def test_a_direction_too_small_to_trust_is_not_released():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(1, 30, 4))
    rows[0, :, 2] = 1e-12 * (np.arange(30) == 7)
    spaces = bag_spaces(rows)
    assert spaces.leverages[0, 7] < 0.9
    sums = weighted_bags(np.concatenate([rows, np.zeros((1, 30, 1))], axis=2), bag_streams(SECRET, "r", np.array([0])))
    basis = spaces.basis[0]
    assert np.linalg.matrix_rank(basis) == 3
    # Outside of the three directions there is rounding only, a hundredth of what the tiny entry would add.
    np.testing.assert_allclose(sums.features[0], basis @ basis.T @ sums.features[0], rtol=0, atol=1e-14)


def test_one_weighted_sum_is_the_dense_product():
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(3, 8, 3))
    found = weighted_bags(rows, bag_streams(SECRET, "r", np.arange(3)))
    for bag in range(3):
        drawn = SECRET.stream("r", "bag", bag).standard_normal(9)
        np.testing.assert_allclose(np.append(found.features[bag], found.labels[bag]), drawn[:8] @ rows[bag])
        assert found.noise[bag] == drawn[8]


def test_noise_lands_on_the_first_labels_and_weights_meet_the_cap():
    labels = np.random.default_rng(3).normal(size=(40, 10))
    for cap in (None, weight_cap_for(0.3, bag_size=10, num_noised=4)):
        rule = NoisyLabels(num_noised=4, noise_std=2.0, weight_cap=cap)
        weights, sums = rule.draw(labels, bag_streams(SECRET, "r", np.arange(40)))
        ratios = [weight_ratio(w, 4) for w in weights]
        assert (max(ratios) <= cap) if cap else (max(ratios) > weight_cap_for(0.3, bag_size=10, num_noised=4))
        spread = (sums - (weights * labels).sum(1)) / (2.0 * np.sqrt((weights[:, :4] ** 2).sum(1)))
        assert stats.kstest(spread, "norm").pvalue > 1e-3
        again, _ = rule.draw(labels + 1, bag_streams(SECRET, "r", np.arange(40)))
        np.testing.assert_array_equal(weights, again)
    with pytest.raises(ValueError, match="cap"):
        NoisyLabels(2, 1.0, 0.5).draw(labels[:1], bag_streams(SECRET, "r", np.arange(1)))
    accepted = [weight_ratio(np.random.default_rng(i).normal(size=10), 4) for i in range(3000)]
    assert abs(np.mean(np.array(accepted) <= cap) - 0.3) < 0.04


def test_the_law_of_noisy_label_sums_over_many_streams():
    """Against a dense draw by numpy: the sums' law by Kolmogorov-Smirnov at 1e-4, and weights independent of noise."""
    labels, count, noised, std = np.array([3.0, -1.0, 2.0, 0.5, -2.0, 1.0]), 6000, 2, 1.5
    weights, sums = NoisyLabels(noised, std).draw(
        np.tile(labels, (count, 1)), bag_streams(SECRET, "r", np.arange(count))
    )
    rng = np.random.default_rng(4)
    dense = rng.normal(size=(count, 6))
    noise = np.pad(std * rng.normal(size=(count, noised)), ((0, 0), (0, 4)))
    assert stats.ks_2samp(sums, (dense * (labels + noise)).sum(1)).pvalue > 1e-4
    assert stats.kstest(weights.ravel(), "norm").pvalue > 1e-4
    rest = (sums - weights @ labels) / (std * np.sqrt((weights[:, :noised] ** 2).sum(1)))
    assert stats.kstest(rest, "norm").pvalue > 1e-4
    assert np.abs([np.corrcoef(rest, weights[:, i])[0, 1] for i in range(6)]).max() < 5 / np.sqrt(count)
    # Noise on three labels instead of two would show.
    three = (dense * (labels + np.pad(std * rng.normal(size=(count, 3)), ((0, 0), (0, 3))))).sum(1)
    wrong = (three - dense @ labels) / (std * np.sqrt((dense[:, :noised] ** 2).sum(1)))
    assert stats.kstest(wrong, "norm").pvalue < 1e-10
