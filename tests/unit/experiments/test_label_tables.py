"""Criteo's log and the census: what their configurations refuse, and what the stand-ins are like."""

import gzip
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import yaml

from dpagg.config import parse_config
from dpagg.errors import PrivacyError
from dpagg.experiments.label_tables import census, criteo
from dpagg.experiments.label_tables.census_rows import CENSUS_FIELDS, _persons
from dpagg.experiments.label_tables.stand_ins import write_census, write_criteo
from dpagg.kernels.encoding import Numeric, encode_features, encode_label

ROWS = 20_000


def explained(frame, config):
    """Share of the label's variance that least squares on the encoded features explains."""
    schema = parse_config(config, "aggregate").encoding
    columns = {}
    for feature in schema.features:
        cells = frame[feature.name]
        cells = pd.to_numeric(cells) if isinstance(feature, Numeric) else cells
        columns[feature.name] = pa.array(cells, from_pandas=True)
    rows, keep = encode_features(pa.RecordBatch.from_pydict(columns), schema)
    assert keep.all()
    labels = encode_label(pa.array(pd.to_numeric(frame[schema.label.name]), from_pandas=True), schema.label)
    residuals = labels - rows @ np.linalg.lstsq(rows, labels, rcond=None)[0]
    return 1.0 - residuals.var() / labels.var()


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return write_criteo(tmp_path_factory.mktemp("log"), ROWS, 5, processes=1)


def test_the_log_has_the_format_of_the_real_one(log):
    text = log.read_text()
    lines = text.splitlines()
    assert len(lines) == ROWS and {line.count("\t") for line in lines} == {22} and '"' not in text
    assert 340 < len(text) / ROWS < 440  # the real one has 402 bytes a line
    frame = pd.read_csv(log, sep="\t", names=criteo.COLUMNS, dtype=str, keep_default_na=False, quoting=3)
    sold = frame.Sale == "1"
    assert 0.095 < sold.mean() < 0.12  # 0.108 in the real one
    # What follows from the label does here, too.
    assert ((frame.SalesAmountInEuro == "-1") == ~sold).all()
    assert ((frame.time_delay_for_conversion == "-1") == ~sold).all()
    assert (frame.product_price[~sold] == "0").all() and (frame.product_price[sold] != "0").mean() > 0.7
    amounts = frame.SalesAmountInEuro[sold].astype(float)
    assert amounts.quantile(0.999) > 7 * amounts.median() and amounts.min() > 0
    assert frame.click_timestamp.astype(int).is_monotonic_increasing
    brands = frame.product_brand[frame.product_brand != "-1"].value_counts()
    assert len(brands) > 3_000 and brands.iloc[0] > 50 * brands.median()
    hashed = frame.product_id[frame.product_id != "-1"]
    assert hashed.str.fullmatch("[0-9A-F]{32}").all() and (frame.product_category7 == "-1").all()
    frame = frame.replace({"-1": None, "-1.0": None})
    assert 0.2 < explained(frame, criteo.criteo_config("in", "out")) < 0.5


def test_stand_ins_say_that_they_are(log, tmp_path):
    about = json.loads((log.parent / f"_{log.name}.about.json").read_text())
    assert about["synthetic"] is True and about["rows"] == ROWS and "SYNTHETIC" in about["what"]
    for written in (log, write_census(tmp_path, 10, 1), write_census(tmp_path, 10, 1, "fixed-width")):
        assert "synthetic" in written.name
    assert "SYNTHETIC" in (tmp_path / "census-synthetic.xml").read_text()


def test_a_file_is_the_same_however_many_processes_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr("dpagg.experiments.label_tables.stand_ins._CHUNK_ROWS", 100)
    one = write_census(tmp_path / "one", 301, 7, processes=1).read_bytes()
    assert write_census(tmp_path / "two", 301, 7, processes=2).read_bytes() == one
    assert len(one.splitlines()) == 302
    zipped = write_census(tmp_path / "gz", 301, 7, processes=1, compressed=True)
    assert gzip.decompress(zipped.read_bytes()) == one
    assert write_census(tmp_path / "other", 301, 8, processes=1).read_bytes() != one


def test_persons_are_of_the_codes_and_the_hours_of_1940(tmp_path):
    csv = write_census(tmp_path, ROWS, 3)
    frame = pd.read_csv(csv, dtype=str)
    assert list(frame.columns) == [field.name for field in CENSUS_FIELDS]
    for name, codes in census.CODES.items():
        assert set(frame[name]) <= set(codes), name
    hours = frame.HRSWORK1.astype(int)
    counts = hours.value_counts(normalize=True)
    assert counts.idxmax() == 40 and counts[40] > 0.2 and counts[48] > 3 * counts[47] and hours.max() <= 98
    assert 0.05 < counts[0] < 0.2 and (frame.AGE.astype(int) >= 14).all()
    assert 0.2 < explained(frame.replace({"AGE": {"999": None}}), census.census_config("in", "out")) < 0.5


def test_fixed_width_and_csv_hold_the_same_persons(tmp_path):
    frame = pd.read_csv(write_census(tmp_path, 2_000, 3))
    lines = write_census(tmp_path, 2_000, 3, "fixed-width").read_text().splitlines()
    assert {len(line) for line in lines} == {sum(field.width for field in CENSUS_FIELDS)}
    start = 0
    for field in CENSUS_FIELDS:
        cells = [int(line[start : start + field.width]) / 10**field.decimals for line in lines]
        assert cells == frame[field.name].tolist(), field.name
        start += field.width
    persons = _persons(np.random.default_rng([3, 2, 0]), 0, 2_000)
    assert frame.HRSWORK1.tolist() == persons["HRSWORK1"].tolist()


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (criteo, "Sale"),
        (criteo, "SalesAmountInEuro"),
        (criteo, "time_delay_for_conversion"),
        (criteo, "TIME_DELAY_FOR_CONVERSION"),
        (criteo, "product_price"),
        (census, "HRSWORK1"),
        (census, "hrswork2"),
    ],
)
def test_what_follows_from_the_label_is_no_feature(table, name):
    make = {criteo: criteo.criteo_config, census: census.census_config}[table]
    features = [{"name": name, "type": "numeric", "lower": 0, "upper": 1}]
    with pytest.raises(PrivacyError, match="can't be a feature") as refused:
        make("in", "out", features=features)
    assert refused.value.exit_code == 3 and refused.value.path == "schema.features[0]"


def test_no_feature_of_the_examples_follows_from_the_label():
    for table, make in ((criteo, criteo.criteo_config), (census, census.census_config)):
        config = parse_config(make("in", "out"), "aggregate")
        names = {feature.name.lower() for feature in config.encoding.features}
        assert not names & set(table.LABEL_DERIVED) and config.encoding.label.name == table.LABEL


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("criteo.yaml", criteo.criteo_config("${DATA}/CriteoSearchData", "out/criteo/aggregates")),
        ("census.yaml", census.census_config("${DATA}/usa_00001.csv.gz", "out/census/aggregates")),
    ],
)
def test_the_example_files_say_the_same(file, expected):
    folder = Path(__file__).resolve().parents[3] / "conf" / "experiments"
    assert yaml.safe_load((folder / file).read_text()) == expected
