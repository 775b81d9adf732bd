"""Speed of training on bags against training on the same rows one by one, and memory against the number of bags.

``python -m dpagg.experiments.neural_benchmark --scratch DIRECTORY`` makes files there, times both in turns in one run,
measures the peak memory of processes of their own at 1 and 10 times the bags, and prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dpagg.neural.loss import Bags
from dpagg.neural.networks import Architecture
from dpagg.neural.streaming import BagLaw, BagStream
from dpagg.neural.training import TrainingSettings, train

_COLUMNS, _BATCH_ROWS = 10, 4096
_Rows: TypeAlias = tuple[NDArray[np.float32], NDArray[np.float32]]
_NETWORK = Architecture((64, 64), None, 1.0)


class RowStream(BagStream):
    """The same rows one by one, with labels of their own, from memory or from a Parquet file of rows."""

    def __init__(
        self, rows: Callable[[], Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]], count: int
    ) -> None:
        self.law = BagLaw(1, _COLUMNS, 1, 1.0, 0.0, 1.0)
        self._rows = rows
        self.num_bags = self.num_training = count
        self.num_held_out, self.batch_size = 0, _BATCH_ROWS

    def training_batches(self, epoch: int, first: int = 0) -> Iterator[Bags]:
        """Yield batches of single rows in an order of the epoch's own."""
        rng = np.random.default_rng(epoch)
        ones = np.ones((_BATCH_ROWS, 1), np.float32)
        for features, labels in self._rows():
            order = rng.permutation(len(labels))
            for start in range(0, len(order) - _BATCH_ROWS + 1, _BATCH_ROWS):
                which = order[start : start + _BATCH_ROWS]
                yield Bags(features[which][:, None], ones, labels[which], ones[:, 0])


def write_files(folder: Path, name: str, num_bags: int, bag_size: int) -> tuple[Path, Path]:
    """Write made-up bags as a release has them, 40,000 a row group or fewer, and their rows one by one."""
    rng, block = np.random.default_rng(0), 640_000 // bag_size
    bags_file, rows_file = folder / f"{name}.parquet", folder / f"{name}_rows.parquet"
    floats = pa.list_(pa.float64())
    bag_schema = pa.schema(
        [("bag_id", pa.int64()), ("features", pa.list_(floats)), ("weights", floats), ("label", pa.float64())]
    )
    row_schema = pa.schema([("features", floats), ("label", pa.float64())])
    with pq.ParquetWriter(bags_file, bag_schema) as bags, pq.ParquetWriter(rows_file, row_schema) as rows:
        for first in range(0, num_bags, block):
            count = min(block, num_bags - first)
            features = rng.uniform(-1, 1, (count, bag_size, _COLUMNS))
            labels = np.sin(3 * features[..., 0]) * features[..., 1] + rng.standard_normal((count, bag_size))
            weights = rng.standard_normal((count, bag_size))
            flat = _lists(features.ravel(), _COLUMNS)
            columns = [
                pa.array(np.arange(first, first + count)),
                _lists(flat, bag_size),
                _lists(weights.ravel(), bag_size),
                pa.array((weights * labels).sum(axis=1)),
            ]
            bags.write_table(pa.Table.from_arrays(columns, schema=bag_schema))
            rows.write_table(pa.Table.from_arrays([flat, pa.array(labels.ravel())], schema=row_schema))
    return bags_file, rows_file


def _lists(values: NDArray[np.float64] | pa.Array, width: int) -> pa.Array:
    offsets = pa.array(np.arange(0, len(values) + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array(values) if isinstance(values, np.ndarray) else values)


def _bag_stream(file: Path, bag_size: int) -> BagStream:
    law = BagLaw(bag_size, _COLUMNS, bag_size, 1.0, 0.0, 1.0)
    return BagStream([str(file)], law, batch_size=_BATCH_ROWS // bag_size)


def _blocks(file: Path) -> Iterator[_Rows]:
    for batch in pq.ParquetFile(file).iter_batches(64 * _BATCH_ROWS):
        features = batch.column(0).flatten().to_numpy().reshape(-1, _COLUMNS)
        yield features.astype(np.float32), batch.column(1).to_numpy().astype(np.float32)


def speed(folder: Path, *, num_rows: int, bag_sizes: tuple[int, ...], rounds: int) -> dict[str, object]:
    """Return rows a second of training on bags and on rows, medians of rounds in which all take turns."""
    found: dict[str, object] = {}
    for size in bag_sizes:
        bags_file, rows_file = write_files(folder, f"k{size}", num_rows // size, size)
        blocks = list(_blocks(rows_file))
        held = (np.concatenate([block[0] for block in blocks]), np.concatenate([block[1] for block in blocks]))
        count = num_rows // size * size
        streams: dict[str, BagStream] = {
            "bags": _bag_stream(bags_file, size),
            "rows_in_memory": RowStream(partial(iter, [held]), count),
            "rows_from_parquet": RowStream(partial(_blocks, rows_file), count),
        }
        rates: dict[str, list[float]] = {name: [] for name in streams}
        for turn in range(rounds + 1):
            for name, stream in streams.items():
                trained = train(stream, _NETWORK, TrainingSettings(max_epochs=1))
                if turn:  # the first one compiles and warms the page cache
                    rates[name].append(trained.bags_a_second * stream.law.bag_size)
        middle = {name: median(values) for name, values in rates.items()}
        found[f"k={size}"] = {name: round(value) for name, value in middle.items()} | {
            "bags_a_second": round(middle["bags"] / size),
            "ratio_to_rows_in_memory": round(middle["bags"] / middle["rows_in_memory"], 3),
            "ratio_to_rows_from_parquet": round(middle["bags"] / middle["rows_from_parquet"], 3),
        }
    return found


def memory(folder: Path, *, num_bags: int, bag_size: int) -> dict[str, object]:
    """Return the peak memory, in MB, of a process that trains on so many bags, and on ten times as many."""
    peaks = {}
    for times in (1, 10):
        file, rows_file = write_files(folder, f"m{times}", times * num_bags, bag_size)
        rows_file.unlink()
        command = [sys.executable, "-m", "dpagg.experiments.neural_benchmark", "--child", str(file)]
        done = subprocess.run([*command, "--bag-size", str(bag_size)], check=True, capture_output=True, text=True)
        peaks[f"{times * num_bags:,} bags"] = {
            "file_mb": round(file.stat().st_size / 2**20),
            "peak_mb": int(done.stdout),
        }
        file.unlink()
    return {"bag_size": bag_size, **peaks}


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="dpagg.experiments.neural_benchmark", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--scratch", type=Path, help="directory for files of about 1 GB")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bag-size", type=int, default=16, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child is not None:
        train(_bag_stream(given.child, given.bag_size), _NETWORK, TrainingSettings(max_epochs=1))
        sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024))
        return
    began = time.monotonic()
    given.scratch.mkdir(parents=True, exist_ok=True)
    result = {
        "rows_a_second": speed(given.scratch, num_rows=given.rows, bag_sizes=(8, 256), rounds=given.rounds),
        "memory": memory(given.scratch, num_bags=40_000, bag_size=given.bag_size),
        "seconds": round(time.monotonic() - began),
    }
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
