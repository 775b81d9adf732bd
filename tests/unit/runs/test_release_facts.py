"""What the certificate of every release says besides its event."""

import pytest

from dpagg.config import parse_config
from dpagg.runs.release_facts import input_terms

CONFIG = {
    "input": {"format": "parquet", "tables": {"shows": {"path": "shows"}}, "row_id": "id"},
    "schema": {
        "features": [{"name": "x", "type": "numeric", "lower": 0, "upper": 1}],
        "label": {"name": "y", "lower": 0, "upper": 1, "missing": {"constant": 0}},
    },
    "mechanism": {"name": "wtd-flag", "num_bags": 10},
    "privacy": {"epsilon": 1.0, "delta": 1e-7},
    "output": {"path": "out"},
}


@pytest.mark.parametrize(
    ("query", "ordered"),
    [
        ("SELECT *, row_number() OVER (PARTITION BY user ORDER BY time) AS place FROM shows", True),
        ("SELECT *, lag(x) over w AS before FROM shows WINDOW w AS (ORDER BY time)", True),
        ("SELECT id, x, y, handover FROM shows", False),
    ],
)
def test_a_query_with_windows_is_supposed_to_know_an_order(query, ordered):
    config = parse_config(CONFIG | {"input": CONFIG["input"] | {"sql": query}}, "aggregate")
    assert any("don't tie" in term for term in input_terms(config)) == ordered
