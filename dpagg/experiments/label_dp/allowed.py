"""How many bags each bound allows WTD-FLAG, and why the exact accounting allows fewer where it does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpagg.accounting.calibration import largest_num_bags
from dpagg.accounting.paper_bounds import sheffet_num_bags, weighted_flag_num_bags
from dpagg.accounting.weighted_aggregation import WeightedAggregation
from dpagg.accounting.worst_rows import worst_rows

__all__ = ["BOUNDS", "REASONS", "bags_allowed", "bags_worth", "bare_event"]

BOUNDS = {
    "paper": "the paper, constant taken as 1",
    "sheffet": "Sheffet, as the paper compares: B bounds labels",
    "sheffet_rows": "Sheffet, as proved: B bounds whole rows",
    "exact": "exact, assumed floor, any labels",
    "exact_bounded": "exact, assumed floor, residuals at most 2B",
    "noise_worth": "exact, noise floor: what m = n bags are worth",
}

REASONS = {
    "epsilon": "The paper's number does not depend on epsilon, which it takes as a constant. At epsilon 1, and with "
    "labels and predictions of at most B, the exact accounting allows more.",
    "residuals": "The exact accounting lets labels be anything within their bounds, so that a residual may be as large "
    "as leverages let it (Cauchy-Schwarz), and epsilon counts. With labels and predictions of at most B, as of the "
    "bounded regressors that the paper is about, residuals are at most 2B, and it allows more.",
    "constant": "The constant in the paper's O() is not known and taken as 1.",
    "rows": "The bound is proved for rows (x, y) of a norm of at most B, and supposes the least singular value of "
    "[X y], labels included, for both data sets; as the paper compares, B bounds labels only. With the norm that "
    "encoded rows may have, the exact accounting allows more.",
    "singular": "The bound supposes the least singular value of [X y], labels included, for both data sets, so that no "
    "row can stand out; the exact accounting supposes a residual sum and lets labels be anything within their bounds. "
    "With residuals of at most 2B it allows more.",
    "constants": "No hypothesis that was tried explains it.",
}


def bare_event(facts: Mapping[str, Any], *, residual_bound: float | None = None) -> WeightedAggregation:
    """Return one noise-free bag of a table whose residuals themselves are the floor.

    Parameters
    ----------
    facts : mapping
        As `dpagg.experiments.label_dp.lab.Lab.facts` returns them.
    residual_bound : float, optional
        A bound on residuals that is supposed; by default the one that holds for any labels within their bounds.
    """
    n, largest = int(facts["num_kept"]), float(facts["largest_leverage"])
    leverage, bound = worst_rows(largest, n, facts["label_magnitude"], facts["label_range"])
    if residual_bound is not None:
        leverage, bound = np.array([largest]), np.array([residual_bound])
    return WeightedAggregation(
        num_bags=1,
        label_range=facts["label_range"],
        leverage=leverage,
        residual_floor=facts["mean_squared_residual"] * n,
        residual_bound=bound,
    )


def bags_worth(facts: Mapping[str, Any], num_bags: int, noise_variance: float) -> float:
    """Return how many bags without noise have the expected loss of these, by ``r / (m - r - 1) (1 + tau^2 / r^2)``."""
    spare = num_bags - facts["rank"] - 1
    residuals = facts["mean_squared_residual"] * facts["num_kept"]
    return max(0.0, spare / (1.0 + noise_variance / residuals) + facts["rank"] + 1) if spare > 0 else 0.0


def bags_allowed(facts: Mapping[str, Any], epsilon: float, noise: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bags that each bound allows at an epsilon, as JSON values.

    Parameters
    ----------
    facts : mapping
        Of the table. Its mean squared residual is what the bounds assume: known here, because labels may be seen.
    epsilon : float
    noise : mapping
        ``num_bags`` and ``noise_variance`` of a release with the noise floor.

    Returns
    -------
    dict
        ``allowed``: bags by bound; ``ratios``: the exact number over that of the paper and of Sheffet; ``fewer``: for
        which of them it is smaller, and why.
    """
    delta, n = facts["delta"], facts["num_kept"]
    bound = facts["label_magnitude"]
    # An encoded feature adds at most 1 to the square of a row's norm, as the intercept and the label over B do.
    whole_rows = math.sqrt(facts["num_features"] + 2)

    def exact(at: float, supposed: float | None) -> int:
        return largest_num_bags(bare_event(facts, residual_bound=supposed), epsilon=at, delta=delta)

    def sheffet(rows: float) -> int:
        return sheffet_num_bags(
            least_singular_value=facts["least_singular_value"], label_bound=rows, epsilon=epsilon, delta=delta
        )

    allowed = {
        "paper": weighted_flag_num_bags(
            mean_squared_residual=facts["mean_squared_residual"], num_rows=n, label_bound=bound, delta=delta
        ),
        "sheffet": sheffet(1.0),
        "sheffet_rows": sheffet(whole_rows),
        "exact": exact(epsilon, None),
        "exact_bounded": exact(epsilon, 2 * bound),
        "noise_worth": bags_worth(facts, noise["num_bags"], noise["noise_variance"]),
    }
    ratios = {
        f"{ours}_over_{theirs}": allowed[ours] / allowed[theirs] if allowed[theirs] else None
        for ours in ("exact", "exact_bounded", "noise_worth")
        for theirs in ("paper", "sheffet", "sheffet_rows")
    }
    fewer = {}
    if allowed["exact"] < allowed["paper"]:
        if allowed["exact_bounded"] >= allowed["paper"]:
            fewer["paper"] = "residuals"
        else:
            fewer["paper"] = "epsilon" if exact(max(epsilon, 1.0), 2 * bound) >= allowed["paper"] else "constant"
    if allowed["exact"] < allowed["sheffet"]:
        if allowed["exact"] >= allowed["sheffet_rows"]:
            fewer["sheffet"] = "rows"
        else:
            fewer["sheffet"] = "singular" if allowed["exact_bounded"] >= allowed["sheffet"] else "constants"
    return {"epsilon": epsilon, "allowed": allowed, "ratios": ratios, "fewer": fewer}


def least_epsilon(facts: Mapping[str, Any], num_bags: int) -> float:
    """Return the epsilon that so many bags without noise cost where the residuals are the floor, rounded up."""
    event = dataclasses.replace(bare_event(facts), num_bags=num_bags)
    return float(event.epsilon(facts["delta"])) * (1 + 1e-6)
