"""What a run asks of a table, wherever its rows are: on Spark (`dpagg.spark.rows`) or in memory (`dpagg.local`)."""

from __future__ import annotations

from typing import Any, Protocol, Self

from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking, RankPass
from dpagg.kernels.passes import FactorPass, MomentsPass, SumsPass
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.streams import Secret

__all__ = ["Bags", "Rows", "Source"]


class Source(Protocol):
    """A table as it was when a run began."""

    @property
    def version(self) -> dict[str, Any]:
        """What identifies it in public, as JSON values; no function of a protected value."""

    @property
    def num_malformed(self) -> int:
        """How many lines of text were left out when it was opened, for not having its columns."""

    def recheck(self) -> None:
        """Raise a `DataError` if it is no longer what it was."""


class Bags(Protocol):
    """Weighted sums or leverages of disjoint bags, made once and held. NOT private."""

    def leverage_summary(self, cap: float) -> tuple[int, float]:
        """Return how many bags have no leverage over the cap, and the largest leverage within these."""

    def finished(self, cap: float, noise_std: float) -> Any:
        """Return what is released: a table of the bags under the cap, with noise of this deviation on each label."""

    def release(self) -> None:
        """Let go of them."""


class Rows(Protocol):
    """Rows of declared columns whose types are settled, seen through passes.

    Passes without ``labelled`` or ``sums`` in their name read no label. The answers of different tables agree to
    rounding where rows agree, whatever holds them.
    """

    @property
    def num_tasks(self) -> int:
        """How many tasks a shuffle should have."""

    def check_key(self) -> None:
        """Raise a `DataError` with counts if the row key is null or comes twice."""

    def limited(self, max_rows: int) -> tuple[Self, int]:
        """Return at most that many rows of each unit, by a public hash of the key, and how many are left out."""

    def feature_pass(self, rule: RowRule) -> FactorPass:
        """Return the factor of X and a summary."""

    def summary_pass(self, rule: RowRule) -> RowSummary:
        """Return counts and the largest leverage."""

    def unit_pass(self, rule: RowRule) -> float:
        """Return the largest sum of the leverages of one unit's rows."""

    def labelled_pass(self, rule: RowRule) -> MomentsPass:
        """Return what the factor engine needs of the labels. NOT private."""

    def weighted_sums_pass(
        self, rule: RowRule, *, num_bags: int, num_partitions: int | None, secret: Secret, release_id: str
    ) -> SumsPass:
        """Return num_bags weighted sums, each row with weights of its own. NOT private."""

    def plain_sums_pass(self, rule: RowRule, *, num_bags: int) -> SumsPass:
        """Return num_bags plain sums, a row's bag being a public hash of its key. NOT private."""

    def rank_pass(self, ranking: Ranking) -> RankPass:
        """Count the ranks of the rows that take part."""

    def bag_leverages(self, ranking: Ranking, layout: BagLayout) -> Bags:
        """Return the largest leverage within each bag."""

    def weighted_bag_sums(self, ranking: Ranking, layout: BagLayout) -> Bags:
        """Return one weighted sum a bag (Sampled-WTD-FLAG), not yet noisy: it reads labels."""

    def noisy_label_bags(self, ranking: Ranking, layout: BagLayout, labels: NoisyLabels) -> Any:
        """Return the released table of features, weights and noisy label sums (Sampled-Noisy-WTD-LAg)."""
