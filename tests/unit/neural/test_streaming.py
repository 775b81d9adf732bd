"""Batches of bags from files: each bag once an epoch, the same order again, from any batch on."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dpagg.errors import DataError
from dpagg.neural import streaming
from dpagg.neural.streaming import BagLaw, BagStream
from tests.unit.neural.bag_files import made_bags, write_bags

LAW = BagLaw(bag_size=4, num_columns=3, num_noised=2, noise_variance=0.09, label_center=5.0, label_half_width=4.0)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr(streaming, "_WINDOW_NUMBERS", 7 * 16)  # windows of 7 bags
    features, weights, sums = made_bags(num_bags=100)
    return [
        write_bags(tmp_path / "a.parquet", features[:60], weights[:60], sums[:60], row_group_size=25),
        write_bags(tmp_path / "b.parquet", features[60:], weights[60:], sums[60:], first=60),
    ]


def sums_of(batches):
    return [tuple(np.asarray(batch.sums).tolist()) for batch in batches]


def stream_of(files, **options):
    return BagStream(files, LAW, **({"batch_size": 8, "held_out": 0.2, "seed": 3} | options))


def test_an_epoch_has_each_training_bag_once_and_no_other(files):
    stream = stream_of(files, batch_size=1)
    released = (made_bags(num_bags=100)[2] - 5.0 * made_bags(num_bags=100)[1].sum(1)) / 4.0
    training = [value for batch in sums_of(stream.training_batches(0)) for value in batch]
    held_out = [value for batch in sums_of(stream.held_out_batches()) for value in batch]
    assert len(training) == stream.num_training and len(held_out) == stream.num_held_out
    assert 8 <= stream.num_held_out <= 35 and stream.num_bags == 100
    np.testing.assert_allclose(sorted(training + held_out), sorted(released), rtol=1e-6)


def test_batches_are_full_and_their_arrays_belong_together(files):
    features, weights, sums = made_bags(num_bags=100)
    whole = {round(float(s), 4): i for i, s in enumerate(LAW.bags(features, weights, sums).sums)}
    for batch in stream_of(files).training_batches(1):
        assert batch.features.shape == (8, 4, 3)
        for row, scale, total, precision in zip(*batch, strict=True):
            index = whole[round(float(total), 4)]
            np.testing.assert_allclose(row, features[index], rtol=1e-6)
            np.testing.assert_allclose(scale, weights[index], rtol=1e-6)
            noised = weights[index][:2] @ weights[index][:2]
            assert np.isclose(precision, 16.0 / (0.09 * noised), rtol=1e-5)


def test_order_is_repeated_and_differs_between_epochs_and_seeds(files):
    first = sums_of(stream_of(files).training_batches(0))
    assert first == sums_of(stream_of(files).training_batches(0))
    assert first != sums_of(stream_of(files).training_batches(1))
    assert first != sums_of(stream_of(files, seed=4).training_batches(0))
    stored = [v for batch in first for v in batch]
    assert stored != sorted(stored) and len({len(batch) for batch in first}) == 1


@pytest.mark.parametrize("batch_size", [1, 3, 8, 64])
def test_from_any_batch_on_it_is_the_rest(files, batch_size):
    stream = stream_of(files, batch_size=batch_size)
    whole = sums_of(stream.training_batches(2))
    assert len(whole) == stream.num_batches == stream.num_training // batch_size
    for first in range(len(whole) + 1):
        assert sums_of(stream.training_batches(2, first)) == whole[first:]


def test_the_last_batch_held_out_is_filled_up_with_nothing(files):
    stream = stream_of(files)
    batches = list(stream.held_out_batches())
    assert all(batch.sums.shape == (8,) for batch in batches)
    assert sum(int((batch.precision > 0).sum()) for batch in batches) == stream.num_held_out


def test_fewer_bags_than_a_batch_are_one_batch(files):
    stream = stream_of(files, batch_size=10_000)
    assert stream.num_batches == 1 and stream.batch_size == stream.num_training


def altered(files, path, column, change):
    table = pq.read_table(files[0])
    values = table[column].to_pylist()
    change(values)
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, pa.array(values)), path)
    return [str(path), files[1]]


@pytest.mark.parametrize(
    ("column", "change"),
    [
        ("label", lambda v: v.__setitem__(0, None)),
        ("label", lambda v: v.__setitem__(0, float("nan"))),
        ("label", lambda v: v.__setitem__(0, 1e300)),
        ("label", lambda v: v.__setitem__(slice(None), ["word"] * len(v))),
        ("weights", lambda v: v[0].__setitem__(0, float("nan"))),
        ("weights", lambda v: v.__setitem__(0, None)),
        ("weights", lambda v: v[0].append(v[1].pop())),  # as many weights in all
        ("features", lambda v: v[0].__setitem__(1, None)),
        ("features", lambda v: v[0][0].append(v[0][1].pop())),
        ("bag_id", lambda v: v.__setitem__(0, None)),
    ],
)
def test_a_release_that_was_altered_is_refused_not_learnt_from(files, tmp_path, column, change):
    with pytest.raises(DataError) as caught:
        stream = stream_of(altered(files, tmp_path / "altered.parquet", column, change))
        list(stream.training_batches(0))
        list(stream.held_out_batches())
    assert caught.value.path == "release.path" and "after the release" in caught.value.remedy


def test_what_is_not_a_release(files, tmp_path):
    with pytest.raises(DataError, match="does not hold 5 rows"):
        law = BagLaw(5, 3, 2, 0.09, 5.0, 4.0)
        list(BagStream(files, law, batch_size=8).training_batches(0))
    (tmp_path / "c.parquet").write_text("PAR1 no")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        stream_of([str(tmp_path / "c.parquet")])
    with pytest.raises(DataError, match="are left to train on"):
        stream_of([])
