"""Tables for the experiments with networks: features encoded and labels scaled by declared bounds alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpagg.experiments.bags_utility import uci_rows

Array = NDArray[np.float64]

UCI_TABLES = ("protein", "kin40k")
SYNTHETIC = "synthetic"
_TRAINING_SHARE = 0.8
_NUM_FEATURES, _TEST_ROWS = 6, 100_000


@dataclass(frozen=True, eq=False)
class SplitTable:
    """Rows to train on and rows to test on.

    Attributes
    ----------
    name : str
        Of the table.
    features, test_features : ndarray, shapes (n, d) and (t, d)
        Encoded.
    labels, test_labels : ndarray, shapes (n,) and (t,)
        In half widths of the declared bounds about their middle, so that D = 2.
    """

    name: str
    features: Array
    labels: Array
    test_features: Array
    test_labels: Array

    @property
    def constant_mse(self) -> float:
        """Test loss of the mean of the training labels."""
        return float(np.mean(np.square(self.test_labels - self.labels.mean())))


def split_table(name: str, data: Path, seed: int, num_rows: int = 1_000_000) -> SplitTable:
    """Return a table split by a seed; the made-up one has `num_rows` to train on and as many again every time."""
    if name == SYNTHETIC:
        whole = synthetic_table(num_rows + _TEST_ROWS)
        features, labels = _encoded(whole), whole["y"].to_numpy()
        cut = num_rows
    else:
        rows = uci_rows(name, data, Path("conf/experiments") / f"{name}.yaml")
        features, labels = rows.features, rows.labels / (rows.label_range / 2)
        cut = int(_TRAINING_SHARE * len(labels))
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    features, labels = features[order], labels[order]
    return SplitTable(name, features[:cut], labels[:cut], features[cut:], labels[cut:])


def synthetic_table(num_rows: int, seed: int = 0) -> pd.DataFrame:
    """Return made-up rows: six uniform features and a label within -1..1 that bends and has an interaction.

    ``y = tanh(0.8 (sin(pi x0) + 2 x1 x2 + 2 |x3| - 1 + x4 / 2) + 0.3 z)``, z normal; x5 does nothing. Its deviation is
    0.63, nearly a third of its range; the best model explains 90 % of it.
    """
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (num_rows, _NUM_FEATURES))
    signal = np.sin(np.pi * x[:, 0]) + 2 * x[:, 1] * x[:, 2] + 2 * np.abs(x[:, 3]) - 1 + x[:, 4] / 2
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(_NUM_FEATURES)])
    frame["y"] = np.tanh(0.8 * signal + 0.3 * rng.standard_normal(num_rows))
    frame["key"] = np.arange(num_rows)
    return frame


def _encoded(frame: pd.DataFrame) -> Array:
    features = frame[[f"x{i}" for i in range(_NUM_FEATURES)]].to_numpy()
    return np.column_stack([np.ones(len(features)), features])
