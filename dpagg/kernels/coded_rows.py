"""Rows by the columns in which they are 1: what most rows of categories are, at a fraction of the work of dense ones.

A row has an intercept, a few numbers, and for each category one column that is 1 or none. Its Gram matrix is made of
counts, which are exact, and its leverage of a sum of table entries. Dense rows cost d² operations each, these the
square of the number of features.

A Gram matrix squares the singular values of X. So `factor_of_gram` answers only where nothing depends on the small
ones: where no eigenvalue lies between rounding error and what is well above it. Else rows have to be summed densely,
by QR.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.encoding import code_features, encode_label
from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import Subspace
from dpagg.kernels.moments import LabelMoments
from dpagg.kernels.passes import FactorPass, MomentsPass
from dpagg.kernels.rows import TIE_MARGIN, RowRule, RowSummary, malformed_rows
from dpagg.kernels.schema import Schema

__all__ = [
    "CodedRows",
    "GramPass",
    "add_coded",
    "add_coded_labels",
    "can_be_coded",
    "code_rows",
    "factor_of_gram",
    "is_precise",
]

Array = NDArray[np.float64]

# Tables of pairs of columns stay in cache up to some hundreds of columns.
_LARGEST_WIDTH = 1024
# Eigenvalues of the Gram matrix over this share of the largest are told from rounding error, with digits to spare.
_TOLD = 1e-9
# A numeric column with a larger part in a direction makes it one that need not be exactly 0.
_PART = 1e-6


def can_be_coded(schema: Schema) -> bool:
    """Whether rows of a schema are worth it: mostly categories, and an intercept, which bounds leverages from below."""
    one_hot = sum(column.kind in ("category", "other", "bucket", "missing") for column in schema.columns)
    width = schema.num_columns
    return schema.intercept and width <= _LARGEST_WIDTH and 2 * one_hot > width


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Encoded rows of one batch.

    Attributes
    ----------
    slots : ndarray of uint16, shape (f, k)
        Columns in which a row is 1, one a feature; d where there is none. The intercept is column 0 and not among them.
    numbers : ndarray, shape (q, k)
        Values of the numeric columns.
    places : tuple of int
        Which columns these are.
    width : int
        Number of columns, d.
    num_missing, num_malformed : int
        Rows that are left out.
    """

    slots: NDArray[np.uint16]
    numbers: Array
    places: tuple[int, ...]
    width: int
    num_missing: int = 0
    num_malformed: int = 0

    @property
    def num_rows(self) -> int:
        """Number of rows, k."""
        return int(self.slots.shape[1])

    def packed(self) -> bytes:
        """Return the rows as bytes, for a program's own memory and scratch."""
        return pickle.dumps(self, protocol=5)

    def filter(self, kept: NDArray[np.bool_]) -> CodedRows:
        """Return some of the rows."""
        return CodedRows(self.slots[:, kept], self.numbers[:, kept], self.places, self.width)

    def gram(self) -> Array:
        """Return X^T X, shape (d, d); what is a count is exact."""
        side = self.width + 1
        found = np.zeros((side, side))
        found[0, 0] = self.num_rows
        slots = self._slots
        for position, slot in enumerate(slots):
            counts = np.bincount(slot, minlength=side).astype(np.float64)
            found[0, :] += counts
            found[np.arange(side), np.arange(side)] += np.where(np.arange(side) > 0, counts, 0.0)
            base = slot * side
            for other in slots[position + 1 :]:
                pairs = np.bincount(base + other, minlength=side * side).reshape(side, side)
                found += pairs + pairs.T
        found[1:, 0] = found[0, 1:]
        for place, values in zip(self.places, self.numbers, strict=True):
            sums = np.zeros(side)
            sums[0] = values.sum()
            for slot in slots:
                sums += np.bincount(slot, weights=values, minlength=side)
            found[place, :] += sums
            found[:, place] += sums
            for other_place, other_values in zip(self.places, self.numbers, strict=True):
                # Each pair comes once from either side.
                if other_place >= place:
                    product = float(values @ other_values)
                    found[place, other_place] += product
                    if other_place != place:
                        found[other_place, place] += product
        return found[:-1, :-1]

    def quadratic(self, form: Array) -> Array:
        """Return x^T M x of each row x, shape (k,), for a symmetric M, shape (d, d)."""
        side = self.width + 1
        padded = np.zeros((side, side))
        padded[:-1, :-1] = form
        alone = 2.0 * padded[0] + np.diag(padded)
        alone[-1] = 0.0
        twice = (2.0 * padded).ravel()
        slots = self._slots
        total = np.full(self.num_rows, padded[0, 0])
        for position, slot in enumerate(slots):
            total += alone[slot]
            base = slot * side
            for other in slots[position + 1 :]:
                total += twice[base + other]
        for row, (place, values) in enumerate(zip(self.places, self.numbers, strict=True)):
            weight = padded[place, place] * values + 2.0 * padded[0, place]
            for slot in slots:
                weight += 2.0 * padded[place][slot]
            for other_place, other_values in zip(self.places[row + 1 :], self.numbers[row + 1 :], strict=True):
                weight += 2.0 * padded[place, other_place] * other_values
            total += weight * values
        return total

    def products(self, labels: Array) -> Array:
        """Return X^T y, shape (d,)."""
        side = self.width + 1
        found = np.zeros(side)
        for slot in self._slots:
            found += np.bincount(slot, weights=labels, minlength=side)
        found[0] = labels.sum()
        for place, values in zip(self.places, self.numbers, strict=True):
            found[place] += values @ labels
        return found[:-1]

    @cached_property
    def _slots(self) -> NDArray[np.intp]:
        return self.slots.astype(np.intp)


def code_rows(
    batch: pa.RecordBatch, schema: Schema, memo: dict[bytes, int] | None = None
) -> tuple[CodedRows, NDArray[np.bool_]]:
    """Return the rows of a batch that can take part, and which these are, shape (k,).

    Parameters
    ----------
    batch : RecordBatch
        As `dpagg.kernels.encoding.encode_features` takes it.
    schema : Schema
        Declares the features.
    memo : dict, optional
        Keeps hashes from batch to batch.
    """
    slots, numbers, places, keep = code_features(batch, schema, memo)
    malformed = malformed_rows(batch)
    num_malformed = 0 if malformed is None else int(malformed.sum())
    if malformed is not None and num_malformed:
        keep &= ~malformed
    num_missing = len(keep) - int(keep.sum()) - num_malformed
    if num_missing or num_malformed:
        slots, numbers = slots[:, keep], numbers[:, keep]
    return CodedRows(slots, numbers, places, schema.num_columns, num_missing, num_malformed), keep


@dataclass(frozen=True, eq=False)
class GramPass:
    """Gram matrix and summary of the rows seen: a commutative monoid."""

    gram: Array | None
    summary: RowSummary

    def merge(self, other: GramPass) -> GramPass:
        """Return both passes together."""
        if self.gram is None or other.gram is None:
            return GramPass(other.gram if self.gram is None else self.gram, self.summary.merge(other.summary))
        return GramPass(self.gram + other.gram, self.summary.merge(other.summary))

    def factored(self, rule: RowRule) -> FactorPass | None:
        """Return the factor of the coordinates that the rule sums, or None as `factor_of_gram`."""
        if self.gram is None:
            return None
        numeric = np.array([column.kind == "numeric" for column in rule.schema.columns])
        basis = None if rule.selection is None else rule.selection.basis
        basis = np.eye(len(numeric)) if basis is None else basis
        factor = factor_of_gram(basis.T @ self.gram @ basis, self.summary.num_rows, basis[numeric])
        return None if factor is None else FactorPass(factor, self.summary)


class _Leverages:
    """Leverages of coded rows in the subspaces of a rule."""

    def __init__(self, rule: RowRule, num_features: int) -> None:
        self._rule, self._terms = rule, (num_features + 1) ** 2
        self._forms = [self._form(rule.selection, None), self._form(rule.released, rule.selection)]

    def of(self, rows: CodedRows) -> tuple[CodedRows, NDArray[np.bool_], Array, int]:
        """The rows under the cap, which these are, their leverages where they are released, how many are over it."""
        kept, leverages = np.ones(rows.num_rows, dtype=np.bool_), np.zeros(0)
        selection, released = self._forms
        if selection is not None:
            leverages = self._bounds(rows, *selection)
            kept = leverages <= self._rule.cap * (1.0 + TIE_MARGIN)
            if not kept.all():
                rows, leverages = rows.filter(kept), leverages[kept]
        if released is not None:
            leverages = self._bounds(rows, *released)
        return rows, kept, leverages, int(len(kept) - kept.sum())

    def _form(self, space: Subspace | None, outer: Subspace | None) -> tuple[Array, float] | None:
        if space is None:
            return None
        whitening = map_of(outer, space) @ space.whitener
        # Each of the products is at most 1 over the least eigenvalue, and a leverage at least 1 over the largest.
        rounding = 4.0 * self._terms * float(np.finfo(float).eps)
        return whitening @ whitening.T, rounding * _spread(space) + space.slack

    def _bounds(self, rows: CodedRows, form: Array, slack: float) -> Array:
        return np.asarray(np.minimum(rows.quadratic(form) * (1.0 + slack) ** 2, 1.0))


def _spread(space: Subspace) -> float:
    """Largest over least eigenvalue of the Gram matrix of the coordinates."""
    return (space.slack / (100.0 * float(np.finfo(float).eps))) ** 2


def is_precise(rule: RowRule) -> bool:
    """Whether leverages of coded rows are good to many digits."""
    return all(space is None or _spread(space) <= 2.0 / _TOLD for space in (rule.selection, rule.released))


def map_of(outer: Subspace | None, inner: Subspace) -> Array:
    """Return the map from encoded rows to their coordinates in `inner`, a subspace of `outer`, shape (d, r)."""
    own = np.eye(inner.rank) if inner.basis is None else inner.basis
    return own if outer is None or outer.basis is None else np.asarray(outer.basis @ own)


def add_coded(rows: Iterable[CodedRows], rule: RowRule, *, with_gram: bool) -> GramPass:
    """Return the Gram matrix, if it is asked for, and the summary of the rows that take part; no label is read."""
    gram, summary, leverages = None, RowSummary(), None
    for block in rows:
        leverages = leverages or _Leverages(rule, len(block.slots) + len(block.places))
        kept, _, found, num_over = leverages.of(block)
        if with_gram:
            added = kept.gram()
            gram = added if gram is None else gram + added
        largest = float(found.max()) if len(found) else 0.0
        summary = summary.merge(RowSummary(kept.num_rows, block.num_missing, num_over, largest, block.num_malformed))
    return GramPass(gram, summary)


def add_coded_labels(batches: Iterable[pa.RecordBatch], rule: RowRule, code: Code) -> MomentsPass:
    """Return what the factor engine needs of the labels. It isn't private: keep it in memory."""
    space = rule.released
    if space is None:
        raise ValueError("labels are read once it is settled what is released")
    products, squares = np.zeros(len(rule.schema.columns)), 0.0
    summary, leverages = RowSummary(), None
    for batch in batches:
        block, selected = code(batch)
        leverages = leverages or _Leverages(rule, len(block.slots) + len(block.places))
        kept, under, found, num_over = leverages.of(block)
        label = encode_label(batch.column(rule.schema.label.name), rule.schema.label)[selected][under]
        label -= rule.label_center
        products += kept.products(label)
        squares += float(label @ label)
        largest = float(found.max()) if len(found) else 0.0
        summary = summary.merge(RowSummary(kept.num_rows, block.num_missing, num_over, largest, block.num_malformed))
    projection = products @ map_of(rule.selection, space) @ space.whitener
    return MomentsPass(LabelMoments(projection, squares), summary)


Code = Callable[[pa.RecordBatch], tuple[CodedRows, NDArray[np.bool_]]]


def factor_of_gram(gram: Array, num_rows: int, numeric: Array) -> Factor | None:
    """Return the factor of rows by their Gram matrix, or None where that would depend on rounding.

    Parameters
    ----------
    gram : ndarray, shape (r, r)
        What is a sum of counts in it is exact.
    num_rows : int
        How many rows.
    numeric : ndarray, shape (q, r)
        The numeric columns by these coordinates. A direction that they have a part in may be short and not 0.

    Returns
    -------
    Factor or None
        Eigenvalues that are rounding error are 0 in it: of counts alone, they are.
    """
    values, vectors = np.linalg.eigh(gram)
    largest = float(values[-1]) if len(values) else 0.0
    told = values > _TOLD * largest
    null = values <= 4.0 * len(values) * float(np.finfo(float).eps) * largest
    if not told.any() or not (told | null).all() or bool((np.abs(numeric @ vectors[:, null]) > _PART).any()):
        return None
    root = np.where(told, np.sqrt(np.maximum(values, 0.0)), 0.0)[:, None] * vectors.T
    return Factor(np.asarray(np.linalg.qr(root, mode="r")), num_rows)
