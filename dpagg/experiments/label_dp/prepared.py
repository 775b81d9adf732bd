"""A table split into rows to train and rows to test, written once, and the configurations that read it."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpagg
from dpagg.config import AggregateConfig, PrivateFitConfig, parse_config
from dpagg.experiments.label_dp.cases import Case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Prepared", "identity_of", "prepare"]

TEST_SHARE = 0.2
_DONE = "prepared.json"


def identity_of(spark: SparkSession, case: Case) -> list[Any]:
    """Return what a table follows from, as JSON values: the version of its files, or how it is made."""
    from dpagg.spark.joining import read_input

    asked = case.config.asked()
    declared = [{name: value for name, value in asked["input"].items() if name != "path"}, asked["schema"]]
    if case.make is not None:
        return [*case.made_from, declared, dpagg.__version__]
    table = read_input(spark, case.config.input, case.config.encoding.label.name, case.config.columns)
    return [table.version, declared, dpagg.__version__]


@dataclass(frozen=True)
class Prepared:
    """Where the rows are.

    Attributes
    ----------
    case : Case
        The table.
    folder : Path
        Of its scratch: rows of the table, to be kept as the table is kept.
    num_malformed : int
        Lines of the table that were left out.
    """

    case: Case
    folder: Path
    num_malformed: int

    def rows_path(self, part: str) -> str:
        """Return the folder of the rows of a part, ``train`` or ``test``."""
        return str(self.folder / "rows" / f"part={part}")

    def aggregate(
        self, mechanism: dict[str, Any], privacy: dict[str, Any], output: str = "not written", part: str = "train"
    ) -> AggregateConfig:
        """Return the configuration of a release of the rows; `privacy` completes delta and cap of the table's own."""
        declared = self.case.config.privacy
        whole = {"delta": declared.delta, "leverage_cap_factor": declared.leverage_cap_factor} | privacy
        if mechanism["name"] == "sampled-noisy-wtd-lag":
            del whole["leverage_cap_factor"]  # it means nothing there
        return parse_config(
            {
                "input": self._input(part, with_key=True),
                "schema": self.case.config.public_dict()["schema"],
                "mechanism": mechanism,
                "privacy": whole,
                "output": {"path": output},
            },
            "aggregate",
        )

    def fit(self, mechanism: dict[str, Any], epsilon: float) -> PrivateFitConfig:
        """Return the configuration of a fit of the rows to train that protects labels."""
        config = parse_config(
            {
                "input": self._input("train", with_key=False),
                "schema": self.case.config.public_dict()["schema"],
                "mechanism": mechanism,
                "privacy": {
                    "epsilon": epsilon,
                    "delta": self.case.config.privacy.delta,
                    "adjacency": "change_one_label",
                },
                "output": {"path": "not written"},
            },
            "fit",
        )
        assert isinstance(config, PrivateFitConfig)  # it has an input
        return config

    def _input(self, part: str, *, with_key: bool) -> dict[str, Any]:
        from dpagg.spark.splitting import ROW_KEY

        key = {"row_id": self.case.config.input.row_id or ROW_KEY} if with_key else {}
        return {"path": self.rows_path(part), "format": "parquet"} | key


def prepare(spark: SparkSession, case: Case, folder: Path, identity: list[Any]) -> Prepared:
    """Split a table and write it, unless the folder holds it already.

    Raises
    ------
    DataError
        As `dpagg.spark.splitting.write_split`.
    """
    from dpagg.spark.joining import read_input
    from dpagg.spark.splitting import write_split

    done = folder / _DONE
    if done.exists():
        earlier = json.loads(done.read_text(encoding="utf-8"))
        if earlier["identity"] == identity:
            return Prepared(case, folder, earlier["num_malformed"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if case.make is not None:
        case.make()
    config = case.config
    table = read_input(spark, config.input, config.encoding.label.name, config.columns)
    malformed = write_split(table, config.encoding, config.input.row_id, str(folder / "rows"), TEST_SHARE)
    unfinished = done.with_suffix(f".{os.getpid()}.unfinished")
    unfinished.write_text(json.dumps({"identity": identity, "num_malformed": malformed}) + "\n", encoding="utf-8")
    unfinished.replace(done)
    return Prepared(case, folder, malformed)
