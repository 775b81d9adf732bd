"""The experiments of the label-DP paper on every table that is found, kept as they come, and what they say."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpagg.errors import ConfigError
from dpagg.experiments.label_dp.cases import find_cases
from dpagg.experiments.label_dp.experiment import PARTS, TableExperiment
from dpagg.experiments.label_dp.networks import missing_libraries
from dpagg.experiments.label_dp.report import write_report
from dpagg.experiments.label_dp.results import summarise

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["EPSILONS", "PARTS", "reproduce_label_dp"]

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)


def reproduce_label_dp(
    spark: SparkSession,
    data: Path,
    out: Path,
    *,
    sets: Sequence[str] | None = None,
    synthetic: int = 100_000,
    epsilons: Sequence[float] = EPSILONS,
    trials: int = 3,
    parts: Sequence[str] = PARTS,
    tell: Callable[[str], None] = lambda words: None,
    progress: bool = False,
) -> dict[str, Any]:
    """Run the experiments of the label-DP paper on every table that is found, and write tables, figures and a page.

    Results are kept in ``out/cells`` as soon as they are there: a run that was killed goes on, and one that ended does
    nothing when it is repeated. Rows of tables lie in ``out/scratch`` until their table is done. All releases are drawn
    from public seeds, and losses are read off the labels: NOT private.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    data : Path
        As `dpagg.experiments.label_dp.cases.find_cases`.
    out : Path
        Folder of the results.
    sets : sequence of str, optional
        Names of tables; all that are found by default.
    synthetic : int
        Rows of each stand-in; 0 makes none.
    epsilons : sequence of float
        For all mechanisms.
    trials : int
        Seeds of each cell, at least two.
    parts : sequence of str
        What to run, out of `PARTS`.
    tell : callable
        Is told what was found and how long it may take.
    progress : bool
        Whether to show a bar on stderr.

    Returns
    -------
    dict
        Plain JSON values, as ``out/label_dp.json``: see `dpagg.experiments.label_dp.results.summarise`.

    Raises
    ------
    ConfigError, DataError
        If there is nothing to run on, or a setting is out of range.
    EnvironmentFault
        If Spark fails.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is none of the parts", path="--parts", remedy=f"Known: {', '.join(PARTS)}.")
    if trials < 2 or not epsilons:
        raise ConfigError(f"expected at least two trials and one epsilon, got {trials} and {len(epsilons)}")
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    found = find_cases(data.absolute(), out / "scratch", sets=sets, synthetic=synthetic)
    for note in found.notes:
        tell(note)
    tables = []
    for case in found.cases:
        tell(f"{case.name}: {'SYNTHETIC, ' if case.is_synthetic else ''}{case.origin}")
        table = TableExperiment(spark, case, out, sorted(set(epsilons)), trials, parts)
        began = time.monotonic()
        table.run(tell, progress)
        tell(f"{case.name}: done in {time.monotonic() - began:.0f} s")
        tables.append(table.results())
    skipped = missing_libraries() if "networks" in parts else None
    result = summarise(tables, notes=found.notes, skipped={} if skipped is None else {"networks": skipped})
    write_report(result, out)
    with contextlib.suppress(OSError):
        (out / "scratch").rmdir()
    return result
