"""Reading certificates back: what a release promises, in words, and its numbers computed again."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpagg.accounting import Event
from dpagg.accounting.certificate import CURVE, FORMAT, VERSION, statement
from dpagg.errors import DataError


def load_certificate(file: Path) -> dict[str, Any]:
    """Return the certificate in a file, in a model file, or in the folder of a release.

    Raises
    ------
    DataError
        If there is none, or of a version that this code does not know.
    """
    if file.is_dir():
        file = file / "_certificate.json"
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        raise DataError(f"no certificate at {file}", remedy="Give the _certificate.json of a release.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        raise DataError(f"{file} isn't readable as JSON", remedy="Give the _certificate.json of a release.") from None
    if isinstance(found, dict) and isinstance(found.get("certificate"), dict):
        found = found["certificate"]  # of a model that was fitted on a table
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise DataError(f"{file} is no certificate of a release", remedy="Give the _certificate.json of a release.")
    if found.get("version") != VERSION:
        raise DataError(
            f"{file} has certificate version {found.get('version')}, this code reads version {VERSION}",
            remedy="Read it with the release of dpagg that wrote it, or a newer one.",
        )
    return found


def describe_certificate(certificate: dict[str, Any]) -> str:
    """Return a certificate in words, one screen long."""
    lines = [
        certificate["statement"],
        "",
        *(_fit_lines(certificate) if "solver" in certificate else _aggregate_lines(certificate)),
        f"randomness   {certificate['randomness']}",
        "",
        "To be accepted by a reviewer:",
        *(f"  - {line}" for line in certificate["assumptions"]),
        "Not protected:",
        *(f"  - {line}" for line in certificate["public"]),
        "Curve (epsilon: delta):",
        *(f"  {point['epsilon']:<8g} {point['delta']:.3g}" for point in certificate["curve"]),
    ]
    return "\n".join(lines)


def _claim(certificate: dict[str, Any]) -> str:
    return (
        f"claim        epsilon {certificate['epsilon']}, delta {certificate['delta']:g} "
        f"(computed: {certificate['delta_at_epsilon']:.3g})"
    )


def _aggregate_lines(certificate: dict[str, Any]) -> list[str]:
    left_out = certificate["rows_left_out"]
    noised = "noised label" if "num_noised" in certificate else "bag"
    return [
        f"mechanism    {certificate['mechanism']} (engine {certificate['engine']}), {certificate['num_bags']:,} bags",
        f"protects     {certificate['unit']} ({certificate['adjacency']})",
        _claim(certificate),
        f"rows         {certificate['num_rows']:,}; left out for a missing feature {left_out['missing_feature']:,}, "
        f"for a leverage over the cap {left_out['over_leverage_cap']:,}, "
        f"over the limit of their unit {left_out['over_unit_limit']:,}",
        f"label        {certificate['label']['name']}, clipped to {certificate['label']['lower']:g} … "
        f"{certificate['label']['upper']:g}; noise variance {certificate['label_noise_variance']:.6g} a {noised} "
        f"({certificate['label_noise_level']})",
    ]


def _fit_lines(certificate: dict[str, Any]) -> list[str]:
    declared = "declared" if certificate["adjacency"] == "zero_out_one_row" else "public"
    return [
        f"mechanism    {certificate['mechanism']}, a linear model of {len(certificate['columns']):,} columns",
        f"protects     {certificate['unit']} ({certificate['adjacency']})",
        _claim(certificate),
        f"rows         {certificate['num_rows']:,} ({declared}); encoded rows clipped to a norm of "
        f"{certificate['row_bound']:.6g}",
        f"label        {certificate['label']['name']}, clipped to {certificate['label']['lower']:g} … "
        f"{certificate['label']['upper']:g}",
    ]


# Which events a release of each mechanism may be accounted by.
_LABELS = frozenset({"WeightedAggregation", "HiddenNoiseAggregation", "UserAggregation", "HiddenNoiseUserAggregation"})
_EVENTS: dict[str, frozenset[str]] = {
    "wtd-flag": _LABELS,
    "unweighted-sums": frozenset({"UnweightedSums"}),
    "sampled-wtd-flag": frozenset({"SampledAggregation"}),
    "sampled-noisy-wtd-lag": frozenset({"NoisyLabelAggregation"}),
    "ihm": frozenset({"GaussianRelease", "HessianMixing"}),
    "ihm-paper": frozenset({"HessianMixing"}),
    "linear-mixing": frozenset({"LinearMixing"}),
    "adassp": frozenset({"AdaSSP"}),
    "dp-gd": frozenset({"NoisyGradientDescent"}),
    "label-gaussian": frozenset({"LabelGaussian"}),
}

# What certificates of a table state and some events have.
_FACTS = (
    "num_bags",
    "bag_size",
    "label_range",
    "label_noise_variance",
    "num_noised",
    "weight_cap",
    "failure_probability",
)

# Two computations of one delta agree to far more digits; libraries of another version may cost the last ones.
_AGREEMENT = 1e-6


@dataclass(frozen=True)
class Check:
    """One number of a certificate beside the same number from its event.

    Attributes
    ----------
    name : str
        Which one.
    stated, computed : Any
        JSON values.
    holds : bool
        Whether they agree, or the promise is kept.
    """

    name: str
    stated: Any
    computed: Any
    holds: bool


@dataclass(frozen=True)
class Verification:
    """All checks of a certificate."""

    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(check.holds for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"holds": self.holds, "checks": [asdict(check) for check in self.checks]}


def verify_certificate(certificate: dict[str, Any]) -> Verification:
    """Compute the numbers of a certificate again from its event, and compare.

    The event says what was run. That it is what was *really* run, that nobody edited event and numbers together, and
    the assumptions, are for a reviewer to judge.

    Parameters
    ----------
    certificate : dict
        As `load_certificate` returns it.

    Returns
    -------
    Verification

    Raises
    ------
    DataError
        If the event cannot be read, or a number is missing.
    """
    try:
        event = Event.from_dict(certificate["event"])
        return Verification(tuple(_checks(certificate, event)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"the certificate cannot be computed again ({type(error).__name__}: {error})",
            remedy="Read it with the release of dpagg that wrote it, or a newer one.",
        ) from None


def _checks(certificate: dict[str, Any], event: Event) -> Iterator[Check]:
    epsilon, delta = float(certificate["epsilon"]), float(certificate["delta"])
    seeded = certificate.get("randomness", "") != "operating system"
    private = math.isfinite(epsilon) and delta < 1 and not seeded
    yield Check("private", certificate["private"], private, certificate["private"] is private)
    if math.isfinite(epsilon):
        found = event.delta(epsilon)
        yield Check(f"delta at epsilon {epsilon:g} is at most", delta, found, found <= delta)
        stated = float(certificate["delta_at_epsilon"])
        yield Check(f"delta at epsilon {epsilon:g}", stated, found, _agree(stated, found))
    for point in certificate["curve"]:
        stated, found = float(point["delta"]), event.delta(float(point["epsilon"]))
        yield Check(f"curve at epsilon {point['epsilon']:.4g}", stated, found, _agree(stated, found))
    same = event.adjacency in (certificate["adjacency"], "any")
    yield Check("adjacency", certificate["adjacency"], event.adjacency, same)
    yield from _words(certificate, epsilon, delta, not seeded)
    facts = dict(certificate)
    if "solver" in certificate:
        # A fit scales labels, and what its event says of them.
        stated = certificate["label"]["upper"] - certificate["label"]["lower"]
        found = certificate["event"].get("label_range", 2.0) * certificate["label_scale"]
        yield Check("label range is at most", stated, found, stated <= found * (1 + _AGREEMENT))
    elif "label" in certificate:
        facts["label_range"] = certificate["label"]["upper"] - certificate["label"]["lower"]
    for name in _FACTS:
        if name in facts and hasattr(event, name) and "solver" not in certificate:
            stated, found = facts[name], getattr(event, name)
            yield Check(name, stated, found, stated == found or _agree(stated, found))
    leverage = getattr(event, "leverage", None)
    if "leverage" in certificate and leverage is not None and not hasattr(event, "max_rows"):
        stated, found = certificate["leverage"]["largest"], float(np.max(leverage))
        yield Check("largest leverage", stated, found, _agree(stated, found))
    if "label_noise_level" in certificate:
        hidden = hasattr(event, "noise_floor")
        said = str(certificate["label_noise_level"]).startswith("hidden")
        yield Check("label noise level is hidden", said, hidden, said is hidden)


def _words(certificate: dict[str, Any], epsilon: float, delta: float, is_private: bool) -> Iterator[Check]:
    """Check what is said in words against the numbers and the event."""
    mechanism, kind = certificate["mechanism"], certificate["event"]["event"]
    allowed = _EVENTS.get(mechanism, frozenset())
    yield Check("event of the mechanism", mechanism, kind, kind in allowed)
    said = statement(
        epsilon=epsilon,
        delta=delta,
        is_private=is_private,
        assumptions=certificate["assumptions"],
        adjacency=certificate["adjacency"],
        unit=certificate["unit"],
        released="model" if "solver" in certificate else "table",
    )
    yield Check("statement", certificate["statement"], said, certificate["statement"] == said)
    floor = float(certificate["event"].get("residual_floor", 0.0))
    if floor > 0 and "private_floor" not in certificate:
        assumed = any(line.startswith("ASSUMED") for line in certificate["assumptions"])
        yield Check("the floor is said to be assumed", assumed, True, assumed)
    points = len(certificate["curve"])
    yield Check("points of the curve", points, len(CURVE), points == len(CURVE))


def _agree(stated: Any, computed: Any) -> bool:
    numbers = isinstance(stated, int | float) and isinstance(computed, int | float)
    return numbers and math.isclose(stated, computed, rel_tol=_AGREEMENT, abs_tol=1e-300)
