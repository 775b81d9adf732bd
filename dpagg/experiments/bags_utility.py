"""What disjoint bags cost in accuracy, against bag size and number of bags, beside WTD-FLAG and LabelGaussian.

``python -m dpagg.experiments.bags_utility --data DIRECTORY_OF_THE_UCI_SETS --out DIRECTORY`` writes a table (JSON) and
a figure. Each mechanism gets the least noise that meets epsilon 1 and delta 1e-8 by its own accounting, without an
assumption about labels. Losses are computed with the labels themselves: an evaluation, not a release.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.accounting.calibration import largest_gaussian_mu, with_least_label_noise
from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.accounting.sampled_aggregation import SampledAggregation
from dpagg.accounting.weighted_aggregation import WeightedAggregation
from dpagg.accounting.worst_rows import worst_rows
from dpagg.config import load_config
from dpagg.kernels.bags import AUTO_ACCEPTANCE, NoisyLabels, bag_spaces, bag_streams, weight_cap_for, weighted_bags
from dpagg.kernels.encoding import encode_features, encode_label
from dpagg.kernels.factor import Factor
from dpagg.kernels.leverage import subspace
from dpagg.kernels.streams import Secret
from dpagg.runs.bag_events import least_noise_std

_LOG = logging.getLogger(__name__)
EPSILON, DELTA, NOISED_FRACTION, CAP_FACTOR = 1.0, 1e-8, 0.5, 10.0
_SIZES = (3, 10, 30, 100, 300, 1000, 3000, 10_000)
_FEWEST_BAGS, _MOST_BAGS = 100, 100_000
_GROUP_ROWS = 1 << 17


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Encoded features and centred labels of a table.

    Attributes
    ----------
    name : str
        Of the table.
    features : ndarray, shape (n, d)
        Encoded; the first column is 1.
    labels : ndarray, shape (n,)
        Less the middle of their bounds.
    label_range : float
        D.
    """

    name: str
    features: NDArray[np.float64]
    labels: NDArray[np.float64]
    label_range: float


@dataclass(frozen=True)
class Loss:
    """Loss of one mechanism with one set of parameters.

    Attributes
    ----------
    data, mechanism : str
        Table and mechanism.
    bag_size, num_bags : int or None
        k and m.
    noise_std : float
        Of the noise on a bag's label, or on a row's.
    excess_shares : tuple of float
        A draw each: the share of what least squares gains over the best constant that the model gives away.
    """

    data: str
    mechanism: str
    bag_size: int | None
    num_bags: int | None
    noise_std: float
    excess_shares: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean excess share."""
        return float(np.mean(self.excess_shares))


def uci_rows(name: str, data: Path, configuration: Path) -> LabelledRows:
    """Return a UCI table as its configuration in ``conf/experiments`` encodes it."""
    config = load_config(configuration, "aggregate", {"DATA": str(data)})
    frame = pd.read_csv(str(config.input.path), header=None, names=list(config.input.column_names or ()))
    batch = pa.RecordBatch.from_pandas(frame.astype(float), preserve_index=False)
    schema = config.encoding
    features, keep = encode_features(batch, schema)
    labels = encode_label(batch.column(schema.label.name), schema.label)
    middle = schema.label.lower / 2 + schema.label.upper / 2
    return LabelledRows(name, features[keep], labels[keep] - middle, schema.label.range)


def synthetic_rows(num_rows: int = 1_000_000, num_columns: int = 20, seed: int = 0) -> LabelledRows:
    """Return rows with uniform features and a label of which they explain half, 6 standard deviations wide."""
    rng = np.random.default_rng(seed)
    features = np.column_stack([np.ones(num_rows), rng.uniform(-1, 1, (num_rows, num_columns - 1))])
    signal = features[:, 1:] @ rng.normal(size=num_columns - 1)
    labels = signal / signal.std() + rng.normal(size=num_rows)
    bound = 3.0 * math.sqrt(2.0)
    return LabelledRows("synthetic", features, np.clip(labels, -bound, bound), 2.0 * bound)


class Judge:
    """Losses against least squares on all rows of a table."""

    def __init__(self, rows: LabelledRows) -> None:
        self._factor = Factor.zero(rows.features.shape[1]).add(rows.features).canonical()
        self._best = np.linalg.lstsq(rows.features, rows.labels, rcond=None)[0]
        residuals = rows.labels - rows.features @ self._best
        self._gain = float(np.var(rows.labels) * len(rows.labels) - residuals @ residuals)

    def excess_share(self, coefficients: NDArray[np.float64]) -> float:
        """Return the share of least squares' gain over the best constant that coefficients give away."""
        return float(np.square(self._factor @ (coefficients - self._best)).sum()) / self._gain


def losses(rows: LabelledRows, *, trials: int, seed: int = 1) -> Iterator[Loss]:
    """Yield the losses of all mechanisms on one table."""
    judge, n = Judge(rows), len(rows.labels)
    rng = np.random.default_rng(seed)

    def loss(mechanism: str, size: int | None, bags: int | None, noise: float, fit: _Fit) -> Loss:
        shares = tuple(judge.excess_share(fit(trial)) for trial in range(trials))
        found = Loss(rows.name, mechanism, size, bags, noise, shares)
        _LOG.info("%s %s k=%s m=%s: %.3g", rows.name, mechanism, size, bags, found.mean)
        return found

    yield from _whole_table(rows, loss, rng)
    for size in _SIZES:
        for num_bags in dict.fromkeys((n // size, n // size // 4)):
            if not max(_FEWEST_BAGS, 2 * rows.features.shape[1]) <= num_bags <= _MOST_BAGS:
                continue
            if size > rows.features.shape[1]:
                yield _weighted_sums(rows, size, num_bags, loss, rng)
            yield _noisy_labels(rows, size, num_bags, loss, rng)


_Fit = Callable[[int], NDArray[np.float64]]
_Report = Callable[[str, "int | None", "int | None", float, _Fit], Loss]


def _whole_table(rows: LabelledRows, loss: _Report, rng: np.random.Generator) -> Iterator[Loss]:
    """LabelGaussian and WTD-FLAG with as many bags as rows, on the rows under the leverage cap."""
    n, d = rows.features.shape
    space = subspace(Factor.zero(d).add(rows.features).canonical())
    kept = space.leverages(space.coordinates(rows.features)) <= CAP_FACTOR * space.rank / n
    features, labels = rows.features[kept], rows.labels[kept]
    factor = Factor.zero(d + 1).add(np.column_stack([features, labels])).canonical()
    space = subspace(factor[:d, :d])
    largest = float(space.leverages(space.coordinates(features)).max())
    mu = largest_gaussian_mu(epsilon=EPSILON, delta=DELTA)
    noise = rows.label_range * math.sqrt(largest) / mu
    inverse = np.linalg.pinv(factor[:d, :d], rcond=1e-10)

    def gaussian(_: int) -> NDArray[np.float64]:
        return inverse @ (factor[:d, d] + noise * rng.standard_normal(d))

    yield loss("label-gaussian", None, None, noise, gaussian)
    leverage, bound = worst_rows(largest, len(labels), rows.label_range / 2, rows.label_range)
    bare = WeightedAggregation(
        num_bags=n, label_range=rows.label_range, leverage=leverage, residual_floor=0.0, residual_bound=bound
    )
    noise_std = math.sqrt(with_least_label_noise(bare, epsilon=EPSILON, delta=DELTA).label_noise_variance)

    def weighted(_: int) -> NDArray[np.float64]:
        state = Factor.zero(d + 1)
        for first in range(0, n, _GROUP_ROWS):
            sums = rng.standard_normal((min(_GROUP_ROWS, n - first), d + 1)) @ factor
            sums[:, d] += noise_std * rng.standard_normal(len(sums))
            state = state.add(sums)
        return _solved(state)

    yield loss("wtd-flag", None, n, noise_std, weighted)


def _weighted_sums(rows: LabelledRows, size: int, num_bags: int, loss: _Report, rng: np.random.Generator) -> Loss:
    """Sampled-WTD-FLAG; the largest leverage is that of the first draw's bags, times 1.1 for the others'."""
    data = np.column_stack([rows.features, rows.labels])
    largest = max(
        float(bag_spaces(data[members][:, :, :-1]).leverages.max()) for members, _ in _bags(rows, size, num_bags, rng)
    )
    leverage, bound = worst_rows(min(1.0, 1.1 * largest), size, rows.label_range / 2, rows.label_range)
    bare = SampledAggregation(
        bag_size=size, label_range=rows.label_range, leverage=leverage, residual_floor=0.0, residual_bound=bound
    )
    noise_std = math.sqrt(with_least_label_noise(bare, epsilon=EPSILON, delta=DELTA).label_noise_variance)

    def fit(trial: int) -> NDArray[np.float64]:
        state, secret = Factor.zero(data.shape[1]), Secret.insecure(trial)
        for members, numbers in _bags(rows, size, num_bags, rng):
            drawn = weighted_bags(data[members], bag_streams(secret, "utility", numbers))
            state = state.add(np.column_stack([drawn.features, drawn.labels + noise_std * drawn.noise]))
        return _solved(state)

    return loss("sampled-wtd-flag", size, num_bags, noise_std, fit)


def _noisy_labels(rows: LabelledRows, size: int, num_bags: int, loss: _Report, rng: np.random.Generator) -> Loss:
    """Sampled-Noisy-WTD-LAg, fitted with the known part of the variance, which is nearly all of it here."""
    bare = NoisyLabelAggregation(
        bag_size=size, noised_fraction=NOISED_FRACTION, noise_std=0.0, label_range=rows.label_range
    )
    cap = weight_cap_for(AUTO_ACCEPTANCE, bag_size=size, num_noised=bare.num_noised)
    bare = replace(bare, weight_cap=cap)
    noise_std = least_noise_std(bare, epsilon=EPSILON, delta=DELTA)
    labels = NoisyLabels(bare.num_noised, noise_std, cap)

    def fit(trial: int) -> NDArray[np.float64]:
        state, secret = Factor.zero(rows.features.shape[1] + 1), Secret.insecure(trial)
        for members, numbers in _bags(rows, size, num_bags, rng):
            weights, sums = labels.draw(rows.labels[members], bag_streams(secret, "utility", numbers))
            features = np.einsum("bi,bij->bj", weights, rows.features[members])
            scale = 1.0 / np.sqrt(np.square(weights[:, : bare.num_noised]).sum(axis=1))
            state = state.add(np.column_stack([features, sums]) * scale[:, None])
        return _solved(state)

    return loss("sampled-noisy-wtd-lag", size, num_bags, noise_std, fit)


def _bags(
    rows: LabelledRows, size: int, num_bags: int, rng: np.random.Generator
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    members = rng.permutation(len(rows.labels))[: num_bags * size].reshape(num_bags, size)
    together = max(1, _GROUP_ROWS // size)
    for first in range(0, num_bags, together):
        chunk = members[first : first + together]
        yield chunk, np.arange(first, first + len(chunk))


def _solved(state: Factor) -> NDArray[np.float64]:
    triangle = state.canonical()
    inverse = np.linalg.pinv(triangle[:-1, :-1], rcond=1e-10)
    return np.asarray(inverse @ triangle[:-1, -1])


def draw_figure(found: list[Loss], file: Path) -> None:
    """Draw excess share against bag size, a panel a table, into an image file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tables = list(dict.fromkeys(loss.data for loss in found))
    figure, panels = pyplot.subplots(1, len(tables), figsize=(4.6 * len(tables), 4.4), squeeze=False)
    colors = {"sampled-wtd-flag": "tab:blue", "sampled-noisy-wtd-lag": "tab:orange"}
    for panel, table in zip(panels[0], tables, strict=True):
        here = [loss for loss in found if loss.data == table]
        for mechanism, color in colors.items():
            mine = [loss for loss in here if loss.mechanism == mechanism and loss.bag_size and loss.num_bags]
            most = max((loss.num_bags or 0) * (loss.bag_size or 0) for loss in here)
            for style, is_most, words in (("o-", True, "all rows"), ("o--", False, "a quarter of the rows")):
                line = [x for x in mine if ((x.num_bags or 0) * (x.bag_size or 0) > most / 2) is is_most]
                line.sort(key=lambda loss: loss.bag_size or 0)
                panel.plot([x.bag_size for x in line], [x.mean for x in line], style, color=color,
                           label=f"{mechanism}, {words}")  # fmt: skip
        for mechanism, color in (("wtd-flag", "tab:green"), ("label-gaussian", "black")):
            level = next(loss.mean for loss in here if loss.mechanism == mechanism)
            panel.axhline(level, color=color, linestyle=":", label=f"{mechanism}, all rows")
        panel.axhline(1.0, color="grey", linewidth=0.5)
        panel.set(xscale="log", yscale="log", xlabel="bag size k", title=table)
    panels[0][0].set_ylabel(f"excess share of the loss at epsilon {EPSILON:g}, delta {DELTA:g}\n(1: the best constant)")
    panels[0][-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=150)
    pyplot.close(figure)


def main(arguments: list[str] | None = None) -> None:
    """Run the experiment."""
    parser = argparse.ArgumentParser(prog="dpagg.experiments.bags_utility", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="directory of the UCI sets")
    parser.add_argument("--out", type=Path, required=True, help="directory for the table and the figure")
    parser.add_argument("--trials", type=int, default=10, help="draws of each release on the UCI sets")
    parser.add_argument("--synthetic-rows", type=int, default=1_000_000, help="rows of the made table")
    parser.add_argument("--synthetic-trials", type=int, default=3, help="draws of each release on the made table")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    found: list[Loss] = []
    for name in ("bike", "protein"):
        rows = uci_rows(name, given.data, Path("conf/experiments") / f"{name}.yaml")
        found += losses(rows, trials=given.trials)
    if given.synthetic_rows:
        found += losses(synthetic_rows(given.synthetic_rows), trials=given.synthetic_trials)
    given.out.mkdir(parents=True, exist_ok=True)
    table = [asdict(loss) | {"mean_excess_share": loss.mean} for loss in found]
    (given.out / "bags_utility.json").write_text(json.dumps(table, indent=1) + "\n")
    draw_figure(found, given.out / "bags_utility.png")


if __name__ == "__main__":
    main()
