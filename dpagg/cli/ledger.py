"""The commands ``dpagg ledger init``, ``show`` and ``check``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from dpagg.cli.options import JsonOption, VerboseOption
from dpagg.cli.output import make_console, make_table, print_json, status
from dpagg.cli.running import start_spark
from dpagg.errors import ConfigError, PrivacyError

ledger_app = typer.Typer(
    help="Budgets across releases: what was spent and what is left.", no_args_is_help=True, rich_markup_mode=None
)

LedgerArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="The ledger, as in ledger.path.", show_default=False)
]


@ledger_app.command("init", short_help="Set the budget of a data set.")
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
    with status("writing the ledger", as_json):
        found = init_ledger(start_spark(verbose), path, terms)
    _report_ledger(found, as_json)


@ledger_app.command("show", short_help="Say what was spent, and what is left.")
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

    with status("reading the ledger", as_json):
        found = show_ledger(start_spark(verbose), path, figure)
    _report_ledger(found, as_json)


@ledger_app.command("check", short_help="Look for changed or missing entries; exit code 3 if so.")
def ledger_check(
    path: LedgerArgument,
    certificates: Annotated[
        list[Path] | None,
        typer.Option(
            "--certificate", metavar="RELEASE", help="A release that the ledger has to know; may be given many times."
        ),
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Compute what each release costs again, from its event: takes a while.")
    ] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Look for changed, missing or put-back entries; exit code 3 if there are."""
    from dpagg.runs.ledgers import check_ledger

    with status("checking the ledger", as_json):
        found = check_ledger(start_spark(verbose), path, certificates or [], recompute=recompute)
    if as_json:
        print_json(found)
    else:
        table = make_table("", "found", "")
        for check in found["checks"]:
            table.add_row(check["check"], check["found"], "" if check["holds"] else "WRONG")
        console = make_console()
        console.print(table)
        console.print("The ledger holds." if found["holds"] else "THE LEDGER WAS CHANGED: charge nothing to it.")
    return 0 if found["holds"] else PrivacyError.exit_code


def _report_ledger(found: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    table = make_table("data set", "protects", "budget", "largest spend", "left", "releases")
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
    console = make_console()
    console.print(table)
    console.print(f"{found['entries']:,} entries; head {found['head']}", soft_wrap=True)
