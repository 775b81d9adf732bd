"""Rows by their codes against dense rows: the same matrix, the same leverages, the same moments."""

import numpy as np
import pyarrow as pa
import pytest

from dpagg.kernels.coded_rows import add_coded, add_coded_labels, can_be_coded, code_rows
from dpagg.kernels.encoding import Categorical, Constant, Hashed, Label, Numeric, Schema, encode_features
from dpagg.kernels.leverage import subspace
from dpagg.kernels.passes import add_features, add_labelled, add_summary
from dpagg.kernels.rows import MALFORMED, RowRule

LABEL = Label("sale", 0, 50, 1)
SCHEMA = Schema(
    (
        Numeric("price", 0, 100, "indicator"),
        Categorical("device", ("mobile", "tv", "desktop"), other=True, missing="indicator"),
        Hashed("shop", 8, "indicator"),
        Numeric("age", 0, 80, Constant(40.0)),
        Categorical("hour", ("day", "night")),
        Hashed("brand", 6, Constant("none")),
    ),
    LABEL,
)


def batches(rows=4_000, seed=0, malformed=True):
    rng = np.random.default_rng(seed)

    def some(values, missing):
        drawn = rng.choice(values, rows)
        return pa.array(drawn, mask=rng.random(rows) < missing)

    table = pa.table(
        {
            "price": pa.array(rng.uniform(-20, 130, rows), mask=rng.random(rows) < 0.1),
            "device": some(["mobile", "tv", "desktop", "fridge"], 0.05),
            "shop": some([f"shop{i}" for i in range(40)], 0.3),
            "age": pa.array(rng.normal(40, 20, rows), mask=rng.random(rows) < 0.2),
            "hour": some(["day", "night", "dawn"], 0.02),
            # A rare brand, for the cap.
            "brand": pa.array(np.where(rng.random(rows) < 0.002, "rare", rng.choice(["a", "b", "c"], rows))),
            "sale": pa.array(rng.exponential(20, rows), mask=rng.random(rows) < 0.1),
            MALFORMED: pa.array(rng.random(rows) < (0.01 if malformed else 0.0)),
        }
    )
    return table.to_batches(max_chunksize=1_500)


def coded(found):
    memo = {}
    return [code_rows(batch, SCHEMA, memo)[0] for batch in found]


def test_dense_rows_made_of_codes_are_the_encoded_ones():
    for batch in batches(malformed=False):
        rows, keep = code_rows(batch, SCHEMA)
        expected, kept = encode_features(batch, SCHEMA)
        dense = np.zeros((rows.num_rows, SCHEMA.num_columns + 1))
        dense[:, 0] = 1.0
        for slot in rows.slots:
            dense[np.arange(rows.num_rows), slot] = 1.0
        for place, values in zip(rows.places, rows.numbers, strict=True):
            dense[:, place] = values
        np.testing.assert_array_equal(keep, kept)
        np.testing.assert_array_equal(dense[:, :-1], expected[kept])


def test_gram_forms_and_products_are_those_of_dense_rows():
    rng = np.random.default_rng(1)
    form = rng.normal(size=(SCHEMA.num_columns,) * 2)
    form += form.T
    for batch in batches(malformed=False):
        rows, keep = code_rows(batch, SCHEMA)
        dense = encode_features(batch, SCHEMA)[0][keep]
        labels = rng.normal(size=len(dense))
        np.testing.assert_allclose(rows.gram(), dense.T @ dense, rtol=1e-13, atol=1e-10)
        np.testing.assert_allclose(rows.quadratic(form), np.einsum("ij,jk,ik->i", dense, form, dense), rtol=1e-9)
        np.testing.assert_allclose(rows.products(labels), dense.T @ labels, rtol=1e-9, atol=1e-10)


def test_whole_passes_agree_with_dense_ones():
    found = batches()
    dense, code = add_features(found, RowRule(SCHEMA)), add_coded(coded(found), RowRule(SCHEMA), with_gram=True)
    factored = code.factored(RowRule(SCHEMA))
    assert factored is not None and factored.summary == dense.summary
    assert dense.summary.num_malformed > 0 and dense.summary.num_missing > 0
    selections = [subspace(each.factor.canonical()) for each in (dense, factored)]
    # Some buckets are empty, and where the first one is, its others add up to the intercept.
    assert selections[0].rank == selections[1].rank < SCHEMA.num_columns
    cap = 5.0 * selections[0].rank / dense.summary.num_rows
    rules = [RowRule(SCHEMA, selection=space, cap=cap) for space in selections]
    kept = add_features(found, rules[0])
    kept_coded = add_coded(coded(found), rules[1], with_gram=True).factored(rules[1])
    assert kept_coded is not None and kept.summary.num_over_cap == kept_coded.summary.num_over_cap > 0
    rules = [
        RowRule(SCHEMA, selection=space, cap=cap, released=subspace(each.factor.canonical()))
        for space, each in zip(selections, (kept, kept_coded), strict=True)
    ]
    summary, summary_coded = add_summary(found, rules[0]), add_coded(coded(found), rules[1], with_gram=False).summary
    assert summary_coded.largest_leverage == pytest.approx(summary.largest_leverage, rel=1e-7)
    labelled = add_labelled(found, rules[0])
    labelled_coded = add_coded_labels(found, rules[1], lambda batch: code_rows(batch, SCHEMA))
    assert labelled_coded.moments.squares == pytest.approx(labelled.moments.squares, rel=1e-12)
    assert labelled_coded.moments.residual_norm == pytest.approx(labelled.moments.residual_norm, rel=1e-9)
    # What is released follows from the Gram matrix of [X y] alone.
    roots = [each.moments.root(rule.released) for each, rule in zip((labelled, labelled_coded), rules, strict=True)]
    expanded = []
    for root, rule in zip(roots, rules, strict=True):
        columns = rule.expand(np.eye(rule.released.rank))
        outer = np.zeros((len(root), columns.shape[1] + 1))
        outer[:-1, :-1], outer[-1, -1] = columns, 1.0
        expanded.append(outer.T @ root.T @ root @ outer)
    np.testing.assert_allclose(expanded[1], expanded[0], rtol=1e-8, atol=1e-8 * np.abs(expanded[0]).max())


def test_leverages_of_codes_are_never_below_exact_ones():
    found = batches(malformed=False)
    factored = add_coded(coded(found), RowRule(SCHEMA), with_gram=True).factored(RowRule(SCHEMA))
    assert factored is not None
    rule = RowRule(SCHEMA, released=subspace(factored.factor.canonical()))
    dense = np.concatenate([encode_features(batch, SCHEMA)[0][code_rows(batch, SCHEMA)[1]] for batch in found])
    left, singular, _ = np.linalg.svd(dense, full_matrices=False)
    exact = (left[:, singular > 1e-8 * singular[0]] ** 2).sum(axis=1).max()
    largest = add_coded(coded(found), rule, with_gram=False).summary.largest_leverage
    assert exact <= largest <= exact * (1.0 + 1e-6)


@pytest.mark.parametrize("width", [1e-7, 1e-5])
def test_a_short_direction_is_left_to_dense_rows(width):
    """A numeric column that hardly varies: its direction is real, and lost in the rounding of a Gram matrix."""
    schema = Schema((Numeric("x", 0, 1), Categorical("c", ("a", "b", "d", "e"))), LABEL)
    rng = np.random.default_rng(3)
    batch = pa.RecordBatch.from_pydict({"x": 0.5 + width * rng.random(2_000), "c": rng.choice(list("abde"), 2_000)})
    rule = RowRule(schema)
    assert can_be_coded(schema)
    assert add_coded([code_rows(batch, schema)[0]], rule, with_gram=True).factored(rule) is None
    assert subspace(add_features([batch], rule).factor.canonical()).rank == 5
    constant = batch.set_column(0, "x", pa.array(np.full(2_000, 0.5)))
    assert add_coded([code_rows(constant, schema)[0]], rule, with_gram=True).factored(rule) is None


def test_one_row_of_many_is_a_direction_of_its_own():
    """Two columns that differ in one row: exact counts tell them, however many rows there are."""
    schema = Schema((Categorical("a", ("x", "y")), Categorical("b", ("x", "y"))), LABEL)
    cells = np.where(np.arange(200_000) % 2 == 0, "x", "y")
    other = cells.copy()
    other[0] = "y"
    rows, _ = code_rows(pa.RecordBatch.from_pydict({"a": cells, "b": other}), schema)
    factored = add_coded([rows], RowRule(schema), with_gram=True).factored(RowRule(schema))
    assert factored is not None and subspace(factored.factor.canonical()).rank == 3
    same, _ = code_rows(pa.RecordBatch.from_pydict({"a": cells, "b": cells}), schema)
    factored = add_coded([same], RowRule(schema), with_gram=True).factored(RowRule(schema))
    assert factored is not None and subspace(factored.factor.canonical()).rank == 2


def test_only_tables_of_mostly_categories_are_coded():
    assert can_be_coded(SCHEMA)
    assert not can_be_coded(Schema((Numeric("x", 0, 1), Numeric("y", 0, 1)), LABEL))
    assert not can_be_coded(Schema(SCHEMA.features, LABEL, intercept=False))
    assert not can_be_coded(Schema((Hashed("x", 2_000),), LABEL))
