"""Commands that plan, make and use releases: plan, aggregate, fit, train, predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpagg.cli.options import (
    ConfigArgument,
    JsonOption,
    LogOption,
    MetricsOption,
    SeedOption,
    SetOption,
    VerboseOption,
    WindowOption,
)
from dpagg.cli.output import make_console, make_table, print_json, progress_bar, report_found, status
from dpagg.cli.running import measured, start_spark
from dpagg.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.config import AggregateConfig


def plan(
    config: ConfigArgument, sets: SetOption = None, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Say what (epsilon, delta) buys on a table, without reading a label."""
    from dpagg.config import SampledConfig, load_config, parse_settings
    from dpagg.runs.plan import describe_plan, make_plan
    from dpagg.runs.sampled import describe_sampled_plan, make_sampled_plan

    settings = load_config(config, "aggregate", parse_settings(sets or []))
    with status("reading features", as_json):
        if isinstance(settings.mechanism, SampledConfig):
            described = describe_sampled_plan(make_sampled_plan(start_spark(verbose), settings), settings)
        else:
            described = describe_plan(make_plan(start_spark(verbose), settings), settings)
    report_found(described, as_json, "Plan (no label was read)")
    if not as_json and settings.plan.residual_std is None and settings.privacy.floor.kind != "assume":
        make_console().print("Give plan: {residual_std: …} to see the loss to expect.")


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
        return _backfill(start_spark(verbose, log_format), days, as_json, metrics, insecure_seed, allow_open_window)
    settings = load_config(config, "aggregate", given)
    with measured(metrics) as monitor, status("aggregating", as_json):
        result = run_aggregate(
            start_spark(verbose, log_format),
            settings,
            insecure_seed=insecure_seed,
            allow_open_window=allow_open_window,
            monitor=monitor,
        )
    report_found(result.summary(), as_json, result.certificate["statement"])
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

    console = make_console(stderr=True)
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
        print_json({"exit_code": code, "days": [each.to_dict() for each in results]})
        return code

    def row(each: DayResult) -> tuple[str, ...]:
        left = "" if each.monitor.remaining is None else f"{each.monitor.remaining:.4g}"
        return each.day, each.outcome, str(each.exit_code), left, each.message or each.path

    table = make_table("day", "outcome", "code", "epsilon left", "")
    for each in results:
        table.add_row(*row(each))
    make_console().print(table)
    return code


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
    with measured(metrics) as monitor, status("fitting", as_json):
        result = run_fit(
            settings,
            start_spark(verbose, log_format),
            insecure_seed=insecure_seed,
            allow_open_window=allow_open_window,
            monitor=monitor,
        )
    if as_json:
        print_json(result.summary())
        return
    console = make_console()
    table = make_table("column", "coefficient", "std. error", "in the user's units")
    for row in result.coefficients():
        table.add_row(row["name"], f"{row['coefficient']:.6g}", f"{row['standard_error']:.2g}", row["meaning"])
    console.print(table)
    console.print(f"{result.status_text}\nmodel: {result.path}", soft_wrap=True)
    if result.report is not None:
        console.print(f"report: {result.report}", soft_wrap=True)


def train(
    config: ConfigArgument, sets: SetOption = None, as_json: JsonOption = False, verbose: VerboseOption = False
) -> None:
    """Train a network on a release of noisy label sums (sampled-noisy-wtd-lag)."""
    from dpagg.config import load_config, parse_settings
    from dpagg.runs.train import Progress, run_train

    settings = load_config(config, "train", parse_settings(sets or []))
    session = start_spark(verbose)
    with progress_bar("training", as_json) as advance:

        def report(progress: Progress) -> None:
            best = "" if progress.best_loss is None else f", best held-out loss {progress.best_loss:.4g}"
            done = progress.epoch * progress.num_batches + progress.batch
            advance(f"epoch {progress.epoch + 1}{best}", done, progress.max_epochs * progress.num_batches)

        result = run_train(settings, session, report=report)
    report_found(result.summary(), as_json, f"model: {result.path}")


def predict(
    model: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="File of dpagg fit, or folder of dpagg train.", show_default=False),
    ],
    table: Annotated[str, typer.Argument(metavar="INPUT", help="Table with the features.", show_default=False)],
    out: Annotated[str, typer.Argument(metavar="OUT", help="New table of predictions.", show_default=False)],
    table_format: Annotated[
        str | None,
        typer.Option("--format", help="parquet, delta, csv, json; seen from the input by default.", show_default=False),
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

    with status("predicting", as_json):
        result = run_predict(
            start_spark(verbose),
            model,
            table,
            out,
            table_format=table_format,
            out_format=out_format,
            row_id=row_id,
            column=column,
        )
    report_found(result.summary(), as_json, "Predictions")
