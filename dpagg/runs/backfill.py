"""The same release for many days in one call: each day by itself, and a summary of all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from dpagg.config import AggregateConfig
from dpagg.errors import ConfigError, DpaggError
from dpagg.runs.aggregate import KEPT, run_aggregate
from dpagg.runs.monitoring import Monitor

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_MOST_DAYS = 3660


@dataclass
class DayResult:
    """What became of one day.

    Attributes
    ----------
    day : str
        ISO date.
    path : str
        Output path.
    exit_code : int
        As the command's for this day alone.
    outcome : str
        ``published``, ``found`` (it was there already), ``kept`` (it was there, from an earlier version of the input)
        or ``failed``.
    message : str
        Why it failed or was kept.
    monitor : Monitor
        Stages and budget.
    """

    day: str
    path: str
    exit_code: int = 0
    outcome: str = "published"
    message: str = ""
    monitor: Monitor = field(default_factory=Monitor)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("day", "path", "exit_code", "outcome", "message")
        return {name: getattr(self, name) for name in names} | {"metrics": self.monitor.to_dict(self.exit_code)}


def parse_days(text: str) -> list[str]:
    """Return the ISO dates from ``FIRST:LAST``, both included.

    Raises
    ------
    ConfigError
        If they are no dates, or not in order.
    """
    first, _, last = text.partition(":")
    try:
        start, end = date.fromisoformat(first), date.fromisoformat(last or first)
    except ValueError:
        raise ConfigError(
            f"--backfill is {text!r}, expected two dates like 2026-11-01:2026-11-28", remedy="The last day is included."
        ) from None
    count = (end - start).days + 1
    if not 1 <= count <= _MOST_DAYS:
        raise ConfigError(f"--backfill is {text!r}: {count:,} days, expected 1 to {_MOST_DAYS:,}")
    return [(start + timedelta(days=offset)).isoformat() for offset in range(count)]


def run_backfill(
    spark: SparkSession,
    configs: dict[str, AggregateConfig],
    *,
    insecure_seed: int | None = None,
    allow_open_window: bool = False,
    after_day: Callable[[DayResult], None] = lambda _: None,
) -> list[DayResult]:
    """Release one day after another; a day that is refused or fails doesn't keep the others.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    configs : dict
        By day.
    insecure_seed, allow_open_window
        As `dpagg.runs.aggregate.run_aggregate`.
    after_day : callable
        Is told of each day.

    Raises
    ------
    ConfigError
        If two days have one output path: the configuration does not use the date.
    """
    paths = [config.output.path for config in configs.values()]
    if len(set(paths)) < len(paths):
        raise ConfigError(
            "several days would have one output", path="output.path", remedy="Write ${date} into output.path."
        )
    results = []
    for day, config in configs.items():
        result = DayResult(day, config.output.path)
        try:
            found = run_aggregate(
                spark,
                config,
                insecure_seed=insecure_seed,
                allow_open_window=allow_open_window,
                monitor=result.monitor,
            )
            result.outcome = "published" if found.is_new else "kept" if found.is_older else "found"
            result.message = KEPT if found.is_older else ""
        except DpaggError as error:
            result.exit_code, result.outcome, result.message = error.exit_code, "failed", str(error)
        about = {"date": day, "exit_code": result.exit_code}
        _LOG.log(
            logging.ERROR if result.exit_code else logging.INFO,
            "%s %s %s",
            day,
            result.outcome,
            result.message,
            extra=about,
        )
        results.append(result)
        after_day(result)
    return results


def worst(results: Sequence[DayResult]) -> int:
    """Return the exit code of all days together: the largest."""
    return max((result.exit_code for result in results), default=0)
