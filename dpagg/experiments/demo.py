"""The demo: a made-up ad-conversion table, a private aggregate of it, a model, and what privacy cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from dpagg.config import AggregateConfig, load_config
from dpagg.experiments.ad_table import ad_schema, ad_table
from dpagg.experiments.evaluation import Evaluation, evaluate
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.ledger import FileStore, Ledger, Terms
from dpagg.regression.model import LinearModel
from dpagg.runs.aggregate import run_aggregate
from dpagg.runs.fit import run_fit
from dpagg.runs.ledgers import describe_book
from dpagg.spark.delta import CERTIFICATE_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NUM_ROWS = 200_000
_TABLE_SEED = 20_261_128
_BUDGET = Terms(
    dataset="impressions", epsilon=4.0, delta=1e-6, adjacency="change_one_label", unit="one label", disjoint=True
)


def run_demo(spark: SparkSession, out: Path, num_rows: int = _NUM_ROWS) -> dict[str, Any]:
    """Make the table, release an aggregate at epsilon 1 and delta 1e-8, fit on it, compare the losses.

    The table is made once: a second call in the same folder finds it, its release and its model there.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    out : Path
        Folder for everything; made if it does not exist.
    num_rows : int
        Impressions.

    Returns
    -------
    dict
        Plain JSON values: ``table``, ``constant``, ``least_squares``, ``wtd_flag``, ``ledger`` and ``paths``. The
        losses are read off the rows without noise, which a real table would not allow.
    """
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    paths = {
        "impressions": out / "impressions.parquet",
        "aggregate_config": out / "aggregate.yaml",
        "aggregates": out / "aggregates",
        "certificate": out / "aggregates" / CERTIFICATE_FILE,
        "fit_config": out / "fit.yaml",
        "model": out / "model.json",
        "report": out / "model.html",
        "ledger": out / "ledger.jsonl",
    }
    if not paths["impressions"].exists():
        unfinished = out / ".impressions.parquet.unfinished"
        pq.write_table(ad_table(num_rows, seed=_TABLE_SEED), unfinished)
        unfinished.rename(paths["impressions"])
    _write_yaml(paths["aggregate_config"], _aggregate_config(paths))
    _write_yaml(
        paths["fit_config"],
        {"release": {"path": str(paths["aggregates"])}, "output": {"path": str(paths["model"])}},
    )
    config: AggregateConfig = load_config(paths["aggregate_config"], "aggregate")
    fit_config = load_config(paths["fit_config"], "fit")
    # A ledger in a file, which is quicker than a Delta table to make; a scheduled job takes the latter.
    ledger = Ledger(FileStore(paths["ledger"]))
    ledger.declare(_BUDGET)
    release = run_aggregate(spark, config)
    fitted = run_fit(fit_config, spark)
    losses = evaluate_on_rows(pq.read_table(paths["impressions"]), config, fitted.model)
    return {
        "table": {"num_rows": release.certificate["num_rows"], "synthetic": True},
        "constant": {"mse": losses.constant_mse},
        "least_squares": {"mse": losses.least_squares_mse, "r_squared": losses.least_squares_r_squared},
        "wtd_flag": {
            "epsilon": release.certificate["epsilon"],
            "delta": release.certificate["delta"],
            "floor": config.privacy.floor.kind,
            "num_bags": release.certificate["num_bags"],
            "mse": losses.mse,
            "excess_share": losses.excess_share,
        },
        "ledger": describe_book(ledger.book())["datasets"][0],
        "paths": {name: str(path) for name, path in paths.items()},
    }


def evaluate_on_rows(table: pa.Table, config: AggregateConfig, model: LinearModel) -> Evaluation:
    """Return the losses of a model on the original rows, those over the leverage cap included. NOT private."""
    batch = table.combine_chunks().to_batches()[0]
    features, keep = encode_features(batch, config.encoding)
    labels = encode_label(batch.column(config.encoding.label.name), config.encoding.label)
    return evaluate(features[keep], labels[keep], model.coefficients)


def _aggregate_config(paths: dict[str, Path]) -> dict[str, Any]:
    return {
        "input": {"path": str(paths["impressions"]), "format": "parquet", "row_id": "impression_id"},
        "schema": ad_schema(),
        "mechanism": {"name": "wtd-flag", "num_bags": "auto"},
        "privacy": {"epsilon": 1.0, "delta": 1.0e-8, "floor": {"kind": "noise"}},
        "output": {"path": str(paths["aggregates"])},
        "ledger": {"path": str(paths["ledger"]), "dataset": _BUDGET.dataset, "partition": "2026-11-28"},
    }


def _write_yaml(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))
