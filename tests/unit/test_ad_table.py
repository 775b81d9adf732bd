"""The demo's table: shape, realism, and what least squares can do with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from dpagg.config import SchemaConfig
from dpagg.experiments.ad_table import ad_schema, ad_table
from dpagg.experiments.evaluation import evaluate, excess_share
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.kernels.schema import Schema

Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return ad_table(seed=7)


@pytest.fixture(scope="module")
def schema() -> Schema:
    return SchemaConfig.model_validate(ad_schema()).to_kernel()


@pytest.fixture(scope="module")
def encoded(table: pa.Table, schema: Schema) -> tuple[Array, Array]:
    (rows,) = table.combine_chunks().to_batches()
    features, keep = encode_features(rows, schema)
    assert keep.all()
    return features, encode_label(table["sale_amount"], schema.label)


def test_one_seed_gives_one_table(table: pa.Table) -> None:
    assert ad_table(1000, seed=3).equals(ad_table(1000, seed=3))
    assert not ad_table(1000, seed=3).equals(ad_table(1000, seed=4))
    assert table.num_rows == 200_000
    assert len(np.unique(table["impression_id"])) == 200_000 and table["impression_id"].null_count == 0
    assert ad_table(1, seed=1).num_rows == 1
    with pytest.raises(ValueError, match="num_rows"):
        ad_table(0, seed=1)


def test_it_looks_like_sales(table: pa.Table) -> None:
    for name in ("category", "account_age_days", "sale_amount"):
        assert table[name].null_count > 0
    amounts = table["sale_amount"].drop_null().to_numpy()
    assert amounts.min() == 0 and 0.6 < (amounts == 0).mean() < 0.8
    sold = np.sort(amounts[amounts > 0])
    # Heavy tail: a hundredth of the sales brings in several times its share.
    assert sold[-len(sold) // 100 :].sum() / sold.sum() > 0.05
    assert sold[-1] > 10 * np.median(sold)
    above = (amounts > ad_schema()["label"]["upper"]).mean()
    assert 0.001 < above < 0.01
    prices = table["price"].to_numpy()
    assert prices.mean() > 1.05 * np.median(prices)


def test_the_features_explain_a_part(encoded: tuple[Array, Array], schema: Schema) -> None:
    features, labels = encoded
    assert schema.num_columns == 25
    best = np.linalg.lstsq(features, labels)[0]
    evaluation = evaluate(features, labels, best)
    assert 0.25 < evaluation.r_squared < 0.55
    assert schema.label.range / np.sqrt(evaluation.least_squares_mse) < 8


def test_few_rows_stand_out(encoded: tuple[Array, Array]) -> None:
    features, _ = encoded
    basis, _ = np.linalg.qr(features)
    leverages = (basis**2).sum(axis=1)
    assert (leverages > 10 * 25 / len(features)).sum() < 100


def test_evaluation_against_known_losses() -> None:
    rng = np.random.default_rng(8)
    x = np.column_stack([np.ones(300), rng.normal(size=(300, 2))])
    y = x @ np.array([1.0, 2.0, -1.0]) + rng.normal(size=300)
    best = np.linalg.lstsq(x, y)[0]
    assert excess_share(x, y, best) == pytest.approx(0.0, abs=1e-12)
    assert excess_share(x, y, np.array([y.mean(), 0.0, 0.0])) == pytest.approx(1.0)
    off = best + np.array([0.1, 0.0, 0.0])
    gain = float(np.mean((y - y.mean()) ** 2) - np.mean((y - x @ best) ** 2))
    # Shifting the intercept adds its square to the mean squared error.
    assert excess_share(x, y, off) == pytest.approx(0.01 / gain, rel=1e-9)
    assert np.isnan(excess_share(x, np.ones(300), best))
    with pytest.raises(ValueError, match="shapes"):
        excess_share(x, y, np.zeros(2))
    with pytest.raises(ValueError, match="no row"):
        excess_share(x[:0], y[:0], best)
