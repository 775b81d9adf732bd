"""One linear model from a released aggregate, from Delta table to model file."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

import dpagg
from dpagg.config import BoundedLeastSquaresConfig, FitConfig, SchemaConfig
from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.kernels.schema import Schema
from dpagg.regression.least_squares import LinearFit, fit_bounded_least_squares, fit_least_squares
from dpagg.regression.model import LinearModel
from dpagg.runs.bag_fit import of_disjoint_bags, read_noisy_bags
from dpagg.spark.delta import read_certificate
from dpagg.spark.engines import spark_faults, table_factor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["FitResult", "run_fit"]

_LOG = logging.getLogger(__name__)

_NOISY_LABELS = "sampled-noisy-wtd-lag"
_DISJOINT = ("sampled-wtd-flag", _NOISY_LABELS)
_MECHANISMS = ("wtd-flag", *_DISJOINT)
# A task's partial results merge in the order they arrive, so a rerun differs in the last bits. Two draws
# differ by about a standard error.
_SAME_MODEL = 1e-6
_FROM_CERTIFICATE = (
    "release_id",
    "mechanism",
    "adjacency",
    "private",
    "epsilon",
    "delta",
    "label_noise_variance",
    "input_version",
    "config_digest",
    "code_version",
)


@dataclass(frozen=True)
class FitResult:
    """A fitted model and where it is.

    Attributes
    ----------
    path : str
        Of the model file.
    model : LinearModel
        The model.
    is_new : bool
        False if the file held this very model already.
    """

    path: str
    model: LinearModel
    is_new: bool

    @property
    def status_text(self) -> str:
        """What became of the fit, in words."""
        return str(self.model.fit["message"])

    def coefficients(self) -> list[dict[str, Any]]:
        """Return ``name``, ``coefficient``, ``standard_error`` (both in the user's units) and ``meaning``.

        One entry a column, the intercept first, even where none was declared: centring makes one. An
        undetermined error is NaN.
        """
        model = self.model
        columns = model.schema.columns
        rows = [
            {
                "name": "intercept",
                "coefficient": model.to_user_units()["intercept"],
                "standard_error": model.intercept_standard_error,
                "meaning": "where numeric features are 0 and categories are the reference",
            }
        ]
        for column, coefficient, error in zip(columns, model.coefficients, model.standard_errors, strict=True):
            if column.kind == "intercept":
                continue
            rows.append(
                {
                    "name": column.name,
                    "coefficient": float(coefficient) / column.half_width,
                    "standard_error": float(error) / column.half_width,
                    "meaning": f"a unit of {column.feature}" if column.kind == "numeric" else column.meaning,
                }
            )
        return rows

    def summary(self) -> dict[str, Any]:
        """Return what a person or a scheduler wants to know, as plain JSON values."""
        rows = self.coefficients()
        for row in rows:
            if not np.isfinite(row["standard_error"]):
                row["standard_error"] = None
        return {
            "path": self.path,
            "written": "now" if self.is_new else "earlier: the file holds this model already",
            "release": dict(self.model.release),
            "fit": dict(self.model.fit),
            "coefficients": rows,
        }


def run_fit(config: FitConfig, spark: SparkSession) -> FitResult:
    """Fit a linear model on a release and write it to ``output.path``, or recognise that it is there already.

    The release is read in one pass of constant memory, whatever its number of bags. Fitting is
    post-processing: it spends no privacy beyond what the certificate states.

    Parameters
    ----------
    config : FitConfig
        Release, method and output of the run.
    spark : SparkSession
        With Delta.

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
    certificate = read_certificate(spark, config.release.path)
    schema = _schema(certificate)
    target = _local(config.output.path)
    earlier = _earlier(target)
    factor, num_bags, row_variance = _read(spark, config.release.path, schema, certificate)
    model = LinearModel.from_fit(
        _solve(config, factor, num_bags, schema),
        schema,
        num_rows=int(certificate["num_rows"]),
        label_noise_variance=float(certificate["label_noise_variance"]),
        details={"method": config.method.name, "code_version": dpagg.__version__},
        release={name: certificate[name] for name in _FROM_CERTIFICATE},
    )
    if certificate["mechanism"] in _DISJOINT:
        if row_variance is None:
            spread = model.fit["bag_residual_variance"]
            noise = float(certificate["label_noise_variance"])
            row_variance = np.nan if spread is None else max(0.0, spread - noise) / int(certificate["bag_size"])
        model = of_disjoint_bags(model, row_variance)
    if earlier is not None:
        if not _same(earlier, model):
            raise ConfigError(
                f"{target} holds another model",
                path="output.path",
                remedy="Choose a new path: a model is never overwritten.",
            )
        _LOG.info("the model is there already; nothing was written")
        return FitResult(str(target), earlier, is_new=False)
    _write(target, model)
    return FitResult(str(target), model, is_new=True)


def _schema(certificate: Mapping[str, Any]) -> Schema:
    """Return the schema of a release, checked against the columns that its certificate lists."""
    mechanism = certificate.get("mechanism")
    if mechanism not in _MECHANISMS:
        raise ConfigError(
            f"the release is of mechanism {mechanism!r}, expected one of {', '.join(_MECHANISMS)}",
            path="release.path",
            remedy=f"Give a release made with mechanism.name: {_MECHANISMS[0]}.",
        )
    absent = [name for name in (*_FROM_CERTIFICATE, "num_bags", "num_rows") if name not in certificate]
    try:
        schema = SchemaConfig.model_validate(certificate["schema"]).to_kernel()
        described = [dataclasses.asdict(column) for column in schema.columns]
    except (KeyError, ValidationError) as error:
        raise _unknown_certificate() from error
    if absent or described != certificate.get("columns"):
        raise _unknown_certificate()
    return schema


def _unknown_certificate() -> DataError:
    return DataError(
        "the certificate of the release does not describe its columns as this dpagg does",
        path="release.path",
        remedy="Fit with the dpagg that made the release (code_version in its certificate).",
    )


def _read(
    spark: SparkSession, path: str, schema: Schema, certificate: Mapping[str, Any]
) -> tuple[NDArray[np.float64], int, float | None]:
    """Return factor, number of bags and, where the fit needs it already, the residual variance of a row."""
    expected = {"features": "array<double>", "label": "double"}
    if certificate["mechanism"] == _NOISY_LABELS:
        expected = {"features": "array<array<double>>", "weights": "array<double>", "label": "double"}
    with spark_faults():
        table = spark.read.format("delta").load(path)
        types = dict(table.dtypes)
    if any(types.get(name) != kind for name, kind in expected.items()):
        raise DataError(
            f"the release does not have the columns {', '.join(f'{name} ({kind})' for name, kind in expected.items())}",
            path="release.path",
            remedy="Give a table written by dpagg aggregate.",
        )
    row_variance = None
    if certificate["mechanism"] == _NOISY_LABELS:
        factor, num_bags, row_variance = read_noisy_bags(table, certificate)
    else:
        factor, num_bags = table_factor(table, "features", "label")
    width = schema.num_columns + 1
    if num_bags != certificate["num_bags"] or factor.shape != (width, width) or not np.isfinite(factor).all():
        raise DataError(
            f"the table does not hold what its certificate says: {certificate['num_bags']} bags of "
            f"{schema.num_columns} finite features and a label",
            path="release.path",
            remedy="Somebody changed it after the release. Restore its first Delta version.",
        )
    return factor, num_bags, row_variance


def _solve(config: FitConfig, factor: NDArray[np.float64], num_bags: int, schema: Schema) -> LinearFit:
    names = [column.name for column in schema.columns]
    if isinstance(config.method, BoundedLeastSquaresConfig):
        return fit_bounded_least_squares(factor, num_bags, config.method.norm_bound, column_names=names)
    return fit_least_squares(factor, num_bags, column_names=names)


def _local(path: str) -> Path:
    stripped = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    if "://" in stripped:
        raise ConfigError(
            f"{path} is not on this machine's file system",
            path="output.path",
            remedy="A model file is written by the driver: give a local path, and copy it from there.",
        )
    return Path(stripped)


def _earlier(target: Path) -> LinearModel | None:
    """Return the model that is at the path; an error if something else is."""
    if not os.path.lexists(target):
        return None
    try:
        return LinearModel.from_dict(json.loads(target.read_text(encoding="utf-8")))
    except (OSError, ValueError, AttributeError, DataError):
        raise ConfigError(
            f"{target} exists and is not a model of this version",
            path="output.path",
            remedy="Choose a new path; nothing is ever overwritten.",
        ) from None


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


def _write(target: Path, model: LinearModel) -> None:
    """Write all of it or nothing."""
    text = json.dumps(model.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            with partial.open("x", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentFault(
            f"the model could not be written to {target}: {error.strerror}",
            path="output.path",
            remedy="Check that the folder can be written to and the disk has room; nothing was left there.",
        ) from None
