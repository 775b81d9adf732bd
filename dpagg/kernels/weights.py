"""Gaussian-weighted sums of rows: drawn weight by weight, or from a factor."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpagg.kernels.rows import RowRule
from dpagg.kernels.streams import Secret

# One tile of weights (bags x rows) fits the second-level cache. Both numbers fix the order in which a stream is
# used, so a change of either changes what an insecure seed draws.
_TILE_BAGS = 256
_TILE_ROWS = 256


class WeightedSums:
    """Sums over rows of w_ij * row_i with w_ij ~ N(0, 1) for each bag j: a commutative monoid.

    Weights are drawn tile by tile from a stream and forgotten, so memory is (num_bags, width) whatever the number of
    rows. Features and label of a row stand in one row of the block, hence share their weight.

    Parameters
    ----------
    totals : ndarray, shape (num_bags, width)
        Sums so far.
    """

    __slots__ = ("totals",)

    def __init__(self, totals: NDArray[np.float64]) -> None:
        self.totals = totals

    @classmethod
    def zero(cls, num_bags: int, width: int) -> WeightedSums:
        """Return the sums of no rows."""
        return cls(np.zeros((num_bags, width)))

    def add(self, rows: NDArray[np.float64], stream: np.random.Generator) -> WeightedSums:
        """Add rows, shape (k, width), with the next k * num_bags weights of the stream; works in place.

        The weights of a row depend on its place in the stream only, so that splitting `rows` at multiples of 256
        changes nothing.
        """
        num_bags = len(self.totals)
        for first in range(0, len(rows), _TILE_ROWS):
            tile = rows[first : first + _TILE_ROWS]
            for bag in range(0, num_bags, _TILE_BAGS):
                sums = self.totals[bag : bag + _TILE_BAGS]
                sums += stream.standard_normal((len(sums), len(tile))) @ tile
        return self

    def merge(self, other: WeightedSums) -> WeightedSums:
        """Return the sums over both sets of rows."""
        return WeightedSums(self.totals + other.totals)


def tiles_of_rows(blocks: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64] | None, list[NDArray[np.float64]]]:
    """Split pending rows into whole stream tiles and what remains.

    Arrow batches end anywhere; weights must not depend on where. The first part has a multiple of 256 rows.
    """
    if sum(map(len, blocks)) < _TILE_ROWS:
        return None, blocks
    rows = np.concatenate(blocks)
    whole = len(rows) // _TILE_ROWS * _TILE_ROWS
    return rows[:whole], [rows[whole:]]


def draw_from_factor(factor: NDArray[np.float64], count: int, stream: np.random.Generator) -> NDArray[np.float64]:
    """Draw `count` weighted sums of rows from the factor of these rows.

    Each is N(0, R^T R), the law of A^T w with w ~ N(0, I_n) when R^T R = A^T A: the same distribution as
    `WeightedSums`, so the same privacy, at a cost that does not grow with the number of rows.

    Parameters
    ----------
    factor : ndarray, shape (width, width)
        R.
    count : int
        Number of bags.
    stream : numpy.random.Generator
        Used for count * width normals.

    Returns
    -------
    ndarray, shape (count, width)
    """
    return stream.standard_normal((count, factor.shape[0])) @ factor


# Bags finished from one stream: a chunk is drawn whole, wherever and however often its task runs.
BAGS_PER_CHUNK = 16_384


def hidden_level(stream: np.random.Generator, *, mean: float, std: float, floor: float) -> float:
    """Draw a noise variance that nobody may know: N(mean, std^2), drawn again until it is at least `floor`."""
    while True:
        level = mean + std * float(stream.standard_normal())
        if level >= floor:
            return level


@dataclass(frozen=True)
class Finish:
    """The last step of both engines: bags drawn from a factor, or given, with noise on each label.

    Attributes
    ----------
    secret : Secret
        Of the release.
    release_id : str
        Names the release's streams.
    num_bags : int
        m.
    noise_std : float
        tau, in the label's units; not shown, since it may be hidden.
    rule : RowRule
        Turns sums of coordinates into features, and gives labels their centre back.
    factor : ndarray, shape (r + 1, r + 1), or None
        R with R^T R the Gram matrix of coordinates and label, its feature columns free of labels
        (`LabelMoments.root`); None where the sums are given to `chunk`.
    """

    secret: Secret
    release_id: str
    num_bags: int
    noise_std: float = field(repr=False)
    rule: RowRule
    factor: NDArray[np.float64] | None = field(default=None, repr=False)

    @property
    def num_chunks(self) -> int:
        """How many chunks hold all bags."""
        return -(-self.num_bags // BAGS_PER_CHUNK)

    def bags(self, chunk: int) -> range:
        """Return the bag numbers of a chunk."""
        return range(chunk * BAGS_PER_CHUNK, min(self.num_bags, (chunk + 1) * BAGS_PER_CHUNK))

    def chunk(
        self, chunk: int, sums: NDArray[np.float64] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return released features, shape (count, d), and labels, shape (count,), of a chunk of bags.

        `sums`, shape (count, r + 1), are the chunk's weighted sums; without them they are drawn from the factor.
        """
        count = len(self.bags(chunk))
        if sums is None:
            if self.factor is None:
                raise ValueError("neither a factor nor sums are given")
            sums = draw_from_factor(self.factor, count, self.secret.stream(self.release_id, "bags", chunk))
        noise = self.secret.stream(self.release_id, "label-noise", chunk).standard_normal(count)
        features = np.ascontiguousarray(self.rule.expand(sums[:, :-1]))
        labels = sums[:, -1] + self.noise_std * noise
        if self.rule.schema.intercept:
            labels += self.rule.label_center * features[:, 0]
        return features, labels
