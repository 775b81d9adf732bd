"""What the README says about notebooks runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from dpagg.runs.certificates import load_certificate

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_notebook_section(spark, tmp_path):
    section = README.read_text().partition("## In a notebook\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        # A relative path would count from where the JVM of all tests was started.
        exec(block.replace('"out/', f'"{tmp_path}/out/'), names)
    for written in ("aggregates", "from_spark"):
        assert load_certificate(tmp_path / "out" / written)["private"]
    assert names["release"].table.count() == 5_000
