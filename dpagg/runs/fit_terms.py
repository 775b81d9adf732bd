"""What the certificate of a private fit says in words: what a reviewer has to accept, and what is not protected."""

from __future__ import annotations

from dpagg.config import PrivateFitConfig

ROW_DP_PUBLIC = (
    "the number of rows, as declared",
    "the schema with its bounds and categories, and the rest of the configuration",
    "names and times of the input's files, or the version of its Delta table",
)
LABEL_DP_PUBLIC = (
    "all features of all rows, and which rows there are",
    "leverages and everything else computed from features",
    "the configuration",
)


def fit_public(config: PrivateFitConfig) -> tuple[str, ...]:
    """Return what a fit does not protect."""
    return ROW_DP_PUBLIC if _of_rows(config) else LABEL_DP_PUBLIC


def fit_unit(config: PrivateFitConfig) -> str:
    """Return what a fit protects."""
    return "one row" if _of_rows(config) else "one label"


def fit_terms(config: PrivateFitConfig, failure_probability: float) -> list[str]:
    """Return what a reviewer of a fit has to accept."""
    if _of_rows(config):
        terms = [
            "The number of rows was declared and is compared with nothing; a neighbouring table has the row masked, "
            "that is counted but adding nothing to any sum.",
            "One row is protected: whoever appears in several rows is protected for each row by itself.",
            "No bound, category, scale, clip or number of rounds was derived from the rows.",
            "A row with a missing feature whose rule is drop adds nothing to any sum; a longer row than the declared "
            "bound is scaled down; whether that happened to any row is not told.",
        ]
        if config.input.format in ("csv", "json", "fixed-width"):
            terms.append(
                "The input is text (CSV, JSON lines, fixed width), one line a row: a line break in a cell would add "
                "rows. A line that has not the columns of the table is a row without values. Parquet and Delta have no "
                "such case."
            )
    else:
        terms = [
            "One label is protected: whoever appears in several rows is protected for each label by itself.",
            "No feature, filter, scale, bound, number of rows or category was derived from labels.",
        ]
        if config.input.format in ("csv", "json", "fixed-width"):
            terms.append(
                "The input is text (CSV, JSON lines, fixed width) with a well-formed text of the label in every row: a "
                "label cell with an unclosed quote, a line break or an unquoted delimiter would shift the cells. "
                "Parquet and Delta have no such case."
            )
    terms.append(
        "Labels are clipped to the declared bounds before use, and a missing or bad label becomes the declared "
        "constant; whether that happened to any row is not told."
    )
    if failure_probability > 0:
        terms.append(
            f"With probability {failure_probability:.3g} over the noise the released least eigenvalue is above the "
            "true one; it is part of delta."
        )
    terms.append("Factors and sums of the rows stay in memory, and temporary files are encrypted and removed.")
    return terms


def _of_rows(config: PrivateFitConfig) -> bool:
    return config.privacy.adjacency == "zero_out_one_row"
