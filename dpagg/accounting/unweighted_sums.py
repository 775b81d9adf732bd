"""Sums of labels over known bags: the papers' negative result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpagg.accounting.divergence import FloatArray
from dpagg.accounting.event import Event


@dataclass(frozen=True, kw_only=True)
class UnweightedSums(Event):
    """Plain sums over bags whose members are known: no privacy at all.

    Who knows all other labels of a bag reads off the last one, so ``delta(epsilon) = 1`` for every epsilon
    (adjacency ``change_one_label``; *Label Differential Privacy via Aggregation*, 2023, negative result).
    """

    adjacency: ClassVar[str] = "change_one_label"

    def _log_deltas(self, epsilon: FloatArray) -> FloatArray:
        return np.zeros((2, epsilon.size))
