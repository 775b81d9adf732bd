"""The protocol of the Hessian mixing paper on small made-up sets: what it computes, resumes and refuses."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpagg.errors import ConfigError, DataError
from dpagg.experiments import ihm_protocol
from dpagg.experiments.ihm_protocol import METHODS, reproduce_ihm
from dpagg.experiments.ihm_report import summarise
from dpagg.experiments.regimes import REGIMES, regime_rows
from dpagg.experiments.uci import KNOWN_SETS, load_rows, paper_split


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name, n in (("airfoil", 600), ("mine", 300)):
        x = rng.standard_normal((n, 3)) * np.array([1.0, 20.0, 0.1]) + 5.0
        y = x @ np.array([1.0, 0.2, -3.0]) + rng.standard_normal(n)
        (tmp_path / name).mkdir()
        with gzip.open(tmp_path / name / "data.csv.gz", "wt") as stream:
            np.savetxt(stream, np.column_stack([x, y]), delimiter=",")
    return tmp_path


def test_a_split_is_as_the_paper_prepares_it(folder: Path) -> None:
    split = paper_split(load_rows(folder, "mine"), 4)
    assert split.features.shape == (240, 3) and split.test_features.shape == (60, 3)
    assert np.linalg.norm(split.features, axis=1).max() == pytest.approx(1.0)
    assert np.abs(split.labels).max() == pytest.approx(1.0)
    np.testing.assert_allclose(split.features.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(split.features.std(axis=0) / split.features.std(), 1.0, rtol=1e-9)
    assert not np.array_equal(split.labels, paper_split(load_rows(folder, "mine"), 5).labels)


def test_cells_are_complete_and_agree_among_themselves(folder: Path) -> None:
    result = reproduce_ihm(folder, epsilons=(0.5, 8.0), trials=6, synthetic=False)
    assert [(c["set"], c["epsilon"]) for c in result["cells"]] == [
        ("airfoil", 0.5), ("airfoil", 8.0), ("mine", 0.5), ("mine", 8.0)]  # fmt: skip
    for cell in result["cells"]:
        assert set(cell["methods"]) == {*METHODS, "ols"}
        assert cell["delta"] == pytest.approx(1 / cell["n"] ** 2) and cell["d"] == 3 and cell["trials"] == 6
        best = cell["methods"]["ols"]
        assert best["excess_train_risk"] == pytest.approx(0.0, abs=1e-15)
        for method in cell["methods"].values():
            assert method["excess_train_risk"] >= -1e-15
            assert method["train_mse"] == pytest.approx(best["train_mse"] + method["excess_train_risk"], rel=1e-9)
            assert {"test_mse_half_width", "train_mse_half_width", "excess_train_risk_half_width"} <= set(method)
    gains = [
        c["methods"]["ihm_authors"]["excess_train_risk"] / c["methods"]["ihm"]["excess_train_risk"]
        for c in result["cells"]
    ]
    assert result["geometric_mean_gain"] == pytest.approx(math.prod(gains) ** 0.25)
    assert result["smallest_gain"] == pytest.approx(min(gains))
    assert result["gain_on_tuned_sets"] == pytest.approx(math.sqrt(gains[0] * gains[1]))
    json.dumps(result, allow_nan=False)


def test_resumes_without_running_a_cell_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = folder / "out"
    arguments: dict[str, Any] = {"sets": ["mine"], "trials": 3, "synthetic": False, "out": out}
    first = reproduce_ihm(folder, epsilons=(1.0,), **arguments)
    original, ran = ihm_protocol._run_cell, []

    def counted(name: str, prepared: Any, epsilon: float, settings: dict[str, Any]) -> dict[str, Any]:
        ran.append((name, epsilon))
        return original(name, prepared, epsilon, settings)

    monkeypatch.setattr(ihm_protocol, "_run_cell", counted)
    second = reproduce_ihm(folder, epsilons=(1.0, 2.0), **arguments)
    assert ran == [("mine", 2.0)]
    assert second["cells"][0] == first["cells"][0]
    (out / "cells" / "mine-2.json").write_text("{broken")
    reproduce_ihm(folder, epsilons=(1.0, 2.0), **(arguments | {"trials": 4}))
    assert len(ran) == 3
    written = json.loads((out / "ihm.json").read_text())
    assert {"cells", "geometric_mean_gain", "smallest_gain"} <= set(written)
    assert "| mine |" in (out / "ihm.md").read_text()
    assert (out / "figures" / "mine.png").stat().st_size > 1000
    assert not list((out / "cells").glob("*unfinished"))


def test_one_seed_gives_one_result(folder: Path) -> None:
    arguments: dict[str, Any] = {"sets": ["mine"], "epsilons": (1.0,), "trials": 2, "synthetic": False}
    first, second = (reproduce_ihm(folder, **arguments)["cells"] for _ in range(2))
    assert first == second
    assert reproduce_ihm(folder, seed=1, **arguments)["cells"] != first


def test_refuses_sets_that_are_not_there_and_says_where_to_get_them(folder: Path) -> None:
    with pytest.raises(DataError, match="UCI: Yacht Hydrodynamics"):
        reproduce_ihm(folder, sets=["yacht"])
    with pytest.raises(DataError, match="airfoil, mine"):
        reproduce_ihm(folder, sets=["nowhere"])
    with pytest.raises(DataError):
        reproduce_ihm(folder / "empty")
    (folder / "mine" / "data.csv.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="mine"):
        reproduce_ihm(folder, sets=["mine"])
    assert len(KNOWN_SETS) == 33


def test_refuses_settings_out_of_range(folder: Path) -> None:
    for wrong in ({"trials": 1}, {"epsilons": ()}, {"epsilons": (-1.0,)}):
        with pytest.raises(ConfigError):
            reproduce_ihm(folder, **({"trials": 2} | wrong))


def test_synthetic_regimes_are_what_they_are_called_and_do_not_count() -> None:
    splits = {name: paper_split(regime_rows(name), 0) for name in REGIMES}

    def residual_share(name: str) -> float:
        split = splits[name]
        best = np.linalg.lstsq(split.features, split.labels, rcond=None)[0]
        return float(np.sum((split.labels - split.features @ best) ** 2) / np.sum(split.labels**2))

    assert residual_share("synthetic-residuals") > 0.8
    assert residual_share("synthetic-conditioned") < 1e-3
    small = splits["synthetic-small-theta"]
    assert np.linalg.norm(np.linalg.lstsq(small.features, small.labels, rcond=None)[0]) < 0.2
    labels = splits["synthetic-clipping"].labels
    assert np.abs(labels).max() > 8 * labels.std()
    method = {"excess_train_risk": 1.0, "excess_train_risk_half_width": 0.1}
    cell = {"epsilon": 1.0, "methods": dict.fromkeys([*METHODS, "ols"], method)}
    summary = summarise([cell | {"set": "a"}, cell | {"set": "b"}], synthetic=("b",))
    assert summary["geometric_mean_gain"] == 1.0 and len(summary["cells"]) == 2
    assert "geometric_mean_gain" not in summarise([cell | {"set": "b"}], synthetic=("b",))
