"""Least squares, plain and norm-bounded, from the triangular factor of an aggregate.

An aggregate of ``m`` bags is a matrix ``[F y]``: a bag is a row, ``F`` (m, d) holds its weighted feature sums
and ``y`` (m,) its weighted label sums. Everything here needs only the upper-triangular factor ``R`` of ``[F
y]``, so it costs O(d^3) whatever ``m`` is.

What the standard errors mean
-----------------------------
In a WTD-FLAG release the rows of ``[F y]`` are iid draws of ``N(0, [X y]^T [X y])``, with noise of
variance ``tau^2`` added to the label. With ``beta`` the least-squares solution on the original rows and
``r^2`` its residual sum of squares, ``y_j = beta^T f_j + N(0, r^2 + tau^2)`` given ``f_j``. So the textbook
covariance ``s^2 (F^T F)^{-1}`` is exact here, whatever the original residuals look like, but it is about
*beta*: it says how far the aggregate's solution is from the least-squares solution on the original rows
(privacy noise and the randomness of the aggregation), and not how far that one is from the population's.
`LinearFit.population_covariance` adds the latter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, optimize

__all__ = ["FitStatus", "LinearFit", "fit_bounded_least_squares", "fit_least_squares"]

Array = NDArray[np.float64]

# Relative to columns scaled to length 1. Weighted sums over 1e6 rows leave about 1e-13 in a direction that is
# exactly absent, and a direction this small that is real could not be estimated anyway.
RANK_TOLERANCE = 1e-10


class FitStatus(StrEnum):
    """What became of a fit; `LinearFit.message` says why and what to do."""

    OK = "ok"
    RANK_DEFICIENT = "rank_deficient"
    TOO_FEW_BAGS = "too_few_bags"
    BOUND_ACTIVE = "bound_active"


@dataclass(frozen=True)
class LinearFit:
    """A linear fit on an aggregate of ``m`` bags and ``d`` columns.

    Attributes
    ----------
    coefficients : ndarray (d,)
        In encoded units. Of least norm where the aggregate leaves a choice.
    covariance : ndarray (d, d)
        Of the coefficients about the (norm-bounded) least-squares solution on the original rows; see the
        module's text. NaN without a degree of freedom, and in rows and columns of coefficients the aggregate
        does not determine.
    residual_variance : float
        ``s^2``, the mean squared residual of a *bag*: estimates ``r^2 + tau^2``. NaN without a degree of
        freedom.
    degrees_of_freedom : int
        ``m - rank``, at least 0.
    num_bags : int
        ``m``.
    rank : int
        Number of feature directions present in the aggregate.
    undetermined : tuple of tuples of int
        Groups of columns that are linearly dependent in the aggregate; a column of zeros is a group of its
        own.
    norm_bound : float or None
        The bound of the bounded fit.
    status : FitStatus
        Outcome.
    message : str
        The outcome in words: cause and remedy.
    """

    coefficients: Array
    covariance: Array
    residual_variance: float
    degrees_of_freedom: int
    num_bags: int
    rank: int
    undetermined: tuple[tuple[int, ...], ...]
    norm_bound: float | None
    status: FitStatus
    message: str

    @property
    def standard_errors(self) -> Array:
        """Square roots of the covariance's diagonal, (d,): errors about the solution on the original rows."""
        return np.sqrt(np.diag(self.covariance))

    def row_residual_variance(self, num_rows: int, label_noise_variance: float = 0.0) -> float:
        """Estimate the residual variance of an original row: ``max(0, s^2 - tau^2) / (n - rank)``.

        Parameters
        ----------
        num_rows : int
            Original rows ``n`` inside the aggregate.
        label_noise_variance : float
            ``tau^2``, variance of the Gaussian noise on each bag's label.

        Returns
        -------
        float
            In squared label units. NaN if ``num_rows`` does not exceed the rank or no degree of freedom is
            left.
        """
        if num_rows <= self.rank:
            return float("nan")
        return float(np.maximum(0.0, self.residual_variance - label_noise_variance)) / (num_rows - self.rank)

    def population_covariance(self, num_rows: int, label_noise_variance: float = 0.0) -> Array:
        """Estimate the covariance (d, d) of the coefficients about those of the population.

        Adds ``sigma^2 (X^T X)^{-1}``, the sampling error of the original rows, to `covariance`, with
        ``sigma^2`` from `row_residual_variance` and ``(m - rank - 1) (F^T F)^{-1}``, which has mean ``(X^T
        X)^{-1}``, for the inverse. Valid when the rows are an independent sample and their residual variance
        does not vary much with the features (unlike `covariance`, which assumes neither); not for an active
        norm bound.

        Parameters
        ----------
        num_rows : int
            Original rows ``n`` inside the aggregate.
        label_noise_variance : float
            ``tau^2``, variance of the Gaussian noise on each bag's label.
        """
        if self.residual_variance == 0.0:
            return self.covariance.copy()
        sigma2 = self.row_residual_variance(num_rows, label_noise_variance)
        sampling = sigma2 * max(0, self.degrees_of_freedom - 1)
        return self.covariance * (1.0 + sampling / self.residual_variance)


@dataclass(frozen=True)
class _Spectrum:
    """The feature factor's row space: ``R11 = left @ diag(values) @ right`` on it, plus what is not in it."""

    left: Array
    values: Array
    right: Array
    undetermined: tuple[tuple[int, ...], ...]

    @property
    def rank(self) -> int:
        return self.values.size


def fit_least_squares(factor: Array, num_bags: int, *, column_names: Sequence[str] | None = None) -> LinearFit:
    """Fit least squares on an aggregate, of least norm where the aggregate leaves a choice.

    Parameters
    ----------
    factor : ndarray (d + 1, d + 1)
        Upper-triangular factor of ``[F y]``: ``factor.T @ factor == [F y].T @ [F y]``. Signs of rows do not
        matter.
    num_bags : int
        Number ``m`` of rows of ``[F y]``.
    column_names : sequence of str, optional
        Names of the d columns, for the message.

    Returns
    -------
    LinearFit
        With status ``too_few_bags`` if no degree of freedom is left, else ``rank_deficient`` if the columns
        are linearly dependent in the aggregate, else ``ok``.

    Raises
    ------
    ValueError
        If the factor is not a finite upper-triangular square or ``num_bags`` is negative.

    Notes
    -----
    Post-processing: spends no privacy of the release.
    """
    features, projected, unexplained = _split(factor, num_bags)
    spectrum = _spectrum(features)
    coefficients = spectrum.right.T @ ((spectrum.left.T @ projected) / spectrum.values)
    residual = projected - features @ coefficients
    freedom = max(0, num_bags - spectrum.rank)
    variance = (float(residual @ residual) + unexplained**2) / freedom if freedom else float("nan")
    half = spectrum.right.T / spectrum.values
    status, message = _judge(spectrum, num_bags, column_names)
    return LinearFit(
        coefficients=coefficients,
        covariance=_mask(variance * (half @ half.T), spectrum.undetermined),
        residual_variance=variance,
        degrees_of_freedom=freedom,
        num_bags=num_bags,
        rank=spectrum.rank,
        undetermined=spectrum.undetermined,
        norm_bound=None,
        status=status,
        message=message,
    )


def fit_bounded_least_squares(
    factor: Array, num_bags: int, norm_bound: float, *, column_names: Sequence[str] | None = None
) -> LinearFit:
    """Fit ``min ||y - F theta||^2`` subject to ``||theta||_2 <= norm_bound``.

    This is the norm-bounded regressor of label differential privacy via aggregation (arXiv 2310.10092). The
    norm is that of the encoded coefficients, the intercept included. If the bound binds, ``theta = (F^T F +
    lam I)^{-1} F^T y`` with ``lam > 0`` from the secular equation ``||theta(lam)|| = norm_bound`` (Golub and
    Van Loan, Matrix Computations, 6.2.1).

    Parameters
    ----------
    factor, num_bags, column_names
        As in `fit_least_squares`.
    norm_bound : float
        Bound on the Euclidean norm of the coefficients, positive.

    Returns
    -------
    LinearFit
        With status ``bound_active`` if the bound binds, else that of `fit_least_squares`. The covariance of a
        bound fit is first-order (delta method along the sphere), about the bounded solution on the original
        rows: the direction that the bound holds fixed has none.

    Raises
    ------
    ValueError
        As `fit_least_squares`, and if the bound is not a positive number.

    Notes
    -----
    Post-processing: spends no privacy of the release.
    """
    if not norm_bound > 0:
        raise ValueError(f"norm_bound must be a positive number, got {norm_bound}")
    free = fit_least_squares(factor, num_bags, column_names=column_names)
    if not np.linalg.norm(free.coefficients) > norm_bound:
        return replace(free, norm_bound=float(norm_bound))
    features, projected, unexplained = _split(factor, num_bags)
    # The penalty is on unscaled coefficients and pulls a null direction to 0, so this SVD needs no rank.
    left, values, right = linalg.svd(features)
    weights = left.T @ projected
    ridge = _solve_secular(values, weights, norm_bound)
    coefficients = right.T @ (values * weights / (values**2 + ridge))
    coefficients *= norm_bound / np.linalg.norm(coefficients)
    residual = projected - features @ coefficients
    freedom = free.degrees_of_freedom
    variance = (float(residual @ residual) + unexplained**2) / freedom if freedom else float("nan")
    # Perturb F^T(y - F theta) = lam theta with theta^T d(theta) = 0; the score's part along theta drops out.
    damped = (right.T / (values**2 + ridge)) @ right
    pulled = damped @ coefficients
    along = damped - np.outer(pulled, pulled) / float(coefficients @ pulled)
    half = along @ features.T
    message = (
        f"The coefficients were held at the norm bound {norm_bound:g}; their norm without it is "
        f"{np.linalg.norm(free.coefficients):.4g}. Predictions are shrunk; raise it if they are too flat."
    )
    if free.status is not FitStatus.OK:
        message = f"{message} {free.message}"
    return LinearFit(
        coefficients=coefficients,
        covariance=_mask(variance * (half @ half.T), free.undetermined),
        residual_variance=variance,
        degrees_of_freedom=freedom,
        num_bags=num_bags,
        rank=free.rank,
        undetermined=free.undetermined,
        norm_bound=float(norm_bound),
        status=FitStatus.BOUND_ACTIVE,
        message=message,
    )


def _split(factor: Array, num_bags: int) -> tuple[Array, Array, float]:
    """Blocks of ``[R11 r12; 0 r22]``, after checks."""
    factor = np.asarray(factor, dtype=np.float64)
    if factor.ndim != 2 or factor.shape[0] != factor.shape[1] or factor.shape[0] < 2:
        raise ValueError(f"factor must be square with at least 2 columns, got shape {factor.shape}")
    if not np.isfinite(factor).all():
        raise ValueError("factor holds values that are not finite")
    if np.tril(factor, -1).any():
        raise ValueError("factor must be upper-triangular")
    if num_bags < 0:
        raise ValueError(f"num_bags must not be negative, got {num_bags}")
    return factor[:-1, :-1], factor[:-1, -1], float(factor[-1, -1])


def _spectrum(features: Array) -> _Spectrum:
    # Rank is decided on columns of length 1: a rare category is a small column, not an absent one.
    scale = np.linalg.norm(features, axis=0)
    scale[scale == 0] = 1.0
    _, scaled_values, scaled_right = linalg.svd(features / scale)
    absent = scaled_values <= RANK_TOLERANCE * max(1.0, float(scaled_values[0]))
    if not absent.any():
        left, values, right = linalg.svd(features)
        return _Spectrum(left, values, right, ())
    # Null directions in the columns' own units, orthonormal; the row space is their complement.
    null, _ = linalg.qr((scaled_right[absent] / scale).T, mode="economic")
    complement = linalg.null_space(null.T)
    left, values, inner = linalg.svd(features @ complement, full_matrices=False)
    return _Spectrum(left, values, inner @ complement.T, _dependent_groups(null))


def _dependent_groups(null: Array) -> tuple[tuple[int, ...], ...]:
    """Find connected components of the projector on the null space: the same for each of its bases."""
    linked = np.abs(null @ null.T) > 1e-8
    left_over = [int(column) for column in np.flatnonzero(linked.any(axis=1))]
    groups: list[tuple[int, ...]] = []
    while left_over:
        group, frontier = {left_over[0]}, [left_over[0]]
        while frontier:
            near = {int(column) for column in np.flatnonzero(linked[frontier.pop()])} - group
            group |= near
            frontier.extend(near)
        groups.append(tuple(sorted(group)))
        left_over = [column for column in left_over if column not in group]
    return tuple(groups)


def _mask(covariance: Array, undetermined: tuple[tuple[int, ...], ...]) -> Array:
    columns = [column for group in undetermined for column in group]
    covariance[columns, :] = np.nan
    covariance[:, columns] = np.nan
    return covariance


def _solve_secular(values: Array, weights: Array, norm_bound: float) -> float:
    """Find the ridge at which the coefficients' norm is the bound, given that it is larger at ridge 0."""

    # 1/norm is nearly linear in the ridge, the norm itself is not.
    def gap(ridge: float) -> float:
        return float(1.0 / np.linalg.norm(values * weights / (values**2 + ridge)) - 1.0 / norm_bound)

    # ||theta(lam)|| <= ||F^T y|| / lam, so the root lies under ||F^T y|| / bound.
    upper = float(np.linalg.norm(values * weights)) / norm_bound
    root = optimize.brentq(gap, 0.0 if values[-1] > 0 else upper * 1e-30, upper, xtol=1e-300, rtol=1e-14)
    return float(root)


def _judge(spectrum: _Spectrum, num_bags: int, names: Sequence[str] | None) -> tuple[FitStatus, str]:
    d = spectrum.right.shape[1]
    if num_bags <= spectrum.rank:
        return FitStatus.TOO_FEW_BAGS, (
            f"{num_bags} bags do not exceed the {spectrum.rank} directions to be fitted out of {d} columns, "
            f"so there is no residual to judge errors by. Release more bags (at least {d + 2}, better 10 "
            "times the number of columns), or fewer features."
        )
    if spectrum.undetermined:
        groups = "; ".join(_describe(group, names) for group in spectrum.undetermined)
        return FitStatus.RANK_DEFICIENT, (
            f"The release leaves {d - spectrum.rank} of {d} directions undetermined: {groups}. The solution "
            "of least norm was taken; predictions on rows like those aggregated are not affected, single "
            "coefficients of these columns mean nothing. Drop redundant features, or merge categories too "
            "rare for the leverage cap into others."
        )
    return FitStatus.OK, f"Least squares on {num_bags} bags and {d} columns."


def _describe(group: tuple[int, ...], names: Sequence[str] | None) -> str:
    words = [names[column] if names is not None else f"column {column}" for column in group]
    if len(words) == 1:
        return f"{words[0]} is zero in every bag"
    return f"{', '.join(words)} are linearly dependent"
