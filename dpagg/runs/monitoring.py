"""What a scheduler may know of a run: stages, seconds and budget; nothing that follows from a label."""

from __future__ import annotations

import json
import logging
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dpagg.errors import EnvironmentFault

_LOG = logging.getLogger(__name__)

# Of a log record: what is said of a run beside its text.
FIELDS = ("stage", "seconds", "release_id", "dataset", "partition", "date", "exit_code")


@dataclass
class Monitor:
    """How far a run has come, and how long each stage took.

    Stages: ``plan`` (features only), ``charge``, ``draw`` (labels), ``publish``, ``settle``; then ``done``, or
    ``found`` where the release was there already. A run without a ledger has ``done`` only.

    Attributes
    ----------
    stage : str
        The one under way.
    seconds : dict
        Of the stages that are over.
    release_id, dataset, partition : str or None
        Of the run, as far as known.
    epsilon, delta : float or None
        What the release claims.
    spent, remaining : float or None
        Epsilon of the ledger's budget for this partition after the run, at the budget's delta.
    """

    stage: str = "plan"
    seconds: dict[str, float] = field(default_factory=dict)
    release_id: str | None = None
    dataset: str | None = None
    partition: str | None = None
    epsilon: float | None = None
    delta: float | None = None
    spent: float | None = None
    remaining: float | None = None
    _since: float = field(default_factory=time.monotonic)

    def enter(self, stage: str) -> None:
        """Begin a stage; the one before is over."""
        now = time.monotonic()
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + now - self._since
        about = {"release_id": self.release_id, "dataset": self.dataset, "partition": self.partition}
        over = {"stage": self.stage, "seconds": round(self.seconds[self.stage], 3)}
        _LOG.info("stage %s is over after %.1f s", self.stage, self.seconds[self.stage], extra=about | over)
        self.stage, self._since = stage, now

    def to_dict(self, exit_code: int) -> dict[str, Any]:
        """Return the metrics as plain JSON values."""
        names = ("release_id", "dataset", "partition", "epsilon", "delta", "spent", "remaining", "stage")
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "exit_code": exit_code,
            **{name: getattr(self, name) for name in names},
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }


def write_metrics(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write the metrics of runs: ``.prom`` in the text format of Prometheus, else JSON.

    Raises
    ------
    EnvironmentFault
        If the file can't be written.
    """
    text = _prometheus(runs) if path.suffix == ".prom" else json.dumps({"runs": runs}, indent=2) + "\n"
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}")  # a collector reads whole files only
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(text, encoding="utf-8")
            os.replace(partial, path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"the metrics can't be written to {path}: {error.strerror}") from None


def _prometheus(runs: list[dict[str, Any]]) -> str:
    lines: dict[str, list[str]] = {}
    for run in runs:
        where = {"dataset": run["dataset"] or "", "partition": run["partition"] or ""}
        _sample(lines, "dpagg_exit_code", where, run["exit_code"])
        for name in ("epsilon", "delta"):
            _sample(lines, f"dpagg_claimed_{name}", where, run[name])
        _sample(lines, "dpagg_budget_epsilon_spent", where, run["spent"])
        _sample(lines, "dpagg_budget_epsilon_remaining", where, run["remaining"])
        for stage, seconds in run["seconds"].items():
            _sample(lines, "dpagg_stage_seconds", where | {"stage": stage}, seconds)
        _sample(lines, "dpagg_finished_timestamp_seconds", where, datetime.fromisoformat(run["time"]).timestamp())
    return "".join(f"# TYPE {name} gauge\n" + "".join(found) for name, found in lines.items())


def _sample(lines: dict[str, list[str]], name: str, labels: dict[str, str], value: float | None) -> None:
    if value is None:
        return
    shown = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in labels.items())
    lines.setdefault(name, []).append(f"{name}{{{shown}}} {value!r}\n")


class JsonFormatter(logging.Formatter):
    """One JSON object a line. The text of an exception may quote a row, so its class has to do."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        said |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None) is not None}
        if record.exc_info and record.exc_info[0] is not None:
            said["exception"] = record.exc_info[0].__name__
        return json.dumps(said, ensure_ascii=False)
