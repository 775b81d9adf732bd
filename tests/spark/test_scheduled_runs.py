"""The daily job as a scheduler runs it: conf/ads_daily.yaml over several days, one of them refused."""

import json
import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpagg.accounting import GaussianRelease
from dpagg.cli import run
from dpagg.errors import ConfigError
from dpagg.ledger import Ledger, Request
from dpagg.runs.backfill import parse_days
from dpagg.runs.monitoring import JsonFormatter, Monitor, write_metrics
from dpagg.spark.ledger_store import DeltaStore

CONFIG = Path(__file__).parents[2] / "conf" / "ads_daily.yaml"
DAYS = ["2020-01-01", "2020-01-02", "2020-01-03"]
ROWS = 300


@pytest.fixture
def root(spark, tmp_path):
    rng = np.random.default_rng(5)
    count = ROWS * len(DAYS)
    price = rng.uniform(0, 500, count)
    impressions = pd.DataFrame(
        {
            "impression_id": np.arange(count),
            "event_date": np.repeat([pd.Timestamp(day).date() for day in DAYS], ROWS),
            "price": price,
            "device": rng.choice(["mobile", "desktop", "tv"], count),
            "shop": rng.choice([f"s{i}" for i in range(6)], count),
        }
    )
    bought = np.flatnonzero(rng.random(count) < 0.4)
    conversions = pd.DataFrame(
        {
            # Two conversions of one impression, and one that came too late for its day.
            "impression_id": np.concatenate([bought, bought[:20]]),
            "conversion_date": pd.Timestamp("2020-01-04").date(),
            "sale_amount": 12345.678,
        }
    )
    spark.createDataFrame(impressions).write.format("delta").save(str(tmp_path / "impressions"))
    spark.createDataFrame(conversions).write.format("delta").save(str(tmp_path / "conversions"))
    return tmp_path


@pytest.mark.slow
def test_a_backfill_releases_what_it_can_and_says_what_it_could_not(spark, root, capfd, caplog):
    # The second day was spent by somebody else.
    event = GaussianRelease(mu=0.35)
    Ledger(DeltaStore(spark, str(root / "ledger"))).charge(
        Request(
            dataset="impressions", partition=DAYS[1], release_id="other", event=event, unit="one label",
            adjacency="change_one_label", epsilon=2.0, delta=event.delta(2.0),
            budget_epsilon=2.0, budget_delta=1e-8, disjoint=True,
        )
    )  # fmt: skip
    command = ["aggregate", str(CONFIG), "--set", f"root={root}", "--json"]
    days = ["--backfill", f"{DAYS[0]}:{DAYS[2]}", "--metrics", str(root / "dpagg.prom"), "--log-format", "json"]
    # The test's own logging set-up is in the way of the command's.
    handlers, logging.root.handlers = logging.root.handlers, []
    try:
        assert run([*command, *days]) == 3
    finally:
        logging.root.handlers = handlers
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert [(each["day"], each["outcome"], each["exit_code"]) for each in found["days"]] == [
        (DAYS[0], "published", 0),
        (DAYS[1], "failed", 3),
        (DAYS[2], "published", 0),
    ]
    assert "over budget" in found["days"][1]["message"] and found["exit_code"] == 3
    stages = found["days"][0]["metrics"]
    assert set(stages["seconds"]) == {"plan", "charge", "draw", "publish", "settle"} and stages["stage"] == "done"
    assert 0.9 < stages["spent"] <= 1.0 and stages["remaining"] == pytest.approx(2.0 - stages["spent"])
    lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert {line["stage"] for line in lines if "stage" in line} >= {"plan", "charge", "draw", "publish", "settle"}
    assert [line["date"] for line in lines if line["level"] == "ERROR"] == [DAYS[1]]
    metrics = (root / "dpagg.prom").read_text()
    assert f'dpagg_exit_code{{dataset="impressions",partition="{DAYS[1]}"}} 3\n' in metrics
    assert "# TYPE dpagg_budget_epsilon_remaining gauge" in metrics
    for said in (out, err, metrics):
        assert "12345" not in said and "sale_amount=" not in said

    # Labels that came late: what was released is kept at no cost, and released again only to a new output.
    promise = json.loads((root / "aggregates" / DAYS[0] / "_certificate.json").read_text())
    assert any("conversions hold labels" in term for term in promise["assumptions"])
    assert any("made after it" in term for term in promise["assumptions"])
    assert promise["input_version"]["tables"]["conversions"]["version"] == 0
    one = ["--set", f"date={DAYS[0]}"]
    assert run([*command, *one]) == 0 and "earlier" in capfd.readouterr().out
    spark.sql(f"INSERT INTO delta.`{root}/conversions` VALUES (2, date'2020-01-05', 40.0)")
    caplog.clear()
    assert run([*command, *one]) == 0
    assert json.loads(capfd.readouterr().out)["published"].startswith(
        "kept: released from an earlier version of the input"
    )
    assert "give another output.path" in caplog.text
    assert run([*command, "--backfill", f"{DAYS[0]}:{DAYS[1]}"]) == 3  # the second day's refusal, as before
    found = json.loads(capfd.readouterr().out)["days"]
    assert [(each["outcome"], each["exit_code"]) for each in found] == [("kept", 0), ("failed", 3)]
    assert found[0]["message"].startswith("kept:") and found[0]["metrics"]["stage"] == "found"
    # Another request at this path is no older version of this one.
    other = root / "other.yaml"
    other.write_text(CONFIG.read_text().replace("num_bags: auto", "num_bags: 50"))
    assert run(["aggregate", str(other), *command[2:], *one]) == 2
    assert "holds another release" in capfd.readouterr().err
    assert run([*command, *one, "--insecure-seed", "1"]) == 2
    book = Ledger(DeltaStore(spark, str(root / "ledger"))).book()
    assert [(c.partition, c.state) for c in book.charges("impressions")] == [
        (DAYS[1], "reserved"),
        (DAYS[0], "settled"),
        (DAYS[2], "settled"),
    ]
    figure = root / "left.svg"
    assert run(["ledger", "show", str(root / "ledger"), "--figure", str(figure)]) == 0
    drawn = figure.read_text()
    assert drawn.startswith("<?xml") and "budget 2 at delta 1e-08" in drawn and DAYS[0] in drawn


def test_an_open_window_is_refused_before_anything_is_read(root, capfd):
    command = ["aggregate", str(CONFIG), "--set", f"root={root}", "--set", "date=2999-01-01", "--json"]
    assert run([*command, "--metrics", str(root / "m.json")]) == 3
    said = capfd.readouterr().err
    assert "2999-01-08" in said and "--allow-open-window" in said
    assert json.loads((root / "m.json").read_text())["runs"][0]["exit_code"] == 3
    assert run([*command, "--allow-open-window"]) == 4  # no such day: the query finds no rows
    assert not (root / "ledger").exists()


def test_days(tmp_path):
    assert parse_days("2026-02-27:2026-03-01") == ["2026-02-27", "2026-02-28", "2026-03-01"]
    assert parse_days("2026-02-27") == ["2026-02-27"]
    for wrong in ("2026-02-30:2026-03-01", "2026-03-02:2026-03-01", "yesterday", "2000-01-01:2026-01-01"):
        with pytest.raises(ConfigError, match="--backfill"):
            parse_days(wrong)
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG.read_text().replace("aggregates/${date}", "aggregates"))
    command = ["aggregate", str(config), "--set", f"root={tmp_path}", "--backfill", "2020-01-01:2020-01-02"]
    assert run(command) == 2
    assert run([*command, "--set", "date=2020-01-01"]) == 2


def test_metrics_and_logs_by_themselves(tmp_path):
    monitor = Monitor(dataset='a"b', partition="2026-11-28")
    monitor.enter("done")
    write_metrics(tmp_path / "folder" / "m.prom", [monitor.to_dict(0)])
    text = (tmp_path / "folder" / "m.prom").read_text()
    assert 'dataset="a\\"b"' in text and "remaining" not in text
    try:
        raise ValueError("a cell")
    except ValueError:
        record = logging.getLogger("x").makeRecord("x", 40, "f", 1, "said %s", ("so",), __import__("sys").exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "said so" and line["exception"] == "ValueError" and "a cell" not in str(line)
