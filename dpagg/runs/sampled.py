"""A release of disjoint bags from start to end: Sampled-WTD-FLAG and Sampled-Noisy-WTD-LAg."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpagg.accounting.certificate import LABEL_DP_PUBLIC, certificate, label_dp_terms
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.paper_bounds import sampled_flag_bag_size, sampled_noisy_bag_size
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.config import AggregateConfig, AssumedFloorConfig, SampledNoisyWtdLagConfig, SampledWtdFlagConfig
from dpagg.errors import DataError, PrivacyError
from dpagg.kernels.bags import BagLayout, NoisyLabels, Ranking
from dpagg.kernels.rows import RowRule, RowSummary
from dpagg.kernels.streams import Secret
from dpagg.regression.planning import relative_excess_loss
from dpagg.runs.bag_events import flag_event, least_flag_bag, least_noisy_bag, noisy_event
from dpagg.runs.charging import Account, ledger_terms
from dpagg.runs.release_facts import input_terms, release_facts, text_terms
from dpagg.runs.reports import release_page
from dpagg.runs.rows import Bags, Rows, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.spark.reading import InputTable

_FLAG_COMMENTS = {
    "bag_id": "Number of the bag; its order means nothing",
    "features": "Weighted sum of the encoded features of the bag's rows, in the order of the certificate's columns",
    "label": "Weighted sum of their clipped labels with the same weights, plus the certificate's label noise",
}
_LAG_COMMENTS = {
    "bag_id": "Number of the bag; its order means nothing",
    "features": "Encoded features of each row of the bag, in the order of the certificate's columns",
    "weights": "Weight of each row; the labels of the first rows, as many as the certificate says, carry noise",
    "label": "Weighted sum of the clipped labels, the noisy ones among them, in the label's units",
}
# Rows a task makes bags of, as bytes: large enough for Spark, and little to lose when a task fails.
_TASK_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class SampledPlan:
    """Bags that are ready to be released: rows chosen, noise calibrated, no decision made by a label.

    Attributes
    ----------
    table : Source
        The input at its pinned version.
    rows : Rows
        Row key, features and label, types settled.
    ranking : Ranking
        What ranks the rows.
    layout : BagLayout
        Which bags there are.
    summary : RowSummary
        Rows that can be in a bag, and rows left out.
    event : SampledAggregation or NoisyLabelAggregation
        What will be accounted.
    bags_left_out : int
        Bags with a row over the leverage cap.
    largest_leverage : float or None
        Within any bag that is released; None where leverages don't matter.
    leverage_cap : float
        Bags with a row above it are left out.
    sums : Bags or None
        Held weighted sums of all bags, where labels were asked for. NOT private.
    """

    table: Source
    rows: Rows
    ranking: Ranking
    layout: BagLayout
    summary: RowSummary
    event: SampledAggregation | NoisyLabelAggregation
    bags_left_out: int = 0
    largest_leverage: float | None = None
    leverage_cap: float = math.inf
    sums: Bags | None = None

    @property
    def num_bags(self) -> int:
        """Bags that are released."""
        return self.layout.num_bags - self.bags_left_out

    @property
    def rows_left_out(self) -> dict[str, int]:
        """How many rows take no part, by reason: functions of features, keys and the secret alone."""
        return {
            "missing_feature": self.summary.num_missing,
            "over_leverage_cap": self.bags_left_out * self.layout.bag_size,
            "over_unit_limit": 0,
            "outside_bags": self.summary.num_rows - self.layout.num_bags * self.layout.bag_size,
            **({"malformed_line": self.table.num_malformed} if self.table.num_malformed else {}),
        }


def make_sampled_plan(
    spark: SparkSession,
    config: AggregateConfig,
    table: InputTable | None = None,
    *,
    secret: Secret | None = None,
    release_id: str = "plan",
    with_labels: bool = False,
) -> SampledPlan:
    """Choose bags and noise for a release.

    The bags follow from the secret, so that the largest leverage, and with it the noise, differs a little between a
    plan (with a secret that is thrown away) and a release. With labels, the sums of a Sampled-WTD-FLAG release are
    drawn in the pass that measures the leverages, and held: rows are shuffled once. What is decided from that pass are
    functions of leverages alone.

    Raises
    ------
    DataError
        If the table can't be used, or holds fewer rows than the bags need (a function of features and keys).
    ConfigError
        If no weights meet the cap.
    PrivacyError
        If delta is too large for the number of rows, or what was asked for does not meet the guarantee.
    """
    from dpagg.spark.joining import read_input
    from dpagg.spark.line_rows import rows_of

    table = table if table is not None else read_input(spark, config.input, config.encoding.label.name, config.columns)
    table.refuse_partitions_by(config.encoding.label.name)
    rows = rows_of(table, config.encoding, config.input.row_id)
    return plan_bags(config, table, rows, secret=secret, release_id=release_id, with_labels=with_labels)


def plan_bags(
    config: AggregateConfig,
    table: Source,
    rows: Rows,
    *,
    secret: Secret | None = None,
    release_id: str = "plan",
    with_labels: bool = False,
) -> SampledPlan:
    """Choose bags and noise for a release of any table; as `make_sampled_plan`."""
    mechanism, privacy, row_id = config.mechanism, config.privacy, config.input.row_id
    if not isinstance(mechanism, SampledWtdFlagConfig | SampledNoisyWtdLagConfig) or row_id is None:
        raise ValueError("this is a plan of disjoint bags")
    rows.check_key()
    ranking = Ranking(RowRule(config.encoding), row_id, Secret.fresh() if secret is None else secret, release_id)
    counted = rows.rank_pass(ranking)
    layout = _layout(config, counted.counts, counted.summary, rows.num_tasks)
    if privacy.delta >= 1.0 / counted.summary.num_rows:
        raise PrivacyError(
            f"{privacy.delta:g} is given for {counted.summary.num_rows:,} rows, expected less than 1/n",
            path="privacy.delta",
            remedy="A delta of 1/n allows a mechanism that publishes one row; take 1/n^1.5 or less.",
        )
    if isinstance(mechanism, SampledNoisyWtdLagConfig):
        return SampledPlan(table, rows, ranking, layout, counted.summary, noisy_event(config, mechanism))

    factor = privacy.leverage_cap_factor
    cap = math.inf if factor is None else min(factor * config.encoding.num_columns / mechanism.bag_size, 1.0)
    sums = (rows.weighted_bag_sums if with_labels else rows.bag_leverages)(ranking, layout)
    settled = False
    try:
        num_bags, largest = sums.leverage_summary(cap)
        if num_bags == 0:
            raise DataError(
                f"every one of {layout.num_bags:,} bags has a row with a leverage over {cap:.3g}",
                remedy="Merge rare categories, take larger bags, or raise privacy.leverage_cap_factor (none: no cap).",
            )
        event = flag_event(config, mechanism, ranking.rule, largest)
        settled = True
    finally:
        if not (settled and with_labels):
            sums.release()
    return SampledPlan(
        table=table,
        rows=rows,
        ranking=ranking,
        layout=layout,
        summary=counted.summary,
        event=event,
        bags_left_out=layout.num_bags - num_bags,
        largest_leverage=largest,
        leverage_cap=cap,
        sums=sums if with_labels else None,
    )


def run_sampled(
    spark: SparkSession,
    config: AggregateConfig,
    table: InputTable,
    secret: Secret,
    release_id: str,
    account: Account | None = None,
) -> dict[str, Any]:
    """Draw one release of bags, publish it at ``output.path``, and return its certificate.

    Raises
    ------
    ConfigError, DataError, PrivacyError
        As `make_sampled_plan`; or if the input changed while the release was drawn.
    """
    from dpagg.spark.delta import publish

    account = Account(None, config, release_id) if account is None else account
    charged = None
    if account.ledger is not None:
        # What weighted sums cost is known once bags are ranked and leverages measured: a pass of its own, since the
        # charge comes before any label is read.
        charged = make_sampled_plan(spark, config, table, secret=secret, release_id=release_id)
        account.charge(charged.event, secret)
    if charged is not None and isinstance(charged.event, NoisyLabelAggregation):
        plan = charged  # labels are read when it is written
    else:
        plan = make_sampled_plan(spark, config, table, secret=secret, release_id=release_id, with_labels=True)
    try:
        if charged is not None:
            plan = as_charged(plan, charged)
        bags, comments = draw_sampled(plan)
        promise = sampled_certificate(plan, config)
        table.recheck()  # before any file could be seen: what was charged is then not lost
        promise |= account.publishing()
        # Bags are made from the input as they are written (held sums too, where an executor lost them).
        page = release_page(promise, burn_down=account.burn_down())
        publish(bags, config.output.path, promise, comments, confirm=table.recheck, page=page)
        account.settle()
    finally:
        if plan.sums is not None:
            plan.sums.release()
    return promise


def as_charged(plan: SampledPlan, charged: SampledPlan) -> SampledPlan:
    """Return the plan with the event that was charged, from the same bags.

    Raises
    ------
    DataError
        If they are not the same.
    """
    largest, before = plan.largest_leverage or 0.0, charged.largest_leverage or 0.0
    # Leverages may differ in the last bits between passes: matrix products depend on the size of a batch.
    same = plan.summary == charged.summary and plan.bags_left_out == charged.bags_left_out
    if not same or abs(largest - before) > 1e-9 * before:
        raise DataError(
            "the input changed while it was read; nothing was published",
            remedy="Run again when nothing writes to it, or read a Delta table, whose version is pinned.",
        )
    return dataclasses.replace(plan, event=charged.event, largest_leverage=charged.largest_leverage)


def draw_sampled(plan: SampledPlan) -> tuple[Any, dict[str, str]]:
    """Return the table of the release and the comments of its columns. Spark draws it where it is written.

    Raises
    ------
    ValueError
        If the plan of weighted sums was made without labels.
    """
    if isinstance(plan.event, NoisyLabelAggregation):
        labels = NoisyLabels(plan.event.num_noised, plan.event.noise_std, plan.event.weight_cap)
        return plan.rows.noisy_label_bags(plan.ranking, plan.layout, labels), _LAG_COMMENTS
    if plan.sums is None:
        raise ValueError("the plan was made without labels")
    return plan.sums.finished(plan.leverage_cap, math.sqrt(plan.event.label_noise_variance)), _FLAG_COMMENTS


def sampled_certificate(plan: SampledPlan, config: AggregateConfig) -> dict[str, Any]:
    """Return the certificate of a release of bags."""
    privacy, secret, event = config.privacy, plan.ranking.secret, plan.event
    terms, public = label_dp_terms(), list(LABEL_DP_PUBLIC)
    public.append(
        "which rows share a bag: the guarantee holds for a label known to be in a bag, and claims nothing for the "
        "chance of being in none"
    )
    facts: dict[str, Any] = {
        "num_bags": plan.num_bags,
        "bag_size": plan.layout.bag_size,
        "bags_left_out": {"over_leverage_cap": plan.bags_left_out},
        "num_rows": plan.num_bags * plan.layout.bag_size,
        "rows_left_out": plan.rows_left_out,
        "failure_probability": 0.0,
        "engine": "bags",
        "label_noise_level": "known",
    }
    if isinstance(event, NoisyLabelAggregation):
        terms[2] = (
            "The noise on labels is known to nobody, fresh and used once. The weights are published, and were drawn "
            "without a look at a label."
        )
        public.append(f"the weights, and that the first {event.num_noised} labels of each bag carry noise")
        facts |= {
            "num_noised": event.num_noised,
            "label_noise_variance": event.label_noise_variance,
            "weight_cap": event.weight_cap,
        }
    else:
        if event.residual_floor > 0:
            terms.insert(
                0,
                f"ASSUMED by the user, not checked: within every bag the mean squared residual of the bag's own least "
                f"squares is at least {event.residual_floor / plan.layout.bag_size:g} per row, whatever the one label "
                "is. A bag of equal labels has 0.",
            )
        facts |= {
            "leverage": {
                "largest": plan.largest_leverage,
                "cap": plan.leverage_cap if math.isfinite(plan.leverage_cap) else None,
            },
            "label_noise_variance": event.label_noise_variance,
        }
    return certificate(
        event,
        unit="one label",
        mechanism=config.mechanism.name,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        is_private=secret.is_private,
        assumptions=[*terms, *text_terms(config), *input_terms(config), *ledger_terms(config)],
        public=public,
        facts=facts | release_facts(config, plan.table, secret, plan.ranking.release_id),
    )


def describe_sampled_plan(plan: SampledPlan, config: AggregateConfig) -> dict[str, Any]:
    """Return what (epsilon, delta) buys, as plain JSON values.

    The least bag size is searched at the noise of this plan, or at ``plan.label_noise_std``; for weighted sums with
    leverages that fall as 1/k from those of this plan, for noisy labels without a cap on weights. None means that no
    bag size reaches the guarantee with that noise. The papers' sizes take the constant in O() as 1: a shape only.
    """
    privacy, event, size = config.privacy, plan.event, plan.layout.bag_size
    columns, supposed = config.encoding.num_columns, config.plan
    described: dict[str, Any] = {
        "mechanism": config.mechanism.name,
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "num_rows": plan.summary.num_rows,
        "num_columns": columns,
        "rows_left_out": plan.rows_left_out,
        "bag_size": size,
        "num_bags": plan.num_bags,
        "label_range": event.label_range,
        "delta_at_epsilon": event.delta(privacy.epsilon),
    }
    if isinstance(event, NoisyLabelAggregation):
        noise_std = supposed.label_noise_std or event.noise_std
        described |= {
            "num_noised": event.num_noised,
            "label_noise_std": event.noise_std,
            "weight_cap": event.weight_cap,
            "least_bag_size": {"label_noise_std": noise_std, "bag_size": least_noisy_bag(config, event, noise_std)},
            "paper_bag_size_shape_only": sampled_noisy_bag_size(
                epsilon=privacy.epsilon,
                label_bound=plan.ranking.rule.label_magnitude,
                noised_fraction=event.noised_fraction,
            ),
        }
        noise_a_row = event.num_noised / size * event.noise_std**2
    else:
        noise_std = supposed.label_noise_std or math.sqrt(event.label_noise_variance)
        described |= {
            "bags_left_out": plan.bags_left_out,
            "leverage": {
                "largest": plan.largest_leverage,
                "mean": columns / size,
                "cap": plan.leverage_cap if math.isfinite(plan.leverage_cap) else None,
            },
            "label_noise_std": math.sqrt(event.label_noise_variance),
            "least_bag_size": {
                "label_noise_std": noise_std,
                "bag_size": least_flag_bag(
                    config,
                    plan.ranking.rule,
                    leverage_times_size=(plan.largest_leverage or 0.0) * size,
                    noise_std=noise_std,
                ),
            },
            "paper_bag_size_shape_only": sampled_flag_bag_size(epsilon=privacy.epsilon, delta=privacy.delta),
        }
        noise_a_row = event.label_noise_variance / size
    variance = None if supposed.residual_std is None else supposed.residual_std**2
    if variance is None and isinstance(privacy.floor, AssumedFloorConfig):
        variance = privacy.floor.mean_squared_residual
    if variance is not None:
        relative = relative_excess_loss(columns, plan.num_bags, noise_a_row / variance)
        described["for_residual_std"] = {
            "residual_std": math.sqrt(variance),
            "expected_relative_excess_loss": relative,
            "expected_excess_mse": None if relative is None else relative * variance,
        }
    return described


def _layout(config: AggregateConfig, counts: Any, summary: RowSummary, num_tasks: int) -> BagLayout:
    mechanism: Any = config.mechanism
    size, n = mechanism.bag_size, summary.num_rows
    num_bags = n // size if mechanism.num_bags == "auto" else mechanism.num_bags
    if num_bags < 1 or num_bags * size > n:
        raise DataError(
            f"{max(num_bags, 1):,} bags of {size:,} rows need {max(num_bags, 1) * size:,} rows; the table has {n:,}"
            + (f" after {summary.num_missing:,} with a missing feature were left out" if summary.num_missing else ""),
            path="mechanism.num_bags" if mechanism.num_bags != "auto" else "mechanism.bag_size",
            remedy="A row is in one bag at most: take fewer or smaller bags.",
        )
    by_size = -(-num_bags * size * 8 * (config.encoding.num_columns + 1) // _TASK_BYTES)
    tasks = config.performance.num_partitions or max(num_tasks, by_size)
    return BagLayout.of(counts, bag_size=size, num_bags=num_bags, num_tasks=tasks)
