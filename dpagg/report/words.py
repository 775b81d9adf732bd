"""What a certificate says, in plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dpagg.report.numbers import claimed, number, one_in, percent

_SOLVERS = {
    "ihm": "iterative Hessian mixing",
    "ihm-paper": "iterative Hessian mixing as its authors have it",
    "linear-mixing": "linear mixing",
    "adassp": "AdaSSP, least squares on noisy sums",
    "dp-gd": "noisy gradient descent",
    "label-gaussian": "least squares with noise on the labels' part",
}
_MISSING = {
    "change_one_label": {"drop": "the row is left out", "indicator": "a column of its own says so"},
    "zero_out_one_row": {"drop": "the row adds nothing", "indicator": "a column of its own says so"},
}


@dataclass(frozen=True)
class Promise:
    """The head of the page.

    Attributes
    ----------
    standing : str
        ``good``, ``warn`` or ``claim`` (not private): also the name of its colour.
    badge : str
        The promise in a few words.
    title, released : str
        What was released, in a line and in a paragraph.
    statement : str
        The certificate's own sentence.
    meaning : tuple of str
        The same in plain words; empty if nothing is promised.
    """

    standing: str
    badge: str
    title: str
    released: str
    statement: str
    meaning: tuple[str, ...]


def promise(certificate: Mapping[str, Any]) -> Promise:
    """Return the promise of a release in words."""
    private, label = bool(certificate["private"]), certificate["label"]["name"]
    assumed = any(str(line).startswith("ASSUMED") for line in certificate["assumptions"])
    if not private:
        standing, badge = "claim", "✖ Not private"
    elif assumed:
        standing, badge = "warn", "▲ Private only if an assumption holds"
    else:
        standing, badge = "good", "✔ Private"
    if private:
        badge += f": {claimed(certificate['epsilon'], certificate['delta'])}"
    kind = "linear model" if "solver" in certificate else "table of sums"
    title = f"A {'private ' if private else ''}{kind} of {label}"
    return Promise(standing, badge, title, _released(certificate), certificate["statement"], _meaning(certificate))


def _released(certificate: Mapping[str, Any]) -> str:
    mechanism, label, n = certificate["mechanism"], certificate["label"]["name"], number(certificate["num_rows"])
    if "solver" in certificate:
        return (
            f"A linear model of {label} on {number(len(certificate['columns']))} columns, fitted on {n} rows by "
            f"{_SOLVERS.get(mechanism, mechanism)}. The rows, their sums and everything else stayed where they were."
        )
    m = number(certificate["num_bags"])
    if mechanism == "unweighted-sums":
        return f"A table of {m} plain sums of {label} and its features, over rows that anybody can tell."
    size, noise = number(certificate.get("bag_size")), float(certificate["label_noise_variance"])
    deviation = number(math.sqrt(noise))
    if mechanism == "sampled-noisy-wtd-lag":
        return (
            f"A table of {m} bags of {size} rows. Each bag shows the features of its rows, a random weight for each, "
            f"and one weighted sum of their {label}. Noise with a standard deviation of {deviation} was put on the "
            f"{label} of {number(certificate['num_noised'])} rows of each bag first."
        )
    rows = f"its own {size} rows" if mechanism == "sampled-wtd-flag" else f"all {n} rows"
    noise_words = (
        f"Random noise with a standard deviation of {deviation} is added to each sum of {label}."
        if noise > 0
        else f"No noise is added to the sums of {label}."
    )
    return (
        f"A table of {m} sums. Each adds up {rows} with random weights that nobody knows, the same for the features "
        f"and the {label} of a row. {noise_words}"
    )


def _meaning(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    if not certificate["private"]:
        return ("It promises nothing to anybody.",)
    epsilon, delta = float(certificate["epsilon"]), float(certificate["delta"])
    unit = certificate["unit"]
    if certificate["adjacency"] == "zero_out_one_row":
        other = f"with {unit} masked"
        guess = "everything but whether one row took part or was masked, and has to guess it"
    else:
        other = f"with any other value within its bounds in place of {unit}"
        guess = f"everything but {unit}, and has to guess which of two values it has"
        if unit != "one label":
            other = f"with any other values within their bounds in place of {unit}"
            guess = f"everything but {unit}, and has to guess which of two sets of values they have"
    assumed = any(str(line).startswith("ASSUMED") for line in certificate["assumptions"])
    lines = ["All of this holds only if what is assumed below is true of the data."] if assumed else []
    lines += [
        f"It protects {unit}, whichever it is, against anybody who gets the release, whatever else they know and "
        "whatever they do with it later.",
        f"Nothing that can be seen in the release is more than {number(math.exp(epsilon))} times as likely (e to the "
        f"power of ε) as it would be {other}, but for an exception of probability {number(delta)} (δ, "
        f"{one_in(delta)}). More releases about the same rows add to it.",
    ]
    at_zero = [point["delta"] for point in certificate["curve"] if float(point["epsilon"]) == 0]
    if at_zero:
        lines.append(
            f"Somebody who knows {guess}, is right half of the time without the release, and with it at most "
            f"{percent((1 + float(at_zero[0])) / 2)} of the time."
        )
    return tuple(lines)


def facts(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the numbers of a release with their names."""
    found = [
        ("Mechanism", str(certificate["mechanism"])),
        ("Protects", f"{certificate['unit']} ({certificate['adjacency']})" if certificate["private"] else "nothing"),
        ("Claim", claimed(certificate["epsilon"], certificate["delta"])),
    ]
    if certificate["private"]:
        found.append(("Computed", f"δ = {number(float(certificate['delta_at_epsilon']))} at this ε, at most the claim"))
    declared = ", as declared" if certificate["adjacency"] == "zero_out_one_row" else ""
    found.append(("Rows", number(certificate["num_rows"]) + declared))
    if certificate.get("failure_probability"):
        found.append(
            ("Failure probability", f"{number(float(certificate['failure_probability']))}, which is part of δ")
        )
    left_out = {
        name.replace("_", " "): count for name, count in (certificate.get("rows_left_out") or {}).items() if count
    }
    if "rows_left_out" in certificate:
        listed = ", ".join(f"{number(count)} {name}" for name, count in left_out.items())
        found.append(("Rows left out", listed or "none"))
    bags_left_out = (certificate.get("bags_left_out") or {}).get("over_leverage_cap")
    if bags_left_out is not None:
        found.append(("Bags left out", f"{number(bags_left_out)} for a leverage over the cap"))
    floor = certificate.get("private_floor")
    if floor:
        found.append(
            (
                "Residual norm",
                f"{number(float(floor['released_residual_norm']))}, released with noise of standard deviation "
                f"{number(float(floor['noise_std']))}; of the sum of squares that the promise needs, "
                f"{number(float(floor['target']))}, the data supply {number(float(floor['supplied']))} and noise the "
                "rest",
            )
        )
    for key, name in (("num_bags", "Sums (bags, m)"), ("bag_size", "Rows in a bag (k)"), ("rank", "Columns (rank)")):
        if certificate.get(key) is not None:
            found.append((name, number(certificate[key])))
    if certificate.get("label_noise_variance"):
        level = str(certificate.get("label_noise_level", ""))
        hidden = ", of a level that is itself drawn and told to nobody (its mean)" if level.startswith("hidden") else ""
        found.append(
            ("Noise (τ)", f"standard deviation {number(math.sqrt(certificate['label_noise_variance']))}{hidden}")
        )
    if "row_bound" in certificate:
        found.append(("Norm of rows", f"clipped to {number(certificate['row_bound'])}"))
    return found


def bounds(certificate: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return name, kind, declared values and rule for missing ones, the label first."""
    schema, label = certificate["schema"], certificate["label"]
    rules = _MISSING.get(certificate["adjacency"], _MISSING["change_one_label"])
    constant = schema["label"].get("missing", {}).get("constant")
    rows = [
        (
            label["name"],
            "label",
            f"clipped to {number(label['lower'])} … {number(label['upper'])}",
            f"taken as {number(constant)}",
        )
    ]
    for feature in schema["features"]:
        kind = feature["type"]
        if kind == "numeric":
            declared = f"clipped to {number(feature['lower'])} … {number(feature['upper'])}"
        elif kind == "categorical":
            declared = ", ".join([*map(str, feature["categories"]), *(["any other"] if feature.get("other") else [])])
        else:
            declared = f"{number(feature['buckets'])} buckets by hash"
        missing = feature.get("missing")
        if isinstance(missing, Mapping):
            missing = f"taken as {number(missing.get('constant'))}"
        rows.append((feature["name"], kind, declared, rules.get(str(missing), str(missing))))
    return rows


def origin(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return identity and making of a release."""
    names = {
        "release_id": "Release",
        "draw_id": "Draw",
        "engine": "Engine",
        "randomness": "Randomness",
        "code_version": "Made by dpagg",
        "config_digest": "Configuration",
    }
    found = [(shown, str(certificate[name])) for name, shown in names.items() if name in certificate]
    version = certificate.get("input_version")
    if isinstance(version, Mapping):
        found.append(("Input", ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in version.items())))
    return found


def event_numbers(certificate: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the event's parameters, long lists by their extremes."""
    found = []
    for name, value in certificate["event"].items():
        if isinstance(value, list) and value and all(isinstance(each, int | float) for each in value):
            text = ", ".join(map(number, value))
            if len(value) > 6:
                text = f"{len(value)} numbers from {number(min(value))} to {number(max(value))}"
        elif isinstance(value, Mapping | list):
            text = "in the certificate"
        else:
            text = number(value, 6)
        found.append((name.replace("_", " "), text))
    return found
