"""Kinds of settings, and the base of every section."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, StringConstraints
from pydantic_core import PydanticCustomError

from dpagg.config.wording import shown


def refused(message: str, *, remedy: str | None = None, field: str | None = None) -> PydanticCustomError:
    """Return the refusal of a section, or of one field of it, in our own words."""
    # pydantic formats the template with its context, so the message itself goes into the context.
    return PydanticCustomError("dpagg", "{message}", {"message": message, "remedy": remedy, "field": field})


def a_number(value: object) -> object:
    """Return what is no truth value, which pydantic would take for 0 or 1."""
    if isinstance(value, bool):
        raise refused("a number is expected, not true or false")
    return value


def _count_or_auto(value: object) -> int | Literal["auto"]:
    if value == "auto":
        return "auto"
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise refused(f"{shown(value)} is given, expected a whole number from 1, or auto")
    return value


def number_or_none(value: object) -> object:
    """Return None for the word none."""
    return None if value == "none" else a_number(value)


def category(value: object) -> object:
    """Return the text of a category."""
    # A whole number has one spelling only, as Spark writes it; true, 1.50 or a date have several.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise refused("a category is text", remedy="Put it in quotes.")
    return value


Number: TypeAlias = Annotated[float, BeforeValidator(a_number), Field(allow_inf_nan=False)]
AnyNumber: TypeAlias = Annotated[float, BeforeValidator(a_number)]
Positive: TypeAlias = Annotated[Number, Field(gt=0)]
Count: TypeAlias = Annotated[int, BeforeValidator(a_number), Field(ge=1)]
CountOrAuto: TypeAlias = Annotated[int | Literal["auto"], PlainValidator(_count_or_auto)]
Text: TypeAlias = Annotated[str, StringConstraints(min_length=1, pattern=r"\S")]


class Model(BaseModel):
    """A section: unknown keys refused, never changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=False, use_attribute_docstrings=True)
