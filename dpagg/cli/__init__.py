"""The ``dpagg`` command: reads a configuration, calls a run, prints what came of it."""

from dpagg.cli.entry import app, main, run, run_job

__all__ = ["app", "main", "run", "run_job"]
