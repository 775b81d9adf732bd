"""The page of a release: self-contained HTML without a script, made from a certificate and a model alone."""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dpagg.accounting import Event
from dpagg.regression.model import LinearModel
from dpagg.report import palette, words
from dpagg.report.accuracy import accuracy
from dpagg.report.coefficients import coefficients
from dpagg.report.figures import burn_down_figure, curve_figure, loss_figure
from dpagg.report.numbers import claimed, number, one_in, percent

# By this a page is told from a file of somebody else.
GENERATOR = '<meta name="generator" content="dpagg report">'
_CURVE_POINTS = 61
_CURVE_REACH = 2.5
_LONGEST_TABLE = 400

Entries = Sequence[tuple[str, float, float]]
Curves = Mapping[str, Sequence[tuple[float, float]]]


def render_report(
    certificate: Mapping[str, Any] | None,
    model: LinearModel | None = None,
    *,
    burn_down: Entries = (),
    losses: Curves | None = None,
) -> str:
    """Return the page of one release, of a model, or of a model with the release it was fitted on.

    The same arguments give the same page. Nothing about rows or labels is in it but what the arguments hold.

    Parameters
    ----------
    certificate : mapping or None
        As a run wrote it. Without one there has to be a model, and the page says what the model knows of its release.
    model : LinearModel, optional
        A fit: its coefficients are shown with intervals.
    burn_down : sequence of (str, float, float)
        Releases charged to the same budget, in order: label, epsilon spent, epsilon left.
    losses : mapping, optional
        Of a network that was trained on the release: (epoch, loss) in order, by the name of the curve.

    Raises
    ------
    ValueError
        If there is neither a certificate nor a model.
    """
    if certificate is None and model is None:
        raise ValueError("there is nothing to report: give a certificate or a model")
    template = environment().get_template("page.html.j2")
    return template.render(
        generator=Markup(GENERATOR),
        palette=palette,
        certificate=certificate,
        head=_head(certificate, model, bool(losses)),
        facts=words.facts(certificate) if certificate is not None else _known(model),
        curve=None if certificate is None else _curve(certificate),
        bounds=None if certificate is None else words.bounds(certificate),
        origin=None if certificate is None else words.origin(certificate),
        event=None if certificate is None else words.event_numbers(certificate),
        accuracy=None if certificate is None else accuracy(certificate, _estimated_std(certificate, model)),
        model=model,
        fit=None if model is None else coefficients(model),
        budget=_budget(certificate, burn_down),
        training=_training(losses or {}),
    )


@functools.cache
def environment() -> Environment:
    """Return what pages are rendered with."""
    environment = Environment(
        loader=PackageLoader("dpagg.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_visible,
    )
    environment.filters |= {"number": number, "percent": percent, "one_in": one_in, "breakable": _breakable}
    environment.globals["claimed"] = claimed
    return environment


def _visible(value: Any) -> Any:
    """Spell out control characters, those among them that turn the direction of what follows."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return "".join(
        f"\\u{ord(each):04x}" if unicodedata.category(each) in ("Cc", "Cf", "Cs") else each for each in value
    )


def _breakable(name: object) -> Markup:
    """Let a long name break where its parts meet."""
    return Markup("<wbr>").join(re.split(r"(?<=[=:_.])(?=.)", _visible(str(name))))


def _head(certificate: Mapping[str, Any] | None, model: LinearModel | None, is_trained: bool) -> words.Promise:
    if certificate is None:
        release: Mapping[str, Any] = model.release if model is not None else {}
        private = bool(release.get("private"))
        badge = "✔ From a private release" if private else "✖ From a release that is not private"
        if private:
            badge += f": {claimed(release.get('epsilon'), release.get('delta'))}"
        label = model.schema.label.name if model is not None else "a label"
        return words.Promise(
            "good" if private else "claim",
            badge,
            f"A linear model of {label}",
            f"A linear model of {label}, fitted on a release and on nothing else.",
            "The certificate of the release was not at hand when this page was made. What it promises, what it "
            "assumes and what it does not protect stands there.",
            (),
        )
    head = words.promise(certificate)
    if (model is None and not is_trained) or "solver" in certificate:
        return head
    what, made = ("neural network", "trained") if is_trained else ("linear model", "fitted")
    label = certificate["label"]["name"]
    kind = "a private release" if certificate["private"] else "a release"
    return words.Promise(
        head.standing,
        head.badge,
        f"A {what} for {label}, from {kind}",
        f"A {what} for {label}, {made} on a release and on nothing else, so that it tells no more than the "
        f"release does. The release: {head.released[0].lower()}{head.released[1:]}",
        head.statement,
        head.meaning,
    )


def _known(model: LinearModel | None) -> list[tuple[str, str]]:
    release = {} if model is None else model.release
    names = ("mechanism", "adjacency", "epsilon", "delta", "release_id", "code_version")
    return [(name.replace("_", " ").capitalize(), number(release[name])) for name in names if name in release]


def _estimated_std(certificate: Mapping[str, Any], model: LinearModel | None) -> float | None:
    if model is None or model.release.get("release_id") != certificate.get("release_id"):
        return None
    found = model.fit.get("row_residual_std")
    return None if found is None else float(found)


def _curve(certificate: Mapping[str, Any]) -> dict[str, Any] | None:
    if not certificate["private"]:
        return None
    claim = float(certificate["epsilon"]), float(certificate["delta"])
    points = [(float(point["epsilon"]), float(point["delta"])) for point in certificate["curve"]]
    try:
        epsilons = np.linspace(0.0, _CURVE_REACH * claim[0], _CURVE_POINTS)
        deltas = Event.from_dict(certificate["event"]).curve(epsilons)
    except (ValueError, TypeError, KeyError):  # an event of a newer version: its points are at hand
        epsilons, deltas = (np.array(column) for column in zip(*points, strict=True))
    summary = (
        f"A line that falls from δ = {number(float(deltas[0]))} at ε = 0 through δ = "
        f"{number(float(certificate['delta_at_epsilon']))} at the claimed ε = {number(claim[0])} to δ = "
        f"{number(float(deltas[-1]))} at ε = {number(float(epsilons[-1]))}. A diamond marks the claim, "
        f"{claimed(*claim)}; the line passes through it or below."
    )
    return {"figure": curve_figure(epsilons, deltas, claim, summary), "points": points, "claim": claim}


def _budget(certificate: Mapping[str, Any] | None, burn_down: Entries) -> dict[str, Any] | None:
    ledger = {} if certificate is None else certificate.get("ledger") or {}
    if not ledger and not burn_down:
        return None
    figure = None
    if burn_down:
        total = float((ledger.get("budget") or {}).get("epsilon") or burn_down[0][1] + burn_down[0][2])
        summary = (
            f"A line that falls in {len(burn_down)} steps, a release each, from a budget of ε = {number(total)} to "
            f"{number(float(burn_down[-1][2]))} left."
        )
        figure = burn_down_figure(burn_down, total, summary)
    shown = list(burn_down)[-_LONGEST_TABLE:]
    return {"ledger": ledger, "figure": figure, "entries": shown, "left_out": len(burn_down) - len(shown)}


def _training(losses: Curves) -> dict[str, Any] | None:
    curves = {_visible(name): list(curve) for name, curve in losses.items() if len(curve)}
    if not curves:
        return None
    ends = "; ".join(
        f"{name} from {number(float(curve[0][1]))} to {number(float(curve[-1][1]))}" for name, curve in curves.items()
    )
    thinned = {name: _thinned(curve) for name, curve in curves.items()}
    return {"figure": loss_figure(curves, f"Loss against epoch: {ends}."), "curves": thinned}


def _thinned(curve: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return about 20 points of a curve, the last one among them."""
    step = -(-len(curve) // 20)
    kept = list(curve[::step])
    return kept if kept[-1] == curve[-1] else [*kept, curve[-1]]
