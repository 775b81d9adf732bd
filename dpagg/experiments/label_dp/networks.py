"""Networks trained on releases of noisy label sums, over bag sizes and numbers of bags."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.dataset as ds
from numpy.typing import NDArray

from dpagg.config import parse_config
from dpagg.experiments.label_dp.prepared import Prepared
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.runs.aggregate import run_aggregate
from dpagg.runs.train import run_train

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CLEAN_EPSILON", "EPSILON", "Networks", "Training", "missing_libraries", "trainings"]

Array = NDArray[np.float64]

EPSILON = 3.0
# So much that the noise is less than a hundredth of the label's range: the same training on labels as they are.
CLEAN_EPSILON = 1e5
_BAG_SIZES = (1, 8, 64)
_SHARES = (1 / 16, 1 / 4, 1)
_FEWEST_BAGS = 64
_TEST_ROWS = 100_000
# Steps enough for a running mean of weights, and not more than so many times the same rows.
_BATCH_ROWS, _STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 1024, 1500, 6, 80


@dataclass(frozen=True)
class Training:
    """One training: bags of so many rows, so many of them."""

    epsilon: float
    bag_size: int
    num_bags: int


def missing_libraries() -> str | None:
    """Return why no network can be trained here, None if one can."""
    missing = [name for name in ("jax", "optax", "equinox") if importlib.util.find_spec(name) is None]
    return f"{', '.join(missing)} not installed: pip install 'dpagg[neural]'" if missing else None


def trainings(num_rows: int) -> Iterator[Training]:
    """Yield what is trained on a table with so many rows: bags of one are noise on each label."""
    yield Training(CLEAN_EPSILON, 1, num_rows)
    for size in _BAG_SIZES:
        for share in _SHARES:
            count = int(share * num_rows) // size
            if count >= _FEWEST_BAGS:
                yield Training(EPSILON, size, count)


class Networks:
    """Releases and trainings on one table, from public seeds: NOT private.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    prepared : Prepared
        The table. Releases and networks are kept in its folder until their losses are known.
    """

    def __init__(self, spark: SparkSession, prepared: Prepared) -> None:
        self._spark, self._prepared = spark, prepared

    @cached_property
    def _test_rows(self) -> tuple[Array, Array]:
        """The first rows to test on, encoded."""
        schema = self._prepared.case.config.encoding
        table = ds.dataset(self._prepared.rows_path("test"), format="parquet").head(_TEST_ROWS)
        batch = table.combine_chunks().to_batches()[0]
        features, keep = encode_features(batch, schema)
        return features[keep], encode_label(batch.column(schema.label.name), schema.label)[keep]

    def train(self, what: Training, seed: int) -> dict[str, Any]:
        """Release bags, train a network on them, and return its loss beside that of a constant, as JSON values."""
        folder = self._prepared.folder / f"network-{what.epsilon:g}-{what.bag_size}-{what.num_bags}-{seed}"
        release = run_aggregate(self._spark, self._release(what, folder), insecure_seed=seed)
        found = run_train(parse_config(self._training(what, folder, seed), "train"), self._spark)
        features, labels = self._test_rows
        away = found.model.predict(features) - labels
        shutil.rmtree(folder, ignore_errors=True)
        return {
            "test_mse": float(away @ away) / len(labels),
            "constant_test_mse": float(np.var(labels)),
            "epochs": found.model.training["epochs"],
            "label_noise_std": float(release.certificate["label_noise_variance"]) ** 0.5,
            "delta_at_epsilon": release.certificate["delta_at_epsilon"],
        }

    def _release(self, what: Training, folder: Path) -> Any:
        mechanism: dict[str, Any] = {
            "name": "sampled-noisy-wtd-lag",
            "bag_size": what.bag_size,
            "num_bags": what.num_bags,
            "noised_fraction": 1,
        }
        if what.bag_size == 1:
            mechanism["weight_cap"] = "none"  # the ratio that it bounds is 1
        return self._prepared.aggregate(mechanism, {"epsilon": what.epsilon}, output=str(folder / "release"))

    @staticmethod
    def _training(what: Training, folder: Path, seed: int) -> Mapping[str, Any]:
        epochs = round(_STEPS * _BATCH_ROWS / (what.bag_size * what.num_bags))
        epochs = int(np.clip(epochs, _FEWEST_EPOCHS, _MOST_EPOCHS))
        return {
            "release": {"path": str(folder / "release")},
            # Labels may lie at their bounds, as sale amounts do at 0: twice as far leaves the output free there.
            "network": {"lipschitz": "none", "output_bound": 2.0},
            # Of all epochs the one with the least loss on held-out bags: these are too noisy to stop by.
            "training": {
                "batch_size": max(1, _BATCH_ROWS // what.bag_size),
                "max_epochs": epochs,
                "patience": epochs,
                "learning_rate": 3e-3,
                "seed": seed,
            },
            "output": {"path": str(folder / "network")},
        }
