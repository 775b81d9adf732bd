"""Experiments with networks: the noise that the accounting allows, resumable cells, and what is reported of them."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

from dpagg.accounting.noisy_label_aggregation import NoisyLabelAggregation
from dpagg.experiments import neural_laws, neural_report, neural_utility
from dpagg.experiments.neural_laws import additive_noise_std, best_bag_noise
from dpagg.experiments.neural_tables import split_table
from dpagg.experiments.neural_utility import Cell, labelled_bags
from dpagg.neural.training import TrainingSettings


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_noise_on_each_label_is_just_enough(epsilon):
    """Balle and Wang's formula (2018), D = 2."""

    def delta(std):
        shift = 2.0 / std
        return norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)

    found = additive_noise_std(epsilon, 1e-5)
    assert delta(found) <= 1e-5 * (1 + 1e-6) and delta(0.999 * found) > 1e-5


def test_noise_of_bags_meets_the_guarantee_and_tells_less_than_noise_on_each_label():
    noise = best_bag_noise(3.0, 1e-5, 8)
    event = NoisyLabelAggregation(
        bag_size=8,
        noised_fraction=noise.labels.num_noised / 8,
        noise_std=noise.labels.noise_std,
        label_range=neural_laws.LABEL_RANGE,
        weight_cap=noise.labels.weight_cap,
    )
    assert event.delta(3.0) <= 1e-5
    # README, "Why it cannot win": a label's share of a sum tells at most what it tells by itself.
    assert 0.3 < noise.information * additive_noise_std(3.0, 1e-5) ** 2 <= 1.0


def test_bags_of_an_experiment_have_the_variance_they_are_weighted_by(tmp_path):
    table = split_table("synthetic", tmp_path, 0, num_rows=40_000)
    bags = labelled_bags(table, Cell("synthetic", "bags", 0, 40_000, 3.0, 8, 5000))
    assert sorted(bags.members.ravel()) == list(range(40_000))  # disjoint, and all rows
    clean = (bags.weights * table.labels[bags.members]).sum(axis=1)
    squares = (bags.sums - clean) ** 2 * (
        1 / bags.precision - neural_laws.ROW_VARIANCE * (bags.weights**2).sum(1)
    ) ** -1
    assert abs(squares.mean() - 1) < 5 * math.sqrt(2 / 5000)
    rows = labelled_bags(table, Cell("synthetic", "additive", 0, 30_000, 3.0))
    error = (rows.sums - table.labels[rows.members[:, 0]]) / additive_noise_std(3.0, 1e-5)
    assert rows.members.shape == (30_000, 1) and abs(error.std() - 1) < 5 / math.sqrt(2 * 30_000)


def test_cells_are_trained_once_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(neural_utility, "BAG_SIZES", (8,))
    monkeypatch.setattr(neural_utility, "EPSILONS", (3.0,))
    monkeypatch.setattr(neural_utility, "ROW_SHARES", (1.0,))
    brief = [TrainingSettings(max_epochs=2, seed=seed) for seed in (0, 1)]
    monkeypatch.setattr(neural_utility, "settings_of", lambda table, method, seed: ([brief[seed]], 256))
    file = tmp_path / "cells.jsonl"
    options = {"seeds": 2, "synthetic_rows": 512}
    neural_utility.run_cells(["synthetic"], tmp_path, file, **options)
    before = file.read_text()
    lines = before.splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["oracle", "additive", "bags"] * 2
    neural_utility.run_cells(["synthetic"], tmp_path, file, **options)
    assert file.read_text() == before
    file.write_text("\n".join(lines[:-1]) + "\n")  # the process was killed in the last cell
    neural_utility.run_cells(["synthetic"], tmp_path, file, **options)
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert again[-1]["mse"] == json.loads(lines[-1])["mse"]

    neural_report.write_report(file, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text())["cells"]
    shares = [
        (b["mse"] - o["mse"]) / (b["constant_mse"] - o["mse"]) for o, b in ((again[0], again[2]), (again[3], again[5]))
    ]
    assert len(found) == 1 and found[0]["num_rows"] == 512
    assert np.isclose(found[0]["bags"]["mean"], np.mean(shares))
    assert np.isclose(found[0]["bags"]["half_width"], 12.71 * np.std(shares, ddof=1) / math.sqrt(2))
    assert "k = 8" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "neural_utility.svg").read_text().startswith("<?xml")
