"""Private fits with a ledger: the same account as releases, and nothing read where there is no budget."""

import json

import numpy as np
import pandas as pd
import pytest

from dpagg.config import parse_config
from dpagg.errors import EnvironmentFault, PrivacyError
from dpagg.ledger import Ledger
from dpagg.runs.fit import run_fit
from dpagg.spark.ledger_store import DeltaStore

ROWS = 400


@pytest.fixture
def fit(spark, tmp_path):
    rng = np.random.default_rng(3)
    price = rng.uniform(0, 100, ROWS)
    sale = np.clip(0.3 * price + rng.normal(0, 5, ROWS), 0, 50)
    pd.DataFrame({"price": price, "sale": sale}).to_parquet(tmp_path / "table.parquet")

    def go(adjacency, out="model.json", epsilon=0.6, dataset="rows"):
        privacy = {"epsilon": epsilon, "delta": 1e-7, "adjacency": adjacency}
        if adjacency == "zero_out_one_row":
            privacy["num_rows"] = ROWS
        content = {
            "input": {"path": str(tmp_path / "table.parquet"), "format": "parquet"},
            "schema": {
                "features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
                "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
            },
            "privacy": privacy,
            "output": {"path": str(tmp_path / out)},
            "ledger": {
                "path": str(tmp_path / "ledger"),
                "dataset": dataset,
                "partition": "2026-11-28",
                "budget": {"epsilon": 1.0, "delta": 1e-6},
            },
        }
        return run_fit(parse_config(content, "fit"), spark)

    return go


@pytest.mark.parametrize("adjacency", ["zero_out_one_row", pytest.param("change_one_label", marks=pytest.mark.slow)])
def test_a_fit_is_charged_once_and_over_budget_nothing_is_read(fit, spark, tmp_path, monkeypatch, adjacency):
    # A fit that dies after its charge goes on under it.
    monkeypatch.setattr("dpagg.runs.private_fit._run", lambda *_: (_ for _ in ()).throw(EnvironmentFault("gone")))
    with pytest.raises(EnvironmentFault):
        fit(adjacency)
    monkeypatch.undo()
    assert fit(adjacency).is_new and not fit(adjacency).is_new
    book = Ledger(DeltaStore(spark, str(tmp_path / "ledger"))).book()
    [charge] = book.charges("rows")
    assert charge.state == "settled" and book.terms["rows"].adjacency == adjacency
    promise = json.loads((tmp_path / "model.json").read_text())["certificate"]
    assert promise["ledger"]["charge"] == charge.number and promise["event"] == charge.event.to_dict()

    monkeypatch.setattr("dpagg.runs.private_fit._run", lambda *_: pytest.fail("labels were read"))
    if adjacency == "zero_out_one_row":
        monkeypatch.setattr("dpagg.spark.regression_data.SparkData._total", lambda *_: pytest.fail("rows were read"))
    with pytest.raises(PrivacyError, match=r"epsilon 0\.\d+ of 1 is left for 'rows'.*asked is epsilon 1.1 "):
        fit(adjacency, "second.json", epsilon=1.1)
    assert not (tmp_path / "second.json").exists()


@pytest.mark.slow
def test_rows_and_labels_never_share_a_budget(fit):
    fit("zero_out_one_row", epsilon=0.1)
    with pytest.raises(PrivacyError, match="hides no feature"):
        fit("change_one_label", "second.json", epsilon=0.1)
