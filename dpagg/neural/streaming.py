"""Mini-batches of bags from the Parquet files of a release, a few thousand bags in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpagg.errors import DataError
from dpagg.neural.loss import Bags

# Numbers that are decoded at once: 16 MB as they are stored.
_WINDOW_NUMBERS = 1 << 21
_COLUMNS = ["bag_id", "features", "weights", "label"]


@dataclass(frozen=True)
class BagLaw:
    """What is public about each bag of a Sampled-Noisy-WTD-LAg release.

    Attributes
    ----------
    bag_size, num_columns : int
        k rows of d encoded features.
    num_noised : int
        The first so many labels of each bag carry noise.
    noise_variance : float
        Of that noise, in squared units of the label.
    label_center, label_half_width : float
        Of the label's declared bounds.
    row_variance : float
        Variance of a label given its features, as the user supposes; 0 leaves the noise alone in the variance.
    """

    bag_size: int
    num_columns: int
    num_noised: int
    noise_variance: float
    label_center: float
    label_half_width: float
    row_variance: float = 0.0

    def bags(self, features: NDArray[np.float64], weights: NDArray[np.float64], labels: NDArray[np.float64]) -> Bags:
        """Return bags in declared units with the variance of each label sum, given its weights.

        ``noise_variance * sum over noised of w^2 + row_variance * sum w^2``. Only declared bounds scale anything.

        Parameters
        ----------
        features : ndarray, shape (b, k, d)
        weights : ndarray, shape (b, k)
        labels : ndarray, shape (b,)
            Weighted sums as released.
        """
        squares = np.square(weights)
        variance = self.noise_variance * squares[:, : self.num_noised].sum(axis=1)
        variance += self.row_variance * squares.sum(axis=1)
        sums = (labels - self.label_center * weights.sum(axis=1)) / self.label_half_width
        with np.errstate(divide="ignore"):
            # A bag whose noised weights are all 0, which has no chance, would have an infinite one.
            precision = np.minimum(self.label_half_width**2 / variance, 1e30)
        return Bags(
            features.astype(np.float32),
            weights.astype(np.float32),
            sums.astype(np.float32),
            precision.astype(np.float32),
        )


@dataclass(frozen=True)
class _Group:
    """Bags of one row group of a file."""

    file: str
    group: int
    num_training: int


class BagStream:
    """The bags of a release in batches: those to train on in an order of each epoch's own, and those held out.

    A bag is held out by a hash of its number, which means nothing. An epoch takes the row groups of the files in
    random order, and shuffles within windows of a few thousand bags as they are decoded; which rows share a bag, and
    in what order bags are stored, is random already. Memory holds a row group as it is stored and a window of it, so
    that it does not grow with the number of bags.

    Parameters
    ----------
    files : sequence of str
        Parquet files, paths or URIs.
    law : BagLaw
        Of the release.
    batch_size : int
        Bags of a batch; fewer if there are not as many.
    held_out : float
        Share of the bags that is held out, in [0, 1).
    seed : int
        Decides the order of batches and which bags are held out.

    Raises
    ------
    DataError
        If a file is not as a release has it, or no bag is left to train on or to hold out.
    """

    def __init__(
        self, files: Sequence[str], law: BagLaw, *, batch_size: int, held_out: float = 0.0, seed: int = 0
    ) -> None:
        self.law, self.seed, self._held_out = law, seed, held_out
        self._window = max(1, _WINDOW_NUMBERS // (law.bag_size * (law.num_columns + 1)))
        self._groups: list[_Group] = []
        self.num_bags = 0
        for file in files:
            with _open(file) as opened:
                for group in range(opened.num_row_groups):
                    column = opened.read_row_group(group, columns=["bag_id"]).column(0)
                    if column.null_count or not pa.types.is_integer(column.type):
                        raise _changed("a bag has no number")
                    numbers = column.to_numpy()
                    self.num_bags += len(numbers)
                    self._groups.append(_Group(file, group, int((~self._is_held_out(numbers)).sum())))
        self.num_training = sum(group.num_training for group in self._groups)
        self.num_held_out = self.num_bags - self.num_training
        if self.num_training == 0 or (held_out > 0 and self.num_held_out == 0):
            raise DataError(
                f"of {self.num_bags:,} bags {self.num_training:,} are left to train on and {self.num_held_out:,} are "
                "held out, expected some of each",
                path="training.held_out",
                remedy="Make a release of more bags, or hold out another share.",
            )
        self.batch_size = min(batch_size, self.num_training)

    @property
    def num_batches(self) -> int:
        """Batches an epoch; the few bags that do not fill one more wait for another epoch's order."""
        return self.num_training // self.batch_size

    def training_batches(self, epoch: int, first: int = 0) -> Iterator[Bags]:
        """Yield the batches of an epoch, from number `first` on, always the same ones."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self._groups))
        skipped, left = first * self.batch_size, (self.num_batches - first) * self.batch_size
        pending: list[Bags] = []
        held = 0
        for place, index in enumerate(order):
            group = self._groups[index]
            if left <= 0:
                return
            if skipped >= group.num_training:  # not even decoded
                skipped -= group.num_training
                continue
            for number, (bags, is_held_out) in enumerate(self._windows(group)):
                kept = np.flatnonzero(~is_held_out)
                np.random.default_rng([self.seed, epoch, place, number]).shuffle(kept)
                dropped = min(skipped, len(kept))
                skipped -= dropped
                pending.append(_taken(bags, kept[dropped:]))
                held += len(kept) - dropped
                if held < self.batch_size:
                    continue
                together = _joined(pending)
                for start in range(0, min(held, left) - self.batch_size + 1, self.batch_size):
                    yield _taken(together, slice(start, start + self.batch_size))
                    left -= self.batch_size
                rest = held % self.batch_size
                pending, held = [_taken(together, slice(held - rest, held))], rest

    def held_out_batches(self) -> Iterator[Bags]:
        """Yield the bags held out in batches of one size, filled up with bags of precision 0."""
        pending: list[Bags] = []
        held = 0
        for group in self._groups:
            for bags, is_held_out in self._windows(group):
                pending.append(_taken(bags, np.flatnonzero(is_held_out)))
                held += int(is_held_out.sum())
                if held >= self.batch_size:
                    together = _joined(pending)
                    full = held - held % self.batch_size
                    for start in range(0, full, self.batch_size):
                        yield _taken(together, slice(start, start + self.batch_size))
                    pending, held = [_taken(together, slice(full, held))], held - full
        if held:
            last = _joined(pending)
            yield Bags(*(np.pad(each, [(0, self.batch_size - held)] + [(0, 0)] * (each.ndim - 1)) for each in last))

    def _windows(self, group: _Group) -> Iterator[tuple[Bags, NDArray[np.bool_]]]:
        with _open(group.file) as opened:  # a release may have more files than may be open at once
            yield from map(self._decoded, opened.iter_batches(self._window, row_groups=[group.group], columns=_COLUMNS))

    def _decoded(self, batch: pa.RecordBatch) -> tuple[Bags, NDArray[np.bool_]]:
        law, count = self.law, batch.num_rows
        numbers, rows, weights, labels = (batch.column(batch.schema.get_field_index(each)) for each in _COLUMNS)
        try:
            features, scales, sums = (
                _flat(rows, law.bag_size, law.num_columns),
                _flat(weights, law.bag_size),
                _flat(labels),
            )
        except (ValueError, TypeError, pa.ArrowException):
            raise _changed(
                f"a bag does not hold {law.bag_size} rows of {law.num_columns} features, as the certificate says"
            ) from None
        with np.errstate(over="ignore"):  # a number that single precision cannot hold is found below
            bags = law.bags(
                features.reshape(count, law.bag_size, law.num_columns), scales.reshape(count, law.bag_size), sums
            )
        if not all(np.isfinite(each).all() for each in bags):
            raise _changed("a bag holds something that is not a number, or far from any bound")
        return bags, self._is_held_out(numbers.to_numpy())

    def _is_held_out(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        mixed = numbers.astype(np.uint64) + np.uint64(self.seed * 0x9E3779B97F4A7C15 % 2**64)
        # The finaliser of SplitMix64 (Steele et al. 2014): each bit of the number moves half of the result's.
        with np.errstate(over="ignore"):
            mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
        return np.asarray((mixed >> np.uint64(11)) * 2.0**-53 < self._held_out)


def _open(path: str) -> pq.ParquetFile:
    try:
        system, place = pafs.FileSystem.from_uri(path) if ":/" in path else (pafs.LocalFileSystem(), path)
        opened = pq.ParquetFile(system.open_input_file(place), pre_buffer=False)
        absent = [name for name in _COLUMNS if name not in opened.schema_arrow.names]
    except (OSError, pa.ArrowException):
        raise DataError(
            "a file of the release cannot be read as Parquet",
            path="release.path",
            remedy="Give the path of a table written by dpagg aggregate, on a file system that Arrow reaches too.",
        ) from None
    if absent:
        raise DataError(
            f"the release has no column {', '.join(absent)}",
            path="release.path",
            remedy="Give a table written by dpagg aggregate with mechanism sampled-noisy-wtd-lag.",
        )
    return opened


def _changed(what: str) -> DataError:
    return DataError(
        what,
        path="release.path",
        remedy="Somebody changed the table after the release. Restore its first version.",
    )


def _flat(column: Any, *lengths: int) -> NDArray[np.float64]:
    """Return the numbers in nested lists, each of the length given for its level; nulls become NaN."""
    for length in lengths:
        found = pc.list_value_length(column)
        if found.null_count or not pc.all(pc.equal(found, length), min_count=0).as_py():
            raise ValueError("a list of another length")
        column = column.flatten()
    return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)


def _taken(bags: Bags, which: Any) -> Bags:
    return Bags(*(np.asarray(each)[which] for each in bags))


def _joined(parts: Sequence[Bags]) -> Bags:
    return parts[0] if len(parts) == 1 else Bags(*(np.concatenate(each) for each in zip(*parts, strict=True)))
