"""What every calibrated run shares: its target, the data it is for, and the check before it may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dpagg.accounting import Event
from dpagg.errors import ConfigError, DataError, PrivacyError
from dpagg.regression.data import Data

__all__ = ["Accounting", "Adjacency", "Target", "relative_excess_loss"]

Adjacency = Literal["zero_out_one_row", "change_one_label"]
Accounting = Literal["exact", "paper"]


@dataclass(frozen=True)
class Target:
    """What a run is calibrated for: declared numbers and the guarantee.

    Attributes
    ----------
    num_rows, num_columns : int
        n and d; public.
    label_bound : float
        B, bound on the size of a label.
    epsilon, delta : float
        The guarantee.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    num_rows: int
    num_columns: int
    label_bound: float
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if min(self.num_rows, self.num_columns) < 1:
            raise ConfigError(f"expected at least one row and one column, got {self.num_rows} and {self.num_columns}")
        for name in ("epsilon", "label_bound"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name} must be positive and finite, got {value}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must lie in (0, 1), got {self.delta}")

    def check_met(self, event: Event) -> None:
        """Refuse an event that costs more than the target.

        Raises
        ------
        PrivacyError
            If it does.
        """
        spent = event.delta(self.epsilon)
        if not spent <= self.delta:
            raise PrivacyError(
                f"the calibrated run needs delta {spent:.3g} at epsilon {self.epsilon:g}; the target is delta "
                f"{self.delta:.3g}"
            )

    def check_fits(self, data: Data) -> None:
        """Refuse data that the run was not calibrated for; all three numbers are public.

        Raises
        ------
        DataError
            If they differ.
        """
        given = (data.num_rows, data.num_columns, data.label_bound)
        if given != (self.num_rows, self.num_columns, self.label_bound):
            raise DataError(
                f"the plan is for {self.num_rows} rows, {self.num_columns} columns and label bound "
                f"{self.label_bound:g}; the data have {given[0]}, {given[1]} and {given[2]:g}",
                remedy="Plan again with the numbers of these data.",
            )


def relative_excess_loss(rank: int, num_bags: int, noise_to_residual: float) -> float | None:
    """Return the expected excess loss of least squares on weighted sums, relative to the residual variance.

    ``r / (m - r - 1) (1 + tau^2 / r^2)``: the mean of an inverse Wishart matrix.

    Parameters
    ----------
    rank : int
        Dimension of the features, r.
    num_bags : int
        Sums, m.
    noise_to_residual : float
        Variance of the noise on a sum of labels over that of the residuals in it.

    Returns
    -------
    float or None
        None with too few bags for a finite mean.
    """
    spare = num_bags - rank - 1
    return rank / spare * (1.0 + noise_to_residual) if spare > 0 else None
