"""What is run on one table: bags allowed, losses against epsilon, the excess factor against bags, networks."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpagg.experiments.label_dp.allowed import bags_allowed, least_epsilon
from dpagg.experiments.label_dp.cases import Case
from dpagg.experiments.label_dp.cells import Cells
from dpagg.experiments.label_dp.lab import Lab
from dpagg.experiments.label_dp.networks import Networks, missing_libraries, trainings
from dpagg.experiments.label_dp.prepared import identity_of, prepare
from dpagg.experiments.progress import progress_bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["PARTS", "TableExperiment"]

PARTS = (
    "bags-allowed",
    "wtd-flag",
    "wtd-flag-assumed",
    "factor",
    "sampled-wtd-flag",
    "label-gaussian",
    "label-noise",
    "networks",
)
_BAG_SIZES = (30, 100, 300, 1000, 3000, 10_000)
_MOST_SIZES = 3
_FACTOR_POINTS = 5

Found = dict[str, Any]


@dataclass(frozen=True)
class _Step:
    """One result: what is asked, how it is found, and a guess of the seconds that takes."""

    asked: dict[str, Any]
    find: Callable[[], Found]
    seconds: float


class TableExperiment:
    """The experiments on one table.

    Nothing is read before a result is missing; what one result needs of the table, those after it use.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    case : Case
        The table.
    out : Path
        Folder of all results.
    epsilons : list of float
    trials : int
        Seeds of each cell.
    parts : sequence of str
        Out of `PARTS`.
    """

    def __init__(
        self, spark: SparkSession, case: Case, out: Path, epsilons: list[float], trials: int, parts: Sequence[str]
    ) -> None:
        self._spark, self._case, self._folder = spark, case, out / "scratch" / case.name
        self._epsilons, self._trials, self._parts = epsilons, trials, parts
        self._identity = identity_of(spark, case)
        settings = {"table": self._identity, "delta": case.config.privacy.delta}
        self._cells = Cells(out / "cells" / f"{case.name}.jsonl", settings)
        self._held = contextlib.ExitStack()

    @cached_property
    def _lab(self) -> Lab:
        return Lab(self._spark, prepare(self._spark, self._case, self._folder, self._identity))

    @cached_property
    def _networks(self) -> Networks:
        return Networks(self._spark, self._lab.prepared)

    @cached_property
    def _label_gaussian(self) -> Callable[[float, int], Found]:
        return self._held.enter_context(self._lab.label_gaussian())

    @cached_property
    def facts(self) -> Found:
        """What the table is; from it follows what is to be run."""
        return self._cells.once({"what": "facts"}, lambda: self._lab.facts())

    def run(self, tell: Callable[[str], None], progress: bool) -> None:
        """Find what is not there yet."""
        name, facts = self._case.name, self.facts
        if "refused" in facts:
            tell(f"{name}: {facts['refused']}")
            return
        missing = [step for step in self._steps() if self._cells.get(step.asked) is None]
        minutes = max(1, round(sum(step.seconds for step in missing) / 60))
        tell(
            f"{name}: {facts['num_rows']:,} rows to train on, {facts['num_test_rows']:,} to test on, "
            f"{facts['num_columns']} columns; "
            + (f"{len(missing)} results to find, some {minutes} min" if missing else "all results are there")
        )
        with self._held, progress_bar(progress, len(missing)) as advance:
            for step in missing:
                self._cells.once(step.asked, step.find)
                advance(f"{name}, {step.asked['what']}")
        if "_lab" in self.__dict__:
            self._lab.forget_bags()
        shutil.rmtree(self._folder, ignore_errors=True)  # what a run that was killed left there, too

    def results(self) -> Found:
        """Return everything that was asked, as JSON values."""
        case = self._case
        head = {"name": case.name, "title": case.title, "is_synthetic": case.is_synthetic, "origin": case.origin}
        if "refused" in self.facts:
            return head | {"refused": self.facts["refused"]}
        found = [{"asked": step.asked, "found": self._cells.get(step.asked)} for step in self._steps()]
        return head | {"facts": self.facts, "found": found}

    def _steps(self) -> Iterator[_Step]:
        # Guesses for two cores: a start-up, then the values of a pass.
        a_pass = 1.0 + 3e-8 * self.facts["num_rows"] * self.facts["num_columns"]
        kinds: dict[str, Callable[[float], Iterator[_Step]]] = {
            "bags-allowed": self._allowed,
            "wtd-flag": self._wtd_flag,
            "wtd-flag-assumed": self._assumed,
            "factor": self._factor,
            "sampled-wtd-flag": self._sampled,
            "label-gaussian": self._gaussian,
            "label-noise": self._label_noise,
            "networks": self._trainings,
        }
        for part, steps in kinds.items():
            if part in self._parts:
                yield from steps(a_pass)

    def _grid(self) -> Iterator[tuple[float, int]]:
        for seed in range(self._trials):
            for epsilon in self._epsilons:
                yield epsilon, seed

    def _allowed(self, _: float) -> Iterator[_Step]:
        def find(epsilon: float) -> Found:
            calibrated = self._lab.plan({"name": "wtd-flag"}, {"epsilon": epsilon}).calibrated
            noise = {"num_bags": calibrated.num_bags, "noise_variance": calibrated.noise_variance}
            return bags_allowed(self.facts, epsilon, noise)

        for epsilon in self._epsilons:
            yield _Step({"what": "bags-allowed", "epsilon": epsilon}, _later(find, epsilon), 1.5)

    def _wtd_flag(self, a_pass: float) -> Iterator[_Step]:
        def find(epsilon: float, seed: int) -> Found:
            return self._lab.wtd_flag(epsilon, seed)

        for epsilon, seed in self._grid():
            yield _Step({"what": "wtd-flag", "epsilon": epsilon, "seed": seed}, _later(find, epsilon, seed), a_pass)

    @property
    def _floor(self) -> dict[str, Any]:
        return {"kind": "assume", "mean_squared_residual": self.facts["mean_squared_residual"]}

    def _assumed(self, a_pass: float) -> Iterator[_Step]:
        def find(epsilon: float, seed: int) -> Found:
            return self._lab.wtd_flag(epsilon, seed, floor=self._floor)

        for epsilon, seed in self._grid():
            asked = {"what": "wtd-flag-assumed", "epsilon": epsilon, "seed": seed}
            yield _Step(asked, _later(find, epsilon, seed), a_pass)

    def _factor(self, a_pass: float) -> Iterator[_Step]:
        def find(floor: str, count: int, seed: int) -> Found:
            if floor == "noise":
                return self._lab.wtd_flag(1.0, seed, num_bags=count) | {"epsilon": 1.0}
            epsilon = least_epsilon(self.facts, count)
            return self._lab.wtd_flag(epsilon, seed, num_bags=count, floor=self._floor) | {"epsilon": epsilon}

        rank, n = self.facts["rank"], self.facts["num_kept"]
        counts = np.unique(np.geomspace(min(4 * rank, n), n, _FACTOR_POINTS).astype(int))
        for count in counts.tolist():
            for floor in ("assume", "noise"):
                for seed in range(self._trials):
                    asked = {"what": "factor", "floor": floor, "num_bags": count, "seed": seed}
                    yield _Step(asked, _later(find, floor, count, seed), 1.0 + a_pass * count / n)

    def _sampled(self, a_pass: float) -> Iterator[_Step]:
        def find(epsilon: float, seed: int, size: int) -> Found:
            return self._lab.sampled_wtd_flag(epsilon, seed, size)

        columns, n = self.facts["num_columns"], self.facts["num_rows"]
        sizes = [size for size in _BAG_SIZES if min(size, n // size) >= 1.5 * columns]
        if len(sizes) > _MOST_SIZES:
            sizes = [sizes[0], sizes[len(sizes) // 2], sizes[-1]]
        for size in sizes:
            for epsilon, seed in self._grid():  # all epsilons of a seed in turn: they share its bags
                asked = {"what": "sampled-wtd-flag", "bag_size": size, "epsilon": epsilon, "seed": seed}
                cost = 3 * a_pass if epsilon == self._epsilons[0] else 1.0
                yield _Step(asked, _later(find, epsilon, seed, size), cost)

    def _gaussian(self, a_pass: float) -> Iterator[_Step]:
        def find(epsilon: float, seed: int) -> Found:
            return self._label_gaussian(epsilon, seed)

        for epsilon, seed in self._grid():
            asked = {"what": "label-gaussian", "epsilon": epsilon, "seed": seed}
            yield _Step(asked, _later(find, epsilon, seed), 0.3 + a_pass / self._trials)

    def _label_noise(self, a_pass: float) -> Iterator[_Step]:
        def find(epsilon: float, seed: int) -> Found:
            return self._lab.label_noise(epsilon, seed)

        for epsilon, seed in self._grid():
            asked = {"what": "label-noise", "epsilon": epsilon, "seed": seed}
            yield _Step(asked, _later(find, epsilon, seed), 2 * a_pass + 4e-5 * self.facts["num_rows"])

    def _trainings(self, a_pass: float) -> Iterator[_Step]:
        if missing_libraries() is not None:
            return
        for what in trainings(self.facts["num_rows"]):
            for seed in range(self._trials):
                asked = {"what": "networks"} | dataclasses.asdict(what) | {"seed": seed}
                rows = what.bag_size * what.num_bags
                yield _Step(asked, _later(self._trained, what, seed), 6.0 + a_pass + 2e-5 * rows)

    def _trained(self, what: Any, seed: int) -> Found:
        return self._networks.train(what, seed)


def _later(function: Callable[..., Found], *arguments: Any) -> Callable[[], Found]:
    return lambda: function(*arguments)
