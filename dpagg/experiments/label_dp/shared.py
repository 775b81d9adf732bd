"""Rows whose passes are made once for all releases of an experiment.

A release reads its table three times or more, and releases of one table at several epsilons and seeds ask for the very
same passes. Nothing of this is for releases that are private: there each run reads what it needs, when it needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking, RankPass
from dpagg.kernels.clipping import Energies, ResidualQuery, ResidualSums, RowShape
from dpagg.kernels.leverage import Subspace
from dpagg.kernels.passes import FactorPass, MomentsPass, SumsPass
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.runs.rows import Bags, Rows

__all__ = ["SharedData", "SharedRows"]

T = TypeVar("T")


class SharedRows:
    """`Rows` that remembers what its passes brought; of bags the last ones it made.

    Parameters
    ----------
    rows : Rows
        Of one table with one schema.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._found: dict[tuple[Any, ...], Any] = {}
        self._bags: tuple[tuple[Any, ...], _HeldBags] | None = None

    def _once(self, key: tuple[Any, ...], ask: Callable[[], T]) -> T:
        if key not in self._found:
            self._found[key] = ask()
        found: T = self._found[key]
        return found

    @property
    def num_tasks(self) -> int:
        """Of the rows."""
        return self._rows.num_tasks

    def check_key(self) -> None:
        """Refuse a faulty key, once."""
        self._once(("key",), self._rows.check_key)

    def limited(self, max_rows: int) -> tuple[Self, int]:
        """Refuse: the experiment protects single labels."""
        raise NotImplementedError

    def feature_pass(self, rule: RowRule) -> FactorPass:
        """Return the factor of X and a summary."""
        return self._once(("features", *_key(rule)), lambda: self._rows.feature_pass(rule))

    def summary_pass(self, rule: RowRule) -> RowSummary:
        """Return counts and the largest leverage."""
        return self._once(("summary", *_key(rule)), lambda: self._rows.summary_pass(rule))

    def unit_pass(self, rule: RowRule) -> float:
        """Refuse: the experiment protects single labels."""
        raise NotImplementedError

    def labelled_pass(self, rule: RowRule) -> MomentsPass:
        """Return what the factor engine needs of the labels. NOT private."""
        return self._once(("labels", *_key(rule)), lambda: self._rows.labelled_pass(rule))

    def weighted_sums_pass(
        self, rule: RowRule, *, num_bags: int, num_partitions: int | None, secret: Secret, release_id: str
    ) -> SumsPass:
        """Return weighted sums, drawn each time."""
        return self._rows.weighted_sums_pass(
            rule, num_bags=num_bags, num_partitions=num_partitions, secret=secret, release_id=release_id
        )

    def plain_sums_pass(self, rule: RowRule, *, num_bags: int) -> SumsPass:
        """Return plain sums."""
        return self._rows.plain_sums_pass(rule, num_bags=num_bags)

    def rank_pass(self, ranking: Ranking) -> RankPass:
        """Count the ranks, once for a release id and a public seed."""
        return self._once(("ranks", *_ranked(ranking)), lambda: self._rows.rank_pass(ranking))

    def bag_leverages(self, ranking: Ranking, layout: BagLayout) -> Bags:
        """Return the largest leverage within each bag."""
        return self._rows.bag_leverages(ranking, layout)

    def weighted_bag_sums(self, ranking: Ranking, layout: BagLayout) -> Bags:
        """Return the bags of this ranking; those of the one before are let go."""
        key = (*_ranked(ranking), layout.bag_size, layout.num_bags)
        if self._bags is None or self._bags[0] != key:
            self.forget_bags()
            self._bags = key, _HeldBags(self._rows.weighted_bag_sums(ranking, layout))
        return self._bags[1]

    def noisy_label_bags(self, ranking: Ranking, layout: BagLayout, labels: NoisyLabels) -> Any:
        """Return the released table, drawn each time."""
        return self._rows.noisy_label_bags(ranking, layout, labels)

    def forget_bags(self) -> None:
        """Let go of the bags."""
        if self._bags is not None:
            self._bags[1].bags.release()
            self._bags = None


class _HeldBags:
    """Bags that one release after another uses: a run's release of them does nothing."""

    def __init__(self, bags: Bags) -> None:
        self.bags = bags
        self._summaries: dict[float, tuple[int, float]] = {}

    def leverage_summary(self, cap: float) -> tuple[int, float]:
        """Return how many bags have no leverage over the cap, and the largest leverage within these."""
        if cap not in self._summaries:
            self._summaries[cap] = self.bags.leverage_summary(cap)
        return self._summaries[cap]

    def finished(self, cap: float, noise_std: float) -> Any:
        """Return what is released."""
        return self.bags.finished(cap, noise_std)

    def release(self) -> None:
        """Keep them."""


class SharedData:
    """`Data` that remembers the largest norms it was asked for; factors its rows remember themselves."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._norms: dict[bytes, float] = {}
        self.num_rows, self.num_columns, self.label_bound = data.num_rows, data.num_columns, data.label_bound

    def factor(self) -> NDArray[np.float64]:
        """Return the factor of ``[X y]``."""
        return self._data.factor()

    def energies(self) -> Energies:
        """Return the sums of squares."""
        return self._data.energies()

    def gram(self, shape: RowShape) -> NDArray[np.float64]:
        """Return the Gram matrix of the shaped rows."""
        return self._data.gram(shape)

    def residual_sums(self, query: ResidualQuery) -> ResidualSums:
        """Return the sums over clipped residuals."""
        return self._data.residual_sums(query)

    def largest_norm(self, transform: NDArray[np.float64]) -> float:
        """Return the largest norm of a row of ``X @ transform``."""
        key = np.ascontiguousarray(transform).tobytes()
        if key not in self._norms:
            self._norms[key] = self._data.largest_norm(transform)
        return self._norms[key]


def _key(rule: RowRule) -> tuple[Any, ...]:
    """What tells one rule of the same schema from another: by content, since each plan makes subspaces anew."""

    def content(space: Subspace | None) -> bytes | None:
        return None if space is None else space.root.tobytes()

    return content(rule.selection), rule.cap, content(rule.released)


def _ranked(ranking: Ranking) -> tuple[Any, ...]:
    """What tells one ranking from another, whatever object holds the secret."""
    if ranking.secret.is_private:
        raise ValueError("passes of a private release are not shared")
    return ranking.release_id, ranking.secret.stream(ranking.release_id, "shared", 0).bytes(16)
