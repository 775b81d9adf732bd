"""What a release would be, decided from features and public numbers alone: no label is read here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpagg.accounting.paper_bounds import sheffet_num_bags, weighted_flag_num_bags
from dpagg.config import AggregateConfig, AssumedFloorConfig
from dpagg.errors import DataError
from dpagg.kernels.leverage import Subspace, subspace
from dpagg.kernels.row_keys import refuse_malformed
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.regression.planning import relative_excess_loss
from dpagg.runs.calibrated import Calibrated, calibrated
from dpagg.runs.rows import Rows, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.spark.reading import InputTable


@dataclass(frozen=True)
class Plan:
    """A release that is ready to be drawn: rows chosen, noise calibrated, labels unread.

    Attributes
    ----------
    table : Source
        The input at its pinned version.
    rows : Rows
        Features, label and row key, types settled.
    rule : RowRule
        Which rows take part, and in which subspace.
    summary : RowSummary
        Counts and the largest leverage.
    num_over_limit : int
        Rows left out because their unit has more than may take part.
    calibrated : Calibrated
        Bags, noise and what will be accounted.
    leverage_cap : float
        Rows above it are left out.
    smallest_singular_value : float
        Of the features, for Sheffet's bound.
    """

    table: Source
    rows: Rows
    rule: RowRule
    summary: RowSummary
    num_over_limit: int
    calibrated: Calibrated
    leverage_cap: float
    smallest_singular_value: float

    @property
    def rows_left_out(self) -> dict[str, int]:
        """How many rows take no part, by reason: functions of features, keys and units alone."""
        malformed = self.table.num_malformed + self.summary.num_malformed
        return {
            "missing_feature": self.summary.num_missing,
            "over_leverage_cap": self.summary.num_over_cap,
            "over_unit_limit": self.num_over_limit,
            **({"malformed_line": malformed} if malformed else {}),
        }

    @property
    def released(self) -> Subspace:
        """Where the rows are summed."""
        if self.rule.released is None:
            raise ValueError("a plan settles what is released")
        return self.rule.released

    @property
    def rank(self) -> int:
        """Dimension of the released features, r."""
        return self.released.rank


def make_plan(spark: SparkSession, config: AggregateConfig, table: InputTable | None = None) -> Plan:
    """Choose rows and noise for a release.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    config : AggregateConfig
        Of the run.
    table : InputTable, optional
        The input, if it is open already.

    Returns
    -------
    Plan

    Raises
    ------
    DataError
        If the table can't be used: see `dpagg.spark.reading`; or if no more rows than columns are left.
    PrivacyError
        If delta is too large for the number of rows, or the number of bags too large for an assumed floor.
    """
    from dpagg.spark.joining import read_input
    from dpagg.spark.line_rows import rows_of

    table = table if table is not None else read_input(spark, config.input, config.encoding.label.name, config.columns)
    table.refuse_partitions_by(config.encoding.label.name)
    unit = config.privacy.unit
    rows = rows_of(table, config.encoding, config.input.row_id, None if unit is None else unit.column)
    return plan_release(config, table, rows)


def plan_release(config: AggregateConfig, table: Source, rows: Rows) -> Plan:
    """Choose rows and noise for a release of any table; raises as `make_plan`."""
    schema, unit, row_id = config.encoding, config.privacy.unit, config.input.row_id
    if row_id is not None:
        rows.check_key()
    num_over_limit = 0
    if unit is not None and row_id is not None:
        rows, num_over_limit = rows.limited(unit.max_rows)

    everything = rows.feature_pass(RowRule(schema))
    refuse_malformed(everything.summary.num_malformed, config.input.malformed)
    num_rows = everything.summary.num_rows
    _require_rows(num_rows, len(schema.columns), everything.summary.num_missing)
    selection = subspace(everything.factor.canonical())
    factor = config.privacy.leverage_cap_factor
    cap = math.inf if factor is None else min(factor * selection.rank / num_rows, 1.0)
    kept = rows.feature_pass(RowRule(schema, selection=selection, cap=cap))
    if kept.summary.num_over_cap:
        _require_rows(kept.summary.num_rows, len(schema.columns), kept.summary.num_missing)
        released = subspace(kept.factor.canonical())
        rule = RowRule(schema, selection=selection, cap=cap, released=released)
        summary = rows.summary_pass(rule)
    else:
        rule = RowRule(schema, released=selection)
        summary = kept.summary
    largest_unit = rows.unit_pass(rule) if unit is not None else 0.0
    return Plan(
        table=table,
        rows=rows,
        rule=rule,
        summary=summary,
        num_over_limit=num_over_limit,
        calibrated=calibrated(config, rule, summary, largest_unit),
        leverage_cap=cap,
        smallest_singular_value=float(np.linalg.svd(kept.factor.canonical(), compute_uv=False).min(initial=np.inf)),
    )


def describe_plan(plan: Plan, config: AggregateConfig) -> dict[str, Any]:
    """Return what (epsilon, delta) buys, as plain JSON values.

    Expected losses need a residual deviation that the user declares (``plan.residual_std`` or an assumed floor).
    The papers' numbers of bags hide their constants in O(), taken as 1 here: they show a shape only.
    """
    privacy, n = config.privacy, plan.summary.num_rows
    described: dict[str, Any] = {
        "mechanism": config.mechanism.name,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "num_rows": n,
        "num_columns": len(plan.rule.schema.columns),
        "rank": plan.rank,
        "rows_left_out": plan.rows_left_out,
        "leverage": {
            "largest": plan.summary.largest_leverage,
            "mean": plan.rank / n,
            "cap": _finite(plan.leverage_cap),
        },
        "label_range": plan.rule.schema.label.range,
        "num_bags": plan.calibrated.num_bags,
        "label_noise_std": math.sqrt(plan.calibrated.noise_variance),
        "label_noise_level": "known" if plan.calibrated.hidden is None else "hidden",
        "delta_at_epsilon": plan.calibrated.event.delta(privacy.epsilon),
    }
    variance = None if config.plan.residual_std is None else config.plan.residual_std**2
    if variance is None and isinstance(privacy.floor, AssumedFloorConfig):
        variance = privacy.floor.mean_squared_residual
    if variance is not None:
        noise = plan.calibrated.noise_variance / (n * variance)
        relative = relative_excess_loss(plan.rank, plan.calibrated.num_bags, noise)
        magnitude = plan.rule.label_magnitude
        # The least singular value of [X y] can't be known without labels; both terms bound it from above.
        singular = min(plan.smallest_singular_value, math.sqrt(n * variance))
        described["for_residual_std"] = {
            "residual_std": math.sqrt(variance),
            "expected_relative_excess_loss": relative,
            "expected_excess_mse": None if relative is None else relative * variance,
            "paper_num_bags_shape_only": weighted_flag_num_bags(
                mean_squared_residual=variance, num_rows=n, label_bound=magnitude, delta=privacy.delta
            ),
            "sheffet_num_bags_at_most_shape_only": sheffet_num_bags(
                least_singular_value=singular, label_bound=magnitude, epsilon=privacy.epsilon, delta=privacy.delta
            ),
        }
    return described


def _require_rows(num_rows: int, num_columns: int, num_missing: int) -> None:
    if num_rows > num_columns:
        return
    left_out = f" after {num_missing:,} with a missing feature were left out" if num_missing else ""
    raise DataError(
        f"{num_rows:,} rows{left_out} for {num_columns:,} encoded columns: least squares fits such labels exactly, and "
        "weighted sums of them would need unbounded noise",
        remedy="Give more rows than columns, merge categories, or set missing: indicator instead of drop.",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
