"""What may be spent: the terms of a data set, its charges, and whether one more fits."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpagg.accounting import Curve, CurveTable, Event, composed
from dpagg.errors import PrivacyError
from dpagg.ledger.entries import RESERVED


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The budget of one data set.

    Guarantee: all releases that touch one protected unit, together, are (epsilon, delta)-private for `adjacency`,
    if the parameters of each were chosen without looking at what earlier ones of the same rows brought to light
    (see `dpagg.accounting.ComposedCurve`), and if the declaration about partitions is true.

    Parameters
    ----------
    dataset : str
        Its name.
    epsilon, delta : float
        The budget; positive, delta below 1.
    adjacency : str
        Which neighbours, as `dpagg.accounting.Event.adjacency`.
    unit : str
        What is protected, for example ``"one label"``.
    disjoint : bool
        Whether one unit is in one partition at most. Otherwise all releases of the data set compose.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    dataset: str
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    disjoint: bool

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise ValueError(
                f"a budget needs a positive epsilon and a delta in (0, 1), got {self.epsilon}, {self.delta}"
            )


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One release as it is charged.

    Attributes
    ----------
    number : int
        Of its ``reserved`` entry.
    partition, release_id : str
        Of what, and which request.
    stated : mapping
        The event that says what it costs, as `dpagg.accounting.Event.to_dict`.
    epsilon, delta : float
        A point of the event's curve: ``event.delta(epsilon) <= delta``.
    table : CurveTable
        Bounds of the event's curve, computed when it was charged; with them a thousand releases compose at once.
    state : str
        ``reserved``, ``publishing`` or ``settled``.
    """

    number: int
    partition: str
    release_id: str
    stated: Mapping[str, Any]
    epsilon: float
    delta: float
    table: CurveTable
    state: str = RESERVED

    @functools.cached_property
    def event(self) -> Event:
        """What it costs; made when it is asked for, since most of a thousand charges are not.

        Raises
        ------
        PrivacyError
            If this code doesn't know such an event.
        """
        try:
            return Event.from_dict(self.stated)
        except (TypeError, ValueError):
            raise PrivacyError(
                f"entry {self.number} is of an event that this code does not know",
                path="ledger.path",
                remedy="Use the release of dpagg that wrote it, or a newer one.",
            ) from None


def sharing(terms: Terms, charges: Iterable[Charge], partition: str) -> list[Charge]:
    """Return the charges that may touch the same unit as a release of `partition`."""
    return [charge for charge in charges if not terms.disjoint or charge.partition == partition]


def fits(terms: Terms, charges: Sequence[Charge]) -> bool:
    """Return whether charges that touch the same unit are within the budget together."""
    # The sum of the claims is an upper bound, and costs nothing.
    return (
        not charges
        or _stated(charges, terms.delta) <= terms.epsilon
        or _together(charges, terms.delta).delta(terms.epsilon) <= terms.delta
    )


def spent(terms: Terms, charges: Sequence[Charge]) -> float:
    """Return the epsilon, at the budget's delta, of charges that touch the same unit; ``inf`` if there is none."""
    if not charges:
        return 0.0
    stated = _stated(charges, terms.delta)
    if len(charges) == 1:
        return min(stated, charges[0].table.epsilon(terms.delta))
    return min(stated, _together(charges, terms.delta).epsilon(terms.delta))


def remaining(terms: Terms, charges: Iterable[Charge], partition: str) -> float:
    """Return the budget's epsilon less what releases that share units with `partition` have spent; at least 0.

    A release that costs this much by itself always fits, if its delta is 0; composition usually leaves more.
    """
    return max(0.0, terms.epsilon - spent(terms, sharing(terms, charges, partition)))


def largest_spend(terms: Terms, charges: Sequence[Charge]) -> tuple[float, str]:
    """Return the largest spend of any partition and which one it is; of the whole if partitions are not disjoint."""
    if not terms.disjoint:
        return spent(terms, charges), ""
    parts: dict[str, list[Charge]] = {}
    for charge in charges:
        parts.setdefault(charge.partition, []).append(charge)
    largest, where = 0.0, ""
    # Composition is slow: those that the sum of claims leaves below the largest so far need none.
    for partition, inside in sorted(parts.items(), key=lambda item: (len(item[1]), item[0])):
        if _stated(inside, terms.delta) > largest:
            largest, where = max((largest, where), (spent(terms, inside), partition))
    return largest, where


def refuse_other_kind(terms: Terms, adjacency: str, unit: str) -> None:
    """Refuse a release that protects something else than the budget is about.

    Raises
    ------
    PrivacyError
        If the adjacency or the unit differs.
    """
    if adjacency != terms.adjacency:
        why = " It protects labels and hides no feature." if terms.adjacency == "zero_out_one_row" else ""
        raise PrivacyError(
            f"the budget of {terms.dataset!r} is for {terms.adjacency}, the release for {adjacency}.{why}",
            path="ledger.dataset",
            remedy="Charge it to a data set whose budget is for the same neighbours; the two never share one.",
        )
    if unit != terms.unit:
        raise PrivacyError(
            f"the budget of {terms.dataset!r} protects {terms.unit}, the release {unit}",
            path="ledger.dataset",
            remedy="Charge it to a data set whose budget protects the same unit.",
        )


def refuse_other_terms(recorded: Terms, given: dict[str, Any]) -> None:
    """Refuse terms that differ from those recorded; None is not given.

    Raises
    ------
    PrivacyError
        If one differs.
    """
    for name, value in given.items():
        if value is not None and value != getattr(recorded, name):
            path = {"epsilon": "ledger.budget.epsilon", "delta": "ledger.budget.delta", "disjoint": "ledger.disjoint"}
            raise PrivacyError(
                f"{name} {value} is given for the data set {recorded.dataset!r}, whose ledger has "
                f"{getattr(recorded, name)}",
                path=path.get(name, "ledger"),
                remedy="A budget is set once, before the first release, and not changed afterwards.",
            )


def over_budget(terms: Terms, shared: Sequence[Charge], asked: Charge) -> PrivacyError:
    """Return the refusal that names what is left and what was asked."""
    left = max(0.0, terms.epsilon - spent(terms, shared))
    where = f"partition {asked.partition!r} of {terms.dataset!r}" if terms.disjoint else f"{terms.dataset!r}"
    return PrivacyError(
        f"over budget: epsilon {left:.4g} of {terms.epsilon:g} is left for {where} at delta {terms.delta:g} after "
        f"{len(shared):,} releases; asked is epsilon {asked.epsilon:g} at delta {asked.delta:g}",
        path="privacy.epsilon",
        remedy="No label was read. Ask for less; what is spent does not come back.",
    )


def _stated(charges: Sequence[Charge], delta: float) -> float:
    """Sum of the claims, which is private for their summed deltas; inf if those are over delta."""
    if math.fsum(charge.delta for charge in charges) > delta:
        return math.inf
    return math.fsum(charge.epsilon for charge in charges)


def _together(charges: Sequence[Charge], delta: float) -> Curve:
    return composed([charge.event for charge in charges], [charge.table for charge in charges], delta)
