"""The default private regression as a stage of pyspark.ml pipelines.

It lies here, over the runs that it calls, since only `dpagg.spark` imports Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark import keyword_only
from pyspark.ml import Estimator, Model
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.ml.param import Param, Params, TypeConverters
from pyspark.ml.param.shared import HasFeaturesCol, HasLabelCol, HasPredictionCol
from pyspark.ml.util import DefaultParamsReadable, DefaultParamsWritable
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from dpagg.errors import ConfigError, DataError
from dpagg.interfaces.notebook import fit
from dpagg.interfaces.results import Fit
from dpagg.interfaces.tables import is_spark
from dpagg.regression.model import LinearModel
from dpagg.spark.engines import spark_faults
from dpagg.spark.names import quoted

__all__ = ["HessianMixingRegression", "HessianMixingRegressionModel"]

_LABEL = "label"


class _Columns(HasFeaturesCol, HasLabelCol, HasPredictionCol):
    """Names of columns, which the estimator and its model share."""


class HessianMixingRegression(
    Estimator["HessianMixingRegressionModel"],
    _Columns,
    DefaultParamsReadable["HessianMixingRegression"],
    DefaultParamsWritable,
):
    """Private linear regression by iterative Hessian mixing, the default solver of ``dpagg fit``.

    Guarantee: the model is (epsilon, delta)-private for one row (adjacency ``zero_out_one_row``: everything in it; the
    number of rows is public), or one label (``change_one_label``). It rests on declared bounds. Every fit is a release
    of its own, and all of them count; so does every fold of a ``CrossValidator``. Stages before this one that learn
    from the rows (scalers, indexers) are not covered by the promise.

    Parameters
    ----------
    featuresCol : str
        Vectors of features. ``VectorAssembler(handleInvalid="keep")`` makes them without an error for a missing value.
    labelCol, predictionCol : str
        Label, and the name of the prediction.
    epsilon, delta : float
        The guarantee; delta is the number of rows to the power of -1.5 by default.
    featureLower, featureUpper : float or list of float
        Bounds of the features, required: one for all, or one each.
    labelLower, labelUpper : float
        Bounds of the label, required.
    adjacency : str
        ``zero_out_one_row`` or ``change_one_label``.
    numRows : int
        Declared number of rows; counted by default.
    fitIntercept : bool
        Whether the model has an intercept.
    normBound : float
        Bound on the norm of the coefficients in encoded units.
    numIterations : int
        Rounds of the solver.
    insecureSeed : int
        Makes a fit reproducible and NOT PRIVATE; for tests.
    """

    epsilon = Param(Params._dummy(), "epsilon", "of the guarantee", TypeConverters.toFloat)
    delta = Param(Params._dummy(), "delta", "of the guarantee", TypeConverters.toFloat)
    featureLower = Param(Params._dummy(), "featureLower", "lower bounds of features", TypeConverters.toListFloat)
    featureUpper = Param(Params._dummy(), "featureUpper", "upper bounds of features", TypeConverters.toListFloat)
    labelLower = Param(Params._dummy(), "labelLower", "lower bound of the label", TypeConverters.toFloat)
    labelUpper = Param(Params._dummy(), "labelUpper", "upper bound of the label", TypeConverters.toFloat)
    adjacency = Param(Params._dummy(), "adjacency", "which neighbours", TypeConverters.toString)
    numRows = Param(Params._dummy(), "numRows", "declared number of rows", TypeConverters.toInt)
    fitIntercept = Param(Params._dummy(), "fitIntercept", "whether there is an intercept", TypeConverters.toBoolean)
    normBound = Param(Params._dummy(), "normBound", "bound on coefficients", TypeConverters.toFloat)
    numIterations = Param(Params._dummy(), "numIterations", "rounds of the solver", TypeConverters.toInt)
    insecureSeed = Param(Params._dummy(), "insecureSeed", "public seed: NOT PRIVATE", TypeConverters.toInt)

    @keyword_only
    def __init__(
        self,
        *,
        featuresCol: str = "features",
        labelCol: str = "label",
        predictionCol: str = "prediction",
        epsilon: float = 1.0,
        delta: float | None = None,
        featureLower: float | Sequence[float] | None = None,
        featureUpper: float | Sequence[float] | None = None,
        labelLower: float | None = None,
        labelUpper: float | None = None,
        adjacency: str = "zero_out_one_row",
        numRows: int | None = None,
        fitIntercept: bool = True,
        normBound: float | None = None,
        numIterations: int = 5,
        insecureSeed: int | None = None,
    ) -> None:
        super().__init__()
        self._setDefault(epsilon=1.0, adjacency="zero_out_one_row", fitIntercept=True, numIterations=5)
        self.setParams(**self._input_kwargs)  # type: ignore[attr-defined]

    def setParams(self, **given: Any) -> HessianMixingRegression:
        """Set any of the parameters, by keyword."""
        for name in ("featureLower", "featureUpper"):
            if isinstance(given.get(name), int | float):
                given[name] = [float(given[name])]
        self._set(**{name: value for name, value in given.items() if value is not None})
        return self

    def _fit(self, dataset: DataFrame) -> HessianMixingRegressionModel:
        is_spark(dataset)  # refuses Spark Connect before anything is asked of it
        num_rows = self._given("numRows")
        if num_rows is None:
            with spark_faults("while rows were counted"):
                num_rows = dataset.count()
        features = self.getOrDefault(self.featuresCol)
        width = _width(dataset, features)
        lower, upper = self._bounds("featureLower", width), self._bounds("featureUpper", width)
        label_lower, label_upper = self._bounds("labelLower", 1)[0], self._bounds("labelUpper", 1)[0]
        names = [f"x{position}" for position in range(width)]
        label = {
            "name": _LABEL,
            "lower": label_lower,
            "upper": label_upper,
            "missing": {"constant": label_lower / 2 + label_upper / 2},
        }
        delta = self._given("delta")
        found = fit(
            dataset.select(
                *(F.get(_array(features), position).alias(name) for position, name in enumerate(names)),
                F.col(quoted(self.getOrDefault(self.labelCol))).alias(_LABEL),
            ),
            schema={
                "intercept": self.getOrDefault(self.fitIntercept),
                "features": [
                    {
                        "name": name,
                        "type": "numeric",
                        "lower": low,
                        "upper": high,
                        "missing": {"constant": low / 2 + high / 2},
                    }
                    for name, low, high in zip(names, lower, upper, strict=True)
                ],
                "label": label,
            },
            privacy={
                "epsilon": self.getOrDefault(self.epsilon),
                "delta": max(num_rows, 2) ** -1.5 if delta is None else delta,
                "adjacency": self.getOrDefault(self.adjacency),
                "num_rows": num_rows,
            },
            mechanism={
                "name": "ihm",
                "num_iterations": self.getOrDefault(self.numIterations),
                "norm_bound": self._given("normBound"),
            },
            insecure_seed=self._given("insecureSeed"),
        )
        model = HessianMixingRegressionModel()
        model._set(document=json.dumps({"model": found.model.to_dict(), "certificate": found.certificate}))
        return self._copyValues(model)

    def _given(self, name: str) -> Any:
        param = self.getParam(name)
        return self.getOrDefault(param) if self.isDefined(param) else None

    def _bounds(self, name: str, width: int) -> list[float]:
        given = self._given(name)
        if given is None:
            raise ConfigError(
                f"{name} is not given, and a bound that is read off the rows would tell of them",
                path=name,
                remedy="Declare what is known to hold; values outside are clipped.",
            )
        bounds = list(given) if isinstance(given, list) else [given]
        if len(bounds) not in (1, width):
            raise ConfigError(f"{len(bounds)} numbers are given for vectors of {width}", path=name)
        return bounds if len(bounds) == width else bounds * width


class HessianMixingRegressionModel(
    Model, _Columns, DefaultParamsReadable["HessianMixingRegressionModel"], DefaultParamsWritable
):
    """A model that `HessianMixingRegression` fitted: coefficients, certificate, predictions.

    Everything released is in one parameter, so that it is saved, loaded and copied as any stage.
    """

    document = Param(Params._dummy(), "document", "model and certificate as JSON", TypeConverters.toString)

    @property
    def fitted(self) -> Fit:
        """Model with standard errors, and certificate."""
        found = json.loads(self.getOrDefault(self.document))
        return Fit(LinearModel.from_dict(found["model"]), found["certificate"], is_private_fit=True)

    @property
    def certificate(self) -> dict[str, Any]:
        """The promise, as ``dpagg certificate show`` reads it."""
        return self.fitted.certificate

    @property
    def coefficients(self) -> DenseVector:
        """Change of the label a unit of each feature."""
        features = self.fitted.model.to_user_units()["features"]
        return DenseVector([feature["per_unit"] for feature in features])

    @property
    def intercept(self) -> float:
        """Prediction where all features are 0."""
        return float(self.fitted.model.to_user_units()["intercept"])

    def _transform(self, dataset: DataFrame) -> DataFrame:
        user = self.fitted.model.to_user_units()
        terms = [
            F.struct(
                *(F.lit(float(feature[name])).alias(name) for name in ("lower", "upper", "per_unit")),
                F.lit(float(feature["missing"]["value"])).alias("missing"),
            )
            for feature in user["features"]
        ]

        def term(value: Column, of: Column) -> Column:
            # Infinite times 0 is NaN, as for the encoder: both are missing.
            known = F.coalesce(value * F.lit(0.0) == F.lit(0.0), F.lit(False))
            bounded = F.least(F.greatest(F.when(known, value).otherwise(of["missing"]), of["lower"]), of["upper"])
            return F.coalesce(of["per_unit"] * bounded, F.lit(0.0))  # a longer vector's rest is no feature

        found = F.lit(float(user["intercept"]))
        if terms:
            array = _array(self.getOrDefault(self.featuresCol))
            padded = F.coalesce(array, F.array().cast("array<double>"))
            each = F.zip_with(padded, F.array(*terms), term)
            found = F.aggregate(each, found, lambda total, one: total + one)
        return dataset.withColumn(self.getOrDefault(self.predictionCol), found)


def _array(name: str) -> Column:
    vector = F.col(quoted(name))
    return F.when(vector.isNotNull(), vector_to_array(vector))


def _width(dataset: DataFrame, name: str) -> int:
    """Number of features: from the column's description, else from the first row."""
    stored = next((each for each in dataset.schema.fields if each.name.lower() == name.lower()), None)
    if stored is None:
        raise DataError(f"the table has no column {name!r}", path="featuresCol", remedy="Check the name.")
    if not isinstance(stored.dataType, VectorUDT):
        raise DataError(
            f"column {name!r} has type {stored.dataType.typeName()}, expected vectors",
            path="featuresCol",
            remedy="Assemble the features with a VectorAssembler.",
        )
    attributes = (stored.metadata or {}).get("ml_attr", {})
    if attributes.get("num_attrs") is not None:
        return int(attributes["num_attrs"])
    if attributes.get("attrs"):
        return sum(len(each) for each in attributes["attrs"].values())
    with spark_faults("while the size of the vectors was looked up"):
        first = dataset.select(F.size(_array(name)).alias("width")).where(F.col("width") > 0).first()
    if first is None:
        raise DataError("the table has no rows")
    return int(first["width"])
