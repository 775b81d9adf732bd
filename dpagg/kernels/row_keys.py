"""What is wrong with rows, their keys and units, in the same words wherever they are."""

from __future__ import annotations

from dpagg.errors import DataError

__all__ = ["refuse_faulty_key", "refuse_malformed", "refuse_unowned"]


def refuse_faulty_key(name: str, *, rows: int, known: int, distinct: int) -> None:
    """Refuse a row key that is null or comes twice.

    Raises
    ------
    DataError
        With counts only.
    """
    faults = []
    if known < rows:
        faults.append(f"is null in {rows - known:,}")
    if distinct < known:
        faults.append(f"repeats an earlier row's key in {known - distinct:,}")
    if faults:
        raise DataError(
            f"the row key {name!r} {' and '.join(faults)} of {rows:,} rows",
            path="input.row_id",
            remedy="It has to identify each row; mend the table, or name another column.",
        )


def refuse_unowned(count: int) -> None:
    """Refuse rows that belong to nobody.

    Raises
    ------
    DataError
        If there are any.
    """
    if count:
        raise DataError(
            f"the unit column is null in {count:,} rows",
            path="privacy.unit.column",
            remedy="Say whose rows they are, or leave them out beforehand.",
        )


def refuse_malformed(count: int, policy: str) -> None:
    """Refuse lines of text that have not the columns of the table, unless they are to be dropped.

    Parameters
    ----------
    count : int
        How many there are.
    policy : str
        ``drop``, or ``refuse``.

    Raises
    ------
    DataError
        With their number.
    """
    if count and policy != "drop":
        raise DataError(
            f"{count:,} {'line has' if count == 1 else 'lines have'} not the columns of the table",
            path="input.path",
            remedy="Mend them (a delimiter in a cell, a line cut short?), or leave them out by input.malformed: drop.",
        )
