"""Attacks on the label mechanisms: one label changes, features and rows are known.

The pair that attains the bound of WTD-FLAG has an intercept alone and labels that are all at their upper bound, of
which one falls to the lower bound. Then h = 1/n for each row, the residuals are 0 before, so that the floor is the
noise alone, and the changed row's residual is D (1 - h) afterwards, which is just the Cauchy-Schwarz bound; the
residual sum of squares grows by G = D^2 (1 - h) and the shift is q = D^2 h over the floor, both as large as may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy import special

from dpagg.accounting.calibration import largest_gaussian_mu, with_least_label_noise
from dpagg.accounting.gaussian_release import GaussianRelease
from dpagg.accounting.hidden_noise import with_hidden_noise
from dpagg.accounting.private_floor import PrivateFloor, calibrate_private_floor
from dpagg.accounting.unweighted_sums import UnweightedSums
from dpagg.accounting.user_aggregation import UserAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation, residual_bound_cauchy_schwarz
from dpagg.accounting.worst_rows import worst_user
from dpagg.audit.attack import Case
from dpagg.audit.laws import RowsLaw, shift_delta, shift_log_ratio
from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import Subspace, subspace
from dpagg.kernels.moments import LabelMoments
from dpagg.kernels.rows import RowRule
from dpagg.kernels.schema import Label, Numeric, Schema
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import BAGS_PER_CHUNK, Finish, WeightedSums, hidden_level

FloatArray = NDArray[np.float64]

# Not symmetric about 0, so that the centring of labels is attacked too.
LABEL_LOWER, LABEL_UPPER = 1.0, 3.0


@dataclass(frozen=True)
class LabelPair:
    """A table of n rows, and the same with another label in the first row.

    Attributes
    ----------
    schema : Schema
        What the kernels are told.
    first, second : pyarrow.RecordBatch
        Both tables.
    """

    schema: Schema
    first: pa.RecordBatch
    second: pa.RecordBatch

    @property
    def features(self) -> FloatArray:
        """X, encoded by hand."""
        columns = [np.ones(self.first.num_rows)] if self.schema.intercept else []
        columns += [np.asarray(self.first.column(f.name)) for f in self.schema.features]
        return np.column_stack(columns)

    @property
    def leverages(self) -> FloatArray:
        """Diagonal of the hat matrix, shape (n,)."""
        orthonormal, _ = np.linalg.qr(self.features)
        return np.asarray(np.square(orthonormal).sum(1))

    def gram(self, side: int) -> FloatArray:
        """[X y]^T [X y] of one of the tables."""
        table = (self.first, self.second)[side]
        both = np.column_stack([self.features, np.asarray(table.column("y"))])
        return np.asarray(both.T @ both)


def intercept_pair(num_rows: int, range_factor: float = 1.0, changed: int = 1) -> LabelPair:
    """Return the worst pair of an intercept alone, leverage 1/n; the first `changed` labels change.

    With `range_factor` labels have that many times the range which the accounting is told, a fault to be noticed.
    """
    upper = LABEL_LOWER + range_factor * (LABEL_UPPER - LABEL_LOWER)
    before, after = np.full(num_rows, upper), np.full(num_rows, upper)
    after[:changed] = LABEL_LOWER
    label = Label("y", LABEL_LOWER, upper, LABEL_LOWER)
    return LabelPair(Schema((), label), *(pa.record_batch({"y": y}) for y in (before, after)))


def column_pair(leverage: float, range_factor: float = 1.0) -> LabelPair:
    """Return a pair of two rows, one column and no intercept, the first row of the leverage given.

    Labels may have either sign, so that the residual bound is for |y| up to half the range. The change of the
    residual sum of squares attains its bound where the leverage is at least 1/2; the smaller sum isn't 0.
    """
    half = range_factor * (LABEL_UPPER - LABEL_LOWER) / 2
    x = np.array([math.sqrt(leverage), math.sqrt(1 - leverage)])
    schema = Schema((Numeric("x", -1.0, 1.0),), Label("y", -half, half, 0.0), intercept=False)
    tables = (pa.record_batch({"x": x, "y": np.array([first, half])}) for first in (half, -half))
    return LabelPair(schema, *tables)


def labelled_rows(schema: Schema, table: pa.RecordBatch) -> tuple[RowRule, Subspace, FloatArray]:
    """Return the rule, its released space and the rows [X y] of a table, as the passes over it find them."""
    seen = RowRule(schema).features(table)
    space = subspace(Factor.zero(schema.num_columns).add(seen.rows).canonical())
    rule = RowRule(schema, released=space)
    return rule, space, rule.labelled(table).rows


def weighted_bags(
    schema: Schema,
    table: pa.RecordBatch,
    *,
    engine: str,
    num_bags: int,
    noise_std: float | FloatArray,
    secret: Secret,
    release_id: str,
) -> FloatArray:
    """Draw released bags, shape (num_bags, d + 1), as the Spark path does for one partition, without Spark.

    `engine` is ``"factor"`` or ``"rows"``; `noise_std` is a number, or one a bag where they fit one chunk.
    """
    rule, space, rows = labelled_rows(schema, table)
    sums = factor = None
    if engine == "factor":
        factor = LabelMoments.zero(space.rank).add(rows, space).root(space)
    else:
        zero = WeightedSums.zero(num_bags, rows.shape[1])
        sums = zero.add(rows, secret.stream(release_id, "weights", 0)).totals
    # The noise of all bags of one release is one number; several releases beside each other may differ in it.
    finish = Finish(secret, release_id, num_bags, noise_std, rule, factor)  # type: ignore[arg-type]
    chunks = []
    for chunk in range(finish.num_chunks):
        bags = finish.bags(chunk)
        chunks.append(np.column_stack(finish.chunk(chunk, None if sums is None else sums[bags.start : bags.stop])))
    return np.concatenate(chunks)


def bare_event(pair: LabelPair, num_bags: int) -> WeightedAggregation:
    """Return what a run would account for the table before there is noise, for the declared label range."""
    leverage = pair.leverages
    label_range = LABEL_UPPER - LABEL_LOWER
    return WeightedAggregation(
        num_bags=num_bags,
        label_range=label_range,
        leverage=leverage,
        residual_floor=0.0,
        residual_bound=residual_bound_cauchy_schwarz(leverage, len(leverage), label_range / 2),
    )


def bags_law(pair: LabelPair, num_bags: int, noise_variance: float) -> RowsLaw:
    """Return the law of the bags: m iid rows of N(0, [X y]^T [X y]), noise on the label."""
    noise = np.zeros_like(pair.gram(0))
    noise[-1, -1] = noise_variance
    return RowsLaw(num_bags, pair.gram(0) + noise, pair.gram(1) + noise)


def weighted_aggregation(
    *,
    epsilon: float,
    delta: float,
    pair: LabelPair,
    name: str = "wtd-flag/factor",
    engine: str = "factor",
    num_bags: int = 4,
) -> Case:
    """WTD-FLAG with the least label noise that meets (epsilon, delta), by one of the engines."""
    event = with_least_label_noise(bare_event(pair, num_bags), epsilon=epsilon, delta=delta)
    return _known_noise(name, event, pair, engine, words(pair))


def user_aggregation(
    *, epsilon: float, delta: float, num_rows: int = 10, num_bags: int = 4, range_factor: float = 1.0
) -> Case:
    """WTD-FLAG for users with two rows: both labels of one fall from the upper bound to the lower one."""
    pair = intercept_pair(num_rows, range_factor, changed=2)
    label_range = LABEL_UPPER - LABEL_LOWER
    # Rows that are all alike: the user's block of the hat matrix has the eigenvalue 2/n, the sum of its leverages.
    bare = UserAggregation(
        num_bags=num_bags,
        label_range=label_range,
        max_rows=2,
        leverage=2 / num_rows,
        residual_floor=0.0,
        residual_bound=worst_user(2 / num_rows, 2, num_rows, label_range / 2, label_range),
    )
    event = with_least_label_noise(bare, epsilon=epsilon, delta=delta)
    inputs = (
        f"{num_rows} rows, all labels at a bound, two of one user move to the other; residuals within half of theirs"
    )
    return _known_noise("wtd-flag/users", event, pair, "factor", inputs)


def _known_noise(
    name: str, event: WeightedAggregation | UserAggregation, pair: LabelPair, engine: str, inputs: str
) -> Case:
    num_bags, noise_std = event.num_bags, math.sqrt(event.label_noise_variance)
    law = bags_law(pair, num_bags, event.label_noise_variance)

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> FloatArray:
        bags = weighted_bags(
            pair.schema,
            table,
            engine=engine,
            num_bags=count * num_bags,
            noise_std=noise_std,
            secret=secret,
            release_id=release_id,
        )
        return bags.reshape(count, num_bags, -1)

    return Case(
        name=name,
        inputs=f"{inputs}; {num_bags} bags",
        event=event,
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=law.log_ratio,
        exact_delta=law.exact_delta(),
    )


def hidden_noise(*, epsilon: float, delta: float, pair: LabelPair, num_bags: int = 64) -> Case:
    """WTD-FLAG with noise of a hidden level; the attacker weighs all levels that may have been drawn."""
    bare = bare_event(pair, num_bags)
    event = with_hidden_noise(bare, epsilon=epsilon, delta=delta)
    low, high = max(event.noise_floor, event.noise_mean - 8 * event.noise_std), event.noise_mean + 8 * event.noise_std
    levels = np.linspace(low, high, 161)
    prior = -0.5 * ((levels - event.noise_mean) / event.noise_std) ** 2
    planes = [np.linalg.lstsq(pair.features, np.asarray(t.column("y")))[0] for t in (pair.first, pair.second)]
    squares = [_norm(pair, table) ** 2 for table in (pair.first, pair.second)]

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> FloatArray:
        stream = secret.stream(release_id, "noise-level", 0)
        drawn = [
            hidden_level(stream, mean=event.noise_mean, std=event.noise_std, floor=event.noise_floor)
            for _ in range(count)
        ]
        bags = weighted_bags(
            pair.schema,
            table,
            engine="factor",
            num_bags=count * num_bags,
            noise_std=np.repeat(np.sqrt(drawn), num_bags),
            secret=secret,
            release_id=release_id,
        )
        return bags.reshape(count, num_bags, -1)

    def log_likelihood(bags: FloatArray, side: int) -> FloatArray:
        """Up to what both worlds share: the density of the features, and the prior's constant."""
        residuals = np.square(bags[:, :, -1] - bags[:, :, :-1] @ planes[side]).sum(1)
        variances = squares[side] + levels
        inner = prior - num_bags / 2 * np.log(variances) - residuals[:, None] / (2 * variances)
        largest = inner.max(1)
        return np.asarray(largest + np.log(np.exp(inner - largest[:, None]).sum(1)))

    return Case(
        name="wtd-flag/hidden-noise",
        inputs=f"{words(pair)}; {num_bags} bags",
        event=event,
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=lambda bags: log_likelihood(bags, 0) - log_likelihood(bags, 1),
        block=BAGS_PER_CHUNK // num_bags,
    )


def private_floor(*, epsilon: float, delta: float, pair: LabelPair, num_bags: int = 4) -> Case:
    """WTD-FLAG whose noise follows a private release of the residual norm, which is released too."""
    event, floor = calibrate_private_floor(
        bare_event(pair, num_bags),
        epsilon=epsilon,
        delta=delta,
        sensitivity=LABEL_UPPER - LABEL_LOWER,
        budget_share=0.2,
        failure_share=0.01,
    )
    norms = np.array([_norm(pair, table) for table in (pair.first, pair.second)])

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> tuple[FloatArray, FloatArray]:
        released = _released_norms(pair, table, count, floor.noise_std, secret, release_id)
        missing = _missing(floor, released)
        bags = weighted_bags(
            pair.schema,
            table,
            engine="factor",
            num_bags=count * num_bags,
            noise_std=np.repeat(np.sqrt(missing), num_bags),
            secret=secret,
            release_id=release_id,
        )
        return released, bags.reshape(count, num_bags, -1)

    def log_ratio(release: tuple[FloatArray, FloatArray]) -> FloatArray:
        released, bags = release
        out = shift_log_ratio(released[:, None], norms[:1], norms[1:], floor.noise_std)
        missing = _missing(floor, released)
        for variance in np.unique(missing):
            same = missing == variance
            out[same] += bags_law(pair, num_bags, float(variance)).log_ratio(bags[same])
        return out

    law = bags_law(pair, num_bags, floor.target)
    return Case(
        name="wtd-flag/private-floor",
        inputs=f"{words(pair)}; {num_bags} bags; exact but for the chance that the data supply any floor",
        event=event,
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=log_ratio,
        exact_delta=law.exact_delta(float(abs(norms[0] - norms[1])) / floor.noise_std),
        block=BAGS_PER_CHUNK // num_bags,
    )


def residual_norm_release(*, epsilon: float, delta: float, pair: LabelPair) -> Case:
    """The residual norm alone: one Gaussian release."""
    mu = largest_gaussian_mu(epsilon=epsilon, delta=delta)
    std = (LABEL_UPPER - LABEL_LOWER) / mu
    norms = np.array([_norm(pair, table) for table in (pair.first, pair.second)])

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> FloatArray:
        return _released_norms(pair, table, count, std, secret, release_id)

    return Case(
        name="residual-norm",
        inputs=words(pair),
        event=GaussianRelease(mu=mu),
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=lambda released: shift_log_ratio(released[:, None], norms[:1], norms[1:], std),
        exact_delta=shift_delta(float(abs(norms[0] - norms[1])) / std),
    )


def unweighted_sums(*, pair: LabelPair) -> Case:
    """Plain sums: whoever knows the other labels reads off the last one."""

    def draw(table: pa.RecordBatch, count: int, secret: Secret, release_id: str) -> FloatArray:
        rule, _, rows = labelled_rows(pair.schema, table)
        sums = WeightedSums.zero(count, rows.shape[1])
        np.add.at(sums.totals, np.repeat(np.arange(count), len(rows)), np.tile(rows, (count, 1)))
        finish = Finish(secret, release_id, count, 0.0, rule)
        chunks = range(finish.num_chunks)
        labels = [finish.chunk(c, sums.totals[finish.bags(c).start : finish.bags(c).stop])[1] for c in chunks]
        return np.concatenate(labels)

    sums = [pair.gram(side)[0, -1] for side in (0, 1)]  # the first column is the intercept

    def log_ratio(labels: FloatArray) -> FloatArray:
        return np.where(np.abs(labels - sums[0]) < np.abs(labels - sums[1]), np.inf, -np.inf)

    return Case(
        name="unweighted-sums",
        inputs=words(pair),
        event=UnweightedSums(),
        pair=(pair.first, pair.second),
        draw=draw,
        log_ratio=log_ratio,
        exact_delta=np.ones_like,
    )


def words(pair: LabelPair) -> str:
    """Return the pair in words."""
    return (
        f"{pair.first.num_rows} rows, leverage {pair.leverages[0]:.2g}, all labels at a bound, one moves to the other"
    )


def _norm(pair: LabelPair, table: pa.RecordBatch) -> float:
    y = np.asarray(table.column("y"))
    return float(np.linalg.norm(y - pair.features @ np.linalg.lstsq(pair.features, y)[0]))


def _missing(floor: PrivateFloor, released: FloatArray) -> FloatArray:
    """Noise variances that belong to released norms; only those that supply anything are asked for one by one."""
    out = np.full(released.shape, floor.target)
    cut = floor.sensitivity - floor.noise_std * float(special.ndtri(floor.failure_probability))
    for i in np.flatnonzero(released > cut * (1 - 1e-9)):
        out[i] -= floor.supplied(float(released[i]))
    return out


def _released_norms(
    pair: LabelPair, table: pa.RecordBatch, count: int, std: float, secret: Secret, release_id: str
) -> FloatArray:
    _, space, rows = labelled_rows(pair.schema, table)
    norm = LabelMoments.zero(space.rank).add(rows, space).residual_norm
    return np.asarray(norm + std * secret.stream(release_id, "residual-norm", 0).standard_normal(count))
