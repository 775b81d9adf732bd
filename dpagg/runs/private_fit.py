"""One private linear model from the rows of a table, from table to model file with its certificate inside."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

import dpagg
from dpagg.accounting import Event
from dpagg.accounting.certificate import certificate
from dpagg.config import (
    AdaSSPConfig,
    DpGdConfig,
    IhmConfig,
    IhmPaperConfig,
    LabelGaussianConfig,
    LinearMixingConfig,
    PrivateFitConfig,
)
from dpagg.errors import ConfigError, PrivacyError
from dpagg.kernels.bounded_rows import BoundedRows
from dpagg.kernels.streams import Secret
from dpagg.regression.adassp import plan_adassp
from dpagg.regression.data import Data
from dpagg.regression.dp_gd import plan_gradient_descent
from dpagg.regression.estimate import EstimateStatus, PrivateEstimate, held_in_ball
from dpagg.regression.hessian_mixing import plan_hessian_mixing
from dpagg.regression.label_gaussian import plan_label_gaussian
from dpagg.regression.linear_mixing import plan_linear_mixing
from dpagg.regression.model import LinearModel
from dpagg.regression.planning import Target
from dpagg.regression.whitened_mixing import WhitenedMixingPlan, plan_whitened_mixing
from dpagg.runs.charging import Account, ledger_terms
from dpagg.runs.fit_terms import fit_public, fit_terms, fit_unit
from dpagg.runs.model_file import FitResult, earlier_model, local_path, model_certificate, write_model
from dpagg.runs.monitoring import Monitor
from dpagg.runs.release_facts import input_terms, refuse_open_window
from dpagg.runs.reports import report_beside
from dpagg.runs.rows import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.spark.reading import InputTable

__all__ = ["PrivateFit", "fit_data", "fit_input", "plan_solver", "run_private_fit"]

_LOG = logging.getLogger(__name__)

Array = NDArray[np.float64]

_IN_MODEL = ("release_id", "draw_id", "mechanism", "adjacency", "private", "epsilon", "delta", "num_rows")
_IN_MODEL_TOO = ("input_version", "config_digest", "code_version")


class SolverPlan(Protocol):
    """A calibrated run of any solver."""

    @property
    def event(self) -> Event:
        """What will be released."""

    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate:
        """Draw the releases and return the fit."""


def run_private_fit(
    spark: SparkSession,
    config: PrivateFitConfig,
    *,
    insecure_seed: int | None = None,
    allow_open_window: bool = False,
    monitor: Monitor | None = None,
) -> FitResult:
    """Fit a linear model on the rows of a table and write it to ``output.path``, or recognise that it is there already.

    Guarantee: (epsilon, delta) of the configuration for its adjacency; sensitivities as in
    `dpagg.kernels.bounded_rows` and `dpagg.kernels.clipping`. No value of a row (under ``change_one_label``: no label)
    decides an error, a message or a count.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    config : PrivateFitConfig
        Of the run.
    insecure_seed : int, optional
        Makes the fit reproducible and not private; for tests and papers.
    allow_open_window : bool
        Whether labels may still arrive; a fit of the partition again is charged again.
    monitor : Monitor, optional
        Is told how far the run has come.

    Returns
    -------
    FitResult

    Raises
    ------
    ConfigError
        If something else is at the output path.
    DataError
        If the table or a column is missing, of a wrong type, or changed while it was read.
    PrivacyError
        If delta is too large for the number of rows, the solver cannot meet the guarantee, or the ledger's budget does
        not allow the fit (no label is read then).
    EnvironmentFault
        If Spark fails or the model cannot be written.
    """
    from dpagg.spark.joining import read_input

    target = local_path(config.output.path)
    refuse_open_window(config, allow_open_window)
    account = Account.opened(spark, config, monitor)
    # Where all values of a row are protected, none may decide an error: a malformed line is a row without values.
    masked = config.privacy.adjacency == "zero_out_one_row"
    table = read_input(spark, config.input, config.encoding.label.name, config.columns, masked=masked)
    release_id = _release_id(config, table, str(target.absolute()), insecure_seed)
    account.name(release_id)
    earlier = earlier_model(target)
    if earlier is not None:
        if earlier.release.get("release_id") != release_id:
            raise ConfigError(
                f"{target} holds another model",
                path="output.path",
                remedy="Choose a new path: a model is never overwritten.",
            )
        _LOG.info("the model is there already; nothing was drawn")
        account.found(model_certificate(target))
        report_beside(target)
        return FitResult(str(target), earlier, is_new=False)

    secret = Secret.fresh() if insecure_seed is None else Secret.insecure(insecure_seed)
    found = fit_input(config, table, secret, release_id, account)
    promise = found.certificate | account.publishing()
    write_model(target, found.model.to_dict() | {"certificate": promise})
    report_beside(target, burn_down=account.burn_down())
    account.settle()
    return FitResult(str(target), found.model, is_new=True)


@dataclass(frozen=True, eq=False)
class PrivateFit:
    """A model that was fitted privately, and its certificate."""

    model: LinearModel
    certificate: dict[str, Any]


def fit_input(
    config: PrivateFitConfig, table: InputTable, secret: Secret, release_id: str, account: Account | None = None
) -> PrivateFit:
    """Fit a linear model on the rows of a Spark table; guarantee and errors as `run_private_fit`."""
    from dpagg.spark.reading import normalise
    from dpagg.spark.regression_data import packed_rows, unlabelled

    schema, declared_rows = config.encoding, config.privacy.num_rows
    table.refuse_partitions_by(schema.label.name)
    if declared_rows is not None:
        _check_delta(config, declared_rows)
    if config.privacy.adjacency == "zero_out_one_row":
        for feature in schema.features:
            table.refuse_partitions_by(feature.name, "feature")
    table = table.settled(masked=config.privacy.adjacency == "zero_out_one_row")
    rows = normalise(table.df, schema)
    rule, block = BoundedRows(schema, config.mechanism.row_bound), config.performance.rows_per_block
    charged = None
    if account is not None and account.ledger is not None and config.privacy.adjacency == "change_one_label":
        # What a label fit costs depends on features: a pass of its own, since the charge comes before any label.
        bare = unlabelled(normalise(table.df, schema, with_label=False), schema)
        with packed_rows(bare, rule, rows_a_block=block) as data:
            _check_delta(config, data.num_rows)
            charged = plan_solver(config, rule, data.num_rows, data)
        account.charge(charged.event, secret)
    with packed_rows(rows, rule, num_rows=declared_rows, rows_a_block=block) as data:
        return fit_data(config, rule, data, table, secret, release_id, account=account, charged=charged)


def fit_data(
    config: PrivateFitConfig,
    rule: BoundedRows,
    data: Data,
    table: Source,
    secret: Secret,
    release_id: str,
    *,
    account: Account | None = None,
    charged: SolverPlan | None = None,
) -> PrivateFit:
    """Fit a linear model on encoded rows, wherever they are; guarantee and errors as `run_private_fit`.

    Parameters
    ----------
    config : PrivateFitConfig
        Of the run.
    rule : BoundedRows
        How the rows were encoded.
    data : Data
        The rows.
    table : Source
        What they come from; compared with what it was before anything is returned.
    secret : Secret
        Of this fit alone.
    release_id : str
        Names the streams of the fit.
    account : Account, optional
        Is charged before the first draw, unless it was.
    charged : SolverPlan, optional
        What it was charged for.
    """
    num_rows = data.num_rows  # where it was declared no row has been read so far
    if charged is None:
        _check_delta(config, num_rows)
        plan = plan_solver(config, rule, num_rows, data)
        if account is not None:
            account.charge(plan.event, secret)
    else:
        plan = charged
    estimate = _run(plan, config, rule, data, secret, release_id)
    table.recheck()
    promise = _certificate(config, rule, plan.event, num_rows, table, secret, release_id)
    return PrivateFit(_model(config, rule, estimate, num_rows, promise), promise)


def plan_solver(config: PrivateFitConfig, rule: BoundedRows, num_rows: int, data: Data) -> SolverPlan:
    """Calibrate the configured solver for rows and labels of size at most 1.

    Only under ``change_one_label`` are the data looked at, and only their features.
    """
    mechanism, privacy = config.mechanism, config.privacy
    target = Target(
        num_rows=num_rows,
        num_columns=rule.schema.num_columns,
        label_bound=1.0,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
    )
    if isinstance(mechanism, LabelGaussianConfig):
        return plan_label_gaussian(target, data)
    if isinstance(mechanism, IhmConfig):
        return plan_whitened_mixing(
            target,
            adjacency=privacy.adjacency,
            num_iterations=mechanism.num_iterations,
            sketch_size=mechanism.sketch_size,
        )
    if isinstance(mechanism, LinearMixingConfig):
        return plan_linear_mixing(target, accounting=mechanism.accounting, sketch_size=mechanism.sketch_size)
    if isinstance(mechanism, AdaSSPConfig):
        return plan_adassp(target, accounting=mechanism.accounting)
    clip = None if mechanism.residual_clip is None else mechanism.residual_clip / rule.label_scale
    if isinstance(mechanism, DpGdConfig):
        return plan_gradient_descent(target, num_iterations=mechanism.num_iterations, residual_clip=clip)
    if isinstance(mechanism, IhmPaperConfig):
        return plan_hessian_mixing(
            target,
            accounting=mechanism.accounting,
            num_iterations=mechanism.num_iterations,
            sketch_size=mechanism.sketch_size,
            residual_clip=clip,
            ridge_term=mechanism.ridge_term,
        )
    raise TypeError(f"no solver for {type(mechanism).__name__}")


def _run(
    plan: SolverPlan, config: PrivateFitConfig, rule: BoundedRows, data: Data, secret: Secret, release_id: str
) -> PrivateEstimate:
    declared = config.mechanism.norm_bound
    bound = None if declared is None else declared / rule.coefficient_scale
    if isinstance(plan, WhitenedMixingPlan):
        return plan.run(data, secret, release_id, norm_bound=bound)
    found = plan.run(data, secret, release_id)
    norm = float(np.linalg.norm(found.coefficients))
    if bound is None or norm <= bound:
        return found
    return dataclasses.replace(
        found,
        coefficients=held_in_ball(found.coefficients, np.eye(len(found.coefficients)), bound),
        status=EstimateStatus.BOUND_ACTIVE,
        message=f"The coefficients were held at the norm bound {declared:g}; their norm without it is "
        f"{norm * rule.coefficient_scale:.4g}. The errors are those without the bound.",
    )


def _check_delta(config: PrivateFitConfig, num_rows: int) -> None:
    delta = config.privacy.delta
    if delta >= 1.0 / num_rows:
        raise PrivacyError(
            f"{delta:g} is given for {num_rows:,} rows, expected less than 1/n = {1.0 / num_rows:.3g}",
            path="privacy.delta",
            remedy="A delta of 1/n allows a mechanism that publishes one row; take 1/n^1.5 or less.",
        )


def _release_id(config: PrivateFitConfig, table: InputTable, output: str, insecure_seed: int | None) -> str:
    # However paths are spelled, it is the same input and the same output.
    asked = config.asked() | {"output": {"path": output}}
    identity = json.dumps(["fit", asked, table.version, insecure_seed], sort_keys=True)
    return hashlib.sha256(identity.encode()).hexdigest()


def _certificate(
    config: PrivateFitConfig,
    rule: BoundedRows,
    event: Event,
    num_rows: int,
    table: Source,
    secret: Secret,
    release_id: str,
) -> dict[str, Any]:
    declared, label, privacy = config.public_dict(), rule.schema.label, config.privacy
    failure = float(getattr(event, "failure_probability", 0.0))
    return certificate(
        event,
        unit=fit_unit(config),
        mechanism=config.mechanism.name,
        adjacency=privacy.adjacency,
        released="model",
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        is_private=secret.is_private,
        assumptions=[*fit_terms(config, failure), *input_terms(config), *ledger_terms(config)],
        public=fit_public(config),
        facts={
            # Whoever removes a model and runs again has two draws of one request.
            "release_id": release_id,
            "draw_id": secrets.token_hex(16),
            "num_rows": num_rows,
            "solver": declared["mechanism"],
            "row_bound": 1.0 / rule.row_scale,
            "label_center": rule.label_center,
            "label_scale": rule.label_scale,
            "columns": [dataclasses.asdict(column) for column in rule.schema.columns],
            "label": {"name": label.name, "lower": label.lower, "upper": label.upper},
            "schema": declared["schema"],
            "failure_probability": failure,
            "randomness": "operating system" if secret.is_private else "public seed: not private",
            "input_version": table.version,
            "config_digest": config.digest(),
            "code_version": dpagg.__version__,
        },
    )


def _model(
    config: PrivateFitConfig, rule: BoundedRows, estimate: PrivateEstimate, num_rows: int, promise: dict[str, Any]
) -> LinearModel:
    scale = rule.coefficient_scale
    population = scale * estimate.population_standard_errors
    if rule.row_bound is not None and rule.row_bound < rule.largest_norm:
        # Rows that were scaled down have residuals of another variance, and how many there are isn't known.
        population = np.full_like(population, np.nan)
    return LinearModel(
        schema=rule.schema,
        coefficients=rule.coefficients(estimate.coefficients),
        standard_errors=scale * estimate.standard_errors,
        population_standard_errors=population,
        intercept_standard_error=_intercept_error(rule, estimate),
        fit={
            "status": estimate.status.value,
            "message": estimate.message,
            "method": config.mechanism.name,
            "norm_bound": config.mechanism.norm_bound,
            "row_bound": 1.0 / rule.row_scale,
            "num_rows": num_rows,
            "num_columns": rule.schema.num_columns,
        },
        release={name: promise[name] for name in (*_IN_MODEL, *_IN_MODEL_TOO)},
    )


def _intercept_error(rule: BoundedRows, estimate: PrivateEstimate) -> float:
    """Error of the intercept in the user's units, which takes up the centres of numeric features."""
    if estimate.noise_covariance is None:
        return math.nan
    columns = rule.schema.columns
    weights = np.array([1.0 if each.kind == "intercept" else -each.center / each.half_width for each in columns])
    return rule.coefficient_scale * math.sqrt(max(0.0, float(weights @ estimate.noise_covariance @ weights)))
