"""What the README says about notebooks runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from dpagg.runs.certificates import load_certificate

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_notebook_section(spark, tmp_path, monkeypatch):
    section = README.read_text().partition("## In a notebook\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 3
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert load_certificate(Path("out/aggregates"))["private"] and load_certificate(Path("out/from_spark"))["private"]
    assert names["release"].table.count() == 20_000
