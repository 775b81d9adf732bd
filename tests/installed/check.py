"""What a clean installation has to do; run by its Python, anywhere but in the checkout: ``make wheels-check``."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

LARGE = {"pyspark", "py4j", "delta", "sklearn", "jax"}

import dpagg  # noqa: E402

where = Path(dpagg.__file__).resolve().parent
assert "site-packages" in where.parts, f"dpagg comes from {where}, not from the wheel"
assert dpagg.__version__ == version("dpagg") and (where / "py.typed").exists()
assert not LARGE & {name.partition(".")[0] for name in sys.modules}, "import dpagg loads something large"

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

rng = np.random.default_rng(0)
price = rng.uniform(0, 100, 2000)
table = pd.DataFrame({"price": price, "sale": np.clip(0.3 * price + rng.normal(0, 5, 2000), 0, 50)})
schema = {
    "features": [{"name": "price", "type": "numeric", "lower": 0, "upper": 100}],
    "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
}
privacy = {"epsilon": 1.0, "delta": 1e-6}
release = dpagg.aggregate(table, schema=schema, privacy=privacy)
assert release.certificate["private"] and len(release.table) == 2000
assert 0.1 < dpagg.fit(release).coefficients()[1]["coefficient"] < 0.5
assert not LARGE & {name.partition(".")[0] for name in sys.modules}, "a table in memory loads something large"
model = dpagg.HessianMixingRegressor(feature_lower=0, feature_upper=100, label_lower=0, label_upper=50)
assert model.fit(table[["price"]].to_numpy(), table["sale"]).certificate_["private"]

with tempfile.TemporaryDirectory() as folder:
    table.to_parquet(Path(folder) / "table.parquet")
    config = {
        "input": {"path": f"{folder}/table.parquet", "format": "parquet"},
        "schema": schema,
        "mechanism": {"name": "wtd-flag"},
        "privacy": privacy,
        "output": {"path": f"{folder}/out"},
    }
    (Path(folder) / "run.yaml").write_text(json.dumps(config))
    command = [str(Path(sys.executable).parent / "dpagg"), "plan", f"{folder}/run.yaml", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["num_bags"] == 2000

print(
    f"dpagg {dpagg.__version__} on Python {sys.version.split()[0]}: import, tables in memory, scikit-learn, dpagg plan"
)
