"""Networks trained on Sampled-Noisy-WTD-LAg, on labels with noise of their own, and on clean labels.

``python -m dpagg.experiments.neural_utility --data DIRECTORY_OF_THE_UCI_SETS --out DIRECTORY`` trains each cell of the
grid and writes a figure and a table. A cell that is in ``cells.jsonl`` is not trained again. Bags are drawn by the
kernels of the release, at the least noise that its accounting allows. Losses are computed with the labels themselves:
an evaluation, not a release.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from dpagg.experiments.neural_laws import ROW_VARIANCE, additive_noise_std, best_bag_noise, variance
from dpagg.experiments.neural_report import write_report
from dpagg.experiments.neural_tables import SYNTHETIC, UCI_TABLES, SplitTable, split_table
from dpagg.kernels.bags import bag_streams
from dpagg.kernels.streams import Secret
from dpagg.neural.in_memory import IndexedBags, train_in_memory
from dpagg.neural.networks import Architecture
from dpagg.neural.training import TrainingSettings

_LOG = logging.getLogger(__name__)
Method = Literal["oracle", "additive", "bags"]
EPSILONS, DELTA = (1.0, 3.0), 1e-5
BAG_SIZES = (8, 32, 128, 256)
ROW_SHARES = (1.0, 0.25)
HELD_OUT = 0.1


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes
    ----------
    table : str
        Name of the table.
    method : str
        ``oracle`` (clean labels), ``additive`` (noise on each label) or ``bags``.
    seed : int
        Of the split, the noise, the bags, the first weights and the order.
    epsilon : float or None
        None for the oracle.
    bag_size, num_bags : int or None
        k and m of bags.
    num_rows : int
        Labels that are used.
    """

    table: str
    method: Method
    seed: int
    num_rows: int
    epsilon: float | None = None
    bag_size: int | None = None
    num_bags: int | None = None


def grid(table: str, num_rows: int, seeds: int) -> Iterator[Cell]:
    """Yield the cells of a table with so many rows to train on."""
    for seed in range(seeds):
        yield Cell(table, "oracle", seed, num_rows)
        for epsilon in EPSILONS:
            for share in ROW_SHARES:
                rows = int(share * num_rows)
                yield Cell(table, "additive", seed, rows, epsilon)
                for size in BAG_SIZES:
                    yield Cell(table, "bags", seed, rows // size * size, epsilon, size, rows // size)


NETWORK = Architecture(hidden=(64, 64), lipschitz=None, output_bound=1.0)


def settings_of(table: str, method: Method, seed: int) -> tuple[list[TrainingSettings], int]:
    """Return the trainings that bags held out choose from, and rows a batch; the same for both noisy methods."""
    large, clean = table == SYNTHETIC, method == "oracle"
    if clean:
        epochs, rates, rows = (10, [3e-3], 2048) if large else (60, [1e-2], 512)
    else:
        # The smaller rate is better where hardly any signal is left; on the large table there is enough.
        epochs, rates, rows = (8, [3e-3], 4096) if large else (20, [1e-3, 3e-3], 1024)
    return [TrainingSettings(epochs, rate, 1e-4, 0.99, patience=epochs, seed=seed) for rate in rates], rows


def labelled_bags(table: SplitTable, cell: Cell) -> IndexedBags:
    """Return what a method publishes of the rows; rows by themselves are bags of one."""
    rng = np.random.default_rng([cell.seed, 2])
    order = rng.permutation(len(table.labels))[: cell.num_rows]
    if cell.method != "bags" or cell.bag_size is None or cell.epsilon is None:
        noise_std = 0.0 if cell.epsilon is None else additive_noise_std(cell.epsilon, DELTA)
        noisy = table.labels[order] + noise_std * rng.standard_normal(len(order))
        precision = np.full(len(order), 1.0 / (noise_std**2 + ROW_VARIANCE))
        return IndexedBags(order[:, None], np.ones((len(order), 1)), noisy, precision)
    members = order.reshape(-1, cell.bag_size)
    labels = best_bag_noise(cell.epsilon, DELTA, cell.bag_size).labels
    streams = bag_streams(Secret.insecure(cell.seed), "neural", np.arange(len(members)))
    weights, sums = labels.draw(table.labels[members], streams)
    return IndexedBags(members, weights, sums, 1.0 / variance(np.square(weights), labels))


def trained(table: SplitTable, cell: Cell) -> dict[str, object]:
    """Train a cell and return it with its test loss, as plain JSON values."""
    candidates, batch_rows = settings_of(cell.table, cell.method, cell.seed)
    began = time.monotonic()
    bags = labelled_bags(table, cell)
    drawn = time.monotonic() - began
    tried = [
        train_in_memory(table.features, bags, NETWORK, each, batch_rows=batch_rows, held_out=HELD_OUT)
        for each in candidates
    ]
    best = int(np.argmin([min(losses) for _, losses in tried]))
    found, losses = tried[best]
    mse = float(np.mean(np.square(found(table.test_features) - table.test_labels)))
    return asdict(cell) | {
        "mse": mse,
        "constant_mse": table.constant_mse,
        "learning_rate": candidates[best].learning_rate,
        "best_epoch": int(np.argmin(losses)) + 1,
        "seconds_drawing": round(drawn, 2),
        "seconds": round(time.monotonic() - began, 2),
    }


def run_cells(
    tables: list[str],
    data: Path,
    file: Path,
    *,
    seeds: int,
    synthetic_rows: int,
    methods: Sequence[str] = ("oracle", "additive", "bags"),
) -> None:
    """Train the cells that the file does not hold yet, one line each as soon as it is done."""
    done = set()
    if file.exists():
        done = {_key(json.loads(line)) for line in file.read_text().splitlines()}
    table_of = lru_cache(maxsize=1)(lambda name, seed: split_table(name, data, seed, synthetic_rows))
    with file.open("a", encoding="utf-8") as stream:
        for name in tables:
            num_rows = len(table_of(name, 0).labels)
            for cell in grid(name, num_rows, seeds):
                if cell.method not in methods or _key(asdict(cell)) in done:
                    continue
                found = trained(table_of(name, cell.seed), cell)
                stream.write(json.dumps(found) + "\n")
                stream.flush()
                _LOG.info("%s: mse %.4g of %.4g, %s s", cell, found["mse"], found["constant_mse"], found["seconds"])


def _key(record: dict[str, object]) -> tuple[object, ...]:
    names = ("table", "method", "seed", "num_rows", "epsilon", "bag_size", "num_bags")
    return tuple(record[name] for name in names)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(
        prog="dpagg.experiments.neural_utility", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="directory of the UCI sets")
    parser.add_argument("--out", type=Path, required=True, help="directory of cells, table and figure")
    parser.add_argument("--tables", nargs="+", default=[*UCI_TABLES, SYNTHETIC], help="which tables")
    parser.add_argument("--methods", nargs="+", default=["oracle", "additive", "bags"], help="which methods")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each cell")
    parser.add_argument("--synthetic-rows", type=int, default=1_000_000, help="rows of the made table")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    given.out.mkdir(parents=True, exist_ok=True)
    cells = given.out / "cells.jsonl"
    run_cells(
        given.tables,
        given.data,
        cells,
        seeds=given.seeds,
        synthetic_rows=given.synthetic_rows,
        methods=given.methods,
    )
    write_report(cells, given.out)


if __name__ == "__main__":
    main()
