"""Losses of linear models on the rows of a Spark table, from one factor of features and label. NOT private."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.experiments.evaluation import Evaluation
from dpagg.kernels.leverage import subspace
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Schema
from dpagg.runs.rows import Rows

__all__ = ["Judge"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Judge:
    """What the losses of any linear model on some rows follow from. NOT private.

    Attributes
    ----------
    design : ndarray, shape (r + 1, d)
    target : ndarray, shape (r + 1,)
        ``design^T design`` is the Gram matrix of the encoded features, and so on with the labels less their centre.
    num_rows : int
        n: all rows without a missing feature that drops them, those over a leverage cap included.
    label_center : float
        What labels are counted from.
    """

    design: Array
    target: Array
    num_rows: int
    label_center: float

    @classmethod
    def of(cls, rows: Rows, schema: Schema) -> Judge:
        """Read the rows: a pass over features and one over labels. The schema has an intercept, its first column."""
        space = subspace(rows.feature_pass(RowRule(schema)).factor.canonical())
        rule = RowRule(schema, released=space)
        seen = rows.labelled_pass(rule)
        root = seen.moments.root(space)
        design = root[:, :-1] if space.basis is None else root[:, :-1] @ space.basis.T
        return cls(design, root[:, -1], seen.summary.num_rows, rule.label_center)

    def least_squares(self) -> Array:
        """Return the coefficients, shape (d,), in encoded units, that no others beat on these rows."""
        found = np.linalg.lstsq(self.design, self.target, rcond=1e-12)[0]
        found[0] += self.label_center
        return np.asarray(found, dtype=np.float64)

    def best_constant(self) -> Array:
        """Return the mean of the labels as coefficients."""
        ones = self.design[:, 0]
        found = np.zeros(self.design.shape[1])
        found[0] = ones @ self.target / (ones @ ones) + self.label_center
        return found

    def mse(self, coefficients: Array) -> float:
        """Return the mean squared error of a model."""
        away = np.array(coefficients, dtype=np.float64)
        away[0] -= self.label_center
        rest = self.design @ away - self.target
        return float(rest @ rest) / self.num_rows

    def evaluation(self, coefficients: Array) -> Evaluation:
        """Return the losses of a model beside those of least squares and of the best constant on these rows."""
        return Evaluation(
            mse=self.mse(coefficients),
            least_squares_mse=self.mse(self.least_squares()),
            constant_mse=self.mse(self.best_constant()),
        )
