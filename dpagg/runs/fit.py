"""One linear model from a released aggregate, from Delta table to model file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import dpagg
from dpagg.config import BoundedLeastSquaresConfig, FitConfig, LeastSquaresConfig, PrivateFitConfig
from dpagg.errors import ConfigError, DataError
from dpagg.kernels.schema import Schema
from dpagg.regression.least_squares import LinearFit, fit_bounded_least_squares, fit_least_squares
from dpagg.regression.model import LinearModel
from dpagg.runs.bag_fit import of_disjoint_bags, read_noisy_bags
from dpagg.runs.model_file import FitResult, earlier_model, local_path, write_model
from dpagg.runs.monitoring import Monitor
from dpagg.runs.private_fit import run_private_fit
from dpagg.runs.release_schema import carried_facts, release_schema
from dpagg.runs.reports import report_beside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RELEASES", "FitResult", "model_of_release", "read_factor", "run_fit"]

_LOG = logging.getLogger(__name__)

_NOISY_LABELS = "sampled-noisy-wtd-lag"
_DISJOINT = ("sampled-wtd-flag", _NOISY_LABELS)
RELEASES = ("wtd-flag", *_DISJOINT)
# A task's partial results merge in the order they arrive, so a rerun differs in the last bits. Two draws
# differ by about a standard error.
_SAME_MODEL = 1e-6


def run_fit(
    config: FitConfig | PrivateFitConfig,
    spark: SparkSession,
    *,
    insecure_seed: int | None = None,
    allow_open_window: bool = False,
    monitor: Monitor | None = None,
) -> FitResult:
    """Fit a linear model and write it to ``output.path``, or recognise that it is there already.

    A release is read in one pass of constant memory, whatever its number of bags. Fitting it is
    post-processing: it spends no privacy beyond what the certificate states. A fit of a table is
    `dpagg.runs.private_fit.run_private_fit`.

    Parameters
    ----------
    config : FitConfig or PrivateFitConfig
        Release, method and output of the run; or table, schema, mechanism, guarantee and output.
    spark : SparkSession
        With Delta.
    insecure_seed : int, optional
        Makes the fit of a table reproducible and not private; for tests and papers.
    allow_open_window : bool
        Whether labels of the table may still arrive.
    monitor : Monitor, optional
        Is told how far the fit of a table has come.

    Returns
    -------
    FitResult

    Raises
    ------
    DataError
        If there is no release at ``release.path``, it has no certificate, or does not agree with it.
    ConfigError
        If the release is of a mechanism that cannot be fitted, or something else is at the output path.
    EnvironmentFault
        If Spark fails or the model cannot be written.
    """
    if isinstance(config, PrivateFitConfig):
        return run_private_fit(
            spark, config, insecure_seed=insecure_seed, allow_open_window=allow_open_window, monitor=monitor
        )
    if insecure_seed is not None:
        raise ConfigError("a fit of a release draws nothing, so a seed would do nothing", remedy="Leave it out.")
    from dpagg.spark.delta import read_certificate

    certificate = read_certificate(spark, config.release.path)
    schema = release_schema(certificate, RELEASES)
    target = local_path(config.output.path)
    earlier = earlier_model(target)
    factor, num_bags, row_variance = read_factor(spark, config.release.path, certificate)
    model = model_of_release(config.method, certificate, schema, factor, num_bags, row_variance)
    if earlier is not None:
        if not _same(earlier, model):
            raise ConfigError(
                f"{target} holds another model",
                path="output.path",
                remedy="Choose a new path: a model is never overwritten.",
            )
        _LOG.info("the model is there already; nothing was written")
        report_beside(target, certificate)
        return FitResult(str(target), earlier, is_new=False)
    write_model(target, model.to_dict())
    report_beside(target, certificate)
    return FitResult(str(target), model, is_new=True)


def model_of_release(
    method: LeastSquaresConfig | BoundedLeastSquaresConfig,
    certificate: Mapping[str, Any],
    schema: Schema,
    factor: NDArray[np.float64],
    num_bags: int,
    row_variance: float | None = None,
) -> LinearModel:
    """Return the linear model of a release: post-processing, which spends no privacy.

    Parameters
    ----------
    method : LeastSquaresConfig or BoundedLeastSquaresConfig
        How it is fitted.
    certificate : mapping
        Of the release.
    schema : Schema
        As `dpagg.runs.release_schema.release_schema` returns it.
    factor : ndarray, shape (d + 1, d + 1)
        Of features and label of all bags.
    num_bags : int
        m.
    row_variance : float, optional
        Estimated variance of a row's residual, for a release of noisy labels (`dpagg.runs.bag_fit`).

    Raises
    ------
    DataError
        If factor and number of bags are not those of the certificate.
    """
    width = schema.num_columns + 1
    if num_bags != certificate["num_bags"] or factor.shape != (width, width) or not np.isfinite(factor).all():
        raise DataError(
            f"the table does not hold what its certificate says: {certificate['num_bags']} bags of "
            f"{schema.num_columns} finite features and a label",
            path="release.path",
            remedy="Somebody changed it after the release. Restore its first Delta version.",
        )
    model = LinearModel.from_fit(
        _solve(method, factor, num_bags, schema),
        schema,
        num_rows=int(certificate["num_rows"]),
        label_noise_variance=float(certificate["label_noise_variance"]),
        details={"method": method.name, "code_version": dpagg.__version__},
        release=carried_facts(certificate),
    )
    if certificate["mechanism"] not in _DISJOINT:
        return model
    if row_variance is None:
        spread = model.fit["bag_residual_variance"]
        noise = float(certificate["label_noise_variance"])
        row_variance = np.nan if spread is None else max(0.0, spread - noise) / int(certificate["bag_size"])
    return of_disjoint_bags(model, row_variance)


def read_factor(
    spark: SparkSession, path: str, certificate: Mapping[str, Any]
) -> tuple[NDArray[np.float64], int, float | None]:
    """Return factor, number of bags and, where the fit needs it already, the residual variance of a row."""
    from dpagg.spark.delta import pinned_release
    from dpagg.spark.engines import spark_faults, table_factor
    from dpagg.spark.noisy_bags import noisy_bag_factor

    expected = {"features": "array<double>", "label": "double"}
    if certificate["mechanism"] == _NOISY_LABELS:
        expected = {"features": "array<array<double>>", "weights": "array<double>", "label": "double"}
    with spark_faults():
        table = pinned_release(spark, path)
        types = dict(table.dtypes)
    if any(types.get(name) != kind for name, kind in expected.items()):
        raise DataError(
            f"the release does not have the columns {', '.join(f'{name} ({kind})' for name, kind in expected.items())}",
            path="release.path",
            remedy="Give a table written by dpagg aggregate.",
        )
    row_variance = None
    if certificate["mechanism"] == _NOISY_LABELS:
        factor, num_bags, row_variance = read_noisy_bags(partial(noisy_bag_factor, table), certificate)
    else:
        factor, num_bags = table_factor(table, "features", "label")
    return factor, num_bags, row_variance


def _solve(
    method: LeastSquaresConfig | BoundedLeastSquaresConfig, factor: NDArray[np.float64], num_bags: int, schema: Schema
) -> LinearFit:
    names = [column.name for column in schema.columns]
    if isinstance(method, BoundedLeastSquaresConfig):
        return fit_bounded_least_squares(factor, num_bags, method.norm_bound, column_names=names)
    return fit_least_squares(factor, num_bags, column_names=names)


def _same(earlier: LinearModel, model: LinearModel) -> bool:
    """Whether both are the same fit of the same release, up to rounding."""
    if earlier.schema != model.schema or dict(earlier.release) != dict(model.release):
        return False
    exact = ("method", "norm_bound", "status", "num_bags", "num_rows", "rank")
    if any(earlier.fit.get(name) != model.fit.get(name) for name in exact):
        return False
    largest = float(np.abs(model.coefficients).max(initial=0.0))
    scale = np.fmax(np.nan_to_num(model.standard_errors), 1e-6 * largest)
    return bool((np.abs(earlier.coefficients - model.coefficients) <= _SAME_MODEL * scale).all())
