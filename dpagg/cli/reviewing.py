"""Commands that look at what was promised: certificate, report, audit, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dpagg.cli.options import JsonOption, VerboseOption
from dpagg.cli.output import make_console, make_table, mark, print_json, shown, status, wrapped
from dpagg.cli.running import set_logging
from dpagg.errors import ConfigError, EnvironmentFault, PrivacyError

certificate_app = typer.Typer(help="Read the promise of a release.", no_args_is_help=True, rich_markup_mode=None)

CertificateArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A release's folder, or its _certificate.json.", show_default=False)
]


@certificate_app.command()
def show(
    file: CertificateArgument,
    as_json: JsonOption = False,
) -> None:
    """Say a release's promise in words."""
    from dpagg.runs.certificates import describe_certificate, load_certificate

    certificate = load_certificate(file)
    if as_json:
        print_json(certificate)
        return
    console = make_console()
    console.print(wrapped(describe_certificate(certificate), console.width), soft_wrap=True)


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
        print_json(found.to_dict())
    else:
        table = make_table("", "stated", "computed", "")
        for check in found.checks:
            values = [shown(value) for value in (check.stated, check.computed)]
            if check.holds:  # long words are of interest only where they differ
                values = [value if len(value) <= 40 else f"{value[:24]} …" for value in values]
            table.add_row(check.name, *values, mark("ok" if check.holds else "WRONG"))
        console = make_console()
        console.print(table)
        console.print(
            "The numbers follow from the event that the certificate states."
            if found.holds
            else "THE CERTIFICATE DOES NOT HOLD."
        )
    return 0 if found.holds else PrivacyError.exit_code


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
        print_json({"report": str(page)})
    else:
        make_console().print(f"report: {page}", soft_wrap=True)


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
        with status(f"attacking {name}", as_json):
            results.append(attack(CASES[name](epsilon, delta), delta=delta, secret=secret, draws=draws))
    holds = all(result.holds for result in results)
    if as_json:
        print_json({"holds": holds, "audits": [result.to_dict() for result in results]})
    else:
        table = make_table("attack", "claimed ε", "this pair", "shown", "")
        for result in results:
            exact = "" if result.exact_epsilon is None else f"{result.exact_epsilon:.3f}"
            claimed, shown = f"{result.claimed_epsilon:.3f}", f"{result.empirical_epsilon:.3f}"
            table.add_row(result.name, claimed, exact, shown, mark("ok" if result.holds else "BROKEN"))
        console = make_console()
        console.print(table)
        console.print(f"delta {delta:g}; {draws:,} releases counted on each side. Shown is a lower bound at 95 %.")
    return 0 if holds else PrivacyError.exit_code


def doctor(
    start: Annotated[bool, typer.Option("--start", help="Start Spark too, and run a Python task in it.")] = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> int:
    """Look for what a run would miss on this machine, and say how to mend it; exit code 5 if something is wrong."""
    from dpagg.spark.doctor import examine

    set_logging(verbose)
    with status("looking", as_json):
        findings = examine(start=start)
    well = all(each.status != "wrong" for each in findings)
    if as_json:
        print_json({"ok": well, "findings": [each.to_dict() for each in findings]})
    else:
        table = make_table("", "", "found")
        for each in findings:
            found = each.found if each.remedy is None else f"{each.found}\n→ {each.remedy}"
            table.add_row(each.check, mark(each.status.replace("wrong", "WRONG")), found)
        make_console().print(table)
        make_console().print("Nothing is in the way of a run." if well else "Runs will not work before this is mended.")
    return 0 if well else EnvironmentFault.exit_code
