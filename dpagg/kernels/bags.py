"""Disjoint bags of rows by secret rank, and what is released of a bag: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.streams import Secret

# Ranks are counted by their leading bits. With a hundred rows a bucket in ten million, the rows that two neighbouring
# tasks both read are few, and the counts are half a megabyte.
_BUCKET_BITS = 16
NUM_BUCKETS = 1 << _BUCKET_BITS
_BUCKET_SHIFT = 63 - _BUCKET_BITS
# Rows of bags that are worked on together: large enough for numpy, small enough for any executor.
_GROUP_BYTES = 8 << 20
# As for the rows of a whole table: see `dpagg.kernels.leverage`.
_RANK_TOLERANCE = 1e-10
# A cap that hardly any draw meets is refused rather than waited for.
_MOST_DRAWS = 100_000
# Sets of weights drawn at once, of which the first that meets the cap is taken, and numbers drawn at once.
_DRAWS_TOGETHER = 32
_LARGEST_DRAW = 1 << 16
# Which share of the draws meets the cap that is taken where none is given. A lower one would save little noise more.
AUTO_ACCEPTANCE = 0.05


def key_bytes(column: pa.Array) -> list[bytes]:
    """Return the row keys of a column of int64, text or binary, one byte string a row.

    A whole number becomes its 8 little-endian bytes, a time of day or date that of its count, text its bytes. Keys of
    one table are of one type, so different keys have different bytes.
    """
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())  # as text, two moments may look alike where clocks change
    if pa.types.is_int64(column.type):
        numbers: NDArray[np.int64] = np.ascontiguousarray(column.to_numpy(zero_copy_only=False), dtype="<i8")
        return [bytes(number) for number in numbers.view("V8").tolist()]
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = column.cast(pa.binary())
    return [key if isinstance(key, bytes) else str(key).encode() for key in column.to_pylist()]


def bucket_of(ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket, at least 0 and less than `NUM_BUCKETS`, of each rank from `Secret.ranks`, shape (k, 2)."""
    return ranks[:, 0] >> _BUCKET_SHIFT


@dataclass(frozen=True)
class Ranking:
    """How the rows of a release are ranked: by what only the release's secret tells.

    Attributes
    ----------
    rule : RowRule
        How rows are encoded; those with a missing feature that drops them take no part.
    row_id : str
        Name of the row key.
    secret : Secret
        Of the release. It travels in the closures of tasks, never in an expression that a plan would show.
    release_id : str
        Names the release's streams.
    """

    rule: RowRule
    row_id: str
    secret: Secret
    release_id: str


@dataclass(frozen=True, eq=False)
class RankPass:
    """Ranks counted by bucket, and a summary of the rows: a commutative monoid."""

    counts: NDArray[np.int64]
    summary: RowSummary

    @classmethod
    def of(cls, ranks: NDArray[np.int64], num_missing: int) -> RankPass:
        """Return the pass over rows of these ranks, shape (k, 2), and others that are left out."""
        counts = np.bincount(bucket_of(ranks), minlength=NUM_BUCKETS)
        return cls(counts, RowSummary(num_rows=len(ranks), num_missing=num_missing))

    def merge(self, other: RankPass) -> RankPass:
        """Return both passes together."""
        return RankPass(self.counts + other.counts, self.summary.merge(other.summary))


@dataclass(frozen=True, eq=False)
class BagLayout:
    """Which task makes which bags, from a count of ranks by bucket.

    The rows in order of their secret rank are cut into bags of `bag_size`; those after the last bag take no part. A
    task owns consecutive bags and receives the whole buckets that hold their rows. So it can number its rows without
    knowing those of other tasks, and the few rows of a bucket between two tasks go to both.

    Attributes
    ----------
    bag_size, num_bags : int
        k and m.
    first_bags : ndarray of int64, shape (num_tasks + 1,)
        Task t owns the bags from first_bags[t] up to, but without, first_bags[t + 1].
    first_buckets, last_buckets : ndarray of int64, shape (num_tasks,)
        The buckets a task receives; both ends belong to it.
    skipped : ndarray of int64, shape (num_tasks,)
        How many of its rows come before its first bag.
    num_rows : ndarray of int64, shape (num_tasks,)
        Rows it receives.
    """

    bag_size: int
    num_bags: int
    first_bags: NDArray[np.int64]
    first_buckets: NDArray[np.int64]
    last_buckets: NDArray[np.int64]
    skipped: NDArray[np.int64]
    num_rows: NDArray[np.int64]

    @classmethod
    def of(cls, counts: NDArray[np.int64], *, bag_size: int, num_bags: int, num_tasks: int) -> BagLayout:
        """Lay out bags over tasks.

        Parameters
        ----------
        counts : ndarray of int64, shape (NUM_BUCKETS,)
            Rows of each bucket.
        bag_size, num_bags : int
            k and m, at least 1 each.
        num_tasks : int
            At most this many tasks share the bags.

        Raises
        ------
        ValueError
            If there are fewer than num_bags * bag_size rows.
        """
        total = int(counts.sum())
        if num_bags < 1 or bag_size < 1 or num_bags * bag_size > total:
            raise ValueError(f"{num_bags} bags of {bag_size} rows do not fit into {total} rows")
        before = np.concatenate([[0], np.cumsum(counts)])
        tasks = max(1, min(num_tasks, num_bags))
        first_bags = np.arange(tasks + 1, dtype=np.int64) * num_bags // tasks
        bounds = first_bags * bag_size
        first_buckets = np.searchsorted(before, bounds[:-1], side="right") - 1
        last_buckets = np.searchsorted(before, bounds[1:], side="left") - 1
        return cls(
            bag_size,
            num_bags,
            first_bags,
            first_buckets,
            last_buckets,
            bounds[:-1] - before[first_buckets],
            before[last_buckets + 1] - before[first_buckets],
        )

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.first_buckets)

    def route(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return positions of rows and the task each goes to, shape (j,) both; a row goes to any number of tasks."""
        buckets = bucket_of(ranks)
        first = np.searchsorted(self.last_buckets, buckets, side="left")
        counts = np.searchsorted(self.first_buckets, buckets, side="right") - first
        positions = np.repeat(np.arange(len(buckets)), counts)
        offsets = np.arange(len(positions)) - np.repeat(np.cumsum(counts) - counts, counts)
        return positions, np.repeat(first, counts) + offsets

    def bags(
        self, task: int, blocks: Iterable[NDArray[np.float64]]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Cut the rows of a task, in order of rank, into its bags.

        Parameters
        ----------
        task : int
            Number of the task.
        blocks : iterable of ndarray, shape (j, width)
            Its rows.

        Yields
        ------
        tuple of ndarray
            Numbers of some bags, shape (b,), and their rows, shape (b, bag_size, width).

        Raises
        ------
        ValueError
            If there are not as many rows as were counted.
        """
        bag, last = int(self.first_bags[task]), int(self.first_bags[task + 1])
        left, seen = int(self.skipped[task]), 0
        pending: list[NDArray[np.float64]] = []
        held = 0
        for block in blocks:
            seen += len(block)
            dropped = min(left, len(block))
            left -= dropped
            pending.append(block[dropped:])
            held += len(block) - dropped
            together = max(1, _GROUP_BYTES // (8 * self.bag_size * max(1, block.shape[1])))
            while bag < last and held >= self.bag_size * min(together, last - bag):
                rows = np.concatenate(pending)
                count = min(together, last - bag)
                taken = count * self.bag_size
                yield np.arange(bag, bag + count), rows[:taken].reshape(count, self.bag_size, -1)
                pending, held, bag = [rows[taken:]], held - taken, bag + count
            if bag == last:
                pending, held = [], 0
        if seen != self.num_rows[task] or bag != last:
            raise ValueError("there are not as many rows as were counted")


@dataclass(frozen=True, eq=False)
class BagSpaces:
    """Bags of rows in the subspaces in which they are summed.

    Attributes
    ----------
    coordinates : ndarray, shape (b, k, d)
        Rows by their coordinates in the bag's own row space; a direction that the bag does not have is exactly 0.
    basis : ndarray, shape (b, d, d)
        ``sums @ basis[j].T`` turns sums of coordinates of bag j into sums of features.
    leverages : ndarray, shape (b, k)
        Upper bounds of the leverages of coordinates within their bag, tight to rounding.
    """

    coordinates: NDArray[np.float64]
    basis: NDArray[np.float64]
    leverages: NDArray[np.float64]


def bag_spaces(features: NDArray[np.float64]) -> BagSpaces:
    """Return the row spaces of bags and the leverages in them.

    The singular value decomposition of each bag's triangular factor decides which directions a bag has. One below
    1e-10 times the largest is removed from the rows themselves, never from the leverage alone: a column of
    1e-9 times an indicator has leverage 1 as long as it is released.

    Parameters
    ----------
    features : ndarray, shape (b, k, d)
        Encoded features of each bag.
    """
    factors = np.linalg.qr(features, mode="r")
    _, singular, right = np.linalg.svd(factors, full_matrices=True)
    # With fewer rows than columns there are fewer singular values than directions.
    values = np.zeros((len(features), features.shape[2]))
    values[:, : singular.shape[1]] = singular
    kept: NDArray[np.bool_] = np.greater(values, _RANK_TOLERANCE * values[:, :1])
    directions = np.swapaxes(right, 1, 2)
    basis = np.where(kept[:, None, :], directions, 0.0)
    full: NDArray[np.bool_] = np.all(kept, axis=1)
    basis[full] = np.eye(features.shape[2])
    coordinates = features.copy()
    coordinates[~full] = features[~full] @ basis[~full]
    scale = np.where(kept, 1.0 / np.where(kept, values, 1.0), 0.0)
    whitener = np.where(full[:, None, None], directions, np.eye(features.shape[2])) * scale[:, None, :]
    whitened = coordinates @ whitener
    # A relative bound on the rounding error of a whitened row.
    slack = 100.0 * np.finfo(float).eps * values.max(axis=1, initial=0.0) * scale.max(axis=1, initial=0.0)
    squares = np.einsum("bij,bij->bi", whitened, whitened)
    return BagSpaces(coordinates, basis, np.minimum(squares * (1.0 + slack[:, None]) ** 2, 1.0))


def bag_streams(secret: Secret, release_id: str, bags: NDArray[np.int64]) -> list[np.random.Generator]:
    """Return the stream of each bag, from which everything random about the bag is drawn."""
    return [secret.stream(release_id, "bag", int(bag)) for bag in bags]


@dataclass(frozen=True, eq=False)
class WeightedBags:
    """One weighted sum of each bag (Sampled-WTD-FLAG), before its label gets noise.

    Attributes
    ----------
    features : ndarray, shape (b, d)
        Weighted sums of features.
    labels : ndarray, shape (b,)
        Weighted sums of labels with the same weights: NOT private as they are.
    noise : ndarray, shape (b,)
        A standard normal for each label.
    leverages : ndarray, shape (b,)
        Largest leverage within each bag.
    """

    features: NDArray[np.float64]
    labels: NDArray[np.float64]
    noise: NDArray[np.float64]
    leverages: NDArray[np.float64]


def weighted_bags(rows: NDArray[np.float64], streams: Sequence[np.random.Generator]) -> WeightedBags:
    """Return one sum ``sum_i w_i (x_i, y_i)`` a bag, w_i ~ N(0, 1) from the bag's own stream.

    Parameters
    ----------
    rows : ndarray, shape (b, k, d + 1)
        Features, and the label last.
    streams : sequence of numpy.random.Generator
        One a bag; k normals are the weights, the next one is the label's noise.
    """
    spaces = bag_spaces(rows[:, :, :-1])
    drawn = np.stack([stream.standard_normal(rows.shape[1] + 1) for stream in streams])
    weights = drawn[:, None, :-1]
    sums = weights @ spaces.coordinates
    return WeightedBags(
        features=(sums @ np.swapaxes(spaces.basis, 1, 2))[:, 0],
        labels=(weights @ rows[:, :, -1:])[:, 0, 0],
        noise=drawn[:, -1],
        leverages=spaces.leverages.max(axis=1),
    )


@dataclass(frozen=True)
class NoisyLabels:
    """How the label sum of a bag is drawn in Sampled-Noisy-WTD-LAg.

    The first `num_noised` rows of a bag are the noised ones. Rows stand in their secret order, which no label
    decides, so this is a choice at random; and which ones it was is known, as the guarantee supposes anyway.

    Attributes
    ----------
    num_noised : int
        Labels of each bag that get noise, at least 1.
    noise_std : float
        sigma, in the label's units.
    weight_cap : float or None
        Weights of a bag are drawn again, without a look at its labels, while ``max |w| / sqrt(sum over noised of
        w^2)`` is over it.
    """

    num_noised: int
    noise_std: float
    weight_cap: float | None = None

    def weights(self, stream: np.random.Generator, bag_size: int) -> NDArray[np.float64]:
        """Draw the weights of a bag, shape (bag_size,): iid N(0, 1), given that they meet the cap.

        Raises
        ------
        ValueError
            If the cap is so low that no draw meets it.
        """
        if self.weight_cap is None:
            return stream.standard_normal(bag_size)
        together = max(1, min(_DRAWS_TOGETHER, _LARGEST_DRAW // bag_size))
        for _ in range(0, _MOST_DRAWS, together):
            drawn = stream.standard_normal((together, bag_size))
            met = np.flatnonzero(weight_ratio(drawn, self.num_noised) <= self.weight_cap)
            if len(met):
                return np.array(drawn[met[0]])
        raise ValueError(f"no weights out of {_MOST_DRAWS} draws meet the cap of {self.weight_cap}")

    def draw(
        self, labels: NDArray[np.float64], streams: Sequence[np.random.Generator]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return weights, shape (b, k), and noisy weighted label sums, shape (b,).

        Parameters
        ----------
        labels : ndarray, shape (b, k)
            Labels of each bag.
        streams : sequence of numpy.random.Generator
            One a bag.
        """
        bag_size = labels.shape[1]
        weights, noised = np.empty_like(labels), labels.copy()
        for bag, stream in enumerate(streams):
            weights[bag] = self.weights(stream, bag_size)
            noised[bag, : self.num_noised] += self.noise_std * stream.standard_normal(self.num_noised)
        return weights, np.einsum("bi,bi->b", weights, noised)


def weight_ratio(weights: NDArray[np.float64], num_noised: int) -> NDArray[np.float64]:
    """Return ``max |w| / sqrt(sum of the first num_noised w^2)``, sensitivity over noise for D = sigma.

    Along the last axis of `weights`, shape (..., k).
    """
    noised = np.square(weights[..., :num_noised]).sum(axis=-1)
    return np.asarray(np.abs(weights).max(axis=-1) / np.sqrt(noised))


def weight_cap_for(acceptance: float, *, bag_size: int, num_noised: int) -> float:
    """Return the cap that about this share of the draws of weights meets.

    It comes from 4,096 draws of a fixed public stream: no label and no secret goes into it, so it may be published.
    """
    return float(np.quantile(_public_ratios(bag_size, num_noised), acceptance))


def weight_acceptance(cap: float, *, bag_size: int, num_noised: int) -> float:
    """Return about which share of the draws of weights meets a cap, from the same draws as `weight_cap_for`."""
    return float(np.mean(_public_ratios(bag_size, num_noised) <= cap))


def _public_ratios(bag_size: int, num_noised: int) -> NDArray[np.float64]:
    stream = Secret.insecure(0).stream("", "weight-cap", bag_size)
    together = max(1, min(4096, _LARGEST_DRAW // bag_size))
    parts = [weight_ratio(stream.standard_normal((together, bag_size)), num_noised) for _ in range(0, 4096, together)]
    return np.concatenate(parts)[:4096]
