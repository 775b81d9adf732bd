"""A fitted model over a table: a new table of predictions, which is as private as the features it is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from dpagg.config import InputConfig
from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.regression.model import LinearModel
from dpagg.runs.model_file import earlier_model
from dpagg.runs.network_model import NetworkModel, read_network
from dpagg.spark.joining import read_input
from dpagg.spark.predicting import exists, predictions, stored_format, write_new
from dpagg.spark.reading import normalise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PredictResult", "run_predict"]

_FORMATS = ("parquet", "delta", "csv", "json")
_OUT_FORMATS = ("delta", "parquet")


@dataclass(frozen=True)
class PredictResult:
    """Where predictions are.

    Attributes
    ----------
    path, format : str
        Of the new table.
    columns : tuple of str
        Its columns.
    model : LinearModel or NetworkModel
        What predicted.
    """

    path: str
    format: str
    columns: tuple[str, ...]
    model: LinearModel | NetworkModel

    def summary(self) -> dict[str, Any]:
        """Return what a person or a scheduler wants to know, as plain JSON values."""
        return {
            "path": self.path,
            "format": self.format,
            "columns": list(self.columns),
            "label": self.model.schema.label.name,
            "model": {name: self.model.release.get(name) for name in ("release_id", "mechanism", "epsilon", "delta")},
        }


def run_predict(
    spark: SparkSession,
    model_file: Path,
    table: str,
    out: str,
    *,
    table_format: str | None = None,
    out_format: str = "delta",
    row_id: str | None = None,
    column: str = "prediction",
) -> PredictResult:
    """Predict the label of each row of a table; the table needs the model's features, no label.

    Values are treated as in the fit: clipped to the declared bounds, missing ones by their rule. A row with a missing
    feature whose rule is ``drop`` gets a null.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    model_file : Path
        Written by `dpagg fit`, or the folder written by `dpagg train`.
    table, out : str
        Paths of the input and of the new table.
    table_format : str, optional
        ``parquet``, ``delta``, ``csv`` (with a header) or ``json`` (lines); seen from the path by default.
    out_format : str
        ``delta`` or ``parquet``.
    row_id : str, optional
        Column of the input to keep beside the prediction.
    column : str
        Name of the prediction.

    Returns
    -------
    PredictResult

    Raises
    ------
    ConfigError
        If an argument is wrong or something is at the output path.
    DataError
        If the model or the table cannot be read, or a column is missing or of a wrong type.
    EnvironmentFault
        If Spark fails.
    """
    model = _model(model_file)
    if out_format not in _OUT_FORMATS:
        raise ConfigError(f"{out_format!r} is given, expected {' or '.join(_OUT_FORMATS)}", path="--out-format")
    if table_format is not None and table_format not in _FORMATS:
        raise ConfigError(f"{table_format!r} is given, expected {', '.join(_FORMATS)}", path="--format")
    if not column.strip() or (row_id is not None and row_id.lower() == column.lower()):
        raise ConfigError(f"{column!r} is given, expected a name that no other column has", path="--column")
    if row_id is not None and row_id.lower() in (feature.name.lower() for feature in model.schema.features):
        raise ConfigError(f"{row_id!r} is a feature of the model", path="--row-id", remedy="Name a key of the rows.")
    if exists(spark, out):
        raise ConfigError(f"{out} exists", path="OUT", remedy="Choose a new path: nothing is ever overwritten.")
    try:
        source = InputConfig(path=table, format=cast(Any, table_format or stored_format(spark, table)), row_id=row_id)
    except ValidationError:
        raise ConfigError(f"{table!r} is given, expected a path", path="INPUT") from None
    names = [*([] if row_id is None else [row_id]), *(feature.name for feature in model.schema.features)]
    read = read_input(spark, source, declared=names).settled()
    rows = normalise(read.df, model.schema, row_id, with_label=False)
    predict = model.network if isinstance(model, NetworkModel) else model.predict
    found = predictions(rows, model.schema, predict, row_id=row_id, column=column)
    write_new(found, out, out_format)
    return PredictResult(out, out_format, tuple(found.columns), model)


def _model(file: Path) -> LinearModel | NetworkModel:
    wanted = "Give a file written by dpagg fit, or a folder written by dpagg train."
    if file.is_dir():
        trained = read_network(file)
        if trained is None:
            raise DataError(f"there is no finished model in {file}", remedy=wanted)
        return trained
    try:
        model = earlier_model(file)
    except (ConfigError, EnvironmentFault):
        raise DataError(f"{file} is not a model of this version", remedy=wanted) from None
    if model is None:
        raise DataError(f"there is no model at {file}", remedy=wanted)
    return model
