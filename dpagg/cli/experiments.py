"""Commands that try things out: demo, bench, reproduce."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from dpagg.cli.options import JsonOption, VerboseOption
from dpagg.cli.output import is_plain, make_console, make_table, print_json, status
from dpagg.cli.running import start_spark
from dpagg.errors import ConfigError

reproduce_app = typer.Typer(
    help="Run the protocol of a paper on your copy of its data.", no_args_is_help=True, rich_markup_mode=None
)


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the table, the release and the model.")] = Path(
        "dpagg-demo"
    ),
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Make a realistic ad-conversion table, aggregate it privately, fit on the aggregate, compare the losses."""
    from dpagg.experiments.demo import run_demo

    with status("making a table, a private aggregate and a model", as_json):
        result = run_demo(start_spark(verbose), out)
    if as_json:
        print_json(result)
        return
    release = result["wtd_flag"]
    console = make_console()
    console.print(
        f"{result['table']['num_rows']:,} impressions, {release['num_bags']:,} weighted sums at "
        f"epsilon {release['epsilon']:g}, delta {release['delta']:g}, no assumption about labels"
    )
    table = make_table("model", "mean squared error", "excess share")
    table.add_row("best constant", f"{result['constant']['mse']:.4f}", "1")
    table.add_row("private: fitted on the aggregate", f"{release['mse']:.4f}", f"{release['excess_share']:.4f}")
    table.add_row("not private: least squares on the rows", f"{result['least_squares']['mse']:.4f}", "0")
    console.print(table)
    console.print(f"R² of least squares: {result['least_squares']['r_squared']:.3f}")
    ledger = result["ledger"]
    console.print(
        f"Charged to a ledger: {ledger['largest_spend']:.3g} of epsilon {ledger['budget']['epsilon']:g} is spent for "
        f"{ledger['in_partition']}, {ledger['remaining']:.3g} is left"
    )
    for name, path in result["paths"].items():
        console.print(f"{name.replace('_', ' '):17} {path}", soft_wrap=True)
    console.print(f"What is left: dpagg ledger show {result['paths']['ledger']}", soft_wrap=True)
    console.print(f"Read the promise: dpagg certificate show {result['paths']['certificate']}", soft_wrap=True)


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
        result = run_bench(start_spark(verbose), Path(directory), sizes, progress=not as_json)
    if readme is not None:
        from dpagg.experiments.bench_report import write_report

        write_report(result, readme)
    if as_json:
        print_json(result)
        return
    table = make_table("ratio", "of", "")
    for name, text, value in headline(result):
        table.add_row(name, text, f"{value:.3g}")
    console = make_console()
    console.print(table)
    console.print(f"load average before: {result['load_average'][0]}; figures of a busy machine mean little")


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
        sets=_names(sets),
        epsilons=EPSILONS if epsilons is None else _numbers(epsilons, "--epsilons"),
        trials=trials,
        out=out,
        synthetic=synthetic,
        progress=not (as_json or is_plain()) and make_console(stderr=True).is_terminal,
    )
    if as_json:
        print_json(result)
        return
    shown = {
        "ihm": "ihm",
        "ihm_authors": "authors'",
        "linear_mixing_paper": "linear",
        "adassp_paper": "adassp",
        "dp_gd": "dp-gd",
    }
    table = make_table("set", "n", "d", "epsilon", *shown.values())
    for cell in result["cells"]:
        risks = (f"{cell['methods'][name]['excess_train_risk']:.1e}" for name in shown)
        table.add_row(cell["set"], f"{cell['n']:,}", str(cell["d"]), f"{cell['epsilon']:.3g}", *risks)
    console = make_console()
    console.print("Mean excess training risk: the default, and other methods as their authors have them")
    console.print(table)
    if "geometric_mean_gain" in result:
        console.print(
            f"ihm against ihm_authors at equal epsilon and delta: {result['geometric_mean_gain']:.3g} times less "
            f"excess risk (geometric mean), {result['smallest_gain']:.3g} in the least favourable cell"
        )
    if out is not None:
        console.print(f"tables and figures: {out}", soft_wrap=True)


@reproduce_app.command("label-dp", short_help="Compare the aggregations as the label-DP paper does.")
def label_dp(
    data: Annotated[
        Path, typer.Option("--data", help="Folder with the tables, or a configuration of dpagg aggregate.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder for results and page; a later run goes on there.")],
    synthetic: Annotated[
        int, typer.Option("--synthetic", min=0, help="Rows of the stand-ins for tables that are not there; 0: none.")
    ] = 100_000,
    sets: Annotated[
        str | None, typer.Option("--sets", help="Names, with commas between; all by default.", show_default=False)
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option("--epsilons", help="Numbers, with commas between; 0.1 to 10 by default.")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=2, help="Seeds of each cell.")] = 3,
    parts: Annotated[
        str | None, typer.Option("--parts", help="What to run, with commas between; all by default.")
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option("--readme", help="README of a checkout to put summary and figure in.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Run the experiments of the label-DP paper: bags allowed, losses, networks. NOT PRIVATE."""
    from dpagg.experiments.label_dp.protocol import EPSILONS, PARTS, reproduce_label_dp
    from dpagg.experiments.label_dp.report import write_readme
    from dpagg.experiments.label_dp.tables import reasons, remarks, summary_grid

    stderr = make_console(stderr=True)
    result = reproduce_label_dp(
        start_spark(verbose),
        data,
        out,
        sets=_names(sets),
        synthetic=synthetic,
        epsilons=EPSILONS if epsilons is None else _numbers(epsilons, "--epsilons"),
        trials=trials,
        parts=_names(parts) or PARTS,
        tell=lambda words: stderr.print(words, soft_wrap=True),
        progress=not (as_json or is_plain()) and stderr.is_terminal,
    )
    if readme is not None:
        given = {"sets": sets, "epsilons": epsilons, "trials": trials, "parts": parts}
        chosen = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
        write_readme(result, readme, f"dpagg reproduce label-dp --data DIR --synthetic {synthetic}{chosen} --out DIR")
    if as_json:
        print_json(result)
        return
    console, grid = make_console(), summary_grid(result)
    table = make_table(*(row[0] for row in (grid.head, *grid.rows)))  # a column a table: there are few
    for cells in list(zip(grid.head, *grid.rows, strict=True))[1:]:
        table.add_row(*cells)
    console.print(grid.caption)
    console.print(table)
    for sentence in [*reasons(result), *remarks(result)]:
        console.print(f"- {sentence}")
    console.print(f"page: {out / 'label_dp.html'}", soft_wrap=True)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _numbers(text: str, option: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if not found or not all(0 < number < math.inf for number in found):
        raise ConfigError(f"{option} is {text!r}, expected positive numbers with commas between")
    return found
