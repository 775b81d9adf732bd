"""The budget that a release is charged to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from dpagg.config.fields import Model, Number, Positive, Text, refused


class BudgetConfig(Model):
    """What all releases that touch one protected unit may cost together."""

    epsilon: Positive
    """Epsilon of everything together."""
    delta: Annotated[Number, Field(gt=0, lt=1)]
    """Delta of everything together."""


class LedgerConfig(Model):
    """Where the account is kept, and which part of which data set is released.

    A label has one event date, so its partitions are disjoint; a user has several, so those are not. Without
    ``disjoint: true`` all releases of the data set share one budget.
    """

    path: Text
    """Folder of the ledger, a Delta table that is made at first use."""
    dataset: Text
    """Name of the data set."""
    partition: Text
    """Which part of it is released, such as a date."""
    disjoint: bool | None = None
    """Whether no protected unit is in two partitions, so that each has the whole budget; left out: false at first use,
    later as recorded."""
    budget: BudgetConfig | None = None
    """The budget of the data set; needed at first use, the same or left out later."""


def refuse_empty_ledger(given: Any) -> None:
    """Refuse a ledger section without content: it would charge nothing, in silence."""
    if isinstance(given, dict) and "ledger" in given and given["ledger"] is None:
        raise refused(
            "an empty section would charge nothing",
            field="ledger",
            remedy="Give path, dataset and partition, or take the section out.",
        )
