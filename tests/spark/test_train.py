"""A network from a release: trained, found again, gone on with, refused; and its predictions by Spark."""

import fcntl
import json
import os
import shutil

import numpy as np
import pandas as pd
import pytest
import yaml

import dpagg
from dpagg.cli import run

NUM_ROWS = 4000
# Of so little privacy that a network learns from a few bags.
ASKED = {
    "schema": {
        "features": [
            {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
            {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
        ],
        "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
    },
    "mechanism": {"name": "sampled-noisy-wtd-lag", "bag_size": 4, "noised_fraction": 1.0},
    "privacy": {"epsilon": 100.0, "delta": 1e-5},
}


def frame(seed=0):
    rng = np.random.default_rng(seed)
    price = rng.uniform(0, 100, NUM_ROWS)
    device = rng.choice(["mobile", "desktop"], NUM_ROWS)
    sale = 25 + 15 * np.sin(price / 20) * np.where(device == "mobile", 1.0, -1.0)
    return pd.DataFrame({"key": np.arange(NUM_ROWS), "price": price, "device": device, "sale": sale})


@pytest.fixture(scope="module")
def released(spark, tmp_path_factory):
    """A Delta table; its numbers are others in each run, since the place of a release is part of what it is."""
    folder = tmp_path_factory.mktemp("release")
    frame().to_parquet(folder / "table.parquet")
    content = ASKED | {
        "input": {"path": str(folder / "table.parquet"), "format": "parquet", "row_id": "key"},
        "output": {"path": str(folder / "bags")},
    }
    (folder / "aggregate.yaml").write_text(yaml.safe_dump(content))
    assert run(["aggregate", str(folder / "aggregate.yaml"), "--insecure-seed", "1"]) == 0
    return folder


@pytest.fixture
def attempt(spark, released, tmp_path, capfd):
    """Return a function that trains and returns exit code, JSON (or None) and standard error."""

    def go(**sections):
        content = {
            "release": {"path": str(released / "bags")},
            "network": {"hidden": [16]},
            "training": {"max_epochs": 2, "batch_size": 50},
            "output": {"path": str(tmp_path / "net")},
        } | sections
        (tmp_path / "train.yaml").write_text(yaml.safe_dump(content))
        capfd.readouterr()
        code = run(["train", str(tmp_path / "train.yaml"), "--json"])
        shown = capfd.readouterr()
        return code, json.loads(shown.out) if code == 0 else None, shown.err

    return go


def test_from_release_to_predictions(attempt, spark, tmp_path, capfd):
    # In memory a public seed draws the same in each run, and so is the network: what it has learnt is no luck.
    dpagg.aggregate(frame(), **ASKED, row_id="key", insecure_seed=1, output=tmp_path / "bags")
    release = {"path": str(tmp_path / "bags"), "format": "parquet"}
    training = {"max_epochs": 25, "batch_size": 20, "learning_rate": 1e-2, "patience": 25}
    network = {"hidden": [32], "lipschitz": "none"}
    code, found, err = attempt(release=release, training=training, network=network)
    assert (code, err) == (0, "")
    assert found["written"] == "now" and found["release"]["epsilon"] == 100.0
    assert found["training"]["num_training_bags"] + found["training"]["num_held_out_bags"] == 1000
    model = json.loads((tmp_path / "net" / "model.json").read_text())
    assert model["release"]["mechanism"] == "sampled-noisy-wtd-lag" and model["release"]["private"] is False
    losses = json.loads((tmp_path / "net" / "losses.json").read_text())
    assert len(losses["training_losses"]) == len(losses["held_out_losses"]) == 25
    svg = (tmp_path / "net" / "losses.svg").read_text()
    assert svg.startswith("<?xml") and "held out" in svg
    assert sorted(os.listdir(tmp_path / "net")) == ["losses.json", "losses.svg", "model.json", "report.html"]
    page = (tmp_path / "net" / "report.html").read_text()
    assert "A neural network for sale" in page and "held-out bags" in page

    table = frame(1)
    table.loc[0, "price"] = np.nan  # no prediction: its rule is to drop the row
    table.loc[1, "price"] = 1e9  # clipped
    table.drop(columns="sale").to_parquet(tmp_path / "new.parquet")
    code = run(["predict", str(tmp_path / "net"), str(tmp_path / "new.parquet"), str(tmp_path / "out"),
                "--row-id", "key", "--json"])  # fmt: skip
    assert code == 0 and json.loads(capfd.readouterr().out)["model"]["epsilon"] == 100.0
    predicted = spark.read.format("delta").load(str(tmp_path / "out")).toPandas().sort_values("key")
    assert len(predicted) == NUM_ROWS and list(predicted.columns) == ["key", "prediction"]
    values = predicted["prediction"].to_numpy()
    assert np.isnan(values[0]) and np.isfinite(values[1:]).all()
    # By hand, from the file alone and as it says.
    price = np.clip(table["price"].to_numpy()[1:], 0, 100) / 50 - 1
    v = np.column_stack([np.ones(NUM_ROWS - 1), price, table["device"].to_numpy()[1:] == "desktop"])
    *inner, last = model["network"]["layers"]
    for layer in inner:
        v = np.maximum(v @ np.array(layer["weight"]).T + layer["bias"], 0)
    z = (v @ np.array(last["weight"]).T + last["bias"])[:, 0]
    bound = model["network"]["output_bound"]
    np.testing.assert_allclose(values[1:], 25 + 25 * bound * np.tanh(z / bound), rtol=1e-9, atol=1e-9)
    assert np.mean((values[2:] - table["sale"].to_numpy()[2:]) ** 2) < 0.3 * table["sale"].var()


def test_again_it_is_found_and_another_is_refused(attempt, tmp_path):
    assert attempt()[1]["written"] == "now"
    before = (tmp_path / "net" / "model.json").read_bytes()
    page = tmp_path / "net" / "report.html"
    page.unlink()  # as if the run had been killed before it
    assert attempt(performance={"checkpoint_seconds": 1})[1]["written"].startswith("earlier")
    assert page.exists()
    code, _, err = attempt(training={"max_epochs": 3, "batch_size": 50})
    assert code == 2 and "output.path" in err and before == (tmp_path / "net" / "model.json").read_bytes()


def test_an_unfinished_training_goes_on_and_ends_the_same(attempt, tmp_path, monkeypatch):
    from dpagg.runs import train as module

    assert attempt()[0] == 0
    whole = (tmp_path / "net" / "model.json").read_bytes()
    shutil.rmtree(tmp_path / "net")

    def full_disk(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_losses", full_disk)
    assert attempt()[0] == 130
    assert os.listdir(tmp_path / "net") == ["checkpoint.eqx"]
    code, _, err = attempt(training={"max_epochs": 3, "batch_size": 50})
    assert code == 2 and "something else" in err
    monkeypatch.undo()
    assert attempt()[1]["written"] == "now"
    assert (tmp_path / "net" / "model.json").read_bytes() == whole


def test_a_copy_of_the_files_will_do(attempt, released, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(released / "bags", copy, ignore=shutil.ignore_patterns("_delta_log"))
    assert attempt(release={"path": str(copy), "format": "parquet"})[0] == 0
    elsewhere = {"path": str(tmp_path / "n")}
    code, _, err = attempt(release={"path": str(released / "bags"), "format": "parquet"}, output=elsewhere)
    assert code == 2 and "release.format" in err
    certificate = json.loads((copy / "_certificate.json").read_text())
    for change in ({"num_noised": 5}, {"bag_size": "many"}, {"label_noise_variance": -1.0}):
        (copy / "_certificate.json").write_text(json.dumps(certificate | change))
        code, _, err = attempt(release={"path": str(copy), "format": "parquet"}, output=elsewhere)
        assert code == 4 and "what noise its bags carry" in err
    (copy / "_certificate.json").write_text(json.dumps(certificate))
    next(copy.glob("*.parquet")).unlink()
    code, _, err = attempt(release={"path": str(copy), "format": "parquet"}, output=elsewhere)
    assert code == 4 and "its certificate says 1,000" in err and not (tmp_path / "n").exists()


def test_one_run_at_a_time_in_a_folder(attempt, tmp_path):
    (tmp_path / "net").mkdir()
    other = os.open(tmp_path / "net", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    code, _, err = attempt()
    assert code == 2 and "another run trains in" in err and os.listdir(tmp_path / "net") == []
    os.close(other)
    assert attempt()[0] == 0


@pytest.mark.parametrize(
    ("sections", "code", "words"),
    [
        ({"network": {"hiden": [3]}}, 2, "Did you mean hidden?"),
        ({"network": {"lipschitz": 0}}, 2, "network.lipschitz"),
        ({"training": {"held_out": 0, "patience": 3}}, 2, "training.patience"),
        ({"training": {"seed": True}}, 2, "training.seed"),
        ({"privacy": {"epsilon": 1}}, 2, "a network is trained on a release"),
        ({"release": {"path": "nowhere"}}, 4, "no Delta table at nowhere"),
        (
            {"training": {"learning_rate": 1e30}, "network": {"output_bound": "none", "lipschitz": "none"}},
            2,
            "diverged",
        ),
        ({"output": {"path": "s3://bucket/x"}}, 2, "not on this machine"),
    ],
)
def test_what_is_refused(attempt, tmp_path, sections, code, words):
    found, _, err = attempt(**sections)
    assert (found, words in err) == (code, True), err
    assert not (tmp_path / "net").exists()


def test_other_releases_and_other_folders_are_refused(attempt, spark, released, tmp_path, capfd):
    content = yaml.safe_load((released / "aggregate.yaml").read_text())
    content |= {"mechanism": {"name": "sampled-wtd-flag", "bag_size": 40}, "output": {"path": str(tmp_path / "flag")}}
    (tmp_path / "flag.yaml").write_text(yaml.safe_dump(content))
    assert run(["aggregate", str(tmp_path / "flag.yaml"), "--json"]) == 0
    code, _, err = attempt(release={"path": str(tmp_path / "flag")})
    assert code == 2 and "expected sampled-noisy-wtd-lag" in err
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "mine.txt").write_text("mine")
    code, _, err = attempt()
    assert code == 2 and "something else" in err and os.listdir(tmp_path / "net") == ["mine.txt"]
    code = run(["predict", str(tmp_path / "net"), str(released / "table.parquet"), str(tmp_path / "out")])
    assert code == 4 and "no finished model" in capfd.readouterr().err


def test_without_the_extra_it_is_5(attempt, monkeypatch, tmp_path):
    from dpagg.runs import train as module

    monkeypatch.setattr(module, "_LIBRARIES", ("jax", "no_such_library"))
    code, _, err = attempt()
    assert code == 5 and "no_such_library" in err and "dpagg[neural]" in err
    assert not (tmp_path / "net").exists()
