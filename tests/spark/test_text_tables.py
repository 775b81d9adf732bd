"""Faults of files of text, format by format: refused with their number, left out and counted, or no fault at all."""

import gzip
import json
import logging

import numpy as np
import pyarrow as pa
import pytest

from dpagg.config import InputConfig, parse_config
from dpagg.errors import ConfigError, DataError
from dpagg.experiments.label_tables.census import census_config
from dpagg.experiments.label_tables.criteo import COLUMNS, criteo_config
from dpagg.experiments.label_tables.stand_ins import write_census, write_criteo
from dpagg.kernels.encoding import Categorical, Label, Numeric, Schema
from dpagg.kernels.leverage import subspace
from dpagg.kernels.rows import RowRule
from dpagg.runs.plan import make_plan
from dpagg.spark.joining import read_input
from dpagg.spark.line_rows import LineRows, rows_of
from dpagg.spark.reading import normalise

CANARY = "canary8812"
SCHEMA = Schema(
    (Numeric("price", 0, 10, "indicator"), Categorical("device", ("mobile", "tv"), True)), Label("sale", 0, 9, 0)
)
NAMES = ("sale", "price", "device")
CODEBOOK = """<codeBook><fileDscr><fileTxt><fileStrc type="rectangular"/></fileTxt></fileDscr><dataDscr>
<var name="sale" dcml="1"><location StartPos="1" EndPos="3"/><varFormat type="numeric"/></var>
<var name="price" dcml="0"><location StartPos="4" EndPos="6"/><varFormat type="numeric"/></var>
<var name="device" dcml="0"><location StartPos="7" EndPos="12"/><varFormat type="character"/></var>
</dataDscr></codeBook>"""


def written(folder, kind, rows, name="table.txt"):
    """Rows (texts of sale, price, device; None is missing) as lines of a format; the settings that read them."""
    folder.mkdir(exist_ok=True)
    settings = {"path": str(folder / name), "format": kind}
    if kind == "csv":
        lines = [",".join(cell or "" for cell in row) for row in [NAMES, *rows]]
    elif kind == "tsv":
        settings |= {"format": "csv", "delimiter": "\t", "header": False, "quote": "none", "column_names": list(NAMES)}
        lines = ["\t".join(cell or "" for cell in row) for row in rows]
    elif kind == "json":
        lines = [json.dumps({n: c for n, c in zip(NAMES, row, strict=True) if c is not None}) for row in rows]
    else:
        (folder / "book.xml").write_text(CODEBOOK)
        settings["codebook"] = str(folder / "book.xml")
        lines = [
            f"{'' if sale is None else round(float(sale) * 10):>03}"[:3].replace("None", "   ")
            + f"{price or '':>3}{device or '':<6}"
            for sale, price, device in rows
        ]
    text = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return settings


ROWS = [("1", "2", "tv"), ("2.5", None, "mobile"), ("0", "10", "radio"), ("3", "7", "tv"), ("4", "1", "mobile")]
BAD = {
    "csv": ["1,2", f"1,2,tv,{CANARY}", CANARY],
    "tsv": ["1\t2", f"1\t2\ttv\t{CANARY}", CANARY],
    "json": ["{", f'{{"price": 1, "device": "{CANARY}', f"[{CANARY}]"],
    "fixed-width": ["0010", f"001002tv     {CANARY}", "001002t\u00e9    "],
}
KINDS = list(BAD)


def opened(spark, settings, **more):
    source = InputConfig.model_validate({**settings, **more})
    return read_input(spark, source, "sale", ("price", "device", "sale"))


def cells(table):
    df = normalise(table.settled().df, SCHEMA)
    return sorted((tuple(row) for row in df.collect()), key=repr)


def first_pass(spark, settings, **more):
    return rows_of(opened(spark, settings, **more), SCHEMA).feature_pass(RowRule(SCHEMA))


EXPECTED = sorted(
    [(2.0, "tv", 1.0), (None, "mobile", 2.5), (10.0, "radio", 0.0), (7.0, "tv", 3.0), (1.0, "mobile", 4.0)], key=repr
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_in_each_format(spark, tmp_path, kind):
    assert cells(opened(spark, written(tmp_path / "z", kind, ROWS, name="table.txt.gz"))) == EXPECTED
    # Both kinds of line ends in one file, and blank lines between.
    settings = written(tmp_path / "m", kind, ROWS)
    path = tmp_path / "m" / "table.txt"
    head, second, rest = path.read_text().split("\n", 2)
    path.write_bytes(f"{head}\r\n{second}\n\n\r\n{rest}".encode())
    assert cells(opened(spark, settings)) == EXPECTED
    summary = first_pass(spark, settings).summary
    assert (summary.num_rows, summary.num_missing, summary.num_malformed) == (5, 0, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_malformed_lines_are_counted_and_refused_or_left_out(spark, tmp_path, kind, caplog):
    settings = written(tmp_path / "t", kind, ROWS)
    with (tmp_path / "t" / "table.txt").open("a", encoding="utf-8") as file:
        file.write("\n".join(BAD[kind]) + "\n")
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError, match="3 lines have not the columns") as refused:
        opened(spark, settings).settled()
    assert refused.value.exit_code == 4 and "malformed: drop" in str(refused.value)
    assert CANARY not in str(refused.value) and CANARY not in caplog.text
    dropped = opened(spark, settings, malformed="drop").settled()
    assert dropped.num_malformed == 3 and cells(dropped) == EXPECTED
    # In the pass of a release, without a pass of their own.
    summary = first_pass(spark, settings).summary
    assert (summary.num_rows, summary.num_malformed) == (5, 3)
    # Where the values of a row are protected: rows without values, and no number of them is told.
    masked = opened(spark, settings).settled(masked=True)
    found = [tuple(row) for row in normalise(masked.df, SCHEMA).collect()]
    assert len(found) == 8 and found.count((None, None, None)) == 3 and masked.num_malformed == 0


# Labels of no sense, each in the place of a good one; a quote that nobody closes is no cell.
NONSENSE = [
    b"",
    b" ",
    b"x",
    b"\0",
    b"\0 7",
    b"\\",
    b"#",
    b"'",
    b"\xe9",
    b"\xff\xfe\xe2",
    b"\xef\xbb\xbf",
    b"\x1a",
    b"NaN",
    b"1e9",
]
NONSENSE_JSON = [b"007", b"+1", b".5", b"1.", b"0x10", b"None", b"nan", b"9" * 1100, b"", b"1 2", b'"\\q"', b'"a\tb\0"']
NONSENSE_JSON += [b'"\xe9"', b'"\xff"', b"-", b"{}", b"[1, []]", b"null", b"-Infinity", b"undefined"]
BARE = {"csv": b"%s,%s,%s", "tsv": b"%s\t%s\t%s", "fixed-width": b"%-3.3s%-3s%-6s", "tsv with a header": b"%s\t%s\t%s"}


@pytest.mark.parametrize("kind", [*KINDS, "tsv with a header"])
def test_no_label_decides_which_rows_there_are(spark, tmp_path, kind):
    features = [(b"2", b"tv"), (b"", b""), (b"", b"mobile")]
    found = []
    for name in ("good", "none"):
        labels = [b"1" if name == "good" else label for label in (NONSENSE_JSON if kind == "json" else NONSENSE)]
        if kind == "json":
            lines = [b'{"price":2,"sale":%s ,"device":"tv"}' % label for label in labels]
            lines += [b'{"sale":%s}' % label for label in labels]
            lines += [b'{"price":3,"sale":2}' if name == "good" else b'{"price":3}']
        else:
            lines = [BARE[kind] % (label, *cells) for label in labels for cells in features]
        settings = written(tmp_path / name, kind.split()[0], ROWS)
        path = tmp_path / name / "table.txt"
        text = path.read_bytes()
        if kind == "tsv with a header":
            settings.pop("column_names")
            settings["header"] = True
            text = b"sale\tprice\tdevice\n" + text
        path.write_bytes(text + b"\n".join(lines) + b"\n")
        summary = first_pass(spark, settings).summary
        rows = [tuple(row)[:2] for row in normalise(opened(spark, settings).settled().df, SCHEMA).collect()]
        found.append((summary, sorted(rows, key=repr)))
    assert found[0] == found[1]
    assert found[0][0].num_malformed == 0 and len(found[0][1]) == len(ROWS) + len(lines)


def test_of_a_csv_with_the_label_alone_a_missing_one_would_be_no_row(spark, tmp_path):
    (tmp_path / "table.csv").write_text("sale\n1\n\n2\n")
    with pytest.raises(DataError, match="the label is the only column of a CSV"):
        opened(spark, {"path": str(tmp_path / "table.csv"), "format": "csv"})


@pytest.mark.parametrize(("kind", "share"), [("csv", 0.3), ("tsv", 0.999), ("json", 0.5), ("fixed-width", 0.999)])
def test_a_gzip_file_cut_short_is_refused(spark, tmp_path, kind, share, caplog):
    rng = np.random.default_rng(0)
    rows = [(f"{x:.1f}", f"{int(x)}", CANARY[-6:]) for x in rng.uniform(0, 9, 3_000)]
    settings = written(tmp_path / "t", kind, rows, name="table.txt.gz")
    whole = (tmp_path / "t" / "table.txt.gz").read_bytes()
    (tmp_path / "t" / "table.txt.gz").write_bytes(whole[: int(share * len(whole))])
    with caplog.at_level(logging.DEBUG), pytest.raises(DataError) as refused:
        first_pass(spark, settings)
    assert refused.value.exit_code == 4 and CANARY[-6:] not in str(refused.value) + caplog.text
    with pytest.raises(DataError):
        opened(spark, settings).settled()


@pytest.mark.parametrize("kind", KINDS)
def test_texts_that_mean_missing(spark, tmp_path, kind):
    rows = [("1", "2", "tv"), ("2", "9", "NA"), ("9", "3", "mobile")]
    table = opened(spark, written(tmp_path / "t", kind, rows), null_values=["9", "NA"])
    # In fixed width a cell is compared as it is written: 090 is no 9, for it has a decimal.
    sale = 9.0 if kind == "fixed-width" else None
    assert cells(table) == sorted([(2.0, "tv", 1.0), (None, None, 2.0), (3.0, "mobile", sale)], key=repr)


def test_json_fields_that_nobody_has_are_refused(spark, tmp_path):
    settings = written(tmp_path / "t", "json", ROWS)
    path = tmp_path / "t" / "table.txt"
    path.write_text(path.read_text().replace('"device"', '"Device"'))
    with pytest.raises(DataError, match="no line has a value of 'device'"):
        opened(spark, settings)
    # A label that nobody has decides nothing.
    settings = written(tmp_path / "u", "json", [(None, price, device) for _, price, device in ROWS])
    assert {row[2] for row in cells(opened(spark, settings))} == {None}


def test_json_values_of_any_kind_become_text(spark, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"price": 1.5, "device": true, "sale": "2"}\n{"device": {"a": 1}, "price": [1], "sale": {}}\n')
    found = cells(opened(spark, {"path": str(path), "format": "json"}))
    assert found == sorted([(1.5, "true", 2.0), (None, '{"a":1}', None)], key=repr)


def test_codes_of_fixed_width_are_those_of_csv(spark, tmp_path):
    fixed = write_census(tmp_path, 500, 1, "fixed-width", compressed=True, processes=1)
    csv = write_census(tmp_path, 500, 1, processes=1)
    config = parse_config(census_config(str(csv), "out"), "aggregate")
    tables = [
        read_input(spark, InputConfig.model_validate(section), "HRSWORK1")
        for section in (
            census_config(str(csv), "out")["input"],
            census_config(str(fixed), "out", codebook=str(tmp_path / "census-synthetic.xml"))["input"],
        )
    ]
    found = [sorted(map(tuple, normalise(t.settled().df, config.encoding).collect()), key=repr) for t in tables]
    assert found[0] == found[1] and len(found[0]) == 500
    weights = {row["PERWT"] for row in tables[1].df.select("PERWT").distinct().collect()}
    assert weights == {"1.0"}
    # Another codebook makes another table of the same lines.
    version = tables[1].version
    book = tmp_path / "census-synthetic.xml"
    book.write_text(book.read_text().replace("State (FIPS code)", "State"))
    with pytest.raises(DataError, match="changed while it was read"):
        tables[1].recheck()
    assert "codebook_sha256" in version


def test_lines_of_the_log_as_arrow_and_as_spark_cut_them(spark, tmp_path):
    log = write_criteo(tmp_path, 3_000, 2, processes=1)
    with log.open("a") as file:
        file.write("1\t2\t3\n" + "\t" * 22 + "\n" + "\t".join(["-1"] * 22 + ["\xe9"]) + "\n")
    config = parse_config(criteo_config(str(log), str(tmp_path / "out"), malformed="drop"), "aggregate")
    schema, passes = config.encoding, []
    for quote in ("none", '"'):
        source = config.input.model_copy(update={"quote": quote})
        rows = rows_of(read_input(spark, source, schema.label.name), schema)
        assert isinstance(rows, LineRows) == (quote == "none")
        everything = rows.feature_pass(RowRule(schema))
        selection = subspace(everything.factor.canonical())
        rule = RowRule(schema, released=selection)
        passes.append((everything, rows.summary_pass(rule), rows.labelled_pass(rule)))
    (coded, summary, moments), (dense, dense_summary, dense_moments) = passes
    assert coded.summary == dense.summary and coded.summary.num_malformed == 1
    assert coded.summary.num_rows == 3_002 and summary.num_malformed == 1
    gram = dense.factor.canonical().T @ dense.factor.canonical()
    np.testing.assert_allclose(coded.factor.canonical().T @ coded.factor.canonical(), gram, rtol=1e-9, atol=1e-7)
    assert summary.largest_leverage == pytest.approx(dense_summary.largest_leverage, rel=1e-6)
    assert moments.moments.residual_norm == pytest.approx(dense_moments.moments.residual_norm, rel=1e-9)


def test_a_plan_of_the_log_says_what_was_left_out(spark, tmp_path):
    log = write_criteo(tmp_path, 1_000, 2, processes=1)
    with log.open("a") as file:
        file.write("1\t2\t3\n")
    made = criteo_config(str(log), str(tmp_path / "out"), privacy={"epsilon": 1.0, "delta": 1e-5})
    with pytest.raises(DataError, match="1 line has not the columns"):
        make_plan(spark, parse_config(made, "aggregate"))
    made["input"]["malformed"] = "drop"
    plan = make_plan(spark, parse_config(made, "aggregate"))
    assert plan.rows_left_out["malformed_line"] == 1
    assert plan.summary.num_rows + plan.summary.num_over_cap == 1_000


# The catalogue


def test_tables_of_the_catalogue_are_pinned(spark, tmp_path):
    df = spark.createDataFrame([(1.0, "tv", 2.0)], "price double, device string, sale double")
    df.write.format("delta").option("path", str(tmp_path / "delta")).saveAsTable("clicks_delta")
    df.write.format("parquet").option("path", str(tmp_path / "parquet")).saveAsTable("clicks_parquet")
    for name, stored in (("clicks_delta", "delta"), ("spark_catalog.default.clicks_parquet", "parquet")):
        table = read_input(spark, InputConfig.model_validate({"table": name}), "sale")
        assert table.version["format"] == stored and [tuple(row) for row in table.df.collect()] == [(1.0, "tv", 2.0)]
    by_path = read_input(
        spark, InputConfig.model_validate({"path": str(tmp_path / "delta"), "format": "delta"}), "sale"
    )
    by_name = read_input(spark, InputConfig.model_validate({"table": "clicks_delta"}), "sale")
    assert by_path.version == by_name.version
    df.write.format("delta").mode("append").saveAsTable("clicks_delta")
    assert by_name.df.count() == 1 and by_name.version["version"] == 0
    joined = {
        "tables": {"c": {"table": "clicks_delta", "version": 0}, "p": str(tmp_path / "parquet")},
        "sql": "SELECT c.price, p.device, c.sale FROM c JOIN p USING (price)",
        "format": "parquet",
    }
    assert read_input(spark, InputConfig.model_validate(joined), "sale").df.count() == 1


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("no_such_table", DataError, "has no table"),
        ("a b; DROP TABLE x", ConfigError, "expected the name of a table"),
        ("a_view", DataError, "is a view"),
        ("a_text", DataError, "is stored as csv, expected delta or parquet"),
    ],
)
def test_tables_of_the_catalogue_that_cannot_be_pinned(spark, tmp_path, name, error, said):
    spark.range(3).createOrReplaceTempView("a_view")
    if name == "a_text":
        spark.range(3).write.format("csv").option("path", str(tmp_path / "csv")).saveAsTable("a_text")
    with pytest.raises(error, match=said) as refused:
        read_input(spark, InputConfig.model_validate({"table": name}), "sale")
    assert refused.value.path == "input.table"


def test_columns_are_those_of_the_log():
    assert len(COLUMNS) == 23 and len({name.lower() for name in COLUMNS}) == 23
    assert pa.schema([(name, pa.string()) for name in COLUMNS]).names == list(COLUMNS)
