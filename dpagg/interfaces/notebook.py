"""Releases, fits and plans of tables that a program holds: on Spark where the table is, without it where it isn't."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.accounting import NoisyLabelAggregation
from dpagg.config import (
    BoundedLeastSquaresConfig,
    FitConfig,
    HeldAggregateConfig,
    HeldFitConfig,
    LeastSquaresConfig,
    SampledConfig,
    validated,
)
from dpagg.errors import ConfigError
from dpagg.interfaces.results import Fit, PlanOfRelease, Release
from dpagg.interfaces.tables import is_pandas, is_spark, memory_table
from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.streams import Secret

if TYPE_CHECKING:
    from pydantic import BaseModel

    from dpagg.runs.rows import Rows, Source

__all__ = ["aggregate", "fit", "plan"]


@dataclass(frozen=True)
class _Held:
    """A table in memory as a source: nothing can change it, and no function of its rows names it."""

    version: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, insecure_seed: int | None) -> _Held:
        # Each draw is a request of its own. A seeded one has to come out the same each time.
        return cls({"format": "in memory"} | ({} if insecure_seed is not None else {"request": secrets.token_hex(16)}))

    @property
    def num_malformed(self) -> int:
        """None: nothing was text."""
        return 0

    def recheck(self) -> None:
        """Do nothing."""


def aggregate(
    df: Any,
    *,
    schema: Mapping[str, Any] | BaseModel,
    privacy: Mapping[str, Any] | BaseModel,
    mechanism: str | Mapping[str, Any] | BaseModel = "wtd-flag",
    row_id: str | None = None,
    output: str | Path | Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | BaseModel | None = None,
    performance: Mapping[str, Any] | BaseModel | None = None,
    insecure_seed: int | None = None,
) -> Release:
    """Draw one private release of a table.

    Guarantee: (epsilon, delta) of `privacy` for one label within its declared bounds, or all labels of a unit
    (adjacency ``change_one_label``); features are not protected. Each call is a release of its own, and all of them
    count: fresh weights from the operating system's generator are drawn every time.

    Parameters
    ----------
    df : pandas.DataFrame, pyarrow.Table, Spark DataFrame, or anything that exports an Arrow stream
        The rows. Only Spark DataFrames use Spark.
    schema : mapping or SchemaConfig
        Section ``schema`` of a configuration: features, label, declared bounds.
    privacy : mapping or PrivacyConfig
        Section ``privacy``: epsilon, delta, floor, unit, leverage cap.
    mechanism : str, mapping or model
        Section ``mechanism``, or just its name: ``wtd-flag``, ``sampled-wtd-flag``, ``sampled-noisy-wtd-lag``.
    row_id : str, optional
        Column that identifies a row; disjoint bags, units and the ``rows`` engine need one.
    output : str, path or mapping, optional
        Where the release is written: a Delta table of a Spark DataFrame, which needs it, else a folder with a Parquet
        file. The certificate lies in it.
    ledger : mapping or model, optional
        Section ``ledger``. Of a table in memory its path is a file on this machine, which is made at first use;
        ``dpagg ledger`` reads it like a Delta table.
    performance : mapping or PerformanceConfig, optional
        Section ``performance``.
    insecure_seed : int, optional
        Makes the release reproducible and NOT PRIVATE; for tests.

    Returns
    -------
    Release
        Table, of the kind that was given, and certificate.

    Raises
    ------
    ConfigError, PrivacyError, DataError, EnvironmentFault
        As `dpagg.run_aggregate`; nothing is drawn then. Of a Spark Connect DataFrame `EnvironmentFault`.
    """
    on_spark = is_spark(df)
    if on_spark and output is None:
        raise ConfigError(
            "a release of a Spark DataFrame is written, since Spark would draw it again whenever it is asked",
            path="output",
            remedy="Give output='PATH' of a new Delta table.",
        )
    config = _aggregate_config(schema, privacy, mechanism, row_id, output, ledger=ledger, performance=performance)
    if on_spark:
        return _aggregate_on_spark(df, config, insecure_seed)
    return _aggregate_in_memory(df, config, insecure_seed, None if output is None else config.output.path)


def plan(
    df: Any,
    *,
    schema: Mapping[str, Any] | BaseModel,
    privacy: Mapping[str, Any] | BaseModel,
    mechanism: str | Mapping[str, Any] | BaseModel = "wtd-flag",
    row_id: str | None = None,
    plan: Mapping[str, Any] | BaseModel | None = None,
) -> PlanOfRelease:
    """Say what (epsilon, delta) buys on a table, without reading a label.

    Parameters
    ----------
    df, schema, privacy, mechanism, row_id
        As `aggregate`. A table in memory may lack the label.
    plan : mapping or PlanConfig, optional
        Section ``plan``: what may be supposed, such as ``{"residual_std": 20}``.

    Returns
    -------
    PlanOfRelease
        Its `facts` are what ``dpagg plan --json`` prints.

    Raises
    ------
    ConfigError, PrivacyError, DataError, EnvironmentFault
        As `aggregate`.
    """
    from dpagg.runs.plan import describe_plan, plan_release
    from dpagg.runs.sampled import describe_sampled_plan, plan_bags

    config = _aggregate_config(schema, privacy, mechanism, row_id, plan=plan)
    unit = None if config.privacy.unit is None else config.privacy.unit.column
    source: Source
    rows: Rows
    if is_spark(df):
        from dpagg.spark.frames import frame_table
        from dpagg.spark.rows import SparkRows

        source = frame_table(df)
        rows = SparkRows.of(df, config.encoding, row_id, unit)
    else:
        from dpagg.local.rows import LocalRows

        source = _Held()
        rows = LocalRows.of(df, config.encoding, row_id, unit, with_label=False)
    if isinstance(config.mechanism, SampledConfig):
        return PlanOfRelease(describe_sampled_plan(plan_bags(config, source, rows), config))
    return PlanOfRelease(describe_plan(plan_release(config, source, rows), config))


def fit(
    source: Any,
    *,
    schema: Mapping[str, Any] | BaseModel | None = None,
    privacy: Mapping[str, Any] | BaseModel | None = None,
    mechanism: str | Mapping[str, Any] | BaseModel | None = None,
    method: str | Mapping[str, Any] | BaseModel | None = None,
    output: str | Path | Mapping[str, Any] | None = None,
    ledger: Mapping[str, Any] | BaseModel | None = None,
    performance: Mapping[str, Any] | BaseModel | None = None,
    insecure_seed: int | None = None,
) -> Fit:
    """Fit a linear model: on a release, or privately on the rows of a table.

    Guarantee: a fit of a release is post-processing and spends nothing beyond its certificate. A fit of a table meets
    (epsilon, delta) of `privacy` for its adjacency: ``zero_out_one_row`` protects everything in a row,
    ``change_one_label`` one label.

    Parameters
    ----------
    source : Release, or a table as in `aggregate`
        What is fitted.
    schema, privacy : mapping or model
        Sections of a fit of a table; a release has them already.
    mechanism : str, mapping or model, optional
        Solver of a fit of a table: ``ihm`` by default.
    method : str, mapping or model, optional
        Method of a fit of a release: ``least-squares`` by default.
    output : str, path or mapping, optional
        Model file to write; nothing may be there.
    ledger : mapping or model, optional
        Section ``ledger`` of a fit of a table, as in `aggregate`; a fit of a release costs nothing.
    performance : mapping or model, optional
        Section ``performance`` of a fit of a table.
    insecure_seed : int, optional
        Makes a fit of a table reproducible and NOT PRIVATE; for tests.

    Returns
    -------
    Fit
        Model, coefficients in the user's units, certificate.

    Raises
    ------
    ConfigError, PrivacyError, DataError, EnvironmentFault
        As `dpagg.run_fit`.
    """
    if isinstance(source, Release):
        given = {"schema": schema, "privacy": privacy, "mechanism": mechanism, "performance": performance}
        _refuse_given({"ledger": ledger}, "a fit of a release costs nothing: it was paid for when it was made")
        _refuse_given(given | {"insecure_seed": insecure_seed}, "a fit of a release draws nothing and has its schema")
        config = validated(
            {"release": {"path": source.path or "held"}, "output": _output(output)}
            | ({} if method is None else {"method": _named(method)}),
            FitConfig,
        )
        return _fit_release(source, config.method, None if output is None else config.output.path)
    is_spark(source)  # refuses Spark Connect before anything else
    _refuse_given({"method": method}, "a table is fitted by a mechanism; a method is for a release")
    content = {"schema": schema, "privacy": privacy, "mechanism": mechanism, "performance": performance}
    content["ledger"] = ledger
    content = {name: section for name, section in content.items() if section is not None}
    if mechanism is not None:
        content["mechanism"] = _named(mechanism)
    held = validated(content | {"output": _output(output)}, HeldFitConfig)
    return _fit_table(source, held, insecure_seed, None if output is None else held.output.path)


def _aggregate_config(
    schema: Any, privacy: Any, mechanism: Any, row_id: str | None, output: Any = None, **sections: Any
) -> HeldAggregateConfig:
    given = {name: section for name, section in sections.items() if section is not None}
    content = {"input": {"row_id": row_id}, "schema": schema, "mechanism": _named(mechanism), "privacy": privacy}
    return validated(content | given | {"output": _output(output)}, HeldAggregateConfig)


def _aggregate_on_spark(df: Any, config: HeldAggregateConfig, insecure_seed: int | None) -> Release:
    from dpagg.runs.aggregate import aggregate_table
    from dpagg.spark.frames import frame_table

    table = frame_table(df, is_seeded=insecure_seed is not None, needs_delta=True)
    found = aggregate_table(df.sparkSession, config, table, insecure_seed=insecure_seed)
    return Release(df.sparkSession.read.format("delta").load(found.path), found.certificate, found.path)


def _aggregate_in_memory(df: Any, config: HeldAggregateConfig, insecure_seed: int | None, path: str | None) -> Release:
    from dpagg.interfaces.saving import check_free, save_release
    from dpagg.local.rows import LocalRows, drawn_table
    from dpagg.runs.aggregate import draw_release
    from dpagg.runs.charging import Account
    from dpagg.runs.plan import plan_release
    from dpagg.runs.release_facts import request_id
    from dpagg.runs.sampled import as_charged, draw_sampled, plan_bags, sampled_certificate

    if path is not None:
        check_free(path)
    secret = Secret.fresh() if insecure_seed is None else Secret.insecure(insecure_seed)
    source = _Held.of(insecure_seed)
    release_id = request_id(config, source, insecure_seed)
    account = Account.in_memory(config)
    account.name(release_id)
    unit = None if config.privacy.unit is None else config.privacy.unit.column
    rows = LocalRows.of(memory_table(df), config.encoding, config.input.row_id, unit)
    if isinstance(config.mechanism, SampledConfig):
        bags = plan_bags(config, source, rows, secret=secret, release_id=release_id)
        account.charge(bags.event, secret)
        if not isinstance(bags.event, NoisyLabelAggregation):
            labelled = plan_bags(config, source, rows, secret=secret, release_id=release_id, with_labels=True)
            bags = as_charged(labelled, bags)
        table, _ = draw_sampled(bags)
        certificate = sampled_certificate(bags, config)
    else:
        planned = plan_release(config, source, rows)
        account.charge(planned.calibrated.event, secret)
        drawn = draw_release(planned, config, secret, release_id)
        table, certificate = drawn_table(drawn.finish, drawn.sums), drawn.certificate
    certificate |= account.publishing()
    if path is not None:
        save_release(table, certificate, path)
    account.settle()
    return Release(table.to_pandas() if is_pandas(df) else table, certificate, path)


def _fit_release(release: Release, method: LeastSquaresConfig | BoundedLeastSquaresConfig, path: str | None) -> Fit:
    from dpagg.runs.fit import RELEASES, model_of_release, read_factor
    from dpagg.runs.release_schema import release_schema

    certificate = release.certificate
    schema = release_schema(certificate, RELEASES)
    if is_spark(release.table):
        factor, num_bags, row_variance = read_factor(release.table.sparkSession, str(release.path), certificate)
    else:
        from dpagg.local.rows import noisy_bag_factor, released_factor
        from dpagg.runs.bag_fit import read_noisy_bags

        table, row_variance = release.to_arrow(), None
        if "weights" in table.column_names:
            factor, num_bags, row_variance = read_noisy_bags(partial(noisy_bag_factor, table), certificate)
        else:
            factor, num_bags = released_factor(table)
    model = model_of_release(method, certificate, schema, factor, num_bags, row_variance)
    found = Fit(model, certificate, is_private_fit=False)
    if path is not None:
        found.save(path)
    return found


def _fit_table(source: Any, config: HeldFitConfig, insecure_seed: int | None, path: str | None) -> Fit:
    from dpagg.interfaces.saving import check_free
    from dpagg.runs.charging import Account
    from dpagg.runs.private_fit import fit_data, fit_input
    from dpagg.runs.release_facts import request_id

    if path is not None:
        check_free(path)
    secret = Secret.fresh() if insecure_seed is None else Secret.insecure(insecure_seed)
    if is_spark(source):
        from dpagg.spark.frames import frame_table

        table = frame_table(source, is_seeded=insecure_seed is not None, is_read_once=True)
        account = Account.opened(source.sparkSession, config)
        account.name(request_id(config, table, insecure_seed))
        drawn = fit_input(config, table, secret, account.release_id, account)
    else:
        from dpagg.local.rows import LocalRows

        held = _Held.of(insecure_seed)
        rule = BoundedRows(config.encoding, config.mechanism.row_bound)
        data = LocalRows.of(memory_table(source), config.encoding).bounded(rule, config.privacy.num_rows)
        account = Account.in_memory(config)
        account.name(request_id(config, held, insecure_seed))
        drawn = fit_data(config, rule, data, held, secret, account.release_id, account=account)
    found = Fit(drawn.model, drawn.certificate | account.publishing(), is_private_fit=True)
    if path is not None:
        found.save(path)
    account.settle()
    return found


def _named(section: Any) -> Any:
    return {"name": section} if isinstance(section, str) else section


def _output(output: Any) -> Any:
    if output is None:
        return {"path": "held by the program"}
    return {"path": str(output)} if isinstance(output, str | Path) else output


def _refuse_given(sections: Mapping[str, Any], why: str) -> None:
    for name, section in sections.items():
        if section is not None:
            raise ConfigError(why, path=name, remedy="Leave it out.")
