"""DDI codebooks, as IPUMS writes them and as nobody should."""

from itertools import pairwise

import pytest

from dpagg.errors import DataError
from dpagg.experiments.label_tables.census_rows import CENSUS_FIELDS, census_codebook
from dpagg.spark.codebook import FixedColumn, read_codebook

# The shape of a codebook from usa.ipums.org, with made-up contents.
IPUMS = """<?xml version="1.0" encoding="UTF-8"?>
<?xml-stylesheet type="text/xsl" href="ipums-ddi-xslt.xsl"?>
<codeBook ID="ddi2" version="2.5" xmlns="ddi:codebook:2_5" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
 xsi:schemaLocation="ddi:codebook:2_5 http://www.ddialliance.org/Specification/DDI-Codebook/2.5/XMLSchema/codebook.xsd">
  <fileDscr ID="ExtractData"><fileTxt><fileName>usa.dat</fileName><fileStrc type="rectangular"/></fileTxt></fileDscr>
  <dataDscr>
    <var ID="YEAR" dcml="0" files="ExtractData" intrvl="discrete" name="YEAR">
      <location EndPos="4" StartPos="1" width="4"/><labl>Census year</labl>
      <catgry><catValu>1940</catValu><labl>1940</labl></catgry>
      <varFormat schema="other" type="numeric"/>
    </var>
    <var ID="PERWT" dcml="2" files="ExtractData" intrvl="contin" name="PERWT">
      <location EndPos="14" StartPos="5" width="10"/><labl>Person &amp; weight</labl>
      <varFormat schema="other" type="numeric"/>
    </var>
    <var ID="HISTID" dcml="0" files="ExtractData" intrvl="discrete" name="HISTID">
      <location EndPos="50" StartPos="15" width="36"/><varFormat schema="other" type="character"/>
    </var>
  </dataDscr>
</codeBook>"""


def test_variables_of_a_codebook():
    assert read_codebook(IPUMS) == (
        FixedColumn("YEAR", 1, 4, 0, True),
        FixedColumn("PERWT", 5, 10, 2, True),
        FixedColumn("HISTID", 15, 36, 0, False),
    )


def test_the_codebook_of_a_stand_in_says_what_was_written():
    found = read_codebook(census_codebook("a<b>&.dat"))
    assert [(c.name, c.width, c.decimals) for c in found] == [(f.name, f.width, f.decimals) for f in CENSUS_FIELDS]
    assert all(later.start == c.start + c.width for c, later in pairwise(found))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not well-formed"),
        ("<codeBook><var", "not well-formed"),
        ("<codeBook/>", "has no variable"),
        (IPUMS.replace("rectangular", "hierarchical"), "hierarchical file, expected a rectangular"),
        (IPUMS.replace('StartPos="1"', 'StartPos="0"'), "without a place"),
        (IPUMS.replace('EndPos="4"', 'EndPos="four"'), "without a place"),
        (IPUMS.replace('<location EndPos="4" StartPos="1" width="4"/>', ""), "without a place"),
        (IPUMS.replace('name="PERWT"', 'name="Year"'), "a variable twice"),
    ],
)
def test_what_is_no_codebook(text, said):
    with pytest.raises(DataError, match=said) as refused:
        read_codebook(text)
    assert refused.value.path == "input.codebook" and refused.value.exit_code == 4


def test_entities_are_never_expanded(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("canary")
    for declared in (
        '<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">',
        f'<!ENTITY c SYSTEM "file://{secret}">',
    ):
        text = IPUMS.replace("<codeBook ID", f"<!DOCTYPE codeBook [{declared}]>\n<codeBook ID", 1)
        with pytest.raises(DataError, match="document type") as refused:
            read_codebook(text.replace("Census year", "&c;"))
        assert "canary" not in str(refused.value)
