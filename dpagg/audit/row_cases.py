"""Attacks on the sketches and sums of full DP: one row is zeroed out.

The rows are orthonormal and span the space, labels are at their bound, so that what the zeroed row takes with it is all
of a direction: the least eigenvalue falls by the whole squared norm of the row, and each sum moves by its sensitivity.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.accounting.gaussian_release import AdaSSP
from dpagg.accounting.hessian_mixing import HessianMixing, LinearMixing
from dpagg.audit.attack import Case
from dpagg.audit.laws import RowsLaw, shift_delta, shift_log_ratio
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.factor import Factor
from dpagg.kernels.sketches import sketch_rows, sketch_share, symmetric_noise, wishart_gram
from dpagg.kernels.streams import Secret

FloatArray = NDArray[np.float64]

LABEL_BOUND = 1.0
_WHOLE = RowShape(None, 1.0)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of norm at most 1, shape (n, d), and labels, shape (n,)."""

    features: FloatArray
    labels: FloatArray


def row_pair(label: float = LABEL_BOUND) -> tuple[Rows, Rows]:
    """Return two rows (1, 1)/sqrt(2) and (1, -1)/sqrt(2) with a label each, and the same without the first."""
    features = np.array([[1.0, 1.0], [1.0, -1.0]]) / math.sqrt(2)
    labels, kept = np.full(2, label), np.array([0.0, 1.0])
    return Rows(features, labels), Rows(features * kept[:, None], labels * kept)


def hessian_mixing(
    *,
    epsilon: float,
    delta: float,
    sketch: str = "rows",
    sketch_size: int = 12,
    num_gradients: int = 3,
    range_factor: float = 1.0,
    floor_factor: float = 1.0,
) -> Case:
    """A sketch of X over its eigenvalue floor, beside gradients of clipped residuals, which cost as much as it.

    `sketch` says how it is drawn: ``"rows"`` from the factor, ``"share"`` with a weight for each row, ``"wishart"`` as
    a Gram matrix. With faults: residuals are clipped `range_factor` times as far as is accounted, or the floor is
    `floor_factor` times what it should be.
    """
    beside = largest_gaussian_mu(epsilon=epsilon, delta=delta) * math.sqrt(0.5)
    floor = calibrate_eigenvalue_floor(epsilon=epsilon, delta=delta, sketch_size=sketch_size, gaussian_mu=beside)
    clip = 0.5
    noise_std = math.sqrt(num_gradients) * clip / beside
    query = ResidualQuery(np.zeros(2), _WHOLE, range_factor * clip)
    pair = row_pair(label=2 * range_factor)
    added = floor_factor * floor - 1  # the rows supply 1 in each direction
    grams = [rows.features.T @ rows.features for rows in pair]
    law = RowsLaw(sketch_size, *(gram + (floor - 1) * np.eye(2) for gram in grams))
    sums = [clip * rows.features.T @ np.sign(rows.labels) for rows in pair]

    def draw(rows: Rows, count: int, secret: Secret, release_id: str) -> tuple[FloatArray, FloatArray]:
        extra = math.sqrt(added) * np.eye(2)
        stream = secret.stream(release_id, "sketch", 0)
        if sketch == "share":
            shares = [sketch_share(stream, block, count * sketch_size) for block in (rows.features, extra)]
            sketches = sum(shares, np.zeros(1)).reshape(count, sketch_size, 2)
        else:
            factor = Factor.zero(2).add(rows.features).add(extra).canonical()
            if sketch == "wishart":
                sketches = np.stack([wishart_gram(stream, factor, sketch_size) for _ in range(count)])
            else:
                sketches = sketch_rows(stream, factor, count * sketch_size).reshape(count, sketch_size, 2)
        gradient = query.sums(rows.features, rows.labels).gradient
        noise = secret.stream(release_id, "gradient", 0).standard_normal((count, num_gradients, 2))
        return sketches, gradient + noise_std * noise

    def log_ratio(release: tuple[FloatArray, FloatArray]) -> FloatArray:
        sketches, gradients = release
        told = law.log_ratio_of_grams(sketches) if sketch == "wishart" else law.log_ratio(sketches)
        return np.asarray(told + shift_log_ratio(gradients, sums[0], sums[1], noise_std).sum(1))

    return Case(
        name=f"hessian-mixing/{sketch}",
        inputs=f"orthonormal rows, one is zeroed; a sketch of {sketch_size} rows and {num_gradients} gradients",
        event=HessianMixing(sketch_size=sketch_size, num_sketches=1, eigenvalue_floor=floor, gaussian_mu=beside),
        pair=pair,
        draw=draw,
        log_ratio=log_ratio,
        exact_delta=law.exact_delta(beside),
    )


def linear_mixing(
    *, epsilon: float, delta: float, sketch_size: int = 12, range_factor: float = 1.0, floor_factor: float = 1.0
) -> Case:
    """A sketch of [X y]: rows (1, 1) and (-1, 1) for one column and labels of size 1."""
    energy = 1 + LABEL_BOUND**2
    floor = calibrate_eigenvalue_floor(epsilon=epsilon, delta=delta, sketch_size=sketch_size, row_energy=energy)
    both = np.array([[1.0, range_factor], [-range_factor, 1.0]])
    pair = (both, both * np.array([[0.0], [1.0]]))
    law = RowsLaw(sketch_size, *(rows.T @ rows + (floor - energy) * np.eye(2) for rows in pair))

    def draw(rows: FloatArray, count: int, secret: Secret, release_id: str) -> FloatArray:
        extra = math.sqrt(floor_factor * floor - energy) * np.eye(2)
        factor = Factor.zero(2).add(rows).add(extra).canonical()
        drawn = sketch_rows(secret.stream(release_id, "sketch", 0), factor, count * sketch_size)
        return drawn.reshape(count, sketch_size, 2)

    return Case(
        name="linear-mixing",
        inputs=f"two orthogonal rows of [X y], one is zeroed; a sketch of {sketch_size} rows",
        event=LinearMixing(sketch_size=sketch_size, eigenvalue_floor=floor, label_bound=LABEL_BOUND),
        pair=pair,
        draw=draw,
        log_ratio=law.log_ratio,
        exact_delta=law.exact_delta(),
    )


def adassp(*, epsilon: float, delta: float, range_factor: float = 1.0) -> Case:
    """Least eigenvalue, Gram matrix and X^T y with a third of mu^2 each."""
    mu = largest_gaussian_mu(epsilon=epsilon, delta=delta)
    std = math.sqrt(3) / mu
    pair = row_pair(label=range_factor * LABEL_BOUND)
    grams = [rows.features.T @ rows.features for rows in pair]
    products = [rows.features.T @ rows.labels for rows in pair]
    # In the orthonormal basis of symmetric matrices each coordinate has the same noise.
    shift = np.array([1.0, *_coordinates(grams[0] - grams[1]), *(products[0] - products[1])])

    def draw(rows: Rows, count: int, secret: Secret, release_id: str) -> FloatArray:
        gram = _WHOLE.gram(rows.features)
        product = ResidualQuery(np.zeros(2), _WHOLE, range_factor * LABEL_BOUND).sums(rows.features, rows.labels)
        least = np.linalg.eigvalsh(gram)[0] + std * secret.stream(release_id, "least", 0).standard_normal(count)
        stream = secret.stream(release_id, "gram", 0)
        released = gram + np.stack([symmetric_noise(stream, 2, std) for _ in range(count)])
        noise = secret.stream(release_id, "product", 0).standard_normal((count, 2))
        return np.column_stack([least, _coordinates(released), product.gradient + std * noise])

    base = np.array([0.0, *_coordinates(grams[1]), *products[1]])
    return Case(
        name="adassp",
        inputs="orthonormal rows, labels at their bound, one row is zeroed",
        event=AdaSSP(
            label_bound=LABEL_BOUND, eigenvalue_noise_std=std, gram_noise_std=std, xty_noise_std=LABEL_BOUND * std
        ),
        pair=pair,
        draw=draw,
        log_ratio=lambda released: shift_log_ratio(released, base + shift, base, std),
        exact_delta=shift_delta(float(np.linalg.norm(shift)) / std),
    )


def _coordinates(symmetric: FloatArray) -> FloatArray:
    """Symmetric 2 x 2 matrices, shape (..., 2, 2), in an orthonormal basis, shape (..., 3)."""
    diagonal = np.diagonal(symmetric, axis1=-2, axis2=-1)
    return np.concatenate([diagonal, math.sqrt(2) * symmetric[..., 0, 1:]], axis=-1)
