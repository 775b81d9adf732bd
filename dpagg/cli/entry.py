"""The ``dpagg`` command as a whole: its parts, its exit codes, and how faults are told."""

from __future__ import annotations

import argparse
import io
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpagg.cli.experiments import bench, demo, reproduce_app
from dpagg.cli.ledger import ledger_app
from dpagg.cli.output import complain
from dpagg.cli.releases import aggregate, fit, plan, predict, train
from dpagg.cli.reviewing import audit, certificate_app, doctor, report
from dpagg.errors import DpaggError

app = typer.Typer(
    # Plain help: it fits 80 columns, and looks the same on a terminal, in a pipe and in a log.
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 2 usage or configuration, 3 refused for privacy, 4 bad data, 5 environment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# In the order of the help. A summary is what fits a line there; a command's docstring may be longer.
app.command(short_help="Make a table, aggregate it privately, fit, compare the losses.")(demo)
app.command(short_help="Say what (epsilon, delta) buys; no label is read.")(plan)
app.command(short_help="Release private weighted sums of a table.")(aggregate)
app.command(short_help="Fit a linear model on a table or on a release.")(fit)
app.command(short_help="Train a network on a release of noisy label sums.")(train)
app.command(short_help="Predict labels of a table with a fitted model.")(predict)
app.command(short_help="Attack the mechanisms; exit code 3 if a claim falls.")(audit)
app.command(short_help="Time the engines against Spark SQL, MLlib and numpy.")(bench)
app.command(short_help="Make the HTML page of a release or a model again.")(report)
app.command(short_help="Look for what this machine lacks, and say how to mend it.")(doctor)
app.add_typer(certificate_app, name="certificate")
app.add_typer(ledger_app, name="ledger", short_help="What was spent of a budget, and what is left.")
app.add_typer(reproduce_app, name="reproduce", short_help="Run a paper's protocol on your copy of its data.")


def main() -> None:
    """Entry point of the ``dpagg`` script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no epsilon is no reason to end
    sys.exit(run(None))


def run(arguments: list[str] | None) -> int:
    """Run the command line and return its exit code: 0 done, 2 usage, 3 privacy, 4 data, 5 environment."""
    try:
        outcome = typer.main.get_command(app)(args=arguments, prog_name="dpagg", standalone_mode=False)
    except DpaggError as error:
        complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted; no release was published unless it says so above")
        return 130
    except Exception as error:
        if hasattr(error, "show") and hasattr(error, "exit_code"):  # usage; typer brings its own copy of click
            error.show()
            return int(error.exit_code)
        # The text of an unforeseen exception may quote a row, so its kind and place have to do.
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else "?"
        complain(f"unforeseen {type(error).__name__} at {place}; please report it.")
        return 1
    if outcome == 130:  # typer's own answer to an interrupt
        complain("interrupted; no release was published unless it says so above")
    return outcome if isinstance(outcome, int) else 0


def run_job(command: str, arguments: list[str]) -> int:
    """Run a command as a job, its configuration given as ``--config FILE``."""
    parser = argparse.ArgumentParser(
        prog=f"jobs/{command}.py",
        description=f"dpagg {command} through spark-submit.",
        epilog=f"Further options are those of dpagg {command}; see its --help.",
    )
    parser.add_argument("--config", required=True, help="configuration of the run (YAML)")
    known, rest = parser.parse_known_args(arguments)
    return run([command, known.config, *rest])


def _version(asked: bool) -> None:
    if asked:
        import dpagg

        typer.echo(f"dpagg {dpagg.__version__}")
        raise typer.Exit


@app.callback()
def _whole(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Differentially private aggregates and regressions of labelled tables, on Spark."""
