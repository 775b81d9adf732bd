"""Persons of a synthetic IPUMS USA extract of 1940: the labour force, 14 and older, as a rectangular extract has it.

Hours are heaped at 40, 48 and other round numbers; farmers, the self-employed and who worked all of 1939 work longer,
one person in seven was not at work (0 hours). Codes are those that IPUMS documents for 1940.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

__all__ = ["CENSUS_FIELDS", "Field", "census_codebook", "census_csv", "census_fixed_width"]

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Field:
    """One variable of an extract: its name, its characters in fixed width, and how many of them are decimals."""

    name: str
    width: int
    label: str
    decimals: int = 0


CENSUS_FIELDS = (
    Field("YEAR", 4, "Census year"),
    Field("SAMPLE", 6, "IPUMS sample identifier"),
    Field("SERIAL", 8, "Household serial number"),
    Field("HHWT", 10, "Household weight", 2),
    Field("STATEFIP", 2, "State (FIPS code)"),
    Field("URBAN", 1, "Urban/rural status"),
    Field("GQ", 1, "Group quarters status"),
    Field("FARM", 1, "Farm status"),
    Field("PERNUM", 4, "Person number in sample unit"),
    Field("PERWT", 10, "Person weight", 2),
    Field("SEX", 1, "Sex"),
    Field("AGE", 3, "Age"),
    Field("MARST", 1, "Marital status"),
    Field("RACE", 1, "Race [general version]"),
    Field("RACED", 3, "Race [detailed version]"),
    Field("EDUC", 2, "Educational attainment [general version]"),
    Field("EMPSTAT", 1, "Employment status [general version]"),
    Field("LABFORCE", 1, "Labor force status"),
    Field("OCC1950", 3, "Occupation, 1950 basis"),
    Field("IND1950", 3, "Industry, 1950 basis"),
    Field("CLASSWKR", 1, "Class of worker [general version]"),
    Field("WKSWORK1", 2, "Weeks worked last year"),
    Field("HRSWORK1", 2, "Hours worked last week"),
)

# Of the full count; its weights are 1.
_SAMPLE = 194_002
# FIPS codes and millions of people about 1940, rounded.
_STATES = {
    1: 2.8, 4: 0.5, 5: 1.9, 6: 6.9, 8: 1.1, 9: 1.7, 10: 0.3, 11: 0.7, 12: 1.9, 13: 3.1, 16: 0.5, 17: 7.9, 18: 3.4,
    19: 2.5, 20: 1.8, 21: 2.8, 22: 2.4, 23: 0.8, 24: 1.8, 25: 4.3, 26: 5.3, 27: 2.8, 28: 2.2, 29: 3.8, 30: 0.6,
    31: 1.3, 32: 0.1, 33: 0.5, 34: 4.2, 35: 0.5, 36: 13.5, 37: 3.6, 38: 0.6, 39: 6.9, 40: 2.3, 41: 1.1, 42: 9.9,
    44: 0.7, 45: 1.9, 46: 0.6, 47: 2.9, 48: 6.4, 49: 0.6, 50: 0.4, 51: 2.7, 53: 1.7, 54: 1.9, 55: 3.1, 56: 0.3,
}  # fmt: skip
# Industry: share, mean hours of who is at work, an occupation that is common in it.
_INDUSTRIES = {
    105: (0.19, 55.0, 820), 246: (0.05, 38.0, 970), 336: (0.04, 39.0, 690), 346: (0.04, 39.5, 690),
    376: (0.03, 40.0, 690), 406: (0.05, 44.0, 690), 436: (0.04, 36.0, 690), 439: (0.04, 37.0, 690),
    506: (0.05, 46.0, 625), 526: (0.04, 47.0, 625), 606: (0.05, 47.0, 450), 636: (0.08, 51.0, 490),
    679: (0.06, 52.0, 784), 699: (0.04, 47.0, 490), 716: (0.03, 41.0, 390), 826: (0.08, 54.0, 720),
    846: (0.03, 47.0, 740), 868: (0.03, 49.0, 75), 888: (0.04, 38.0, 93), 916: (0.03, 41.0, 390),
    936: (0.03, 46.0, 773), 998: (0.01, 44.0, 970),
}  # fmt: skip
_OCCUPATIONS = np.array(
    [0, 43, 56, 93, 100, 123, 290, 305, 390, 450, 490, 510, 544, 625, 690, 720, 784, 820, 830, 970, 999]
)
_HEAPS = np.array([8, 16, 20, 24, 30, 32, 35, 36, 40, 44, 48, 50, 54, 56, 60, 66, 70, 72, 77, 80, 84, 90, 98])
_EDUCATION = np.array([0.04, 0.12, 0.42, 0.07, 0.07, 0.05, 0.13, 0.02, 0.02, 0.01, 0.04, 0.01])


def _persons(rng: np.random.Generator, first: int, size: int) -> dict[str, Array]:
    """Columns of persons by name, integers."""
    codes, shares = np.array(list(_INDUSTRIES)), np.array([share for share, _, _ in _INDUSTRIES.values()])
    industry = rng.choice(len(codes), size, p=shares / shares.sum())
    usual = np.array([hours for _, hours, _ in _INDUSTRIES.values()])[industry]
    common = np.array([occupation for _, _, occupation in _INDUSTRIES.values()])[industry]
    occupation = np.where(rng.random(size) < 0.6, common, rng.choice(_OCCUPATIONS, size))
    farmer = codes[industry] == 105
    woman = rng.random(size) < np.where(farmer, 0.06, 0.29)
    self_employed = rng.random(size) < np.where(farmer, 0.62, 0.13)
    age = np.clip(np.round(14 + rng.gamma(2.2, 11.5, size)), 14, 95).astype(np.int64)
    weeks = np.where(rng.random(size) < 0.62, 52, rng.integers(0, 52, size))
    race = np.where(rng.random(size) < 0.9, 1, rng.choice([2, 2, 2, 2, 2, 2, 3, 4, 5, 6], size))
    states = np.array(list(_STATES.values()))
    at_work = rng.random(size) < 0.4 + 0.0115 * weeks
    wanted = usual + 4.0 * self_employed - 4.0 * woman + 0.1 * (weeks - 40) - 0.0035 * (age - 40) ** 2
    hours = wanted + 7.0 * rng.normal(size=size)
    nearest = _HEAPS[np.argmin(np.abs(_HEAPS[None, :] - hours[:, None]), axis=1)]
    exact = np.clip(np.round(hours), 1, 98).astype(np.int64)
    forty = ~farmer & (rng.random(size) < 0.25)
    worked = np.where(forty, 40, np.where(rng.random(size) < 0.85, nearest, exact))
    number = first + np.arange(size)
    one = np.ones(size, dtype=np.int64)
    return {
        "YEAR": 1940 * one,
        "SAMPLE": _SAMPLE * one,
        "SERIAL": number // 2 + 1,
        "HHWT": one,
        "STATEFIP": rng.choice(np.array(list(_STATES)), size, p=states / states.sum()),
        "URBAN": np.where(rng.random(size) < np.where(farmer, 0.04, 0.69), 2, 1),
        "GQ": np.where(rng.random(size) < 0.97, 1, 4),
        "FARM": np.where(rng.random(size) < np.where(farmer, 0.9, 0.08), 2, 1),
        "PERNUM": number % 2 + 1,
        "PERWT": one,
        "SEX": 1 + woman,
        "AGE": np.where(rng.random(size) < 0.001, 999, age),
        "MARST": np.where(age < 22, 6, rng.choice([1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 6, 6], size)),
        "RACE": race,
        "RACED": 100 * race,
        "EDUC": rng.choice(12, size, p=_EDUCATION / _EDUCATION.sum()),
        "EMPSTAT": np.where(at_work, 1, 2),
        "LABFORCE": 2 * one,
        "OCC1950": occupation,
        "IND1950": codes[industry],
        "CLASSWKR": np.where(self_employed, 1, 2),
        "WKSWORK1": weeks,
        "HRSWORK1": np.where(at_work, worked, 0),
    }


def census_csv(rng: np.random.Generator, first: int, size: int) -> bytes:
    """Return persons as lines of CSV, without the header; weights have decimals, codes are not padded."""
    persons = _persons(rng, first, size)
    columns = {
        field.name: pa.array(persons[field.name].astype(np.float64) if field.decimals else persons[field.name])
        for field in CENSUS_FIELDS
    }
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table(columns), sink, csv.WriteOptions(include_header=False, quoting_style="none"))
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def census_fixed_width(rng: np.random.Generator, first: int, size: int) -> bytes:
    """Return persons as lines of equal length; numbers are padded with zeros, decimals have no point."""
    persons = _persons(rng, first, size)
    text = np.empty((size, sum(field.width for field in CENSUS_FIELDS) + 1), dtype=np.uint8)
    start = 0
    for field in CENSUS_FIELDS:
        rest = persons[field.name].astype(np.int64) * 10**field.decimals
        for place in range(start + field.width - 1, start - 1, -1):
            rest, digit = np.divmod(rest, 10)
            text[:, place] = digit + ord("0")
        start += field.width
    text[:, -1] = ord("\n")
    return text.tobytes()


def census_codebook(file_name: str, fields: Sequence[Field] = CENSUS_FIELDS) -> str:
    """Return the DDI codebook (2.5) of a fixed-width extract, with the parts that say where each variable is."""
    variables, start = [], 1
    for field in fields:
        end = start + field.width - 1
        variables.append(
            f'    <var ID={quoteattr(field.name)} dcml={quoteattr(str(field.decimals))} files="ExtractData" '
            f'intrvl="{"contin" if field.decimals else "discrete"}" name={quoteattr(field.name)}>\n'
            f'      <location EndPos="{end}" StartPos="{start}" width="{field.width}"/>\n'
            f"      <labl>{escape(field.label)}</labl>\n"
            '      <varFormat schema="other" type="numeric"/>\n    </var>\n'
        )
        start = end + 1
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<codeBook version="2.5" xmlns="ddi:codebook:2_5">\n'
        "  <docDscr><citation><titlStmt><titl>SYNTHETIC stand-in for an IPUMS USA extract</titl></titlStmt></citation>"
        f'</docDscr>\n  <fileDscr ID="ExtractData">\n    <fileTxt>\n      <fileName>{escape(file_name)}</fileName>\n'
        '      <fileStrc type="rectangular"/>\n      <fileType charset="ISO-8859-1">ISO-8859-1 data file</fileType>\n'
        "      <format>fixed length fields</format>\n    </fileTxt>\n  </fileDscr>\n  <dataDscr>\n"
        f"{''.join(variables)}  </dataDscr>\n</codeBook>\n"
    )
