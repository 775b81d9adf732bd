"""What the results say: means with intervals over seeds, and whether they are as they should be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from dpagg.experiments.label_dp.networks import CLEAN_EPSILON
from dpagg.regression.planning import relative_excess_loss

__all__ = ["interval", "summarise"]

MECHANISMS = ("wtd-flag", "wtd-flag-assumed", "sampled-wtd-flag", "label-gaussian", "label-noise")
_MEASURED = ("excess_share", "train_mse", "test_mse")


def summarise(
    tables: Sequence[Mapping[str, Any]], *, notes: Sequence[str] = (), skipped: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what was found, as plain JSON values.

    Parameters
    ----------
    tables : sequence of mapping
        As the protocol collects them: ``facts``, and ``found`` with what was asked.
    notes : sequence of str
        What is to be said about data that were looked for.
    skipped : mapping, optional
        Why a part was not run.

    Returns
    -------
    dict
        ``private`` (false), ``notes``, ``skipped`` and ``tables``. Each table has its ``facts``; ``bags_allowed`` by
        epsilon; ``losses`` by mechanism, bag size and epsilon; ``factor``, the excess factor theta by number of bags;
        ``networks`` by bag size and number of bags; and ``checks``.
    """
    done = []
    for table in tables:
        head = {name: table[name] for name in ("name", "title", "is_synthetic", "origin")}
        if "refused" in table:
            done.append(head | {"refused": table["refused"]})
            continue
        found, facts = table["found"], table["facts"]
        losses = _losses(found)
        done.append(
            head
            | {
                "facts": facts,
                "bags_allowed": [
                    each["found"]
                    for each in found
                    if each["asked"]["what"] == "bags-allowed" and "refused" not in each["found"]
                ],
                "losses": losses,
                "factor": _factor(found, facts),
                "networks": _networks(found, facts),
                "checks": _checks(losses),
            }
        )
    return {
        "private": False,
        "notes": list(notes),
        "skipped": dict(skipped or {}),
        "tables": done,
    }


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the half width of its 95 % interval by Student's t; None with one value."""
    numbers = np.asarray(values, dtype=float)
    if len(numbers) < 2:
        return {"mean": float(numbers.mean()), "half_width": None}
    error = float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return {"mean": float(numbers.mean()), "half_width": float(stats.t.ppf(0.975, len(numbers) - 1)) * error}


def _grouped(
    found: Sequence[Mapping[str, Any]], what: str, by: Sequence[str]
) -> dict[tuple[Any, ...], list[Mapping[str, Any]]]:
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for each in found:
        if each["asked"]["what"] == what:
            groups.setdefault(tuple(each["asked"].get(name) for name in by), []).append(each["found"])
    return groups


def _losses(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    losses = []
    for mechanism in MECHANISMS:
        for (size, epsilon), drawn in _grouped(found, mechanism, ("bag_size", "epsilon")).items():
            entry: dict[str, Any] = {"mechanism": mechanism, "bag_size": size, "epsilon": epsilon}
            refused = [each["refused"] for each in drawn if "refused" in each]
            if refused:
                losses.append(entry | {"refused": refused[0]})
                continue
            entry |= {name: drawn[0][name] for name in ("num_bags", "label_noise_std")}
            entry["delta_at_epsilon"] = max(each["delta_at_epsilon"] for each in drawn)
            entry |= {name: interval([each[name] for each in drawn]) for name in _MEASURED}
            losses.append(entry | {"trials": len(drawn)})
    return losses


def _factor(found: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The excess factor theta, a release's loss over that of least squares less 1, and what theory expects."""
    best, entries = facts["least_squares"]["train_mse"], []
    for (floor, count), drawn in _grouped(found, "factor", ("floor", "num_bags")).items():
        if any("refused" in each for each in drawn):
            continue
        residuals = facts["mean_squared_residual"] * facts["num_kept"]
        noise = (drawn[0]["label_noise_std"] or 0.0) ** 2 / residuals
        entries.append(
            {
                "floor": floor,
                "num_bags": count,
                "epsilon": drawn[0]["epsilon"],
                "theta": interval([each["train_mse"] / best - 1.0 for each in drawn]),
                "expected": relative_excess_loss(facts["rank"], count, noise),
            }
        )
    return entries


def _networks(found: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = []
    for (epsilon, size, count), drawn in _grouped(found, "networks", ("epsilon", "bag_size", "num_bags")).items():
        entry = {"epsilon": epsilon, "is_clean": epsilon == CLEAN_EPSILON, "bag_size": size, "num_bags": count}
        refused = [each["refused"] for each in drawn if "refused" in each]
        if refused:
            entries.append(entry | {"refused": refused[0]})
            continue
        share = interval([each["test_mse"] / each["constant_test_mse"] for each in drawn])
        entries.append(
            entry
            | {
                "test_mse": interval([each["test_mse"] for each in drawn]),
                "share_of_constant": share,
                "trials": len(drawn),
            }
        )
    return entries


def _checks(losses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether losses fall with epsilon within their intervals, and what WTD-FLAG loses at epsilon 1."""
    series: dict[str, list[Mapping[str, Any]]] = {}
    for each in losses:
        if "refused" not in each:
            name = each["mechanism"] + ("" if each["bag_size"] is None else f", k = {each['bag_size']}")
            series.setdefault(name, []).append(each)
    falls = {}
    for name, points in series.items():
        points = sorted(points, key=lambda point: float(point["epsilon"]))
        falls[name] = all(
            after["excess_share"]["mean"] - (after["excess_share"]["half_width"] or 0.0)
            <= before["excess_share"]["mean"] + (before["excess_share"]["half_width"] or 0.0)
            for before, after in itertools.pairwise(points)
        )
    at_one = [each["excess_share"] for each in series.get("wtd-flag", []) if each["epsilon"] == 1.0]
    return {
        "falls_with_epsilon_within_intervals": falls,
        "wtd_flag_excess_share_at_epsilon_1": at_one[0] if at_one else None,
    }
