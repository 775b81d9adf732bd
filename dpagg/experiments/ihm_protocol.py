"""The protocol of the iterative Hessian mixing paper: every method, set and epsilon, with its excess risk.

The numbers are read off the rows without noise. They are for papers and tests, on data that may be seen.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import dpagg
from dpagg.errors import ConfigError
from dpagg.experiments.ihm_report import summarise, write_report
from dpagg.experiments.progress import progress_bar
from dpagg.experiments.regimes import REGIMES, regime_rows
from dpagg.experiments.uci import Split, available_sets, load_rows, paper_split
from dpagg.kernels.streams import Secret
from dpagg.regression.adassp import plan_adassp
from dpagg.regression.data import ArrayData, Data
from dpagg.regression.dp_gd import plan_gradient_descent
from dpagg.regression.estimate import PrivateEstimate
from dpagg.regression.hessian_mixing import plan_hessian_mixing
from dpagg.regression.linear_mixing import plan_linear_mixing
from dpagg.regression.planning import Target
from dpagg.regression.whitened_mixing import plan_whitened_mixing

__all__ = ["EPSILONS", "METHODS", "reproduce_ihm"]

EPSILONS = tuple(round(float(value), 4) for value in np.logspace(-1.0, 1.0, 6))
# The paper has one split a set; between splits the risk of the authors' method varies by up to a third (housing).
_NUM_SPLITS = 3
_HALF_WIDTH = 1.96


class _Plan(Protocol):
    def run(self, data: Data, secret: Secret, release_id: str) -> PrivateEstimate: ...


METHODS: dict[str, Callable[[Target], _Plan]] = {
    "ihm": plan_whitened_mixing,
    "ihm_paper": lambda target: plan_hessian_mixing(target, accounting="paper"),
    "ihm_authors": lambda target: plan_hessian_mixing(target, accounting="paper", ridge_term=False),
    "linear_mixing": plan_linear_mixing,
    "linear_mixing_paper": lambda target: plan_linear_mixing(target, accounting="paper"),
    "adassp": plan_adassp,
    "adassp_paper": lambda target: plan_adassp(target, accounting="paper"),
    "dp_gd": plan_gradient_descent,
}


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A split with what every trial on it needs."""

    split: Split
    data: ArrayData
    best: NDArray[np.float64]
    gram: NDArray[np.float64]
    best_mse: float
    signal: float

    @classmethod
    def of(cls, rows: NDArray[np.float64], seed: int) -> _Prepared:
        split = paper_split(rows, seed)
        best = np.linalg.lstsq(split.features, split.labels, rcond=None)[0].astype(np.float64)
        best_mse = float(np.mean((split.labels - split.features @ best) ** 2))
        gram = split.features.T @ split.features / len(split.labels)
        signal = float(np.mean(split.labels**2)) - best_mse
        return cls(split, ArrayData(split.features, split.labels, 1.0), best, gram, best_mse, signal)

    def losses(self, theta: NDArray[np.float64]) -> tuple[float, float, float, float]:
        """Excess training risk, that as a share of what least squares gains, training and test MSE."""
        away = theta - self.best
        excess = float(away @ self.gram @ away)
        test = float(np.mean((self.split.test_labels - self.split.test_features @ theta) ** 2))
        return excess, excess / max(self.signal, 1e-300), self.best_mse + excess, test


def reproduce_ihm(
    data_dir: Path,
    *,
    sets: Sequence[str] | None = None,
    epsilons: Sequence[float] = EPSILONS,
    trials: int = 100,
    out: Path | None = None,
    seed: int = 0,
    synthetic: bool = True,
    progress: bool = False,
) -> dict[str, Any]:
    """Run every method on every set and epsilon, by the paper's protocol, and summarise.

    Parameters
    ----------
    data_dir : Path
        Folder with ``NAME/data.csv.gz``, comma-separated numbers, the response last.
    sets : sequence of str, optional
        Names; all that are there by default.
    epsilons : sequence of float
        delta is ``1 / n**2`` for each.
    trials : int
        Runs of each method in each cell, over 3 splits taken in turn.
    out : Path, optional
        Folder for cells, tables, figures and ``ihm.json``. Cells that are there and were made with the same settings
        and code version are not run again.
    seed : int
        Of splits and noise.
    synthetic : bool
        Whether to run the synthetic regimes too; they do not count in the gains.
    progress : bool
        Whether to show a bar on stderr.

    Returns
    -------
    dict
        Plain JSON values: ``cells``, ``geometric_mean_gain``, ``smallest_gain`` and more, see `summarise`.

    Raises
    ------
    DataError
        If a set is not there or cannot be read.
    ConfigError
        If there are fewer than two trials, no epsilon, or one that is not positive.
    """
    if trials < 2 or not epsilons:
        raise ConfigError(f"expected at least two trials and one epsilon, got {trials} and {len(epsilons)}")
    names = available_sets(data_dir, sets)
    chosen = names + (list(REGIMES) if synthetic else [])
    settings = {"trials": trials, "seed": seed, "splits": _NUM_SPLITS, "version": dpagg.__version__}
    cells: list[dict[str, Any]] = []
    with progress_bar(progress, len(chosen) * len(epsilons)) as advance:
        for name in chosen:
            prepared: list[_Prepared] = []
            for epsilon in epsilons:
                cell = _stored(out, name, epsilon, settings)
                if cell is None:
                    if not prepared:
                        rows = regime_rows(name) if name in REGIMES else load_rows(data_dir, name)
                        prepared = [_Prepared.of(rows, seed + i) for i in range(min(_NUM_SPLITS, trials))]
                    cell = _run_cell(name, prepared, epsilon, settings)
                    _store(out, cell)
                cells.append(cell)
                advance(f"{name}, epsilon {epsilon:g}")
    result = summarise(cells, synthetic=tuple(REGIMES))
    if out is not None:
        write_report(result, out)
    return result


def _run_cell(name: str, prepared: list[_Prepared], epsilon: float, settings: dict[str, Any]) -> dict[str, Any]:
    n, d = prepared[0].split.features.shape
    target = Target(num_rows=n, num_columns=d, label_bound=1.0, epsilon=epsilon, delta=1.0 / n**2)
    secret = Secret.insecure(settings["seed"])
    methods: dict[str, dict[str, float]] = {}
    for method, plan_for in METHODS.items():
        plan = plan_for(target)
        found = []
        for trial in range(settings["trials"]):
            at = prepared[trial % len(prepared)]
            estimate = plan.run(at.data, secret, f"{name}/{epsilon!r}/{method}/{trial}")
            found.append(at.losses(estimate.coefficients))
        methods[method] = _means(found)
    methods["ols"] = _means([at.losses(at.best) for at in prepared])
    cell = {"set": name, "n": n, "d": d, "epsilon": epsilon, "delta": target.delta, "trials": settings["trials"]}
    return cell | {"methods": methods, "settings": settings}


def _means(found: list[tuple[float, float, float, float]]) -> dict[str, float]:
    values = np.array(found)
    mean = values.mean(axis=0)
    half = _HALF_WIDTH * values.std(axis=0, ddof=1) / math.sqrt(len(values))
    names = ("excess_train_risk", "excess_share", "train_mse", "test_mse")
    means = {name: float(value) for name, value in zip(names, mean, strict=True)}
    return means | {f"{name}_half_width": float(value) for name, value in zip(names, half, strict=True)}


def _cell_file(out: Path, name: str, epsilon: float) -> Path:
    return out / "cells" / f"{name}-{epsilon:g}.json"


def _stored(out: Path | None, name: str, epsilon: float, settings: dict[str, Any]) -> dict[str, Any] | None:
    if out is None:
        return None
    try:
        cell: dict[str, Any] = json.loads(_cell_file(out, name, epsilon).read_text())
    except (OSError, ValueError):
        return None
    same = cell.get("settings") == settings and cell.get("epsilon") == epsilon
    return cell if same and set(cell.get("methods", ())) == {*METHODS, "ols"} else None


def _store(out: Path | None, cell: dict[str, Any]) -> None:
    if out is None:
        return
    file = _cell_file(out, cell["set"], cell["epsilon"])
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps(cell) + "\n")
    unfinished.replace(file)
