"""Coefficients with intervals, from a model alone: what each interval covers is said with it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from dpagg.regression.model import Coefficient, LinearModel

_LEVEL = 0.95
_BAR_WIDTH = 100.0

Interval = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One coefficient, its intervals, and where its bar is drawn.

    Attributes
    ----------
    coefficient : Coefficient
        In the user's units.
    interval, population_interval : (float, float) or None
        95 %, in the same units; None where the release does not determine one.
    bar : (float, float, float) or None
        Low end, estimate and high end of the effect on a scale from 0 to 100 that all lines share; None for the
        intercept, which would dwarf them.
    """

    coefficient: Coefficient
    interval: Interval | None
    population_interval: Interval | None
    bar: tuple[float, float, float] | None


@dataclass(frozen=True)
class Coefficients:
    """The lines of a model and what their intervals mean.

    Attributes
    ----------
    lines : tuple of Line
        The intercept first.
    zero : float
        Where 0 lies on the scale of the bars.
    reach : float
        Effect, in units of the label, between 0 and 100 on that scale.
    covers, population_covers : str
        What an interval covers, or why there is none.
    """

    lines: tuple[Line, ...]
    zero: float
    reach: float
    covers: str
    population_covers: str | None


def coefficients(model: LinearModel) -> Coefficients:
    """Return the coefficients of a model with 95 % intervals.

    Least squares on a release has a residual variance estimated with known degrees of freedom, so its quantile is
    Student's; the noise of a private fit is known, so its quantile is the normal's.
    """
    freedom = model.fit.get("degrees_of_freedom")
    tail = (1 + _LEVEL) / 2
    quantile = float(special.stdtrit(freedom, tail)) if freedom else float(special.ndtri(tail))
    found = model.user_coefficients()
    intervals = [_interval(each.coefficient, each.standard_error, quantile) for each in found]
    population = [_interval(each.coefficient, each.population_standard_error, quantile) for each in found]
    if _of_disjoint_bags(model):  # one interval is for both there
        population = [None] * len(found)
    ends = [0.0]
    for each, interval in zip(found[1:], intervals[1:], strict=True):
        ends += [value * each.half_width for value in (each.coefficient, *(interval or ()))]
    low, high = min(ends), max(ends)
    reach = (high - low) or 1.0

    def place(value: float) -> float:
        # Not to the very edge, where a mark would be cut.
        return _BAR_WIDTH * (0.03 + 0.94 * (value - low) / reach)

    lines = [Line(found[0], intervals[0], population[0], None)]
    for each, interval, wide in zip(found[1:], intervals[1:], population[1:], strict=True):
        first, last = interval or (each.coefficient, each.coefficient)
        bar = (place(first * each.half_width), place(each.coefficient * each.half_width), place(last * each.half_width))
        lines.append(Line(each, interval, wide, bar))
    return Coefficients(tuple(lines), place(0.0), reach, _covers(model, intervals), _population(population))


def _interval(middle: float, error: float, quantile: float) -> Interval | None:
    if not math.isfinite(error):
        return None
    return middle - quantile * error, middle + quantile * error


def _covers(model: LinearModel, intervals: list[Interval | None]) -> str:
    if not np.isfinite(model.standard_errors).any() and intervals[0] is None:
        return (
            "This method releases nothing from which an honest interval would follow: how far the coefficients are "
            "from those of least squares on the rows is not known, and the size of the noise alone would be too short."
        )
    bound = " with the norm bound" if model.fit.get("norm_bound") else ""
    if _of_disjoint_bags(model):
        return (
            f"95 in 100 such intervals cover what least squares{bound} would give without privacy, on all rows and, "
            "supposing that rows are an independent sample, on those they stand for. They hold the noise of privacy, "
            "the choice of bags and weights, and the sampling of rows."
        )
    return (
        f"95 in 100 such intervals cover what least squares{bound} would give on the same rows without privacy. They "
        "hold the noise of privacy and of aggregation; not what another sample of rows would change, and no bias of "
        "clipping."
    )


def _of_disjoint_bags(model: LinearModel) -> bool:
    return model.release.get("mechanism") in ("sampled-wtd-flag", "sampled-noisy-wtd-lag")


def _population(intervals: list[Interval | None]) -> str | None:
    if all(interval is None for interval in intervals):
        return None
    return (
        "The wider interval also covers the sampling of the rows, supposing that they are an independent sample with "
        "residuals of equal variance."
    )
