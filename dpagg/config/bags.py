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
    bag_size: Count
    num_bags: CountOrAuto = "auto"


class SampledNoisyWtdLagConfig(Model):
    """Features and weights of each disjoint bag, and one noisy weighted label sum (Sampled-Noisy-WTD-LAg).

    ``noise_std`` is in units of the label; auto is the least one that meets the guarantee. Weights are drawn again
    while they exceed ``weight_cap``; auto is the cap that one draw in twenty meets, none draws them once.
    """

    name: Literal["sampled-noisy-wtd-lag"]
    bag_size: Count
    num_bags: CountOrAuto = "auto"
    noised_fraction: Annotated[Number, Field(gt=0, le=1)]
    noise_std: PositiveOrAuto = "auto"
    weight_cap: PositiveAutoOrNone = "auto"

    @model_validator(mode="after")
    def _noises_a_label(self) -> Self:
        if math.floor(round(self.noised_fraction * self.bag_size, 9)) < 1:
            raise refused(
                f"{self.noised_fraction:g} of {self.bag_size} labels is less than one, so no label would get noise",
                field="noised_fraction",
                remedy="Take a larger fraction or larger bags.",
            )
        return self
