"""Weighted sums: the right linear map of the rows, from weights that do not depend on how rows arrive."""

import tracemalloc

import numpy as np
import pytest
from scipy import stats

from dpagg.kernels.factor import Factor
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import BAGS_PER_CHUNK, Finish, WeightedSums, hidden_level, tiles_of_rows

_LABEL = Label("y", lower=5.0, upper=15.0, missing_constant=5.0)
_RULE = RowRule(Schema((Numeric("x", -1.0, 1.0),), _LABEL, intercept=True))
_NO_INTERCEPT = RowRule(Schema((Numeric("x", -1.0, 1.0),), _LABEL, intercept=False))


def _stream(index=0):
    return Secret.insecure(11).stream("release", "weights", index)


def _in_batches(rows, sizes, num_bags):
    sums, pending, stream, first = WeightedSums.zero(num_bags, rows.shape[1]), [], _stream(), 0
    for size in sizes:
        whole, pending = tiles_of_rows([*pending, rows[first : first + size]])
        first += size
        if whole is not None:
            sums = sums.add(whole, stream)
    for rest in pending:
        sums = sums.add(rest, stream)
    assert first == len(rows)
    return sums.totals


def test_batches_that_end_anywhere_draw_the_same_weights():
    rows = np.random.default_rng(0).standard_normal((1500, 4))
    whole = WeightedSums.zero(300, 4).add(rows, _stream()).totals
    for sizes in ([1500], [1, 255, 1, 1243], [256] * 5 + [220], [700, 0, 800]):
        np.testing.assert_allclose(_in_batches(rows, sizes, 300), whole, rtol=1e-12, atol=1e-12)


def test_features_and_label_of_a_row_share_their_weight():
    rows = np.random.default_rng(0).standard_normal((700, 1))
    totals = WeightedSums.zero(40, 3).add(np.hstack([rows, 2 * rows, -rows]), _stream()).totals
    np.testing.assert_allclose(totals[:, 1], 2 * totals[:, 0], rtol=1e-12)
    np.testing.assert_allclose(totals[:, 2], -totals[:, 0], rtol=1e-12)


def test_each_weight_is_an_independent_standard_normal():
    # The identity as rows shows the weights themselves: 300 x 512 of them.
    weights = WeightedSums.zero(300, 512).add(np.eye(512), _stream()).totals
    count = weights.size
    assert abs(weights.mean()) < 5 / np.sqrt(count)
    assert abs(weights.var() - 1) < 5 * np.sqrt(2 / count)  # a variance of 1.1 is 28 standard errors away
    correlation = np.corrcoef(weights)
    assert np.abs(correlation - np.eye(300)).max() < 6.5 / np.sqrt(512)  # a bag that reuses weights has 1
    assert len(np.unique(weights)) == count


def _peak_bytes(num_rows, num_bags, batch=500):
    """Largest memory of one task of the rows engine, its batches made on the way."""
    batches = (np.ones((min(batch, num_rows - low), 4)) for low in range(0, num_rows, batch))
    tracemalloc.start()
    sums, pending, stream = WeightedSums.zero(num_bags, 4), [], _stream()
    for rows in batches:
        whole, pending = tiles_of_rows([*pending, rows])
        if whole is not None:
            sums = sums.add(whole, stream)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_memory_grows_with_bags_times_columns_and_not_with_rows():
    few, many = _peak_bytes(2_000, 300), _peak_bytes(40_000, 300)
    assert many < few + 20_000  # all weights would take 96 MB
    bags = _peak_bytes(1_000, 10_300)
    assert bags - few == pytest.approx(10_000 * 4 * 8, rel=0.2)


def test_merging_adds():
    rows = np.random.default_rng(0).standard_normal((10, 2))
    first, second = (WeightedSums.zero(3, 2).add(rows, _stream(i)) for i in (0, 1))
    np.testing.assert_array_equal(first.merge(second).totals, first.totals + second.totals)
    np.testing.assert_array_equal(first.merge(WeightedSums.zero(3, 2)).totals, first.totals)


def test_bags_from_a_factor_have_the_covariance_of_the_rows():
    rows = np.random.default_rng(0).standard_normal((50, 3)) @ [[1, 2, 0], [0, 1, 1], [0, 0, 0.1]]
    factor = Factor.zero(3).add(rows).canonical()
    finish = Finish(Secret.insecure(5), "release", 40_000, 0.0, _NO_INTERCEPT, factor)
    parts = [finish.chunk(chunk) for chunk in range(finish.num_chunks)]
    drawn = np.column_stack([np.concatenate([f for f, _ in parts]), np.concatenate([y for _, y in parts])])
    assert drawn.shape == (40_000, 3)
    whitened = np.linalg.solve(factor.T, drawn.T)
    np.testing.assert_allclose(whitened @ whitened.T / 40_000, np.eye(3), atol=5 * np.sqrt(2 / 40_000))
    assert len(np.unique(drawn[:, 0])) == 40_000


def test_finish_adds_noise_of_the_stated_deviation_and_gives_the_centre_back():
    num_bags = BAGS_PER_CHUNK + 1000
    sums = np.zeros((num_bags, 3))
    sums[:, 0] = np.arange(num_bags)
    finish = Finish(Secret.insecure(5), "release", num_bags, 3.0, _RULE)
    noise = []
    for chunk in range(finish.num_chunks):
        bags = finish.bags(chunk)
        features, labels = finish.chunk(chunk, sums[bags.start : bags.stop])
        np.testing.assert_array_equal(features[:, 0], np.arange(bags.start, bags.stop))
        noise.append(labels - 10.0 * features[:, 0])
    noise = np.concatenate(noise)
    assert noise.std() == pytest.approx(3.0, rel=5 / np.sqrt(2 * num_bags))
    assert len(np.unique(noise)) > 0.99 * num_bags


def test_finish_without_factor_or_sums_is_refused():
    with pytest.raises(ValueError, match="neither"):
        Finish(Secret.insecure(5), "release", 3, 0.0, _RULE).chunk(0)


def test_a_hidden_level_is_a_normal_above_its_floor():
    stream = _stream()
    drawn = np.array([hidden_level(stream, mean=10.0, std=2.0, floor=9.0) for _ in range(20_000)])
    assert drawn.min() >= 9.0
    assert stats.kstest(drawn, stats.truncnorm(-0.5, np.inf, loc=10.0, scale=2.0).cdf).pvalue > 1e-4


def test_what_is_not_private_is_not_shown():
    finish = Finish(Secret.insecure(5), "release", 3, 1.2345678, _RULE, np.eye(3) * 9.87654321)
    assert "1.2345678" not in repr(finish) and "9.87654" not in repr(finish)
