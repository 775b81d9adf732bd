"""The promise of a release, in words for people and in numbers for whoever wants to compute them again."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpagg.accounting.event import Event

FORMAT = "dpagg-certificate"
VERSION = 1
# Multiples of the claimed epsilon at which the curve is given.
CURVE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)

ARITHMETIC = (
    "Weights and noise are drawn in double precision; the guarantee is that of the mechanism over the real numbers."
)
LABEL_DP_PUBLIC = (
    "all features of all rows, and which rows there are",
    "the number of rows, and how many were left out for a missing feature or a leverage over the cap",
    "leverages and everything else computed from features",
    "the configuration",
)


def label_dp_terms(*, max_rows: int | None = None, hidden_level: bool = False) -> list[str]:
    """Return what a reviewer of a label mechanism has to accept.

    `max_rows` of a user where users are protected; `hidden_level` if the variance of the noise is drawn and not told.
    """
    protected = (
        "One label is protected: whoever appears in several rows is protected for each label by itself."
        if max_rows is None
        else f"Rows of one user carry the same value of the unit column; at most {max_rows} of them take part, chosen "
        "by a public hash of the row key."
    )
    level = ["The variance of the label noise is drawn once, from the event's normal, and known to nobody."]
    return [
        "No feature, filter, scale, bound, number of bags or category was derived from labels.",
        "Labels are clipped to the declared bounds before use, and a missing or bad label becomes the declared "
        "constant; whether that happened to any row is not told.",
        "Weights are known to nobody, fresh, used once, and the same for the features and the label of a row.",
        *(level if hidden_level else []),
        protected,
    ]


_LABEL_STATEMENT = (
    "released {released} is, up to a factor of e^{epsilon:g} in probability and an exception of {delta:g}, as likely "
    "as it would have been with any other value within the bounds in place of {unit}. Features are not protected."
)
_ROW_STATEMENT = (
    "released {released} is, up to a factor of e^{epsilon:g} in probability and an exception of {delta:g}, as likely "
    "as it would have been with {unit} masked: counted, but adding nothing to any sum. How many rows there are is not "
    "protected."
)


def statement(
    *,
    epsilon: float,
    delta: float,
    is_private: bool,
    assumptions: Sequence[str],
    adjacency: str,
    unit: str,
    released: str,
) -> str:
    """Return the promise in one sentence, or that there is none; parameters as in `certificate`."""
    if not is_private:
        return "NOT PRIVATE: the random numbers of this release come from a public seed. Use it for tests only."
    if not math.isfinite(epsilon):
        return "NOT PRIVATE: sums over known members without weights or noise protect no label (infinite epsilon)."
    assumed = any(line.startswith("ASSUMED") for line in assumptions)
    condition = "IF what is ASSUMED below holds: whatever" if assumed else "Whatever"
    template = _ROW_STATEMENT if adjacency == "zero_out_one_row" else _LABEL_STATEMENT
    claim = template.format(released=released, epsilon=epsilon, delta=delta, unit=unit)
    return f"{condition} anybody knew before: the {claim}"


def certificate(
    event: Event,
    *,
    unit: str,
    mechanism: str,
    epsilon: float,
    delta: float,
    is_private: bool,
    assumptions: Sequence[str],
    public: Sequence[str],
    facts: Mapping[str, Any],
    adjacency: str | None = None,
    released: str = "table",
) -> dict[str, Any]:
    """Return the certificate of one release as plain JSON values.

    Parameters
    ----------
    event : Event
        What was run; `epsilon`, `delta` and the curve are recomputed from it.
    unit : str
        What is protected, for example ``"one label"``.
    mechanism : str
        Its name in the configuration.
    epsilon, delta : float
        The claim. `epsilon` is ignored where the event has none, and the certificate says ``"inf"``.
    is_private : bool
        False if the randomness of the release can be guessed; the statement then says that nothing is protected.
    assumptions, public : sequence of str
        What a reviewer has to accept, and what is not protected.
    facts : mapping
        Everything else that describes the release; plain JSON values.
    adjacency : str, optional
        For which neighbours the claim is, if the event holds for any; that of the event by default.
    released : str
        What is released: a table, or a model.

    Returns
    -------
    dict
        JSON values without NaN or infinity.

    Raises
    ------
    ValueError
        If the event does not meet the claim, or is for other neighbours.
    """
    adjacency = event.adjacency if adjacency is None else adjacency
    if event.adjacency not in (adjacency, "any"):
        raise ValueError(f"the event is for {event.adjacency}, the claim for {adjacency}")
    reached = event.delta(epsilon)
    bounded = reached < 1.0
    if bounded and reached > delta:
        raise ValueError(f"the event has delta {reached:g} at epsilon {epsilon:g}, which is over the claimed {delta:g}")
    return {
        "format": FORMAT,
        "version": VERSION,
        "statement": statement(
            epsilon=epsilon if bounded else math.inf,
            delta=delta,
            is_private=is_private,
            assumptions=assumptions,
            adjacency=adjacency,
            unit=unit,
            released=released,
        ),
        "mechanism": mechanism,
        "adjacency": adjacency,
        "unit": unit,
        "private": is_private and bounded,
        "epsilon": epsilon if bounded else "inf",
        "delta": delta if bounded else 1.0,
        "delta_at_epsilon": reached,
        "curve": [{"epsilon": epsilon * step, "delta": event.delta(epsilon * step)} for step in CURVE],
        "event": event.to_dict(),
        "assumptions": [*assumptions, ARITHMETIC],
        "public": list(public),
        **{name: _plain(value) for name, value in facts.items()},
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity; a number that isn't finite becomes its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
