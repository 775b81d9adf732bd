"""Whole runs in the shared session, as the command line makes them: releases, plans, and every kind of bad input."""

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from dpagg.accounting.event import Event
from dpagg.cli import run

NUM_ROWS = 600


def frame(num_rows=NUM_ROWS, seed=0):
    rng = np.random.default_rng(seed)
    price = rng.uniform(0, 100, num_rows)
    return pd.DataFrame(
        {
            "key": np.arange(num_rows),
            "price": price,
            "device": rng.choice(["mobile", "desktop"], num_rows),
            "sale": np.clip(0.3 * price + rng.normal(0, 5, num_rows), 0, 50),
        }
    )


def settings(tmp_path, **changes):
    found = {
        "input": {"path": str(tmp_path / "table.parquet"), "format": "parquet", "row_id": "key"},
        "schema": {
            "intercept": True,
            "features": [
                {"name": "price", "type": "numeric", "lower": 0, "upper": 100},
                {"name": "device", "type": "categorical", "categories": ["mobile", "desktop"]},
            ],
            "label": {"name": "sale", "lower": 0, "upper": 50, "missing": {"constant": 0}},
        },
        "mechanism": {"name": "wtd-flag", "num_bags": "auto"},
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "floor": {"kind": "noise"}},
        "output": {"path": str(tmp_path / "out")},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        section = found
        for name in parents:
            section = section[int(name) if name.isdigit() else name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    return found


@pytest.fixture
def attempt(spark, tmp_path, capfd):
    """Return a function that runs a command on a table and returns exit code, standard output and error."""

    def go(table=None, command="aggregate", arguments=("--json",), **changes):
        table = frame() if table is None else table
        if not (tmp_path / "table.parquet").exists():
            table.to_parquet(tmp_path / "table.parquet")
        config = tmp_path / "config.yaml"
        config.write_text(yaml.safe_dump(settings(tmp_path, **changes)))
        capfd.readouterr()
        code = run([command, str(config), *arguments])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return go


def certificate(tmp_path, name="out"):
    return json.loads((tmp_path / name / "_certificate.json").read_text())


def released(tmp_path, name="out"):
    """The release as somebody without dpagg and without Delta's log reads it."""
    table = pd.read_parquet(tmp_path / name).sort_values("bag_id")
    return np.stack(table["features"].to_numpy()), table["label"].to_numpy()


def test_a_release_and_what_it_says(attempt, tmp_path, spark):
    code, out, err = attempt()
    assert (code, err) == (0, "")
    summary = json.loads(out)
    promise = certificate(tmp_path)
    assert summary["num_bags"] == promise["num_bags"] == NUM_ROWS
    assert (promise["epsilon"], promise["delta"], promise["private"]) == (1.0, 1e-6, True)
    assert promise["adjacency"] == "change_one_label"
    assert 0.9e-6 < promise["delta_at_epsilon"] <= 1e-6
    assert [column["name"] for column in promise["columns"]] == ["intercept", "price", "device=desktop"]
    assert promise["input_version"]["format"] == "parquet" and len(promise["config_digest"]) == 64
    assert Event.from_dict(promise["event"]).delta(1.0) == promise["delta_at_epsilon"]
    features, labels = released(tmp_path)
    assert features.shape == (NUM_ROWS, 3) and np.isfinite(labels).all()
    properties = spark.sql(f"SHOW TBLPROPERTIES delta.`{tmp_path / 'out'}`").collect()
    assert json.loads(dict(map(tuple, properties))["dpagg.certificate"]) == promise
    page = (tmp_path / "out" / "_report.html").read_text()
    assert summary["report"].endswith("/out/_report.html")
    assert "✔ Private: ε\u00a0=\u00a01, δ\u00a0=\u00a010⁻⁶" in page and promise["draw_id"] in page
    comments = {row.col_name: row.comment for row in spark.sql(f"DESCRIBE delta.`{tmp_path / 'out'}`").collect()}
    assert "Weighted sums" in comments["features"]
    assert spark.read.format("delta").load(str(tmp_path / "out")).count() == NUM_ROWS


@pytest.mark.parametrize("level", ["known", "hidden"])
def test_the_noise_is_what_the_certificate_says(attempt, tmp_path, level):
    """Residuals of the release about the true coefficients have variance r^2 + tau^2.

    Within 6 standard errors, which chance passes twice in a billion runs.
    """
    floor = {"kind": "noise", "level": level}
    assert attempt(mechanism__num_bags=20_000, privacy__floor=floor)[0] == 0
    table, promise = frame(), certificate(tmp_path)
    x = np.column_stack([np.ones(NUM_ROWS), (table.price - 50) / 50, table.device == "desktop"])
    coefficients, squares, *_ = np.linalg.lstsq(x, table.sale.to_numpy(), rcond=None)
    features, labels = released(tmp_path)
    variance = (labels - features @ coefficients).var()
    expected, error = squares[0] + promise["label_noise_variance"], 6 * np.sqrt(2 / 20_000)
    if level == "hidden":
        # The level is nowhere told: the release shows one draw of it, within its stated spread about the mean.
        event = promise["event"]
        assert promise["label_noise_level"].startswith("hidden")
        assert abs(variance - expected) < 6 * event["noise_std"] + error * expected
        assert variance > event["noise_floor"] * (1 - error)
    else:
        assert variance == pytest.approx(expected, rel=error)
    assert promise["label_noise_variance"] > squares[0] / 10  # the noise could not have been left out unseen
    # A mean of products of two columns has variance (G_ii G_jj + G_ij^2) / m.
    gram = x.T @ x
    errors = np.sqrt((np.outer(np.diag(gram), np.diag(gram)) + gram**2) / 20_000)
    assert (np.abs(features.T @ features / 20_000 - gram) < 6 * errors).all()


def test_both_engines_and_any_layout_release_the_same_under_a_public_seed(attempt, tmp_path):
    for name, engine in (("one", "rows"), ("two", "rows")):
        changes = {"output__path": str(tmp_path / name), "performance": {"engine": engine, "num_partitions": 3}}
        assert attempt(arguments=("--json", "--insecure-seed", "7"), mechanism__num_bags=40, **changes)[0] == 0
        assert certificate(tmp_path, name)["private"] is False
        assert certificate(tmp_path, name)["statement"].startswith("NOT PRIVATE")
    # The output path is part of the release's identity, so equal seeds still draw different numbers.
    assert not np.allclose(released(tmp_path, "one")[1], released(tmp_path, "two")[1])


def test_the_same_release_is_recognised_and_another_is_refused(attempt, tmp_path):
    assert attempt()[0] == 0
    before = released(tmp_path)
    (tmp_path / "out" / "_certificate.json").unlink()
    code, out, _ = attempt(performance={"num_partitions": 5})
    assert code == 0 and "earlier" in json.loads(out)["published"]
    np.testing.assert_array_equal(released(tmp_path)[0], before[0])
    assert certificate(tmp_path)["epsilon"] == 1.0  # mended
    here = os.path.relpath(tmp_path)
    code, out, _ = attempt(input__path=f"./{here}/table.parquet", output__path=f"{here}/../{tmp_path.name}/out/")
    assert code == 0 and "earlier" in json.loads(out)["published"]
    code, _, err = attempt(privacy__epsilon=2.0)
    assert code == 2 and "output.path" in err and "another release" in err


def test_something_else_at_the_output_path_is_never_touched(attempt, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "part-0.parquet").write_text("left over")
    code, _, err = attempt()
    assert code == 2 and "not a finished release" in err
    assert (tmp_path / "out" / "part-0.parquet").read_text() == "left over"


def test_unweighted_sums_admit_that_they_protect_nothing(attempt, tmp_path):
    mechanism = {"name": "unweighted-sums", "num_bags": 10, "i_know_this_is_not_private": True}
    assert attempt(mechanism=mechanism)[0] == 0
    promise = certificate(tmp_path)
    assert promise["epsilon"] == "inf" and promise["private"] is False and "NOT PRIVATE" in promise["statement"]
    assert released(tmp_path)[1].sum() == pytest.approx(frame().sale.sum())
    code, _, err = attempt(mechanism={"name": "unweighted-sums", "num_bags": 10})
    assert code == 2 and "i_know_this_is_not_private" in err


def test_plan_reads_no_label(attempt, tmp_path):
    """Without the label column in the table, a plan is still made, and a release isn't."""
    table = frame()
    code, out, _ = attempt(command="plan", plan={"residual_std": 5.0})
    with_labels = json.loads(out)
    assert code == 0 and with_labels["num_bags"] == NUM_ROWS and with_labels["label_noise_std"] > 0
    assert with_labels["for_residual_std"]["expected_relative_excess_loss"] > 0
    assert with_labels["for_residual_std"]["paper_num_bags_shape_only"] > 0
    table["sale"] = table["sale"].sample(frac=1, random_state=0).to_numpy()
    (tmp_path / "table.parquet").unlink()
    assert json.loads(attempt(table=table, command="plan", plan={"residual_std": 5.0})[1]) == with_labels


def test_an_assumed_floor_is_printed_as_one(attempt, tmp_path):
    floor = {"kind": "assume", "mean_squared_residual": 20.0}
    assert attempt(privacy__floor=floor, privacy__epsilon=8.0)[0] == 0
    promise = certificate(tmp_path)
    assert promise["assumptions"][0].startswith("ASSUMED") and promise["label_noise_variance"] == 0
    assert promise["statement"].startswith("IF what is ASSUMED")
    assert 1 <= promise["num_bags"] < NUM_ROWS
    code, _, err = attempt(
        privacy__floor=floor, privacy__epsilon=8.0, mechanism__num_bags=NUM_ROWS, output__path=str(tmp_path / "more")
    )
    assert code == 3 and f"allows {promise['num_bags']:,}" in err
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"privacy__epsilom": 1.0}, 2, ["privacy.epsilom", "epsilon"]),
        ({"privacy__epsilon": 0}, 2, ["privacy.epsilon"]),
        ({"privacy__epsilon": -1}, 2, ["privacy.epsilon"]),
        ({"privacy__delta": 1.5}, 2, ["privacy.delta"]),
        ({"privacy__delta": 1 / NUM_ROWS}, 3, ["privacy.delta", "1/n"]),
        ({"schema__label__upper": 0}, 2, ["schema.label"]),
        ({"schema__features__0__upper": 0}, 2, ["schema.features"]),
        ({"schema__features__0__name": "prize"}, 4, ["prize", "price"]),
        ({"schema__label__name": "sail"}, 4, ["sail", "sale"]),
        ({"input__row_id": "kay"}, 4, ["kay", "key"]),
        ({"input__path": "/nowhere/table.parquet"}, 4, ["/nowhere/table.parquet"]),
        ({"input__format": "delta"}, 4, ["not a Delta table"]),
        ({"ledger": {"path": "x"}}, 2, ["ledger.dataset"]),
        ({"privacy__unit": {"column": "user", "max_rows": 2}}, 4, ["user", "privacy.unit.column"]),
        ({"privacy__unit": {"column": "key", "max_rows": 2}, "input__row_id": None}, 2, ["privacy.unit", "row_id"]),
        ({"input__row_id": None, "performance": {"engine": "rows"}}, 2, ["row_id"]),
    ],
)
def test_bad_settings_have_a_code_a_message_and_no_output(attempt, tmp_path, changes, code, words):
    found, out, err = attempt(**changes)
    assert found == code, err
    assert out == "" and all(word in err for word in words), err
    assert err.count("\n") == 1 and "Traceback" not in err
    assert not (tmp_path / "out").exists()


def _with(column, values):
    table = frame()
    table[column] = table[column].astype(object) if isinstance(values[0], str) else table[column].astype(float)
    table.loc[: len(values) - 1, column] = values
    return table


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (lambda: frame(0), ["no rows"]),
        (lambda: frame(1), ["1 rows", "3 encoded columns"]),
        (lambda: frame(3), ["3 rows", "3 encoded columns"]),
        (lambda: frame().assign(key=1), ["key", "599"]),
        (lambda: frame().assign(key=pd.array([None, None, *range(NUM_ROWS - 2)], dtype="Int64")), ["key", "null in 2"]),
        (lambda: frame().assign(price=[[1.0]] * NUM_ROWS), ["price"]),
        (lambda: frame().assign(sale=[[1.0]] * NUM_ROWS), ["sale"]),
        (lambda: frame().assign(price=np.nan), ["0 rows", "600 with a missing feature"]),
    ],
)
def test_bad_tables_have_a_code_a_message_and_no_output(attempt, tmp_path, table, words):
    code, out, err = attempt(table=table())
    assert code == 4, err
    assert out == "" and all(word in err for word in words), err
    assert not (tmp_path / "out").exists()


def _drawn(attempt, tmp_path, table, **changes):
    (tmp_path / "table.parquet").unlink(missing_ok=True)
    out = tmp_path / "out"
    if out.exists():
        import shutil

        shutil.rmtree(out)
    code, _shown, err = attempt(table=table, arguments=("--json", "--insecure-seed", "1"), **changes)
    assert (code, err) == (0, "")
    return certificate(tmp_path), released(tmp_path)


@pytest.mark.parametrize("bad", [[None, 7.0], [np.nan, 7.0], [np.inf, 7.0], ["twelve", "7"]])
def test_a_bad_label_becomes_the_constant_in_silence(attempt, tmp_path, bad):
    table = frame()
    table["sale"] = table["sale"].astype(object)
    table.loc[:1, "sale"] = bad
    table["sale"] = table["sale"].astype(str if isinstance(bad[0], str) else float)
    promise, (features, labels) = _drawn(attempt, tmp_path, table)
    clean = frame()
    clean.loc[:1, "sale"] = [0.0, 7.0]
    other, (same_features, same_labels) = _drawn(attempt, tmp_path, clean)
    assert promise["num_rows"] == other["num_rows"] == NUM_ROWS
    assert promise["label_noise_variance"] == other["label_noise_variance"]
    # The input's listing is in the release id and so in the streams: compare what doesn't depend on them.
    assert features.shape == same_features.shape and labels.shape == same_labels.shape
    assert {key for key in promise} == {key for key in other}


def test_values_outside_the_bounds_are_clipped_and_nobody_is_told(attempt, tmp_path):
    outside = frame()
    outside.loc[0, ["price", "sale"]] = [1e9, 1e9]
    promise, _ = _drawn(attempt, tmp_path, outside)
    inside, _ = _drawn(attempt, tmp_path, frame().assign(price=lambda t: t.price.where(t.index != 0, 100.0)))
    assert any("clipped" in line for line in promise["assumptions"])
    assert promise["leverage"] == inside["leverage"]
    assert promise["assumptions"] == inside["assumptions"]


def test_no_label_is_in_a_certificate(attempt, tmp_path):
    """One label changes in length and value, the file's time of modification doesn't: the promise is the same text."""
    promises = []
    for label in (0.0, 10.0, 49.123456789, None):
        table = frame()
        table.loc[5, "sale"] = label
        table.to_csv(tmp_path / "table.csv", index=False)
        os.utime(tmp_path / "table.csv", (1e9, 1e9))
        changes = {"input": {"path": str(tmp_path / "table.csv"), "format": "csv", "row_id": "key"}}
        promise, _ = _drawn(attempt, tmp_path, frame(), **changes)
        assert len(promise.pop("draw_id")) == 32
        promises.append(promise)
    assert all(promise == promises[0] for promise in promises)
    assert any("CSV" in line for line in promises[0]["assumptions"])


def test_files_laid_out_by_the_label_are_refused(attempt, tmp_path, spark):
    table = frame().assign(sale=lambda t: (t.sale > 20).astype(float))
    spark.createDataFrame(table).write.partitionBy("sale").parquet(str(tmp_path / "by_label"))
    code, _, err = attempt(input__path=str(tmp_path / "by_label"))
    assert code == 4 and "laid out by the label" in err and "1.0" not in err


def test_a_floor_that_cannot_hold_is_refused(attempt, tmp_path):
    code, _, err = attempt(privacy__floor={"kind": "assume", "mean_squared_residual": 626.0})
    assert code == 3 and "cannot have more than 625" in err
    assert not (tmp_path / "out").exists()


def test_a_public_seed_shows_in_the_summary(attempt):
    summary = json.loads(attempt(arguments=("--json", "--insecure-seed", "1"))[1])
    assert summary["private"] is False and summary["statement"].startswith("NOT PRIVATE")


def test_missing_features_follow_their_rule(attempt, tmp_path):
    table = _with("price", [np.nan, np.inf, -np.inf, 5.0])
    promise, _ = _drawn(attempt, tmp_path, table)
    assert promise["rows_left_out"]["missing_feature"] == 3 and promise["num_rows"] == NUM_ROWS - 3
    promise, _ = _drawn(
        attempt, tmp_path, table, schema__features__0__missing="indicator", privacy__leverage_cap_factor="none"
    )
    assert promise["num_rows"] == NUM_ROWS and "price:missing" in [c["name"] for c in promise["columns"]]
    promise, _ = _drawn(attempt, tmp_path, _with("device", ["toaster", "mobile"]))
    assert promise["rows_left_out"]["missing_feature"] == 1
    promise, _ = _drawn(
        attempt,
        tmp_path,
        _with("device", ["toaster", "mobile"]),
        schema__features__1__other=True,
        privacy__leverage_cap_factor="none",
    )
    assert promise["num_rows"] == NUM_ROWS and promise["leverage"]["largest"] == pytest.approx(1.0)


def test_constant_and_collinear_columns_cost_a_direction_not_the_release(attempt, tmp_path):
    table = frame().assign(same=lambda t: 2 * t.price, still=3.0)
    features = settings(tmp_path)["schema"]["features"] + [
        {"name": "same", "type": "numeric", "lower": 0, "upper": 200},
        {"name": "still", "type": "numeric", "lower": 0, "upper": 10},
    ]
    for engine in ("factor", "rows"):
        promise, (sums, _) = _drawn(
            attempt, tmp_path, table, schema__features=features, performance={"engine": engine}, mechanism__num_bags=100
        )
        assert promise["rank"] == 3 and sums.shape == (100, 5)
        np.testing.assert_allclose(sums[:, 1], sums[:, 3], atol=1e-9)
        np.testing.assert_allclose(sums[:, 4], -0.4 * sums[:, 0], atol=1e-9)


def test_names_with_dots_backticks_and_spaces(attempt, tmp_path):
    names = {"price": "unit.price", "device": "de`vice", "sale": "sale amount.", "key": "the.key"}
    table = frame().rename(columns=names)
    changes = {
        "schema__features__0__name": "unit.price",
        "schema__features__1__name": "de`vice",
        "schema__label__name": "sale amount.",
        "input__row_id": "the.key",
        "mechanism__num_bags": 20,
    }
    for engine in ("factor", "rows"):
        promise, (features, _) = _drawn(attempt, tmp_path, table, **changes, performance={"engine": engine})
        assert promise["num_rows"] == NUM_ROWS and features.shape == (20, 3)


def test_a_delta_table_at_a_relative_path(attempt, tmp_path, spark):
    spark.createDataFrame(frame()).write.format("delta").save(str(tmp_path / "table"))
    code, _, err = attempt(input={"path": f"{os.path.relpath(tmp_path)}/table", "format": "delta", "row_id": "key"})
    assert (code, err) == (0, "")
    assert certificate(tmp_path)["input_version"]["version"] == 0


def test_an_intercept_alone_gives_a_mean(attempt, tmp_path):
    promise, (features, labels) = _drawn(attempt, tmp_path, frame(), schema__features=[])
    assert promise["rank"] == 1 and features.shape == (NUM_ROWS, 1)
    assert promise["leverage"]["largest"] == pytest.approx(1 / NUM_ROWS)
    squares = float(features[:, 0] @ features[:, 0])
    estimate = float(features[:, 0] @ labels / squares)
    # Given the weights the estimate is normal; r^2, and 6 standard deviations of the hidden level, as one bound.
    residual = ((frame().sale - frame().sale.mean()) ** 2).sum()
    variance = residual + promise["label_noise_variance"] + 6 * promise["event"]["noise_std"]
    error = np.sqrt(variance / squares)
    assert error < 1.5  # with nothing released there is nothing to be near to
    assert abs(estimate - frame().sale.mean()) < 6 * error


def test_without_a_row_key_only_the_factor_engine_runs(attempt, tmp_path):
    promise, _ = _drawn(attempt, tmp_path, frame().assign(key=1), input__row_id=None)
    assert promise["engine"] == "factor"


def test_aggregate_then_fit(attempt, tmp_path, capfd):
    assert attempt(mechanism__num_bags=50_000, privacy__epsilon=20.0)[0] == 0
    config = tmp_path / "fit.yaml"
    config.write_text(
        yaml.safe_dump({"release": {"path": str(tmp_path / "out")}, "output": {"path": str(tmp_path / "model.json")}})
    )
    capfd.readouterr()
    assert run(["fit", str(config), "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    price = next(row for row in summary["coefficients"] if row["name"] == "price")
    assert price["coefficient"] == pytest.approx(0.3, abs=0.03)
    assert Path(summary["path"]).is_file()


def test_a_private_floor_releases_the_residual_norm_and_fills_up(attempt, tmp_path):
    table = frame(20_000)
    floor = {"kind": "private", "budget_share": 0.3}
    assert attempt(table=table, privacy__floor=floor, privacy__epsilon=5.0, mechanism__num_bags=60)[0] == 0
    promise = certificate(tmp_path)
    private = promise["private_floor"]
    x = np.column_stack([np.ones(len(table)), table.price, table.device == "desktop"])
    norm = np.sqrt(np.linalg.lstsq(x, table.sale.to_numpy(), rcond=None)[1][0])
    assert abs(private["released_residual_norm"] - norm) < 6 * private["noise_std"]
    assert private["released_residual_norm"] != pytest.approx(norm, rel=1e-9)
    assert promise["event"]["gaussian_mu"] >= 50 / private["noise_std"]
    assert promise["failure_probability"] == pytest.approx(1e-7)
    # 5.1993 is the standard normal's quantile of 1 - 1e-7. The released norm is near 690, the rest near 520: the data
    # may supply nothing, so it is the sum that is asserted, never a sign.
    surely = max(0.0, private["released_residual_norm"] - private["sensitivity"] - 5.1993 * private["noise_std"])
    assert private["supplied"] == pytest.approx(min(surely**2, private["target"]), rel=1e-3, abs=1.0)
    assert promise["event"]["residual_floor"] == private["supplied"]
    assert promise["label_noise_variance"] == pytest.approx(private["target"] - private["supplied"])
    assert promise["delta_at_epsilon"] <= 1e-6


def test_all_labels_of_a_user(attempt, tmp_path):
    table = frame().assign(user=lambda t: "u" + (t.key // 4).astype(str))
    changes = {"privacy__leverage_cap_factor": "none"}
    one, _ = _drawn(attempt, tmp_path, table, **changes)
    promise, _ = _drawn(attempt, tmp_path, table, privacy__unit={"column": "user", "max_rows": 3}, **changes)
    assert promise["adjacency"] == "change_one_user_labels" and promise["unit"] == "all labels of one user"
    assert promise["rows_left_out"]["over_unit_limit"] == NUM_ROWS // 4
    assert promise["num_rows"] == NUM_ROWS * 3 // 4
    assert promise["label_noise_variance"] > 1.5 * one["label_noise_variance"]
    assert any("at most 3" in line for line in promise["assumptions"])
    event, largest = promise["event"], promise["leverage"]["largest"]
    assert event["max_rows"] == 3 and largest < event["leverage"] < 3 * largest
    (tmp_path / "table.parquet").unlink()
    code, _, err = attempt(
        table=table.assign(user=None), privacy__unit={"column": "user", "max_rows": 3}, output__path=str(tmp_path / "o")
    )
    assert code == 4 and "privacy.unit.column" in err
