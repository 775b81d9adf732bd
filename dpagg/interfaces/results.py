"""What a notebook gets back: a table or a model with its promise, shown as such."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpagg.interfaces.tables import is_connect, is_pandas, is_spark
from dpagg.regression.model import LinearModel
from dpagg.runs.certificates import describe_certificate
from dpagg.runs.model_file import FitResult, local_path, write_model
from dpagg.runs.reports import report_beside

__all__ = ["Fit", "PlanOfRelease", "Release"]

_SHOWN_ROWS = 5


@dataclass(frozen=True, eq=False)
class Release:
    """A private release: what may leave, and what it promises.

    Attributes
    ----------
    table : pandas.DataFrame, pyarrow.Table or Spark DataFrame
        The released bags: of the kind of the table that was given.
    certificate : dict
        Its promise, as plain JSON values.
    path : str or None
        Where it is written, if it is.
    """

    table: Any = field(repr=False)
    certificate: dict[str, Any] = field(repr=False)
    path: str | None = None

    def to_arrow(self) -> pa.Table:
        """Return the bags in memory, as Arrow; in order of their number, which means nothing."""
        if is_spark(self.table):
            table = self.table.toArrow()
        elif is_pandas(self.table):
            table = pa.Table.from_pandas(self.table, preserve_index=False)
        else:
            table = self.table
        return table.sort_by("bag_id")

    def describe(self) -> str:
        """Return the promise in words, as ``dpagg certificate show`` prints it."""
        return describe_certificate(self.certificate)

    def save(self, path: str | Path) -> str:
        """Write the release, its certificate and its page into a new folder: ``dpagg certificate show PATH`` reads it.

        Parameters
        ----------
        path : str or path
            Of a folder on this machine where nothing is.

        Returns
        -------
        str
            The path.

        Raises
        ------
        ConfigError
            If something is there.
        EnvironmentFault
            If it can't be written; nothing is left then.
        """
        from dpagg.interfaces.saving import save_release

        save_release(self.to_arrow(), self.certificate, str(path))
        return str(path)

    def _facts(self) -> dict[str, Any]:
        found, left_out = self.certificate, self.certificate["rows_left_out"]
        return {
            "mechanism": found["mechanism"],
            "epsilon": found["epsilon"],
            "delta": found["delta"],
            "protects": found["unit"],
            "bags": found["num_bags"],
            "rows": found["num_rows"],
            "rows left out": sum(left_out.values()),
            "noise variance of a label": found["label_noise_variance"],
        } | ({} if self.path is None else {"path": self.path})

    def __repr__(self) -> str:
        return "\n".join([self.certificate["statement"], *_lines(self._facts())])

    def _repr_html_(self) -> str:
        """Return the promise, the facts and a few bags, for a notebook."""
        preview = ""
        if not is_spark(self.table):
            columns = self.to_arrow().slice(0, _SHOWN_ROWS)
            rows = [[_short(cell) for cell in row.values()] for row in columns.to_pylist()]
            preview = _html_table(columns.column_names, rows)
        return _html_page(self.certificate, _html_facts(self._facts()) + preview)


@dataclass(frozen=True, eq=False)
class Fit:
    """A linear model, and the promise that it was made under.

    Attributes
    ----------
    model : LinearModel
        The model, in encoded and in the user's units.
    certificate : dict
        Of the private fit, or of the release that was fitted.
    is_private_fit : bool
        Whether the model itself is the release that the certificate is about.
    """

    model: LinearModel
    certificate: dict[str, Any] = field(repr=False)
    is_private_fit: bool = False

    @property
    def message(self) -> str:
        """What became of the fit, in words."""
        return str(self.model.fit["message"])

    def coefficients(self) -> list[dict[str, Any]]:
        """Return name, coefficient, standard error (both in the user's units) and meaning of each column."""
        return FitResult("", self.model, is_new=True).coefficients()

    def predict(self, df: Any, *, row_id: str | None = None, column: str = "prediction") -> Any:
        """Predict the label of each row; features are bounded and encoded as in the fit.

        Parameters
        ----------
        df : pandas.DataFrame, pyarrow.Table or Spark DataFrame
            Has the model's features; a label is not needed. One of Spark Connect will do too, where the server's
            Python has dpagg.
        row_id : str, optional
            Column of a Spark DataFrame to keep beside the prediction.
        column : str
            Name of the prediction in a new Spark DataFrame.

        Returns
        -------
        ndarray of shape (n,), or Spark DataFrame
            In the user's units; NaN (null on Spark) for a row with a missing feature whose rule is ``drop``.

        Raises
        ------
        DataError
            If a column is missing or of a wrong type.
        """
        if is_connect(df) or is_spark(df):
            from dpagg.spark.predicting import predictions
            from dpagg.spark.reading import normalise

            rows = normalise(df, self.model.schema, row_id, with_label=False)
            return predictions(rows, self.model.schema, self.model.predict, row_id=row_id, column=column)
        from dpagg.local.rows import LocalRows

        found: NDArray[np.float64] = LocalRows.of(df, self.model.schema, with_label=False).predictions(
            self.model.coefficients
        )
        return found

    def describe(self) -> str:
        """Return the promise in words, as ``dpagg certificate show`` prints it."""
        return describe_certificate(self.certificate)

    def save(self, path: str | Path) -> str:
        """Write the model file and its page, as ``dpagg fit`` writes them; nothing may be at the path.

        Parameters
        ----------
        path : str or path
            On this machine.

        Returns
        -------
        str
            The path.

        Raises
        ------
        ConfigError
            If something is there.
        EnvironmentFault
            If it can't be written; nothing is left then.
        """
        own = {"certificate": self.certificate} if self.is_private_fit else {}
        target = local_path(str(path))
        write_model(target, self.model.to_dict() | own)
        report_beside(target, None if self.is_private_fit else self.certificate)
        return str(path)

    def __repr__(self) -> str:
        rows = {
            row["name"]: f"{row['coefficient']:.6g} ± {_short(row['standard_error'])}" for row in self.coefficients()
        }
        return "\n".join([self.certificate["statement"], *_lines(rows), self.message])

    def _repr_html_(self) -> str:
        """Return the promise and the coefficients, for a notebook."""
        names = ["coefficient", "in the user's units", "standard error", "meaning"]
        rows = [
            [row["name"], f"{row['coefficient']:.6g}", _short(row["standard_error"]), row["meaning"]]
            for row in self.coefficients()
        ]
        return _html_page(self.certificate, _html_table(names, rows) + f"<p>{html.escape(self.message)}</p>")


@dataclass(frozen=True, eq=False)
class PlanOfRelease:
    """What (epsilon, delta) buys on a table; no label was read.

    Attributes
    ----------
    facts : dict
        As ``dpagg plan --json`` prints them.
    """

    facts: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.facts[name]

    def to_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(self.facts, indent=2, ensure_ascii=False, allow_nan=False)

    def _flat(self) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in self.facts.items():
            inner = value.items() if isinstance(value, Mapping) else [("", value)]
            flat |= {f"{name} {key}".replace("_", " ").strip(): each for key, each in inner}
        return flat

    def __repr__(self) -> str:
        return "\n".join(["Plan (no label was read)", *_lines(self._flat())])

    def _repr_html_(self) -> str:
        """Return the facts as a table, for a notebook."""
        return f"<div><p><b>Plan</b> (no label was read)</p>{_html_facts(self._flat())}</div>"


def _lines(facts: Mapping[str, Any]) -> list[str]:
    return [f"{name:26} {_short(value)}" for name, value in facts.items()]


def _short(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else "-"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        shown = ", ".join(map(_short, value[:4]))
        return f"[{shown}{', …' if len(value) > 4 else ''}]"
    return str(value)


def _html_page(certificate: Mapping[str, Any], content: str) -> str:
    # No colour but the notebook's own, so that it is readable in a dark one too.
    mark = "" if certificate["private"] else "border-left:4px solid #c33;padding-left:.8em"
    assumed = [line for line in certificate["assumptions"] if line.startswith("ASSUMED")]
    notes = "".join(f"<p><b>{html.escape(line)}</b></p>" for line in assumed)
    terms = "".join(f"<li>{html.escape(line)}</li>" for line in certificate["assumptions"])
    public = "".join(f"<li>{html.escape(line)}</li>" for line in certificate["public"])
    return (
        f'<div style="{mark}"><p style="max-width:60em">{html.escape(certificate["statement"])}</p>{notes}{content}'
        f"<details><summary>What has to be accepted, and what is not protected</summary>"
        f"<p>To be accepted:</p><ul>{terms}</ul><p>Not protected:</p><ul>{public}</ul></details></div>"
    )


def _html_facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row" style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(_short(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<table><tbody>{rows}</tbody></table>"


def _html_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
