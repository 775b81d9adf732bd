"""One table on Spark, and the releases of the experiments drawn from it by the runs that users call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpagg.config import AggregateConfig, LeastSquaresConfig
from dpagg.errors import DataError
from dpagg.experiments.label_dp.judge import Judge
from dpagg.experiments.label_dp.prepared import Prepared
from dpagg.experiments.label_dp.shared import SharedData, SharedRows
from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.streams import Secret
from dpagg.regression.model import LinearModel
from dpagg.runs.aggregate import draw_release
from dpagg.runs.bag_fit import read_noisy_bags
from dpagg.runs.fit import RELEASES, model_of_release
from dpagg.runs.plan import Plan, plan_release
from dpagg.runs.private_fit import fit_data
from dpagg.runs.release_schema import release_schema
from dpagg.runs.sampled import SampledPlan, draw_sampled, plan_bags, sampled_certificate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from dpagg.spark.reading import InputTable

__all__ = ["Lab"]

_LEAST_SQUARES = LeastSquaresConfig(name="least-squares")
_NOISE = {"kind": "noise"}


@dataclass(frozen=True, eq=False)
class _Opened:
    """A part of the table as a run opens it."""

    table: InputTable
    rows: SharedRows
    df: DataFrame


class Lab:
    """Releases of one table, each from a public seed: reproducible, NOT private.

    Plans, draws and fits are those of `dpagg.runs`; only passes that many releases have in common are made once
    (`dpagg.experiments.label_dp.shared`), and bags are fitted where they are drawn instead of being written first.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    prepared : Prepared
        The table.
    """

    def __init__(self, spark: SparkSession, prepared: Prepared) -> None:
        self._spark, self.prepared = spark, prepared
        self._plans: dict[str, Plan] = {}

    def _open(self, part: str) -> _Opened:
        from dpagg.spark.joining import read_input
        from dpagg.spark.line_rows import rows_of

        config = self.prepared.aggregate({"name": "wtd-flag"}, {"epsilon": 1.0}, part=part)
        table = read_input(self._spark, config.input, config.encoding.label.name, config.columns)
        rows = rows_of(table, config.encoding, config.input.row_id)
        return _Opened(table, SharedRows(rows), rows.df)

    @cached_property
    def _train(self) -> _Opened:
        return self._open("train")

    @cached_property
    def judge(self) -> Judge:
        """Of the rows to train on."""
        return Judge.of(self._train.rows, self.prepared.case.config.encoding)

    @cached_property
    def test_judge(self) -> Judge:
        """Of the rows to test on."""
        return Judge.of(self._open("test").rows, self.prepared.case.config.encoding)

    def facts(self) -> dict[str, Any]:
        """Return what the table is: sizes, leverages, and losses of models that see all labels, as JSON values."""
        plan = self.plan({"name": "wtd-flag"}, {"epsilon": 1.0})
        root = self._train.rows.labelled_pass(plan.rule).moments.root(plan.released)
        bound, n = plan.rule.label_magnitude, plan.summary.num_rows
        scaled = root.copy()
        scaled[:, -1] /= bound  # as the papers have it, labels and features are of size at most 1
        best, constant = self.judge.least_squares(), self.judge.best_constant()
        found = self.judge.evaluation(best)
        schema = plan.rule.schema
        return {
            "num_rows": self.judge.num_rows,
            "num_test_rows": self.test_judge.num_rows,
            "num_columns": schema.num_columns,
            "num_features": len(schema.features),
            "rank": plan.rank,
            "num_kept": n,
            "rows_over_cap": plan.summary.num_over_cap,
            "malformed_lines": self.prepared.num_malformed,
            "largest_leverage": plan.summary.largest_leverage,
            "label_range": schema.label.range,
            "label_magnitude": bound,
            "delta": self.prepared.case.config.privacy.delta,
            "mean_squared_residual": float(root[-1, -1] ** 2) / n,
            "least_singular_value": float(np.linalg.svd(scaled, compute_uv=False).min()),
            "least_squares": {"train_mse": found.mse, "test_mse": self.test_judge.mse(best)},
            "constant": {"train_mse": found.constant_mse, "test_mse": self.test_judge.mse(constant)},
            "r_squared": found.r_squared,
        }

    def plan(self, mechanism: dict[str, Any], privacy: dict[str, Any]) -> Plan:
        """Return the plan of a release of WTD-FLAG, settled once for all seeds."""
        config = self.prepared.aggregate(mechanism, privacy)
        if config.digest() not in self._plans:
            self._plans[config.digest()] = plan_release(config, self._train.table, self._train.rows)
        return self._plans[config.digest()]

    def wtd_flag(
        self, epsilon: float, seed: int, *, num_bags: int | str = "auto", floor: dict[str, Any] = _NOISE
    ) -> dict[str, Any]:
        """Draw a release of WTD-FLAG and return its losses."""
        from dpagg.spark.drawn_bags import DrawnBags

        mechanism, privacy = {"name": "wtd-flag", "num_bags": num_bags}, {"epsilon": epsilon, "floor": floor}
        config, plan = self.prepared.aggregate(mechanism, privacy), self.plan(mechanism, privacy)
        self._require_bags(plan.calibrated.num_bags)
        # One name for all epsilons: they share their draws, so that they differ by noise and not by luck.
        name = f"wtd-flag/{floor['kind']}/{plan.calibrated.num_bags}"
        drawn = draw_release(plan, config, Secret.insecure(seed), name)
        bags = DrawnBags(self._spark, drawn.finish, drawn.sums).frame()
        return self._fitted(bags, drawn.certificate)

    def sampled_wtd_flag(self, epsilon: float, seed: int, bag_size: int) -> dict[str, Any]:
        """Draw a release of Sampled-WTD-FLAG and return its losses; its bags stay for the next epsilon."""
        # A rare category has a leverage of nearly 1 in every bag that it is in: a cap would leave no bag.
        config = self.prepared.aggregate(
            {"name": "sampled-wtd-flag", "bag_size": bag_size}, {"epsilon": epsilon, "leverage_cap_factor": None}
        )
        plan = self._plan_bags(config, seed)
        self._require_bags(plan.num_bags)
        bags, _ = draw_sampled(plan)
        return self._fitted(bags, sampled_certificate(plan, config))

    def label_noise(self, epsilon: float, seed: int) -> dict[str, Any]:
        """Release each label with noise of its own, fit the rows by least squares, and return the losses.

        It is Sampled-Noisy-WTD-LAg with bags of one row: given its weight, a bag tells one label with normal noise.
        """
        from dpagg.spark.bagging import held_bags, released_bags
        from dpagg.spark.noisy_bags import noisy_bag_factor

        mechanism = {"name": "sampled-noisy-wtd-lag", "bag_size": 1, "noised_fraction": 1, "weight_cap": "none"}
        config = self.prepared.aggregate(mechanism, {"epsilon": epsilon})
        plan = self._plan_bags(config, seed)
        bags, _ = draw_sampled(plan)
        certificate, held = sampled_certificate(plan, config), held_bags(bags)
        try:
            found = read_noisy_bags(partial(noisy_bag_factor, held), certificate)
        finally:
            released_bags(held)
        return self._judged(self._model(certificate, *found), certificate)

    def _plan_bags(self, config: AggregateConfig, seed: int) -> SampledPlan:
        opened, secret = self._train, Secret.insecure(seed)
        return plan_bags(
            config, opened.table, opened.rows, secret=secret, release_id=config.mechanism.name, with_labels=True
        )

    def forget_bags(self) -> None:
        """Let go of the bags of Sampled-WTD-FLAG."""
        self._train.rows.forget_bags()

    @contextmanager
    def label_gaussian(self) -> Iterator[Callable[[float, int], dict[str, Any]]]:
        """Pack the rows under the leverage cap, and yield the fit by LabelGaussian at (epsilon, seed)."""
        from dpagg.spark.regression_data import packed_rows
        from dpagg.spark.splitting import rows_under_cap

        kept = rows_under_cap(self._train.df, self.plan({"name": "wtd-flag"}, {"epsilon": 1.0}).rule)
        rule = BoundedRows(self.prepared.case.config.encoding, None)
        with packed_rows(kept, rule) as packed:
            data = SharedData(packed)

            def fitted(epsilon: float, seed: int) -> dict[str, Any]:
                config = self.prepared.fit({"name": "label-gaussian"}, epsilon)
                found = fit_data(config, rule, data, self._train.table, Secret.insecure(seed), "label-gaussian")
                return self._judged(found.model, found.certificate)

            yield fitted

    def _require_bags(self, num_bags: int) -> None:
        rank = self.plan({"name": "wtd-flag"}, {"epsilon": 1.0}).rank
        if num_bags <= rank + 1:
            raise DataError(f"{num_bags:,} bags for {rank} columns: no least squares has a finite loss on them")

    def _fitted(self, bags: DataFrame, certificate: dict[str, Any]) -> dict[str, Any]:
        from dpagg.spark.engines import table_factor

        return self._judged(self._model(certificate, *table_factor(bags)), certificate)

    def _model(
        self,
        certificate: dict[str, Any],
        factor: NDArray[np.float64],
        num_bags: int,
        row_variance: float | None = None,
    ) -> LinearModel:
        schema = release_schema(certificate, RELEASES)
        return model_of_release(_LEAST_SQUARES, certificate, schema, factor, num_bags, row_variance)

    def _judged(self, model: LinearModel, certificate: dict[str, Any]) -> dict[str, Any]:
        losses = self.judge.evaluation(model.coefficients)
        variance = certificate.get("label_noise_variance")
        return {
            "excess_share": losses.excess_share,
            "train_mse": losses.mse,
            "test_mse": self.test_judge.mse(model.coefficients),
            "num_bags": certificate.get("num_bags"),
            "label_noise_std": None if variance is None else math.sqrt(variance),
            "delta_at_epsilon": certificate["delta_at_epsilon"],
            "private": certificate["private"],
        }
