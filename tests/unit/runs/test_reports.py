"""Where the page of a release or model is written, and what it may never overwrite or fail."""

from __future__ import annotations

import json
import os

import pytest

from dpagg.cli import run
from dpagg.errors import ConfigError, DataError
from dpagg.runs.model_file import write_model
from dpagg.runs.reports import make_report, network_losses, release_page, report_beside, report_path
from tests.unit.report.examples import example_certificate, example_model


@pytest.fixture
def release(tmp_path):
    folder = tmp_path / "aggregates"
    folder.mkdir()
    (folder / "_certificate.json").write_text(json.dumps(example_certificate()))
    return folder


@pytest.fixture
def model(tmp_path):
    write_model(tmp_path / "model.json", example_model().to_dict())
    return tmp_path / "model.json"


def test_a_release_has_its_page_beside_its_certificate(release, capsys):
    assert run(["report", str(release), "--json"]) == 0
    page = release / "_report.html"
    assert json.loads(capsys.readouterr().out) == {"report": str(page)}
    assert page.read_text() == release_page(example_certificate())
    # Again, and by the certificate's own name: the page is ours and may be replaced.
    assert make_report(release / "_certificate.json") == page


def test_a_model_is_joined_with_the_release_that_lies_beside_it(release, model):
    assert make_report(model) == model.with_name("model.html")
    page = model.with_name("model.html").read_text()
    assert "Coefficients" in page and "What has to be accepted" in page
    assert make_report(model.parent) == model.with_name("model.html")


def test_a_model_alone_says_that_its_certificate_is_elsewhere(model):
    assert "was not at hand" in make_report(model).read_text()


def test_out_says_where_and_nothing_of_others_is_overwritten(release, tmp_path):
    assert make_report(release, tmp_path / "new" / "page.html").exists()
    (tmp_path / "notes.html").write_text("mine")
    for taken in (tmp_path / "notes.html", tmp_path):
        with pytest.raises(ConfigError, match="no report"):
            make_report(release, taken)
    assert (tmp_path / "notes.html").read_text() == "mine"
    assert [each.name for each in tmp_path.glob(".*")] == []


def test_nothing_or_too_much_to_report_has_its_exit_code(release, tmp_path, capsys):
    assert run(["report", str(tmp_path / "none")]) == 4
    (tmp_path / "empty").mkdir()
    assert run(["report", str(tmp_path / "empty")]) == 4
    (tmp_path / "odd.json").write_text("{}")
    assert run(["report", str(tmp_path / "odd.json")]) == 4
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "_certificate.json").write_text(json.dumps(example_certificate()))
    assert run(["report", str(tmp_path)]) == 2
    assert "second" in capsys.readouterr().err


def test_a_run_writes_the_page_once_and_mends_a_missing_one(model):
    report_beside(model, example_certificate())
    page = report_path(model)
    first = page.read_text()
    page.write_text(first + "<!-- kept -->")
    report_beside(model, example_certificate())
    assert page.read_text().endswith("<!-- kept -->")
    page.unlink()
    report_beside(model, example_certificate())
    assert page.read_text() == first
    # A page of an earlier model of this name is older than the model.
    os.utime(page, (1, 1))
    page.write_text(first + "<!-- old -->")
    os.utime(page, (1, 1))
    report_beside(model, example_certificate())
    assert page.read_text() == first


def test_a_page_that_cannot_be_made_or_written_fails_no_run(model, caplog):
    report_path(model).write_text("mine")
    report_beside(model, example_certificate())
    assert report_path(model).read_text() == "mine"
    report_path(model).unlink()
    report_path(model).mkdir()
    report_beside(model, example_certificate())
    broken = example_certificate()
    del broken["label"]
    assert release_page(broken) is None
    assert "KeyError" in caplog.text and "sale_amount" not in caplog.text
    with pytest.raises(DataError):
        make_report(model.with_name("nothing.json"))


def test_a_network_is_joined_with_the_release_that_lies_beside_its_folder(release, tmp_path):
    training = {"training_losses": [2.0, 1.5, 1.2], "held_out_losses": [None, 1.6, 1.3]}
    document = {"format": "dpagg-network", "version": 1, "release": {"release_id": "ab" * 32}, "training": training}
    write_model(tmp_path / "net" / "model.json", document)
    assert make_report(tmp_path / "net") == tmp_path / "net" / "report.html"
    page = (tmp_path / "net" / "report.html").read_text()
    assert "A neural network for sale_amount" in page and "held-out bags from 1.6 to 1.3" in page
    assert network_losses(training)["held-out bags"] == [(2, 1.6), (3, 1.3)]
    release.rename(tmp_path.parent / "elsewhere")
    with pytest.raises(DataError, match="does not lie beside it"):
        make_report(tmp_path / "net" / "model.json")


def test_a_private_fit_has_its_certificate_in_its_file(tmp_path):
    promise = example_certificate("fit")
    document = example_model().to_dict() | {"certificate": promise}
    write_model(tmp_path / "fitted", document)
    report_beside(tmp_path / "fitted")
    page = (tmp_path / "fitted.html").read_text()
    assert "iterative Hessian mixing" in page and "Coefficients" in page
    write_model(tmp_path / "odd.html", document)
    report_beside(tmp_path / "odd.html")
    assert (tmp_path / "odd.html.report.html").exists()
