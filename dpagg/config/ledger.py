"""The budget that a release is charged to."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from dpagg.config.fields import Model, Number, Positive, Text, refused


class BudgetConfig(Model):
    """What all releases that touch one protected unit may cost together."""

    epsilon: Positive
    delta: Annotated[Number, Field(gt=0, lt=1)]


class LedgerConfig(Model):
    """Where the account is kept, and which part of which data set is released.

    ``budget`` and ``disjoint`` are recorded at first use and must not differ later. ``disjoint: true`` declares that
    no protected unit is in two partitions (a label has one event date; a user has several): each partition then has
    the whole budget. Without it all releases of the data set share one.
    """

    path: Text
    dataset: Text
    partition: Text
    disjoint: bool | None = None
    budget: BudgetConfig | None = None


def refuse_empty_ledger(given: Any) -> None:
    """Refuse a ledger section without content: it would charge nothing, in silence."""
    if isinstance(given, dict) and "ledger" in given and given["ledger"] is None:
        raise refused(
            "an empty section would charge nothing",
            field="ledger",
            remedy="Give path, dataset and partition, or take the section out.",
        )
