"""A fitted linear model: in encoded units, in the user's units, and as JSON that any tool can read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpagg.errors import ConfigError, DataError
from dpagg.kernels.schema import (
    Categorical,
    Column,
    Constant,
    Feature,
    Hashed,
    Label,
    Missing,
    Numeric,
    Schema,
)
from dpagg.regression.least_squares import FitStatus, LinearFit

__all__ = ["FORMAT", "VERSION", "Coefficient", "LinearModel"]

Array = NDArray[np.float64]

FORMAT = "dpagg-linear-model"
VERSION = 1

_HOW_TO_PREDICT = (
    "prediction = user_units.intercept + one term a feature. numeric: per_unit * (value clipped to "
    "lower..upper). categorical: the offset of its category, that of other if it is not listed; not listed "
    "and no other: as missing. hashed: offsets[BLAKE2b of 8 bytes over the UTF-8 value, as a little-endian "
    "number, modulo the number of offsets]. missing: the term of missing.value, if there is one, plus "
    "missing.offset, if there is one; if missing.rule is drop there is no prediction for the row. Offsets "
    "are against the reference, whose offset is 0."
)
_ERRORS = (
    "standard_error: of the coefficient about that of least squares on the original rows (with the norm "
    "bound, if there is one), so it holds the noise of privacy and aggregation, but not the sampling error "
    "of the rows. population_standard_error: an estimate that includes the latter, for rows that are an "
    "independent sample with residuals of equal variance. null: not determined by the release, or not "
    "available."
)


@dataclass(frozen=True)
class Coefficient:
    """One coefficient in the user's units; an error that isn't determined is NaN.

    Attributes
    ----------
    name, meaning : str
        Of its column.
    coefficient, standard_error, population_standard_error : float
        As in `LinearModel`.
    half_width : float
        Half of the declared range of a numeric feature, else 1: times the coefficient it is what the feature does to
        the label between the middle of its range and the upper bound.
    """

    name: str
    meaning: str
    coefficient: float
    standard_error: float
    population_standard_error: float
    half_width: float = 1.0


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A linear model of a declared schema.

    Attributes
    ----------
    schema : Schema
        What the encoded columns mean.
    coefficients : ndarray (d,)
        In encoded units, label in the user's units.
    standard_errors : ndarray (d,)
        About least squares on the original rows; NaN where the release does not determine the coefficient.
    population_standard_errors : ndarray (d,)
        Estimated errors about the population; NaN where not available.
    intercept_standard_error : float
        Of the intercept in the user's units, which absorbs the centres of the numeric features.
    fit : mapping
        JSON values about the fit: method, status, message, numbers of bags and rows, residuals.
    release : mapping
        JSON values about the release that the model is made from: mechanism, epsilon, delta, identity.

    Raises
    ------
    ValueError
        If the arrays do not fit the schema.
    """

    schema: Schema
    coefficients: Array
    standard_errors: Array
    population_standard_errors: Array
    intercept_standard_error: float = float("nan")
    fit: Mapping[str, Any] = field(default_factory=dict)
    release: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.schema.num_columns,)
        for name in ("coefficients", "standard_errors", "population_standard_errors"):
            given = np.array(getattr(self, name), dtype=np.float64)
            if given.shape != shape:
                raise ValueError(f"{name} has shape {given.shape}, the schema has {shape[0]} columns")
            object.__setattr__(self, name, given)

    @classmethod
    def from_fit(
        cls,
        fit: LinearFit,
        schema: Schema,
        *,
        num_rows: int,
        label_noise_variance: float = 0.0,
        details: Mapping[str, Any] | None = None,
        release: Mapping[str, Any] | None = None,
    ) -> LinearModel:
        """Make the model of a fit.

        Parameters
        ----------
        fit : LinearFit
            Over the columns of `schema`.
        schema : Schema
            What the columns mean.
        num_rows : int
            Original rows inside the release.
        label_noise_variance : float
            Variance of the noise on each bag's label, for the errors about the population.
        details, release : mapping, optional
            Further entries for `LinearModel.fit` and `LinearModel.release`.
        """
        population = np.full(fit.coefficients.shape, np.nan)
        if fit.status is not FitStatus.BOUND_ACTIVE:
            population = np.sqrt(np.diag(fit.population_covariance(num_rows, label_noise_variance)))
        return cls(
            schema=schema,
            coefficients=fit.coefficients,
            standard_errors=fit.standard_errors,
            population_standard_errors=population,
            intercept_standard_error=_quadratic_root(fit.covariance, _intercept_weights(schema.columns)),
            fit={
                "status": fit.status.value,
                "message": fit.message,
                "norm_bound": fit.norm_bound,
                "num_bags": fit.num_bags,
                "num_rows": num_rows,
                "rank": fit.rank,
                "degrees_of_freedom": fit.degrees_of_freedom,
                "bag_residual_variance": _json_number(fit.residual_variance),
                "label_noise_variance": label_noise_variance,
                "row_residual_std": _json_number(math.sqrt(fit.row_residual_variance(num_rows, label_noise_variance))),
                **(details or {}),
            },
            release=dict(release or {}),
        )

    def predict(self, features: Array) -> Array:
        """Predict labels, (k,) in the user's units, from encoded features (k, d)."""
        prediction: Array = np.asarray(features, dtype=np.float64) @ self.coefficients
        return prediction

    def user_coefficients(self) -> list[Coefficient]:
        """Return a coefficient a column, the intercept first, even where none was declared: centring makes one."""
        found = [
            Coefficient(
                name="intercept",
                meaning="where numeric features are 0 and categories are the reference",
                coefficient=float(_intercept_weights(self.schema.columns) @ self.coefficients),
                standard_error=self.intercept_standard_error,
                population_standard_error=float("nan"),
            )
        ]
        errors = zip(self.standard_errors, self.population_standard_errors, strict=True)
        for column, coefficient, (error, population) in zip(
            self.schema.columns, self.coefficients, errors, strict=True
        ):
            if column.kind == "intercept":
                continue
            width = column.half_width
            found.append(
                Coefficient(
                    name=column.name,
                    meaning=f"a unit of {column.feature}" if column.kind == "numeric" else column.meaning,
                    coefficient=float(coefficient) / width,
                    standard_error=float(error) / width,
                    population_standard_error=float(population) / width,
                    half_width=width,
                )
            )
        return found

    def to_user_units(self) -> dict[str, Any]:
        """Return the model in the user's units, as plain JSON values.

        Returns
        -------
        dict
            ``intercept``, ``intercept_standard_error`` and ``features``: a numeric feature has ``per_unit``,
            the change of the label a unit of the feature; a categorical or hashed one has an offset a
            category or bucket, against the reference. The intercept absorbs the centres of the numeric
            features.
        """
        coefficients = {_key(column): position for position, column in enumerate(self.schema.columns)}
        return {
            "intercept": float(_intercept_weights(self.schema.columns) @ self.coefficients),
            "intercept_standard_error": _json_number(self.intercept_standard_error),
            "features": [self._describe(feature, coefficients) for feature in self.schema.features],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values, in encoded and in the user's units; `from_dict` reads it."""
        label = self.schema.label
        return {
            "format": FORMAT,
            "version": VERSION,
            "how_to_predict": _HOW_TO_PREDICT,
            "errors": _ERRORS,
            "label": {
                "name": label.name,
                "lower": label.lower,
                "upper": label.upper,
                "missing": {"constant": label.missing_constant},
            },
            "user_units": self.to_user_units(),
            "encoded": {
                "intercept": self.schema.intercept,
                "columns": [
                    {
                        "name": column.name,
                        "feature": column.feature,
                        "kind": column.kind,
                        "value": column.value,
                        "meaning": column.meaning,
                        "center": column.center,
                        "half_width": column.half_width,
                        "coefficient": float(coefficient),
                        "standard_error": _json_number(error),
                        "population_standard_error": _json_number(population),
                    }
                    for column, coefficient, error, population in zip(
                        self.schema.columns,
                        self.coefficients,
                        self.standard_errors,
                        self.population_standard_errors,
                        strict=True,
                    )
                ],
            },
            "fit": dict(self.fit),
            "release": dict(self.release),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LinearModel:
        """Read a model written by `to_dict`.

        Raises
        ------
        DataError
            If it is not such a document, or of a version this code does not know.
        """
        if document.get("format") != FORMAT:
            raise DataError(
                f"not a model file: its format is {document.get('format')!r}, expected {FORMAT!r}",
                remedy="Give a file written by dpagg fit.",
            )
        if document.get("version") != VERSION:
            raise DataError(
                f"the model file has version {document.get('version')!r}, this dpagg reads version {VERSION}",
                remedy="Fit the model again, or use the dpagg that wrote it.",
            )
        try:
            encoded, label, user = document["encoded"], document["label"], document["user_units"]
            schema = Schema(
                tuple(_read_feature(entry) for entry in user["features"]),
                Label(label["name"], label["lower"], label["upper"], label["missing"]["constant"]),
                encoded["intercept"],
            )
            columns = encoded["columns"]
            names = [column["name"] for column in columns]
            model = cls(
                schema=schema,
                coefficients=np.array([float(column["coefficient"]) for column in columns]),
                standard_errors=_read_numbers(columns, "standard_error"),
                population_standard_errors=_read_numbers(columns, "population_standard_error"),
                intercept_standard_error=_read_number(user["intercept_standard_error"]),
                fit=dict(document["fit"]),
                release=dict(document["release"]),
            )
        except (KeyError, TypeError, ValueError, ConfigError) as error:
            raise DataError(
                "the model file is damaged: an entry is missing or does not fit the others",
                remedy="Fit the model again.",
            ) from error
        if names != [column.name for column in schema.columns]:
            raise DataError(
                "the model file is damaged: its columns are not those of its features",
                remedy="Fit the model again.",
            )
        return model

    def _describe(self, feature: Feature, positions: Mapping[tuple[Any, ...], int]) -> dict[str, Any]:
        def effect(kind: str, value: str | None = None) -> dict[str, float | None]:
            position = positions.get((feature.name, kind, value))
            if position is None:  # the reference: known to be 0
                return {"offset": 0.0, "standard_error": 0.0}
            return {
                "offset": float(self.coefficients[position]),
                "standard_error": _json_number(self.standard_errors[position]),
            }

        missing: dict[str, Any] = {"rule": feature.missing}
        if isinstance(feature.missing, Constant):
            # Treated as any other value, so there is no offset.
            missing = {"rule": "constant", "value": feature.missing.value}
        if feature.missing == "indicator":
            missing |= effect("missing")
        if isinstance(feature, Numeric):
            slope = positions[feature.name, "numeric", None]
            if feature.missing == "indicator":
                missing["value"] = feature.center
            return {
                "name": feature.name,
                "type": "numeric",
                "lower": feature.lower,
                "upper": feature.upper,
                "per_unit": float(self.coefficients[slope]) / feature.half_width,
                "standard_error": _json_number(self.standard_errors[slope] / feature.half_width),
                "missing": missing,
            }
        if isinstance(feature, Categorical):
            return {
                "name": feature.name,
                "type": "categorical",
                "categories": [{"value": category, **effect("category", category)} for category in feature.categories],
                "other": effect("other") if feature.other else None,
                "missing": missing,
            }
        buckets = [effect("bucket", str(bucket)) for bucket in range(feature.buckets)]
        return {
            "name": feature.name,
            "type": "hashed",
            "offsets": [bucket["offset"] for bucket in buckets],
            "standard_errors": [bucket["standard_error"] for bucket in buckets],
            "missing": missing,
        }


def _key(column: Column) -> tuple[str | None, str, str | None]:
    return (column.feature, column.kind, column.value)


def _intercept_weights(columns: Sequence[Column]) -> Array:
    # encoded = x / half_width - center / half_width, and the second part belongs to the user's intercept.
    return np.array([1.0 if column.kind == "intercept" else -column.center / column.half_width for column in columns])


def _quadratic_root(covariance: Array, weights: Array) -> float:
    used = np.flatnonzero(weights)
    return math.sqrt(np.maximum(0.0, weights[used] @ covariance[np.ix_(used, used)] @ weights[used]))


def _read_feature(entry: Mapping[str, Any]) -> Feature:
    rule = entry["missing"]["rule"]
    missing: Missing = Constant(entry["missing"]["value"]) if rule == "constant" else rule
    if entry["type"] == "numeric":
        return Numeric(entry["name"], entry["lower"], entry["upper"], missing)
    if entry["type"] == "categorical":
        categories = tuple(category["value"] for category in entry["categories"])
        return Categorical(entry["name"], categories, entry["other"] is not None, missing)
    if entry["type"] == "hashed":
        return Hashed(entry["name"], len(entry["offsets"]), missing)
    raise ValueError(f"unknown type of feature {entry['type']!r}")


def _json_number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _read_number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _read_numbers(entries: Sequence[Mapping[str, Any]], key: str) -> Array:
    return np.array([_read_number(entry[key]) for entry in entries])
