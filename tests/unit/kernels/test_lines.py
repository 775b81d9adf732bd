"""Lines that are cut where they are summed: into the cells that Spark's reader would give."""

import pyarrow as pa
import pytest

from dpagg.kernels.lines import LineFormat
from dpagg.kernels.rows import MALFORMED
from dpagg.kernels.schema import Categorical, Label, Numeric, Schema
from dpagg.kernels.text_cells import number_of, numbers_of

FORM = LineFormat(("sale", "Price", "device"), "\t", ("-1", "NA"))
SCHEMA = Schema((Numeric("price", 0, 10), Categorical("device", ("tv",))), Label("sale", 0, 9, 0))


def cut(lines, *, with_label=True, schema=SCHEMA):
    batch = pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=["value"])
    return pa.Table.from_batches(list(FORM.parsed([batch], schema, with_label=with_label))).to_pydict()


def test_lines_become_cells_and_malformed_ones_are_marked_at_the_end():
    lines = ["1\t2.5\ttv", "", "x\t-1\t", "1\t2", '\t 3 \t"tv', "1\t2\ttv\t4", "  ", "\t\t", "NA\t1e3\tNA"]
    assert cut(lines) == {
        "price": [2.5, None, 3.0, None, 1000.0, None, None],
        "device": ["tv", None, '"tv', None, None, None, None],
        "sale": [1.0, None, None, None, None, None, None],
        MALFORMED: [False, False, False, False, False, True, True],
    }


def test_without_the_label_none_of_its_cells_is_there():
    assert list(cut(["canary\t1\ttv"], with_label=False)) == ["price", "device", MALFORMED]


@pytest.mark.parametrize("lines", [[], ["", "  "], ["one cell"], [" \t "]])
def test_batches_without_a_whole_line(lines):
    found = cut(lines)
    assert all(found[MALFORMED]) and len(found["price"]) == len([line for line in lines if line.strip(" ")])


def test_bytes_that_are_no_text_raise_nothing():
    lines = [b"1\t2\t\xff\xfe", b"\xff\t3\ttv", b"1\t\xff\ttv"]
    batch = pa.RecordBatch.from_arrays([pa.array(lines, pa.binary()).view(pa.string())], names=["value"])
    (found,) = FORM.parsed([batch], SCHEMA, with_label=True)
    assert found.column(0).to_pylist() == [2.0, 3.0, None] and found.column(2).to_pylist() == [1.0, None, 1.0]


def test_numbers_are_read_as_java_reads_them():
    cells = [
        "1",
        " 2.5\t",
        "1e3",
        "0x1p4",
        "7f",
        "1_000",
        "",
        "NaN",
        "inf",
        "-Infinity",
        "1e999",
        "\u0663",
        None,
        "+.5",
        "5.",
    ]
    expected = [None if cell is None else number_of(cell) for cell in cells]
    assert expected == [1.0, 2.5, 1000.0, 16.0, 7.0, None, None, None, None, None, None, None, None, 0.5, 5.0]
    assert numbers_of(pa.array(cells)).to_pylist() == expected
    # What Arrow reads by itself, which is faster, is the same.
    plain = [cell for cell, number in zip(cells, expected, strict=True) if number is not None]
    for cell in plain:
        assert numbers_of(pa.array([cell])).to_pylist() == [number_of(cell)]
