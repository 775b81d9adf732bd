"""A certificate's numbers are computed again, and whatever was changed in it by hand is noticed."""

import copy
import json

import pytest

from dpagg.accounting import LabelGaussian, NoisyLabelAggregation, UnweightedSums, WeightedAggregation
from dpagg.accounting.calibration import with_least_label_noise
from dpagg.accounting.certificate import certificate
from dpagg.accounting.hidden_noise import with_hidden_noise
from dpagg.cli import run
from dpagg.errors import DataError
from dpagg.runs.certificates import verify_certificate


def _certificate(event=None, mechanism="wtd-flag", **facts):
    if event is None:
        bare = WeightedAggregation(
            num_bags=40, label_range=2.0, leverage=(0.3, 0.1), residual_floor=0.0, residual_bound=(1.0, 1.5)
        )
        event = with_least_label_noise(bare, epsilon=1.0, delta=1e-6)
    return certificate(
        event,
        unit="one label",
        mechanism=mechanism,
        epsilon=1.0,
        delta=1e-6,
        is_private=True,
        assumptions=[],
        public=[],
        facts={"randomness": "operating system", **facts},
    )


@pytest.fixture(scope="module")
def good():
    event = _certificate()["event"]
    return _certificate(
        num_bags=40,
        label={"name": "y", "lower": -1.0, "upper": 1.0},
        label_noise_variance=event["label_noise_variance"],
        failure_probability=0.0,
        leverage={"largest": 0.3, "cap": None},
        label_noise_level="known",
    )


def _verify(tmp_path, found, capfd, *arguments):
    file = tmp_path / "_certificate.json"
    file.write_text(json.dumps(found))
    capfd.readouterr()
    code = run(["certificate", "verify", str(file), *arguments])
    return code, capfd.readouterr()


def test_an_untouched_certificate_holds(tmp_path, good, capfd):
    code, shown = _verify(tmp_path, good, capfd)
    assert code == 0 and "The numbers follow" in shown.out and "WRONG" not in shown.out
    code, shown = _verify(tmp_path, good, capfd, "--json")
    found = json.loads(shown.out)
    assert code == 0 and found["holds"]
    computed = {check["name"]: check["computed"] for check in found["checks"]}
    assert computed["delta at epsilon 1"] == good["delta_at_epsilon"] <= 1e-6
    assert {"num_bags", "label_range", "label_noise_variance", "adjacency", "private"} <= set(computed)


@pytest.mark.parametrize(
    ("path", "value", "noticed"),
    [
        (("epsilon",), 0.9, "delta at epsilon 0.9 is at most"),
        (("delta",), 0.9e-6, "delta at epsilon 1 is at most"),
        (("delta_at_epsilon",), 0.99e-6, "delta at epsilon 1"),
        (("curve", 2, "delta"), 1e-7, "curve at epsilon 0.5"),
        (("adjacency",), "zero_out_one_row", "adjacency"),
        (("num_bags",), 41, "num_bags"),
        (("label", "upper"), 3.0, "label_range"),
        (("label_noise_variance",), 10.0, "label_noise_variance"),
        (("failure_probability",), 1e-9, "failure_probability"),
        (("event", "label_noise_variance"), 10.0, "delta at epsilon 1 is at most"),
        (("event", "num_bags"), 80, "delta at epsilon 1 is at most"),
        (("randomness",), "public seed: not private", "private"),
        (("statement",), "Nobody will ever know.", "statement"),
        (("unit",), "all labels of one user", "statement"),
        (("mechanism",), "ihm", "event of the mechanism"),
        (("curve",), [], "points of the curve"),
        (("leverage", "largest"), 0.01, "largest leverage"),
        (("label_noise_level",), "hidden", "label noise level is hidden"),
        (("event", "leverage"), [0.01], "largest leverage"),
    ],
)
def test_what_was_changed_is_noticed(tmp_path, good, capfd, path, value, noticed):
    found = copy.deepcopy(good)
    place = found
    for step in path[:-1]:
        place = place[step]
    assert place[path[-1]] != value
    place[path[-1]] = value
    code, shown = _verify(tmp_path, found, capfd, "--json")
    wrong = {check["name"] for check in json.loads(shown.out)["checks"] if not check["holds"]}
    assert code == 3 and noticed in wrong


def test_no_privacy_is_verified_as_none(tmp_path, capfd):
    found = _certificate(UnweightedSums(), "unweighted-sums")
    assert _verify(tmp_path, found, capfd)[0] == 0
    found["private"] = True
    code, shown = _verify(tmp_path, found, capfd)
    assert code == 3 and "DOES NOT HOLD" in shown.out
    # A finite claim about the same event is refuted too.
    assert _verify(tmp_path, found | {"epsilon": 1.0, "private": True}, capfd)[0] == 3


@pytest.mark.parametrize(
    ("event", "mechanism"),
    [
        (LabelGaussian(label_range=1.0, leverage=0.1, noise_std=2.0), "label-gaussian"),
        (
            NoisyLabelAggregation(bag_size=50, noised_fraction=0.5, noise_std=9.0, label_range=1.0, weight_cap=0.5),
            "sampled-noisy-wtd-lag",
        ),
    ],
)
def test_other_events_are_verified_too(event, mechanism):
    assert verify_certificate(_certificate(event, mechanism)).holds
    assert not verify_certificate(_certificate(event, "wtd-flag")).holds


def test_a_hidden_level_passed_off_as_none_is_noticed():
    bare = WeightedAggregation(
        num_bags=4000, label_range=2.0, leverage=(0.3, 0.1), residual_floor=0.0, residual_bound=(1.0, 1.5)
    )
    event = with_hidden_noise(bare, epsilon=1.0, delta=1e-6)
    facts = {"label_noise_variance": event.noise_mean, "failure_probability": event.failure_probability}
    good = _certificate(event, label_noise_level="hidden: the variance given is its mean", **facts)
    assert verify_certificate(good).holds
    for change in ({"label_noise_variance": 0.0}, {"failure_probability": 0.0}, {"label_noise_level": "known"}):
        assert not verify_certificate(good | change).holds


@pytest.mark.parametrize("cap", [None, 0.5])
def test_other_noise_than_that_of_the_event_is_noticed_with_noisy_labels(cap):
    event = NoisyLabelAggregation(bag_size=50, noised_fraction=0.5, noise_std=9.0, label_range=1.0, weight_cap=cap)
    facts = {"bag_size": 50, "num_noised": 25, "label_noise_variance": 81.0, "weight_cap": cap}
    good = _certificate(event, "sampled-noisy-wtd-lag", **facts)
    assert verify_certificate(good).holds
    for change in ({"num_noised": 50}, {"label_noise_variance": 100.0}, {"weight_cap": 0.4}, {"bag_size": 60}):
        assert not verify_certificate(good | change).holds


def test_an_assumed_floor_that_is_not_said_is_noticed():
    event = WeightedAggregation(num_bags=1, label_range=2.0, leverage=0.01, residual_floor=1e6, residual_bound=2.0)
    assert not verify_certificate(_certificate(event)).holds


@pytest.mark.parametrize(
    "change", [{"event": {"event": "Magic"}}, {"event": None}, {"curve": [{}]}, {"epsilon": "small"}, {"delta": None}]
)
def test_what_cannot_be_computed_is_an_error_and_not_a_pass(good, tmp_path, capfd, change):
    with pytest.raises(DataError, match="cannot be computed again"):
        verify_certificate(good | change)
    code, shown = _verify(tmp_path, good | change, capfd)
    assert code == 4 and shown.out == ""


def test_the_audit_command(capfd):
    arguments = ["audit", "residual-norm", "--draws", "20000", "--insecure-seed", "1", "--delta", "0.01"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    (one,) = found["audits"]
    assert found["holds"] and one["event"] == "GaussianRelease" and one["draws"] == 20_000
    assert 0.6 < one["empirical_epsilon"] < one["exact_epsilon"] <= one["claimed_epsilon"]
    assert run(arguments) == 0 and "residual-norm" in capfd.readouterr().out
    assert run(["audit", "residual-nor"]) == 2 and "residual-norm" in capfd.readouterr().err
    assert run(["audit", "residual-norm", "--delta", "0"]) == 2


def test_the_audit_command_fails_with_a_claim(capfd, monkeypatch):
    """A case whose event claims half of what its kernel loses."""
    import dataclasses

    from dpagg.accounting import GaussianRelease
    from dpagg.audit import catalogue

    honest = catalogue.CASES["residual-norm"]

    def false(epsilon, delta):
        case = honest(epsilon, delta)
        return dataclasses.replace(case, event=GaussianRelease(mu=case.event.mu / 2))

    monkeypatch.setitem(catalogue.CASES, "residual-norm", false)
    assert run(["audit", "residual-norm", "--draws", "20000", "--insecure-seed", "1", "--delta", "0.01"]) == 3
    assert "BROKEN" in capfd.readouterr().out
