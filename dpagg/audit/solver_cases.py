"""Attacks on whole solvers of `dpagg.regression`, and on the eigenvalue that decides how much a sketch is padded."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.divergence import divergence
from dpagg.audit.attack import Case
from dpagg.audit.laws import shift_delta, shift_log_ratio
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.sketches import wishart_gram
from dpagg.kernels.streams import Secret
from dpagg.regression.data import ArrayData
from dpagg.regression.dp_gd import plan_gradient_descent
from dpagg.regression.hessian_mixing import plan_hessian_mixing
from dpagg.regression.label_gaussian import plan_label_gaussian
from dpagg.regression.planning import Target

FloatArray = NDArray[np.float64]

LABEL_BOUND = 1.0


def noisy_gradient_descent(*, epsilon: float, delta: float, range_factor: float = 1.0) -> Case:
    """Two rounds of gradient descent on one column, run as a user runs them.

    Residuals are clipped wherever the descent goes, so that each gradient differs by the clip level. The coefficient
    that comes out is a multiple of the sum of both gradients, which holds all that they tell.
    """
    clip = 1e-3
    target = Target(num_rows=2, num_columns=1, label_bound=LABEL_BOUND, epsilon=epsilon, delta=delta)
    plan = plan_gradient_descent(target, num_iterations=2, residual_clip=clip, step_size=1e-3)
    event = plan.event
    run = dataclasses.replace(plan, event=dataclasses.replace(event, residual_clip=range_factor * clip))
    features = np.ones((2, 1))
    pair = (
        ArrayData(features, np.full(2, LABEL_BOUND), LABEL_BOUND),
        ArrayData(features * [[0.0], [1.0]], np.array([0.0, LABEL_BOUND]), LABEL_BOUND),
    )

    def draw(data: ArrayData, count: int, secret: Secret, release_id: str) -> FloatArray:
        return np.array([run.run(data, secret, f"{release_id} {i}").coefficients for i in range(count)])

    centres = [2 * plan.step_size * clip * np.full(1, rows) for rows in (2.0, 1.0)]
    std = plan.step_size * event.noise_std * math.sqrt(2)
    return Case(
        name="dp-gd",
        inputs="two rows far from any fit, one is zeroed; two rounds; the coefficient is what is seen",
        event=event,
        pair=pair,
        draw=draw,
        log_ratio=lambda coefficients: shift_log_ratio(coefficients, centres[0], centres[1], std),
        exact_delta=shift_delta(float(centres[0][0] - centres[1][0]) / std),
    )


def label_gaussian(*, epsilon: float, delta: float, range_factor: float = 1.0) -> Case:
    """Noise on whitened least squares, run as a user runs it; the coefficients determine what was released."""
    target = Target(num_rows=3, num_columns=2, label_bound=LABEL_BOUND, epsilon=epsilon, delta=delta)
    features = np.array([[0.6, 0.1], [0.3, -0.5], [0.2, 0.4]])
    worst = int(np.argmax(np.square(np.linalg.qr(features)[0]).sum(1)))
    bound = range_factor * LABEL_BOUND
    labels = [np.full(3, bound), np.full(3, bound)]
    labels[1][worst] = -bound
    plan = plan_label_gaussian(target, ArrayData(features, np.zeros(3), LABEL_BOUND))
    run = dataclasses.replace(plan, target=dataclasses.replace(target, label_bound=bound))

    def draw(data: ArrayData, count: int, secret: Secret, release_id: str) -> FloatArray:
        return np.array([run.run(data, secret, f"{release_id} {i}").coefficients for i in range(count)])

    # Coefficients are normal about the least-squares ones with covariance std^2 (X^T X)^-1.
    root = np.linalg.cholesky(features.T @ features).T
    centres = [root @ np.linalg.lstsq(features, y)[0] for y in labels]
    return Case(
        name="label-gaussian",
        inputs="3 rows, 2 columns; the label of the row with the largest leverage moves from bound to bound",
        event=plan.event,
        pair=(ArrayData(features, labels[0], bound), ArrayData(features, labels[1], bound)),
        draw=draw,
        log_ratio=lambda found: shift_log_ratio(found @ root.T, centres[0], centres[1], plan.event.noise_std),
        exact_delta=shift_delta(float(np.linalg.norm(centres[0] - centres[1])) / plan.event.noise_std),
    )


def padded_sketch(*, epsilon: float, delta: float, range_factor: float = 1.0, num_rows: int = 200) -> Case:
    """Hessian mixing with its least eigenvalue released first, which decides how far the sketch is padded.

    The attacker sees the eigenvalue, sketch and gradient of the plan that the solver runs; one round, one column, rows
    all alike. The released eigenvalue is lowered to be safe, so the pair has somewhat less than is claimed.
    """
    target = Target(num_rows=num_rows, num_columns=1, label_bound=LABEL_BOUND, epsilon=epsilon, delta=delta)
    plan = plan_hessian_mixing(target, num_iterations=1, residual_clip=0.1)
    event, count_rows = plan.event, plan.event.sketch_size
    eigenvalues = (float(num_rows), num_rows - 1.0)
    query = ResidualQuery(np.zeros(1), RowShape(None, 1.0), range_factor * plan.residual_clip)

    def padding(released: FloatArray) -> FloatArray:
        return np.maximum(0.0, event.eigenvalue_floor - np.maximum(0.0, released))

    def draw(rows: FloatArray, count: int, secret: Secret, release_id: str) -> FloatArray:
        """Eigenvalue, Gram matrix of the sketch, gradient."""
        noise = secret.stream(release_id, "eigenvalue", 0).standard_normal(count) - plan.eigenvalue_shift
        released = float(rows[:, 0] @ rows[:, 0]) + plan.eigenvalue_noise_std * noise
        stream = secret.stream(release_id, "sketch", 0)
        halves = np.sqrt(rows[:, 0] @ rows[:, 0] + padding(released))
        grams = [wishart_gram(stream, np.full((1, 1), half), count_rows)[0, 0] for half in halves]
        gradient = query.sums(rows, np.full(num_rows, LABEL_BOUND)).gradient[0]
        noise = plan.gradient_noise_std * secret.stream(release_id, "gradient", 0).standard_normal(count)
        return np.column_stack([released, grams, gradient + noise])

    centres = [eigenvalue - plan.eigenvalue_noise_std * plan.eigenvalue_shift for eigenvalue in eigenvalues]
    sums = [plan.residual_clip * eigenvalue for eigenvalue in eigenvalues]

    def of_eigenvalue(released: FloatArray) -> FloatArray:
        middle = released - (centres[0] + centres[1]) / 2
        return middle * (centres[0] - centres[1]) / plan.eigenvalue_noise_std**2

    def log_ratio(release: FloatArray) -> FloatArray:
        released, grams, gradients = release.T
        first, second = (eigenvalue + padding(released) for eigenvalue in eigenvalues)
        of_sketch = 0.5 * (count_rows * np.log(second / first) + (1 / second - 1 / first) * grams)
        of_gradient = (gradients - (sums[0] + sums[1]) / 2) * (sums[0] - sums[1]) / plan.gradient_noise_std**2
        return np.asarray(of_eigenvalue(released) + of_sketch + of_gradient)

    def exact_delta(epsilons: FloatArray) -> FloatArray:
        # Given the eigenvalue the rest is one pair, at what is left of epsilon; then the mean over the eigenvalue.
        nodes = np.linspace(-9.0, 9.0, 361)
        weights = np.exp(-(nodes**2) / 2) / np.exp(-(nodes**2) / 2).sum()
        mu = (sums[0] - sums[1]) / plan.gradient_noise_std
        directions = []
        for centre, sign in zip(centres, (1, -1), strict=True):
            released = centre + plan.eigenvalue_noise_std * nodes
            first, second = (eigenvalue + padding(released) for eigenvalue in eigenvalues[::sign])
            left = epsilons[:, None] - sign * of_eigenvalue(released)
            excess, inverse = ((a / b - 1)[None, :, None] for a, b in ((second, first), (first, second)))
            found = divergence(left, rows=float(count_rows), excess=excess, inverse_excess=inverse, mu=mu)
            directions.append(found @ weights)
        return np.asarray(np.max(directions, axis=0))

    rows = np.ones((num_rows, 1))
    zeroed = rows.copy()
    zeroed[0] = 0.0
    return Case(
        name="hessian-mixing/eigenvalue",
        inputs=f"{num_rows} rows alike, one is zeroed; the eigenvalue that pads the sketch is released too",
        event=event,
        pair=(rows, zeroed),
        draw=draw,
        log_ratio=log_ratio,
        exact_delta=exact_delta,
    )
