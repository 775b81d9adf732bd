"""The rows of a Spark table as runs ask of them (`dpagg.runs.rows.Rows`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from pyspark.sql import DataFrame

from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking, RankPass
from dpagg.kernels.passes import FactorPass, MomentsPass, SumsPass
from dpagg.kernels.rows import MALFORMED, RowRule, RowSummary
from dpagg.kernels.schema import Schema
from dpagg.kernels.streams import Secret
from dpagg.spark import bagging, engines
from dpagg.spark.names import quoted
from dpagg.spark.plain_files import PlainFiles, PlainTable
from dpagg.spark.reading import check_row_key, limit_rows, normalise, only_features

__all__ = ["SparkRows"]


@dataclass(frozen=True)
class SparkBags:
    """Bags held in memory or (encrypted) on local disk."""

    held: DataFrame

    def leverage_summary(self, cap: float) -> tuple[int, float]:
        """Return how many bags have no leverage over the cap, and the largest leverage within these."""
        return bagging.leverage_summary(self.held, cap)

    def finished(self, cap: float, noise_std: float) -> DataFrame:
        """Return what is released."""
        return bagging.finished_bags(self.held, cap, noise_std)

    def release(self) -> None:
        """Let go of the bags."""
        bagging.released_bags(self.held)


@dataclass(frozen=True)
class SparkRows:
    """Normalised rows of a Spark table; each method is one of `dpagg.spark.engines` or `dpagg.spark.bagging`.

    Attributes
    ----------
    df : DataFrame
        As `dpagg.spark.reading.normalise` returns it.
    schema : Schema
        Its declared columns.
    row_id : str or None
        Name of its row key.
    plain : PlainTable or None
        All of these rows, where tasks may read their files without Spark's reader.
    """

    df: DataFrame
    schema: Schema
    row_id: str | None
    plain: PlainTable | None = None

    @classmethod
    def of(
        cls,
        df: DataFrame,
        schema: Schema,
        row_id: str | None = None,
        unit: str | None = None,
        files: PlainFiles | None = None,
    ) -> SparkRows:
        """Settle the types of a table, `files` being those of `df`; raises as `dpagg.spark.reading.normalise`."""
        return cls(normalise(df, schema, row_id, unit), schema, row_id, PlainTable.of(files, df, schema))

    @property
    def num_tasks(self) -> int:
        """Twice the cores."""
        return 2 * self.df.sparkSession.sparkContext.defaultParallelism

    @property
    def _key(self) -> str:
        if self.row_id is None:
            raise ValueError("these rows have no key")
        return self.row_id

    @property
    def _features(self) -> DataFrame:
        return only_features(self.df, self.schema)

    @property
    def _plain_features(self) -> PlainTable | None:
        return None if self.plain is None else self.plain.without_label()

    def check_key(self) -> None:
        """Refuse a row key that is null or comes twice."""
        check_row_key(self.df, self._key)

    def limited(self, max_rows: int) -> tuple[SparkRows, int]:
        """Keep at most that many rows of each unit."""
        kept, dropped = limit_rows(self.df, self._key, max_rows)
        return dataclasses.replace(self, df=kept, plain=None), dropped

    def feature_pass(self, rule: RowRule) -> FactorPass:
        """Return the factor of X and a summary."""
        return engines.feature_pass(self._features, rule, self._plain_features)

    def summary_pass(self, rule: RowRule) -> RowSummary:
        """Return counts and the largest leverage."""
        return engines.summary_pass(self._features, rule, self._plain_features)

    def unit_pass(self, rule: RowRule) -> float:
        """Return the largest sum of the leverages of one unit's rows."""
        return engines.unit_pass(self._features, rule)

    def labelled_pass(self, rule: RowRule) -> MomentsPass:
        """Return what the factor engine needs of the labels."""
        names = [quoted(each.name) for each in (*self.schema.features, self.schema.label)]
        # Which lines are malformed, too: their rows take part in no pass.
        names += [name for name in self.df.columns if name == MALFORMED]
        return engines.labelled_pass(self.df.select(*names), rule, self.plain)

    def weighted_sums_pass(
        self, rule: RowRule, *, num_bags: int, num_partitions: int | None, secret: Secret, release_id: str
    ) -> SumsPass:
        """Return num_bags weighted sums, each row with weights of its own."""
        return engines.weighted_sums_pass(
            self.df,
            rule,
            row_id=self._key,
            num_bags=num_bags,
            num_partitions=num_partitions or self.num_tasks,
            secret=secret,
            release_id=release_id,
        )

    def plain_sums_pass(self, rule: RowRule, *, num_bags: int) -> SumsPass:
        """Return num_bags plain sums."""
        return engines.plain_sums_pass(self.df, rule, row_id=self._key, num_bags=num_bags)

    def rank_pass(self, ranking: Ranking) -> RankPass:
        """Count the ranks of the rows that take part."""
        return bagging.rank_pass(self.df, ranking)

    def bag_leverages(self, ranking: Ranking, layout: BagLayout) -> SparkBags:
        """Return the largest leverage within each bag."""
        return SparkBags(bagging.held_bags(bagging.bag_leverages(self.df, ranking, layout)))

    def weighted_bag_sums(self, ranking: Ranking, layout: BagLayout) -> SparkBags:
        """Return one weighted sum a bag."""
        return SparkBags(bagging.held_bags(bagging.weighted_bag_sums(self.df, ranking, layout)))

    def noisy_label_bags(self, ranking: Ranking, layout: BagLayout, labels: NoisyLabels) -> DataFrame:
        """Return features, weights and noisy label sums."""
        return bagging.noisy_label_bags(self.df, ranking, layout, labels)
