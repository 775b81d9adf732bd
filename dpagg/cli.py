"""The ``dpagg`` command: reads a configuration, calls a run, prints what came of it."""

from __future__ import annotations

import argparse
import io
import json
import logging
import math
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpagg.errors import ConfigError, DpaggError, EnvironmentFault, PrivacyError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.config import AggregateConfig
    from dpagg.runs.monitoring import Monitor

app = typer.Typer(
    # Plain help: it fits 80 columns, and looks the same on a terminal, in a pipe and in a log.
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 2 usage or configuration, 3 refused for privacy, 4 bad data, 5 environment.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
certificate_app = typer.Typer(help="Read the promise of a release.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(certificate_app, name="certificate")
ledger_app = typer.Typer(
    help="Budgets across releases: what was spent and what is left.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(ledger_app, name="ledger")
reproduce_app = typer.Typer(
    help="Run the protocol of a paper on your copy of its data.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(reproduce_app, name="reproduce")

LedgerArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The ledger, as in ledger.path.", show_default=False)
]
ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Configuration of the run (YAML).", show_default=False)
]
CertificateArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A release's folder, or its _certificate.json.", show_default=False)
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Value for ${KEY} in the configuration.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
WindowOption = Annotated[
    bool,
    typer.Option("--allow-open-window", help="Release although labels may still arrive (input.attribution_window)."),
]
MetricsOption = Annotated[
    Path | None,
    typer.Option(
        "--metrics",
        help="File for seconds a stage and budget: NAME.prom for Prometheus, else JSON.",
        show_default=False,
    ),
]
LogOption = Annotated[
    str, typer.Option("--log-format", help="text, or json: one object a line on standard error, from level INFO.")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say on standard error what is being done.")]
SeedOption = Annotated[
    int | None,
    typer.Option("--insecure-seed", help="Reproducible and NOT PRIVATE: for tests and papers.", show_default=False),
]


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
        _complain(str(error))
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted; no release was published unless it says so above")
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
        _complain(f"unforeseen {type(error).__name__} at {place}; please report it.")
        return 1
    if outcome == 130:  # typer's own answer to an interrupt
        _complain("interrupted; no release was published unless it says so above")
    return outcome if isinstance(outcome, int) else 0


def run_job(command: str, arguments: list[str]) -> int:
    """Run a command as a job, its configuration given as ``--config FILE``."""
    parser = argparse.ArgumentParser(prog=f"jobs/{command}.py", description=f"dpagg {command} through spark-submit.")
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


@app.command(short_help="Make a table, aggregate it privately, fit, compare the losses.")
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the table, the release and the model.")] = Path(
        "dpagg-demo"
    ),
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Make a realistic ad-conversion table, aggregate it privately, fit on the aggregate, compare the losses."""
    from dpagg.experiments.demo import run_demo

    with _status("making a table, a private aggregate and a model", as_json):
        result = run_demo(_spark(verbose), out)
    if as_json:
        _print_json(result)
        return
    release = result["wtd_flag"]
    console = _console()
    console.print(
        f"{result['table']['num_rows']:,} impressions, {release['num_bags']:,} weighted sums at "
        f"epsilon {release['epsilon']:g}, delta {release['delta']:g}, no assumption about labels"
    )
    table = _table("model", "mean squared error", "excess share")
    table.add_row("best constant", f"{result['constant']['mse']:.4f}", "1")
    table.add_row("private: fitted on the aggregate", f"{release['mse']:.4f}", f"{release['excess_share']:.4f}")
    table.add_row("not private: least squares on the rows", f"{result['least_squares']['mse']:.4f}", "0")
    console.print(table)
    console.print(f"R² of least squares: {result['least_squares']['r_squared']:.3f}")
    for name, path in result["paths"].items():
        console.print(f"{name.replace('_', ' '):17} {path}", soft_wrap=True)
    console.print(f"Read the promise: dpagg certificate show {result['paths']['certificate']}", soft_wrap=True)


@app.command(short_help="Say what (epsilon, delta) buys; no label is read.")
def plan(
    config: ConfigArgument, sets: SetOption = None, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Say what (epsilon, delta) buys on a table, without reading a label."""
    from dpagg.config import SampledConfig, load_config, parse_settings
    from dpagg.runs.plan import describe_plan, make_plan
    from dpagg.runs.sampled import describe_sampled_plan, make_sampled_plan

    settings = load_config(config, "aggregate", parse_settings(sets or []))
    with _status("reading features", as_json):
        if isinstance(settings.mechanism, SampledConfig):
            described = describe_sampled_plan(make_sampled_plan(_spark(verbose), settings), settings)
        else:
            described = describe_plan(make_plan(_spark(verbose), settings), settings)
    _report(described, as_json, "Plan (no label was read)")


@app.command(short_help="Release private weighted sums of a table.")
def aggregate(
    config: ConfigArgument,
    sets: SetOption = None,
    backfill: Annotated[
        str | None,
        typer.Option(
            "--backfill",
            metavar="FIRST:LAST",
            help="Release each of these days, with ${date} set to it; the exit code is the worst of them.",
            show_default=False,
        ),
    ] = None,
    allow_open_window: WindowOption = False,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
    insecure_seed: SeedOption = None,
    log_format: LogOption = "text",
    verbose: VerboseOption = False,
) -> int:
    """Release private weighted sums of a table as a Delta table with a certificate."""
    from dpagg.config import load_config, parse_settings
    from dpagg.runs.aggregate import run_aggregate
    from dpagg.runs.backfill import parse_days

    given = parse_settings(sets or [])
    if backfill is not None:
        if "date" in given:
            raise ConfigError("--set gives 'date', and --backfill does too", remedy="Leave one of them out.")
        # All of them before the first: a mistake in the configuration should not stop half way.
        days = {day: load_config(config, "aggregate", given | {"date": day}) for day in parse_days(backfill)}
        return _backfill(_spark(verbose, log_format), days, as_json, metrics, insecure_seed, allow_open_window)
    settings = load_config(config, "aggregate", given)
    with _measured(metrics) as monitor, _status("aggregating", as_json):
        result = run_aggregate(
            _spark(verbose, log_format),
            settings,
            insecure_seed=insecure_seed,
            allow_open_window=allow_open_window,
            monitor=monitor,
        )
    _report(result.summary(), as_json, result.certificate["statement"])
    return 0


def _backfill(
    spark: SparkSession,
    days: dict[str, AggregateConfig],
    as_json: bool,
    metrics: Path | None,
    insecure_seed: int | None,
    allow_open_window: bool,
) -> int:
    from rich.progress import track

    from dpagg.runs.backfill import DayResult, run_backfill, worst
    from dpagg.runs.monitoring import write_metrics

    console = _console(stderr=True)
    bar = iter(
        track(
            range(len(days)), "releasing", console=console, transient=True, disable=as_json or not console.is_terminal
        )
    )
    next(bar)

    def advance() -> None:
        next(bar, None)

    results = run_backfill(
        spark,
        days,
        insecure_seed=insecure_seed,
        allow_open_window=allow_open_window,
        after_day=lambda _: advance(),
    )
    if metrics is not None:
        write_metrics(metrics, [each.monitor.to_dict(each.exit_code) for each in results])
    code = worst(results)
    if as_json:
        _print_json({"exit_code": code, "days": [each.to_dict() for each in results]})
        return code

    def row(each: DayResult) -> tuple[str, ...]:
        left = "" if each.monitor.remaining is None else f"{each.monitor.remaining:.4g}"
        return each.day, each.outcome, str(each.exit_code), left, each.message or each.path

    table = _table("day", "outcome", "code", "epsilon left", "")
    for each in results:
        table.add_row(*row(each))
    _console().print(table)
    return code


@app.command(short_help="Fit a linear model on a table or on a release.")
def fit(
    config: ConfigArgument,
    sets: SetOption = None,
    allow_open_window: WindowOption = False,
    metrics: MetricsOption = None,
    as_json: JsonOption = False,
    insecure_seed: SeedOption = None,
    log_format: LogOption = "text",
    verbose: VerboseOption = False,
) -> None:
    """Fit a linear model: privately on the rows of a table, or on a released aggregate."""
    from dpagg.config import load_config, parse_settings
    from dpagg.runs.fit import run_fit

    settings = load_config(config, "fit", parse_settings(sets or []))
    with _measured(metrics) as monitor, _status("fitting", as_json):
        result = run_fit(
            settings,
            _spark(verbose, log_format),
            insecure_seed=insecure_seed,
            allow_open_window=allow_open_window,
            monitor=monitor,
        )
    if as_json:
        _print_json(result.summary())
        return
    console = _console()
    table = _table("column", "coefficient", "std. error", "in the user's units")
    for row in result.coefficients():
        table.add_row(row["name"], f"{row['coefficient']:.6g}", f"{row['standard_error']:.2g}", row["meaning"])
    console.print(table)
    console.print(f"{result.status_text}\nmodel: {result.path}", soft_wrap=True)
    if result.report is not None:
        console.print(f"report: {result.report}", soft_wrap=True)


@app.command(short_help="Train a network on a release of noisy label sums.")
def train(
    config: ConfigArgument, sets: SetOption = None, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Train a network on a release of noisy label sums (sampled-noisy-wtd-lag)."""
    from dpagg.config import load_config, parse_settings
    from dpagg.runs.train import Progress, run_train

    settings = load_config(config, "train", parse_settings(sets or []))
    session = _spark(verbose)
    with _progress_bar("training", as_json) as advance:

        def report(progress: Progress) -> None:
            best = "" if progress.best_loss is None else f", best held-out loss {progress.best_loss:.4g}"
            done = progress.epoch * progress.num_batches + progress.batch
            advance(f"epoch {progress.epoch + 1}{best}", done, progress.max_epochs * progress.num_batches)

        result = run_train(settings, session, report=report)
    _report(result.summary(), as_json, f"model: {result.path}")


@app.command(short_help="Predict labels of a table with a fitted model.")
def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="File of dpagg fit, or folder of dpagg train.", show_default=False),
    ],
    table: Annotated[str, typer.Argument(metavar="INPUT", help="Table with the features.", show_default=False)],
    out: Annotated[str, typer.Argument(metavar="OUT", help="New table of predictions.", show_default=False)],
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet, delta or csv; seen from the input by default.", show_default=False),
    ] = None,
    out_format: Annotated[str, typer.Option("--out-format", help="delta or parquet.")] = "delta",
    row_id: Annotated[
        str | None, typer.Option("--row-id", help="Column of the input to keep.", show_default=False)
    ] = None,
    column: Annotated[str, typer.Option("--column", help="Name of the column of predictions.")] = "prediction",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Predict labels of a table of any size with a fitted model."""
    from dpagg.runs.predict import run_predict

    with _status("predicting", as_json):
        result = run_predict(
            _spark(verbose),
            model,
            table,
            out,
            table_format=table_format,
            out_format=out_format,
            row_id=row_id,
            column=column,
        )
    _report(result.summary(), as_json, "Predictions")


@reproduce_app.command(short_help="Compare the private regressions as the IHM paper does.")
def ihm(
    data: Annotated[Path, typer.Option("--data", help="Folder with NAME/data.csv.gz, the response last.")],
    sets: Annotated[
        str | None, typer.Option("--sets", help="Names, with commas between; all by default.", show_default=False)
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option("--epsilons", help="Numbers, with commas between; 0.1 to 10 by default.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Runs of each method in each cell.")] = 100,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for cells, tables and figures; a later run goes on there.")
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic/--no-synthetic", help="Made-up regimes too.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Compare the private regressions by the protocol of the iterative Hessian mixing paper. NOT PRIVATE."""
    from dpagg.experiments.ihm_protocol import EPSILONS, reproduce_ihm

    result = reproduce_ihm(
        data,
        sets=None if sets is None else [name.strip() for name in sets.split(",") if name.strip()],
        epsilons=EPSILONS if epsilons is None else _numbers(epsilons, "--epsilons"),
        trials=trials,
        out=out,
        synthetic=synthetic,
        progress=not (as_json or _is_plain()) and _console(stderr=True).is_terminal,
    )
    if as_json:
        _print_json(result)
        return
    shown = {
        "ihm": "ihm",
        "ihm_authors": "authors'",
        "linear_mixing_paper": "linear",
        "adassp_paper": "adassp",
        "dp_gd": "dp-gd",
    }
    table = _table("set", "n", "d", "epsilon", *shown.values())
    for cell in result["cells"]:
        risks = (f"{cell['methods'][name]['excess_train_risk']:.1e}" for name in shown)
        table.add_row(cell["set"], f"{cell['n']:,}", str(cell["d"]), f"{cell['epsilon']:.3g}", *risks)
    console = _console()
    console.print("Mean excess training risk: the default, and other methods as their authors have them")
    console.print(table)
    if "geometric_mean_gain" in result:
        console.print(
            f"ihm against ihm_authors at equal epsilon and delta: {result['geometric_mean_gain']:.3g} times less "
            f"excess risk (geometric mean), {result['smallest_gain']:.3g} in the least favourable cell"
        )
    if out is not None:
        console.print(f"tables and figures: {out}", soft_wrap=True)


@certificate_app.command()
def show(
    file: CertificateArgument,
    as_json: JsonOption = False,
) -> None:
    """Say a release's promise in words."""
    from dpagg.runs.certificates import describe_certificate, load_certificate

    certificate = load_certificate(file)
    if as_json:
        _print_json(certificate)
        return
    console = _console()
    console.print(_wrapped(describe_certificate(certificate), console.width), soft_wrap=True)


@certificate_app.command(short_help="Compute the numbers again; exit code 3 if they differ.")
def verify(
    file: CertificateArgument,
    as_json: JsonOption = False,
) -> int:
    """Compute a certificate's numbers and words again from the event that it states; exit code 3 if they differ.

    That this event is what was run, and that nobody changed both together, is not told by the file.
    """
    from dpagg.runs.certificates import load_certificate, verify_certificate

    found = verify_certificate(load_certificate(file))
    if as_json:
        _print_json(found.to_dict())
    else:
        table = _table("", "stated", "computed", "")
        for check in found.checks:
            values = [_shown(value) for value in (check.stated, check.computed)]
            if check.holds:  # long words are of interest only where they differ
                values = [value if len(value) <= 40 else f"{value[:24]} …" for value in values]
            table.add_row(check.name, *values, _mark("ok" if check.holds else "WRONG"))
        console = _console()
        console.print(table)
        console.print(
            "The numbers follow from the event that the certificate states."
            if found.holds
            else "THE CERTIFICATE DOES NOT HOLD."
        )
    return 0 if found.holds else PrivacyError.exit_code


@ledger_app.command("init")
def ledger_init(
    path: LedgerArgument,
    dataset: Annotated[str, typer.Option("--dataset", help="Name of the data set.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="Budget, positive.")],
    delta: Annotated[float, typer.Option("--delta", help="Budget, in (0, 1).")],
    disjoint: Annotated[
        bool, typer.Option("--disjoint/--overlapping", help="Whether no protected unit is in two partitions.")
    ] = False,
    adjacency: Annotated[
        str, typer.Option("--adjacency", help="change_one_label, change_one_user_labels or zero_out_one_row.")
    ] = "change_one_label",
    unit: Annotated[str, typer.Option("--unit", help="What is protected, as certificates call it.")] = "one label",
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Set the budget of a data set before its first release."""
    from dpagg.ledger import Terms
    from dpagg.runs.ledgers import init_ledger

    if adjacency not in ("change_one_label", "change_one_user_labels", "zero_out_one_row"):
        raise ConfigError(f"--adjacency is {adjacency!r}", remedy="See dpagg ledger init --help.")
    try:
        terms = Terms(dataset=dataset, epsilon=epsilon, delta=delta, adjacency=adjacency, unit=unit, disjoint=disjoint)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    with _status("writing the ledger", as_json):
        found = init_ledger(_spark(verbose), path, terms)
    _report_ledger(found, as_json)


@ledger_app.command("show")
def ledger_show(
    path: LedgerArgument,
    figure: Annotated[
        Path | None, typer.Option("--figure", help="SVG file to draw what is left into.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Say what was spent on which data set, and what is left."""
    from dpagg.runs.ledgers import show_ledger

    with _status("reading the ledger", as_json):
        found = show_ledger(_spark(verbose), path, figure)
    _report_ledger(found, as_json)


@ledger_app.command("check", short_help="Look for changed or missing entries; exit code 3 if so.")
def ledger_check(
    path: LedgerArgument,
    certificates: Annotated[
        list[Path] | None,
        typer.Option("--certificate", help="A release that the ledger has to know; may be given many times."),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute what each release costs again, from its event: takes a while.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Look for changed, missing or put-back entries; exit code 3 if there are."""
    from dpagg.runs.ledgers import check_ledger

    with _status("checking the ledger", as_json):
        found = check_ledger(_spark(verbose), path, certificates or [], recompute=recompute)
    if as_json:
        _print_json(found)
    else:
        table = _table("", "found", "")
        for check in found["checks"]:
            table.add_row(check["check"], check["found"], "" if check["holds"] else "WRONG")
        console = _console()
        console.print(table)
        console.print("The ledger holds." if found["holds"] else "THE LEDGER WAS CHANGED: charge nothing to it.")
    return 0 if found["holds"] else PrivacyError.exit_code


def _report_ledger(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    table = _table("data set", "protects", "budget", "largest spend", "left", "releases")
    for each in found["datasets"]:
        budget, states = each["budget"], each["charges"]
        where = f" ({each['in_partition']})" if each["in_partition"] else ""
        kinds = ", ".join(f"{count:,} {state}" for state, count in states.items())
        table.add_row(
            each["dataset"],
            f"{each['unit']}, {'each partition' if each['disjoint_partitions'] else 'all partitions together'}",
            f"epsilon {budget['epsilon']:g}, delta {budget['delta']:g}",
            f"{each['largest_spend']:.4g}{where}",
            f"{each['remaining']:.4g}",
            kinds or "none",
        )
    console = _console()
    console.print(table)
    console.print(f"{found['entries']:,} entries; head {found['head']}", soft_wrap=True)


@app.command(short_help="Attack the mechanisms; exit code 3 if a claim falls.")
def audit(
    mechanism: Annotated[
        str | None,
        typer.Argument(metavar="MECHANISM", help="One mechanism or case; all by default.", show_default=False),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=1000, help="Releases counted on each side.")] = 100_000,
    epsilon: Annotated[float, typer.Option("--epsilon", help="The claim under attack.")] = 1.0,
    delta: Annotated[float, typer.Option("--delta", help="The claim's delta, where epsilons are compared.")] = 1e-3,
    insecure_seed: Annotated[
        int | None, typer.Option("--insecure-seed", help="Repeat an audit.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Attack the mechanisms' own kernels and set the epsilon that shows beside the claimed one; 3 if a claim falls."""
    from dpagg.audit.attack import attack
    from dpagg.audit.catalogue import CASES, cases
    from dpagg.kernels.streams import Secret

    names = cases(mechanism)
    if not names:
        raise ConfigError(f"no audit of {mechanism!r}", remedy=f"There are: {', '.join(CASES)}.")
    if not (epsilon > 0 and 0 < delta < 1):
        raise ConfigError(f"epsilon {epsilon} and delta {delta} are given, expected a positive one and one in (0, 1)")
    secret = Secret.fresh() if insecure_seed is None else Secret.insecure(insecure_seed)
    results = []
    for name in names:
        with _status(f"attacking {name}", as_json):
            results.append(attack(CASES[name](epsilon, delta), delta=delta, secret=secret, draws=draws))
    holds = all(result.holds for result in results)
    if as_json:
        _print_json({"holds": holds, "audits": [result.to_dict() for result in results]})
    else:
        table = _table("attack", "claimed ε", "this pair", "shown", "")
        for result in results:
            exact = "" if result.exact_epsilon is None else f"{result.exact_epsilon:.3f}"
            claimed, shown = f"{result.claimed_epsilon:.3f}", f"{result.empirical_epsilon:.3f}"
            table.add_row(result.name, claimed, exact, shown, _mark("ok" if result.holds else "BROKEN"))
        console = _console()
        console.print(table)
        console.print(f"delta {delta:g}; {draws:,} releases counted on each side. Shown is a lower bound at 95 %.")
    return 0 if holds else PrivacyError.exit_code


@app.command(short_help="Time the engines against Spark SQL, MLlib and numpy.")
def bench(
    rows: Annotated[int, typer.Option("--rows", min=1000, help="Rows of the table that is read.")] = 2_000_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often a pass is timed.")] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: that it runs, not how fast.")] = False,
    readme: Annotated[
        Path | None, typer.Option("--readme", help="README of a checkout to put table and figure in.")
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Time the engines against Spark SQL, MLlib and numpy. Takes some minutes and 4 GB of temporary space."""
    import tempfile

    from dpagg.experiments.bench import BenchSizes, headline, run_bench

    sizes = BenchSizes.quick() if quick else BenchSizes(num_rows=rows, rounds=rounds)
    with tempfile.TemporaryDirectory() as directory:
        result = run_bench(_spark(verbose), Path(directory), sizes, progress=not as_json)
    if readme is not None:
        from dpagg.experiments.bench_report import write_report

        write_report(result, readme)
    if as_json:
        _print_json(result)
        return
    table = _table("ratio", "of", "")
    for name, text, value in headline(result):
        table.add_row(name, text, f"{value:.3g}")
    console = _console()
    console.print(table)
    console.print(f"load average before: {result['load_average'][0]}; figures of a busy machine mean little")


@app.command(short_help="Make the HTML page of a release or a model again.")
def report(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A release's folder, or a model file.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Where to write; by default beside it.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the page that a run publishes again: what was released, what it promises, on what it rests."""
    from dpagg.runs.reports import make_report

    page = make_report(folder, out)
    if as_json:
        _print_json({"report": str(page)})
    else:
        _console().print(f"report: {page}", soft_wrap=True)


@app.command(short_help="Look for what this machine lacks, and say how to mend it.")
def doctor(
    start: Annotated[bool, typer.Option("--start", help="Start Spark too, and run a Python task in it.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Look for what a run would miss on this machine, and say how to mend it; exit code 5 if something is wrong."""
    from dpagg.spark.doctor import examine

    _logging(verbose)
    with _status("looking", as_json):
        findings = examine(start=start)
    well = all(each.status != "wrong" for each in findings)
    if as_json:
        _print_json({"ok": well, "findings": [each.to_dict() for each in findings]})
    else:
        table = _table("", "", "found")
        for each in findings:
            found = each.found if each.remedy is None else f"{each.found}\n→ {each.remedy}"
            table.add_row(each.check, _mark(each.status.replace("wrong", "WRONG")), found)
        _console().print(table)
        _console().print("Nothing is in the way of a run." if well else "Runs will not work before this is mended.")
    return 0 if well else EnvironmentFault.exit_code


def _numbers(text: str, option: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise ConfigError(f"{option} is {text!r}, expected positive numbers with commas between")
    return found


def _spark(verbose: bool, log_format: str = "text") -> SparkSession:
    _logging(verbose, log_format)
    from dpagg.spark.session import spark_session

    return spark_session()


def _logging(verbose: bool, log_format: str = "text") -> None:
    if log_format not in ("text", "json"):
        raise ConfigError(f"--log-format is {log_format!r}, expected text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    if log_format == "json":
        from dpagg.runs.monitoring import JsonFormatter

        handler.setFormatter(JsonFormatter())
    is_told = verbose or log_format == "json"
    logging.basicConfig(level=logging.INFO if is_told else logging.WARNING, handlers=[handler])
    # An interrupt ends the conversation with the JVM in the middle of a word, at length.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


@contextmanager
def _measured(path: Path | None) -> Iterator[Monitor]:
    """Write the metrics of a run, however it ends."""
    from dpagg.runs.monitoring import Monitor, write_metrics

    monitor, code = Monitor(), 1
    try:
        yield monitor
        code = 0
    except DpaggError as error:
        code = error.exit_code
        raise
    finally:
        if path is not None:
            write_metrics(path, [monitor.to_dict(code)])


@contextmanager
def _status(what: str, as_json: bool) -> Iterator[None]:
    console = _console(stderr=True)
    if as_json or not console.is_terminal:
        yield
        return
    if _is_plain():
        console.print(f"{what} …")
        yield
        return
    with console.status(what):
        yield


@contextmanager
def _progress_bar(what: str, as_json: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar on a terminal; what is yielded takes words, steps done and steps at most."""
    console = _console(stderr=True)
    if as_json or _is_plain() or not console.is_terminal:
        yield lambda words, done, most: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task(what, total=None)
        yield lambda words, done, most: bar.update(task, description=words, completed=done, total=most)


def _report(found: Mapping[str, Any], as_json: bool, title: str) -> None:
    if as_json:
        _print_json(found)
        return
    console = _console()
    console.print(title)
    table = _table("", "", show_header=False)
    for name, value in found.items():
        lines = value.items() if isinstance(value, Mapping) else [("", value)]
        for inner, content in lines:
            if content == title:
                continue
            table.add_row(f"{name} {inner}".replace("_", " ").strip(), _shown(content))
    console.print(table)


def _wrapped(text: str, width: int) -> str:
    """Break lines at words, what follows under the words of its line and not under its name or bullet."""
    lines = []
    for line in text.splitlines():
        begin = re.match(r"\s*- |\S+ {2,}|", line)
        indent = " " * len(begin.group() if begin else "")
        lines.append(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False) if line else "")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _console(*, stderr: bool = False) -> Console:
    # Rich would print each number of a text in bold, in pieces, and take price[usd] for mark-up. Where colours are not
    # wanted, nor is bold.
    return Console(stderr=stderr, highlight=False, markup=False, color_system=None if _is_plain() else "auto")


def _table(*headers: str, show_header: bool = True) -> Table:
    """Return a table in which a long word is broken, not cut."""
    return Table(*(Column(header, overflow="fold") for header in headers), show_header=show_header)


def _mark(word: str) -> Text:
    return Text(word, {"ok": "green", "note": "yellow"}.get(word, "bold red"))


def _is_plain() -> bool:
    """Whether the user wants no codes in what is printed (no-color.org)."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _print_json(found: Mapping[str, Any]) -> None:
    ascii_only = not (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    typer.echo(json.dumps(found, indent=2, ensure_ascii=ascii_only, allow_nan=False))


def _complain(message: str) -> None:
    console = _console(stderr=True)
    # A person reads whole words; a log has one line a message.
    console.print(Text.assemble(("dpagg:", "bold red"), " ", message), soft_wrap=not console.is_terminal)
