"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Configuration of the run (YAML).", show_default=False)
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
