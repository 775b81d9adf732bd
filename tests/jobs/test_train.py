"""A network trained by ``spark-submit jobs/train.py``, and found by the next run."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.cli import run


@pytest.mark.slow
def test_train_job(spark, spark_submit, tmp_path):
    rng = np.random.default_rng(0)
    price = rng.uniform(0, 100, 600)
    pd.DataFrame({"key": np.arange(600), "price": price, "sale": price / 2}).to_parquet(tmp_path / "table.parquet")
    aggregate = {
        "input": {"path": str(tmp_path / "table.parquet"), "format": "parquet", "row_id": "key"},
        "schema": {
            "features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "sampled-noisy-wtd-lag", "bag_size": 3, "noised_fraction": 1.0},
        "privacy": {"epsilon": 1.0, "delta": 1e-5},
        "output": {"path": str(tmp_path / "bags")},
    }
    (tmp_path / "aggregate.yaml").write_text(yaml.safe_dump(aggregate))
    assert run(["aggregate", str(tmp_path / "aggregate.yaml")]) == 0
    train = {
        "release": {"path": "${RELEASE}"},
        "network": {"hidden": [4]},
        "training": {"max_epochs": 2},
        "output": {"path": str(tmp_path / "net")},
    }
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(train))
    release = ("--set", f"RELEASE={tmp_path / 'bags'}")
    arguments = ("jobs/train.py", "--config", tmp_path / "train.yaml", *release, "--json")
    done = spark_submit(*arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["written"] == "now" and found["release"]["private"] and found["release"]["epsilon"] == 1.0
    assert found["training"]["epochs"] == 2 and (tmp_path / "net" / "model.json").exists()
    code = run(["train", str(tmp_path / "train.yaml"), *release])
    assert code == 0  # the same training: found, not done again
