"""Tables in memory through the functions of a notebook: what comes back, what is shown, what is refused."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dpagg
from dpagg.cli import run
from dpagg.config import NoiseFloorConfig, PrivacyConfig, SchemaConfig
from dpagg.errors import ConfigError, DataError, PrivacyError
from dpagg.runs.certificates import load_certificate, verify_certificate

SCHEMA = {
    "features": [
        {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
        {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
    ],
    "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
}
PRIVACY = {"epsilon": 1.0, "delta": 1e-6}
ASKED = {"schema": SCHEMA, "privacy": PRIVACY}
FLAG = {"name": "sampled-wtd-flag", "bag_size": 40}
LAG = {"name": "sampled-noisy-wtd-lag", "bag_size": 10, "noised_fraction": 0.4}


def frame(num_rows=800, seed=0):
    rng = np.random.default_rng(seed)
    price = rng.uniform(0, 100, num_rows)
    return pd.DataFrame(
        {
            "key": np.arange(num_rows),
            "user": np.arange(num_rows) // 4,
            "price": price,
            "device": rng.choice(["mobile", "desktop"], num_rows),
            "sale": np.clip(0.3 * price + rng.normal(0, 5, num_rows), 0, 50),
        }
    )


@pytest.mark.parametrize("mechanism", ["wtd-flag", FLAG, LAG])
def test_a_release_of_each_mechanism_is_as_asked_and_can_be_fitted(mechanism):
    release = dpagg.aggregate(frame(), **ASKED, mechanism=mechanism, row_id="key")
    promise = release.certificate
    assert promise["private"] and verify_certificate(promise).holds
    assert promise["input_version"].keys() == {"format", "request"}
    assert isinstance(release.table, pd.DataFrame) and len(release.table) == promise["num_bags"]
    plan = dpagg.plan(frame().drop(columns="sale"), **ASKED, mechanism=mechanism, row_id="key")
    assert plan["num_bags"] == promise["num_bags"] and json.loads(plan.to_json()) == plan.facts
    fitted = dpagg.fit(release)
    assert fitted.certificate is promise and np.isfinite(fitted.predict(frame())).all()
    if mechanism == "wtd-flag":
        x = np.stack(release.table["features"])
        best = np.linalg.lstsq(x, release.table["label"].to_numpy(), rcond=None)[0]
        np.testing.assert_allclose(fitted.model.coefficients, best, rtol=1e-9, atol=1e-9)
        # Least squares on the rows gives 0.3038; 0.034 is the true standard error, which a release tells to 5 %.
        price = fitted.coefficients()[1]
        assert 0.02 < price["standard_error"] < 0.05
        assert abs(price["coefficient"] - 0.3038) < 6 * price["standard_error"]


def test_the_law_of_a_release():
    """Features have the covariance of the rows, and labels the noise that the certificate tells the mean of.

    Within 6 standard errors, which chance passes twice in a billion runs.
    """
    table = frame()
    release = dpagg.aggregate(table, **ASKED, mechanism={"name": "wtd-flag", "num_bags": 20_000})
    x = np.column_stack([np.ones(800), (table.price - 50) / 50, table.device == "desktop"])
    features, labels = np.stack(release.table["features"]), release.table["label"].to_numpy()
    gram = x.T @ x
    errors = np.sqrt((np.outer(np.diag(gram), np.diag(gram)) + gram**2) / 20_000)
    assert (np.abs(features.T @ features / 20_000 - gram) < 6 * errors).all()
    coefficients, squares, *_ = np.linalg.lstsq(x, table.sale.to_numpy(), rcond=None)
    variance = (labels - features @ coefficients).var()
    expected = squares[0] + release.certificate["label_noise_variance"]
    spread = release.certificate["event"].get("noise_std", 0.0)
    assert abs(variance - expected) < 6 * spread + 6 * np.sqrt(2 / 20_000) * expected


def test_each_call_draws_afresh_unless_seeded_and_then_says_so():
    one, two = (dpagg.aggregate(frame(), **ASKED) for _ in range(2))
    assert (one.table["label"] != two.table["label"]).all()
    assert one.certificate["release_id"] != two.certificate["release_id"]
    seeded, again, other = (dpagg.aggregate(frame(), **ASKED, insecure_seed=seed) for seed in (1, 1, 2))
    pd.testing.assert_frame_equal(seeded.table, again.table)
    assert (seeded.table["label"] != other.table["label"]).all()
    assert not seeded.certificate["private"] and "NOT PRIVATE" in seeded._repr_html_()


def test_no_label_shows_in_what_is_public():
    """Two tables that differ in their labels alone get the same certificate, but for what is drawn."""
    one, two = (
        dpagg.aggregate(table, **ASKED, insecure_seed=1).certificate
        for table in (frame(), frame().assign(sale=["canary", None] * 400))
    )
    assert {**one, "draw_id": ""} == {**two, "draw_id": ""}


@pytest.mark.parametrize("engine", ["rows", "factor"])
def test_engines_and_users(engine):
    privacy = PRIVACY | {"unit": {"column": "user", "max_rows": 3}}
    asked = {"schema": SCHEMA, "privacy": privacy, "row_id": "key", "performance": {"engine": engine}}
    release = dpagg.aggregate(frame(), **asked, mechanism={"name": "wtd-flag", "num_bags": 60}, insecure_seed=3)
    promise = release.certificate
    assert promise["unit"] == "all labels of one user" and promise["engine"] == engine
    assert promise["rows_left_out"]["over_unit_limit"] == 200 and promise["num_rows"] == 600
    # The order of rows decides nothing.
    shuffled = dpagg.aggregate(
        frame().sample(frac=1, random_state=1), **asked, mechanism={"name": "wtd-flag", "num_bags": 60}, insecure_seed=3
    )
    np.testing.assert_allclose(np.stack(shuffled.table["features"]), np.stack(release.table["features"]), atol=1e-9)


def test_models_of_the_configuration_are_taken_as_they_are():
    release = dpagg.aggregate(
        pa.Table.from_pandas(frame()),
        schema=SchemaConfig.model_validate(SCHEMA),
        privacy=PrivacyConfig(epsilon=1.0, delta=1e-6, floor=NoiseFloorConfig(kind="noise", level="known")),
    )
    assert isinstance(release.table, pa.Table) and release.certificate["label_noise_level"] == "known"


def test_what_exports_an_arrow_stream_is_a_table():
    class Streamed:
        def __arrow_c_stream__(self, requested_schema=None):
            return pa.Table.from_pandas(frame()).__arrow_c_stream__(requested_schema)

    assert dpagg.aggregate(Streamed(), **ASKED).table.num_rows == 800


@pytest.mark.parametrize("kind", ["release", "model"])
def test_what_is_saved_is_what_the_command_line_reads_and_nothing_is_overwritten(tmp_path, capsys, kind):
    privacy = PRIVACY | {"adjacency": "zero_out_one_row", "num_rows": 800}
    if kind == "release":
        found = dpagg.aggregate(frame(), **ASKED, output=tmp_path / "a" / "there")
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a" / "there"), found.table)
    else:
        found = dpagg.fit(frame(), schema=SCHEMA, privacy=privacy, output=tmp_path / "a" / "there")
    assert load_certificate(tmp_path / "a" / "there") == found.certificate
    assert run(["certificate", "verify", str(tmp_path / "a" / "there")]) == 0
    assert run(["certificate", "show", str(tmp_path / "a" / "there")]) == 0
    assert found.describe().split("\n")[0][:60] in capsys.readouterr().out.replace("\n", " ")
    for again in (found.save, lambda path: dpagg.aggregate(frame(), **ASKED, output=path)):
        with pytest.raises(ConfigError, match=r"exists|came into being"):
            again(tmp_path / "a" / "there")
    page = tmp_path / "a" / ("there/_report.html" if kind == "release" else "there.html")
    assert "<html" in page.read_text()
    assert {each.name for each in (tmp_path / "a").iterdir()} <= {"there", "there.html"}


def test_what_a_notebook_shows_is_the_promise_and_no_markup_of_the_data():
    odd = frame(20_000).rename(columns={"price": "<b>price</b>"})
    schema = json.loads(json.dumps(SCHEMA).replace('"price"', '"<b>price</b>"'))
    release = dpagg.aggregate(
        odd, schema=schema, privacy=PRIVACY | {"floor": {"kind": "assume", "mean_squared_residual": 25}}
    )
    shown = [release, dpagg.fit(release), dpagg.plan(odd, schema=schema, privacy=PRIVACY)]
    for each in shown:
        page, text = each._repr_html_(), repr(each)
        assert "<b>price" not in page and "<script" not in page and "http" not in page
        assert page.count("<div") == page.count("</div>") and page.count("<table") == page.count("</table>")
        assert "epsilon" in text or "±" in text
    assert "ASSUMED by the user" in release._repr_html_() and release.certificate["statement"].startswith("IF")
    assert "&lt;b&gt;price" in shown[1]._repr_html_()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"privacy": {"epsilon": -1, "delta": 1e-6}}, ConfigError, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1, "delta": 0.1}}, PrivacyError, "less than 1/n"),
        ({"mechanism": "wtd-flog"}, ConfigError, "Did you mean wtd-flag"),
        ({"mechanism": FLAG}, ConfigError, "input.row_id: bags are chosen by the row key"),
        ({"row_id": "user"}, DataError, "repeats an earlier row's key in 600 of 800"),
        ({"schema": {"label": SCHEMA["label"]}}, ConfigError, "schema.features: a required key"),
        ({"df": frame().drop(columns="device")}, DataError, "no column 'device'"),
        ({"df": frame(3)}, DataError, "3 rows for 3 encoded columns"),
        ({"df": "table.parquet"}, ConfigError, "a path is given"),
        ({"df": 5}, ConfigError, "int is given, expected a pandas, Arrow or Spark table"),
        ({"ledger": {"path": "/", "dataset": "d", "partition": "p"}}, ConfigError, "ledger.path: / is a folder"),
        ({"output": "s3://bucket/out"}, ConfigError, "not on this machine"),
    ],
)
def test_what_is_refused(changes, error, said):
    with pytest.raises(error, match=said):
        dpagg.aggregate(**({"df": frame()} | ASKED | changes))


def test_a_fit_takes_a_release_or_a_table():
    release = dpagg.aggregate(frame(), **ASKED)
    with pytest.raises(ConfigError, match="mechanism: a fit of a release"):
        dpagg.fit(release, mechanism="ihm")
    with pytest.raises(ConfigError, match="method: a table is fitted by a mechanism"):
        dpagg.fit(frame(), **ASKED, method="least-squares")
    with pytest.raises(ConfigError, match=r"privacy\.adjacency: a required key"):
        dpagg.fit(frame(), **ASKED)
    bounded = dpagg.fit(release, method={"name": "bounded-least-squares", "norm_bound": 2.0})
    assert np.linalg.norm(bounded.model.coefficients) == pytest.approx(2.0, rel=1e-6)


def test_under_full_privacy_no_cell_decides_an_error_and_the_declared_rows_count():
    privacy = PRIVACY | {"adjacency": "zero_out_one_row", "num_rows": 900}
    odd = frame().astype(object)
    odd.at[3, "price"], odd.at[4, "device"], odd.at[5, "sale"] = "canary", {}, []
    found = dpagg.fit(odd, schema=SCHEMA, privacy=privacy)
    assert found.certificate["num_rows"] == 900 and found.certificate["private"]
