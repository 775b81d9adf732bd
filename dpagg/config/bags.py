"""The ``mechanism`` section of the two mechanisms on disjoint bags."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, PlainValidator, model_validator

from dpagg.config.fields import Count, CountOrAuto, Model, Number, refused
from dpagg.config.wording import shown


def _positive(value: object, *words: str) -> object:
    if isinstance(value, str) and value in words:
        return value
    try:
        number = math.nan if isinstance(value, bool) or not isinstance(value, int | float | str) else float(value)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise refused(f"{shown(value)} is given, expected a positive number{''.join(f', or {word}' for word in words)}")
    return number


PositiveOrAuto: TypeAlias = Annotated[float | Literal["auto"], PlainValidator(lambda value: _positive(value, "auto"))]
PositiveAutoOrNone: TypeAlias = Annotated[
    float | Literal["auto", "none"], PlainValidator(lambda value: _positive(value, "auto", "none"))
]


class SampledWtdFlagConfig(Model):
    """One weighted sum of each disjoint bag (Sampled-WTD-FLAG)."""

    name: Literal["sampled-wtd-flag"]
    """Disjoint bags of rows; one weighted sum of features and label for each."""
    bag_size: Count
    """Rows of a bag, more than encoded columns; at best many times as many."""
    num_bags: CountOrAuto = "auto"
    """Bags to release; auto takes as many as the rows fill."""


class SampledNoisyWtdLagConfig(Model):
    """Features and weights of each disjoint bag, and one noisy weighted label sum (Sampled-Noisy-WTD-LAg)."""

    name: Literal["sampled-noisy-wtd-lag"]
    """Disjoint bags of rows; features and weights as they are, and one noisy weighted sum of labels for each."""
    bag_size: Count
    """Rows of a bag."""
    num_bags: CountOrAuto = "auto"
    """Bags to release; auto takes as many as the rows fill."""
    noised_fraction: Annotated[Number, Field(gt=0, le=1)]
    """Share of the labels of each bag that get noise, at least one label."""
    noise_std: PositiveOrAuto = "auto"
    """Standard deviation of the noise on a label, in its units; auto is the least that meets the guarantee."""
    weight_cap: PositiveAutoOrNone = "auto"
    """Weights of a bag are drawn again while one of them is over this many times the norm of the noised rows' weights;
    auto is the value that one draw in twenty meets, none draws once."""

    @model_validator(mode="after")
    def _noises_a_label(self) -> Self:
        if math.floor(round(self.noised_fraction * self.bag_size, 9)) < 1:
            raise refused(
                f"{self.noised_fraction:g} of {self.bag_size} labels is less than one, so no label would get noise",
                field="noised_fraction",
                remedy="Take a larger fraction or larger bags.",
            )
        return self
