"""Rows of a table of text without a key: lines are cut and coded in the tasks that sum them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame

from dpagg.errors import EnvironmentFault
from dpagg.kernels.coded_rows import (
    CodedRows,
    GramPass,
    add_coded,
    add_coded_labels,
    can_be_coded,
    code_rows,
    is_precise,
)
from dpagg.kernels.lines import LineFormat
from dpagg.kernels.passes import FactorPass, MomentsPass
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.schema import Schema
from dpagg.spark import engines
from dpagg.spark.engines import guarded, map_in_arrow, merge_up, spark_faults
from dpagg.spark.reading import InputTable
from dpagg.spark.rows import SparkRows

__all__ = ["LineRows", "rows_of"]

_GATHERED_BYTES = 32 << 20


@dataclass
class _Coding:
    """Whether rows are summed by their codes, the same in each pass from the first that cannot be."""

    is_used: bool


@dataclass(frozen=True, kw_only=True)
class LineRows(SparkRows):
    """Rows whose lines are cut where they are summed.

    A table of mostly categories is summed by codes where that is precise: the codes of its features are kept in Spark's
    (encrypted) scratch from the first pass to the one that reads the labels, which cuts the lines again.

    Attributes
    ----------
    lines : DataFrame
        The lines.
    form : LineFormat
        How they are cut.
    """

    lines: DataFrame
    form: LineFormat
    coding: _Coding = field(repr=False)

    def feature_pass(self, rule: RowRule) -> FactorPass:
        """Return the factor of X and a summary."""
        if self._may_be_coded(rule):
            width = self.schema.num_columns
            found = self._over_codes(lambda rows: add_coded(rows, rule, with_gram=True), 8 * width**2).factored(rule)
            if found is not None:
                return found
            self._stop_coding()
        return engines.feature_pass(self.lines, rule, cut=self._cut(with_label=False))

    def summary_pass(self, rule: RowRule) -> RowSummary:
        """Return counts and the largest leverage."""
        if self._may_be_coded(rule):
            return self._over_codes(lambda rows: add_coded(rows, rule, with_gram=False), 1024).summary
        return engines.summary_pass(self.lines, rule, cut=self._cut(with_label=False))

    def labelled_pass(self, rule: RowRule) -> MomentsPass:
        """Return what the factor engine needs of the labels."""
        cut, schema = self._cut(with_label=True), self.schema
        if not self._may_be_coded(rule):
            return engines.labelled_pass(self.lines, rule, cut=cut)

        def partial(batches: Iterator[pa.RecordBatch]) -> MomentsPass:
            memo: dict[bytes, int] = {}
            return add_coded_labels(cut(batches), rule, lambda batch: code_rows(batch, schema, memo))

        found = engines.tree_merge(self.lines, partial, 1024 + 8 * rule.num_coordinates)
        self._forget_codes()
        return found

    def _may_be_coded(self, rule: RowRule) -> bool:
        if self.coding.is_used and not is_precise(rule):
            self._stop_coding()
        return self.coding.is_used

    def _stop_coding(self) -> None:
        self.coding.is_used = False
        self._forget_codes()

    def _forget_codes(self) -> None:
        # Where this fails the JVM is gone, and the next run removes its scratch.
        with suppress(EnvironmentFault), spark_faults():
            if "_codes" in self.__dict__:
                self._codes.unpersist()

    @cached_property
    def _codes(self) -> RDD[bytes]:
        """Coded features of a batch of lines each; no label is among them."""
        cut, schema = self._cut(with_label=False), self.schema

        def packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            memo: dict[bytes, int] = {}
            cuts = cut(batches)
            while (batch := guarded(lambda found: next(found, None), cuts)) is not None:
                coded, _ = guarded(lambda found: code_rows(found, schema, memo), batch)
                yield pa.RecordBatch.from_pydict({"block": [coded.packed()]})

        with spark_faults():
            codes = map_in_arrow(self.lines, packed, "block binary").rdd.map(lambda row: bytes(row.block))
            codes.persist(StorageLevel.DISK_ONLY)
        return codes

    def _over_codes(self, partial: Callable[[Iterable[CodedRows]], GramPass], state_bytes: int) -> GramPass:
        def states(blocks: Iterable[bytes]) -> Iterator[GramPass]:
            yield guarded(lambda found: partial(map(pickle.loads, found)), blocks)

        with spark_faults():
            found = self._codes.mapPartitions(states)
            merged: GramPass | None = None
            if found.getNumPartitions() * state_bytes > _GATHERED_BYTES:
                merged = merge_up(found, GramPass.merge)
            else:
                for state in found.collect():
                    merged = state if merged is None else merged.merge(state)
        return merged if merged is not None else partial(iter(()))

    def _cut(self, *, with_label: bool) -> engines.Cut:
        form, schema = self.form, self.schema

        def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return form.parsed(batches, schema, with_label=with_label)

        return cut


def rows_of(table: InputTable, schema: Schema, row_id: str | None = None, unit: str | None = None) -> SparkRows:
    """Return the rows of an input for a release; raises as `dpagg.spark.reading.normalise` and `InputTable.settled`.

    Without a key and units the marks of malformed lines stay with the rows, and the first pass over them counts these.
    """
    if row_id is not None or unit is not None or not schema.features:
        table = table.settled()
    rows = SparkRows.of(table.df, schema, row_id, unit, table.files)
    if table.lines is None:
        return rows
    lines, form = table.lines
    coding = _Coding(can_be_coded(schema))
    return LineRows(df=rows.df, schema=schema, row_id=None, lines=lines, form=form, coding=coding)
