r"""Iterative Hessian mixing with whitened rows: the default private regression.

As in iterative Hessian mixing (arXiv 2601.07545) a private Hessian is the preconditioner of exact, clipped, noisy
gradients. What differs (README, "What the default does differently"):

1. The Hessian is released twice: of rows clipped to a norm that follows their mean square, then, whitened by the first
   release, of rows clipped to a norm that follows d/n. Rows are mapped by ``P ~ (X^T X)^{-1/2}`` afterwards, so that a
   gradient of whitened rows clipped to norm c has sensitivity ``c C`` with ``c^2`` a small multiple of d/n, whatever
   the condition of X and however long its longest row.
2. Residuals are clipped at a multiple of their released root mean square, which every round measures again.
3. Both multiples grow with ``n mu / (d + 1)``, a public number: where noise is large a tight clip is worth its bias,
   where it is small the bias would be all that remains.
4. All rounds are averaged, each by its known noise, and shrunk by `shrink_factors`.

Every release is a Gaussian mechanism (or a sketch, if asked for) whose noise is fixed by the plan relative to its
sensitivity; later ones depend on earlier ones only through clip levels, transforms and coefficients. So their
``mu^2`` add, however adaptive the run is, and the total is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpagg.accounting import Event, GaussianRelease, HessianMixing
from dpagg.accounting.calibration import calibrate_eigenvalue_floor, largest_gaussian_mu
from dpagg.errors import ConfigError
from dpagg.kernels.clipping import ResidualQuery, RowShape
from dpagg.kernels.sketches import symmetric_noise, wishart_gram
from dpagg.kernels.streams import Secret
from dpagg.regression.data import Data
from dpagg.regression.estimate import EstimateStatus, PrivateEstimate, held_in_ball
from dpagg.regression.label_gaussian import public_whitener
from dpagg.regression.planning import Adjacency, Target
from dpagg.regression.shrinkage import shrink_factors

__all__ = ["Shares", "WhitenedMixingPlan", "plan_whitened_mixing"]

Array = NDArray[np.float64]

_SMALLEST = 1e-12
# Error of a round's solution from an imprecise Hessian, relative to the signal, squared: guess for the first round and
# its decrease a round. They only weigh rounds against each other.
_FIRST_ROUND_ERROR = 0.1
_ERROR_DECREASE = 0.1
# Ridge of either Hessian in units of its noise std times sqrt(d); the noise's norm is about 1.4 of them.
_RIDGES = (1.0, 0.4)
_NOISE_DOMINATES = 0.1


@dataclass(frozen=True)
class Shares:
    """Shares of the budget's ``mu^2``; they sum to 1.

    Attributes
    ----------
    row_energy, label_energy : float
        Sums of squares of rows and of labels, which set the first clip levels.
    first_hessian, second_hessian : float
        The two releases of the Hessian.
    squares : float
        Sums of squared residuals, all rounds but the last.
    gradients : float
        Gradients of all rounds.
    """

    row_energy: float
    label_energy: float
    first_hessian: float
    second_hessian: float
    squares: float
    gradients: float


# Tuned on seven of the fourteen sets of `dpagg reproduce ihm`, see its note.
_FULL_SHARES = Shares(0.01, 0.01, 0.14, 0.14, 0.01, 0.69)
# Under label-DP whatever depends on features only is free.
_LABEL_SHARES = Shares(0.0, 0.01, 0.0, 0.0, 0.01, 0.98)


@dataclass(frozen=True)
class WhitenedMixingPlan:
    """A calibrated run: every noise level, and the event that says what they cost.

    Attributes
    ----------
    target : Target
        The data it is for and the guarantee, checked: ``event.delta(epsilon) <= delta``.
    adjacency : str
        ``zero_out_one_row`` (rows of norm at most 1), or ``change_one_label`` (features public).
    event : Event
        What is released.
    mu : float
        Square root of the summed ``mu^2`` that the shares divide.
    shares : Shares
        Which release gets how much of it.
    num_iterations : int
        Rounds T.
    round_growth : float
        Each round gets this many times the ``mu^2`` of the one before.
    row_multiple, residual_multiple : float
        Squared norm bound of a whitened row over its mean square; residual clip over the root mean square.
    sketch_size, eigenvalue_floor : int or None, float
        Rows k of both sketches and gamma, relative to rows of norm 1; None and 0 if the Hessians are released with
        symmetric Gaussian noise instead.
    """

    target: Target
    adjacency: Adjacency
    event: Event
    mu: float
    shares: Shares
    num_iterations: int
    round_growth: float
    row_multiple: float
    residual_multiple: float
    sketch_size: int | None
    eigenvalue_floor: float

    def run(self, data: Data, secret: Secret, release_id: str, *, norm_bound: float | None = None) -> PrivateEstimate:
        """Draw the releases and return the fit.

        Guarantee: (epsilon, delta) under `adjacency`, sensitivities as `dpagg.kernels.clipping` states them. Passes
        over the data: 3 and one a round, under either adjacency.

        Parameters
        ----------
        data : Data
            With the plan's numbers of rows and columns and label bound.
        secret : Secret
            Of this release alone.
        release_id : str
            Of this release alone.
        norm_bound : float, optional
            Bound on the norm of the coefficients; post-processing.

        Raises
        ------
        DataError
            If the data are not those of the plan.
        """
        self.target.check_fits(data)
        return _Run(self, data, secret, release_id).estimate(norm_bound)


def plan_whitened_mixing(
    target: Target,
    *,
    adjacency: Adjacency = "zero_out_one_row",
    num_iterations: int = 5,
    sketch_size: int | None = None,
) -> WhitenedMixingPlan:
    """Calibrate the default solver; nothing here looks at data.

    Parameters
    ----------
    target
        Numbers of rows and columns, label bound, epsilon and delta.
    adjacency
        Which guarantee.
    num_iterations
        Rounds T.
    sketch_size
        If given, the Hessians are released as Gaussian sketches of that many rows, at least d + 2, instead of with
        symmetric noise.

    Raises
    ------
    ConfigError
        If a parameter is out of range.
    PrivacyError
        If the target cannot be met.
    """
    epsilon, delta, d = target.epsilon, target.delta, target.num_columns
    if num_iterations < 1:
        raise ConfigError(f"expected at least one round, got {num_iterations}")
    if sketch_size is not None and (sketch_size < d + 2 or adjacency == "change_one_label"):
        raise ConfigError(
            f"a sketch of {sketch_size} rows of {d} columns under {adjacency}: expected at least d + 2 rows, "
            "and none under change_one_label, where the Hessian is public"
        )
    shares = _FULL_SHARES if adjacency == "zero_out_one_row" else _LABEL_SHARES
    # Less than rounding could add when the parts are put together again.
    mu = largest_gaussian_mu(epsilon=epsilon, delta=delta) * (1 - 1e-12)
    event: Event = GaussianRelease(mu=mu)
    floor = 0.0
    if sketch_size is not None:
        beside = mu * math.sqrt(1 - shares.first_hessian - shares.second_hessian)
        floor = calibrate_eigenvalue_floor(
            epsilon=epsilon, delta=delta, sketch_size=sketch_size, num_sketches=2, gaussian_mu=beside
        )
        event = HessianMixing(sketch_size=sketch_size, num_sketches=2, eigenvalue_floor=floor, gaussian_mu=beside)
    target.check_met(event)
    noise_level = (d + 1) / (target.num_rows * mu)
    return WhitenedMixingPlan(
        target=target,
        adjacency=adjacency,
        event=event,
        mu=mu,
        shares=shares,
        num_iterations=num_iterations,
        round_growth=1.5,
        row_multiple=1.1 * math.sqrt(max(1.0, 0.05 / noise_level)),
        residual_multiple=max(1.0, 0.42 * noise_level**-0.4),
        sketch_size=sketch_size,
        eigenvalue_floor=floor,
    )


@dataclass(frozen=True, eq=False)
class _Whitening:
    """Rows times `transform` have a Gram matrix near the identity, clipped to `norm_bound`."""

    transform: Array
    norm_bound: float

    @property
    def shape(self) -> RowShape:
        return RowShape(self.transform, self.norm_bound)


class _Run:
    """One run of a plan. Whatever is kept between releases is released itself."""

    def __init__(self, plan: WhitenedMixingPlan, data: Data, secret: Secret, release_id: str) -> None:
        self.plan, self.data = plan, data
        self._secret, self._release_id = secret, release_id

    def _stream(self, purpose: str, index: int) -> np.random.Generator:
        return self._secret.stream(self._release_id, f"whitened-mixing/{purpose}", index)

    def _release(
        self, value: Array, sensitivity: float, share: float, purpose: str, index: int = 0
    ) -> tuple[Array, float]:
        """Return the value with the noise with which it costs its share of ``mu^2``, and the noise's std.

        Every Gaussian release of a run goes through here. A matrix is symmetric and gets symmetric noise.
        """
        std = sensitivity / (self.plan.mu * math.sqrt(share))
        rng = self._stream(purpose, index)
        if value.ndim == 2:
            return value + symmetric_noise(rng, len(value), std), std
        return value + std * rng.standard_normal(value.shape), std

    def estimate(self, norm_bound: float | None) -> PrivateEstimate:
        row_energy, label_mean_square = self._energies()
        whitening = self._public_whitening() if self._is_label_dp else self._private_whitening(row_energy)
        return self._iterate(whitening, label_mean_square, norm_bound)

    @property
    def _is_label_dp(self) -> bool:
        return self.plan.adjacency == "change_one_label"

    def _energies(self) -> tuple[float, float]:
        """Release the sum of squared row norms and the mean squared label, both rounded up by their noise."""
        plan, exact = self.plan, self.data.energies()
        n = plan.target.num_rows
        rows = exact.rows
        if not self._is_label_dp:
            released, std = self._release(np.array([rows]), 1.0, plan.shares.row_energy, "row-energy")
            rows = max(float(released[0]), 0.0) + std
        bound = plan.target.label_bound**2
        released, std = self._release(np.array([exact.labels]), bound, plan.shares.label_energy, "label-energy")
        labels = max(float(released[0]), 0.0) + 0.5 * std
        return min(max(rows / n, _SMALLEST), 1.0) * n, min(max(labels / n, _SMALLEST * bound), bound)

    def _public_whitening(self) -> _Whitening:
        """Whiten by the exact Hessian, without the directions in which there are no rows."""
        transform = public_whitener(self.data)
        bound = math.sqrt(self.plan.row_multiple * max(1, transform.shape[1]) / self.plan.target.num_rows)
        # Leverages are public: there is no need to allow for larger ones than there are.
        longest = self.data.largest_norm(transform) * (1 + 1e-9) if transform.size else 0.0
        return _Whitening(transform, max(min(bound, longest), _SMALLEST))

    def _private_whitening(self, row_energy: float) -> _Whitening:
        n, d = self.plan.target.num_rows, self.plan.target.num_columns
        shares = self.plan.shares
        first = RowShape(None, min(1.0, math.sqrt(3.0 * row_energy / n)))
        values, vectors, std = self._hessian(first, 0, shares.first_hessian, row_energy)
        ridge = np.minimum(_RIDGES[0] * std * math.sqrt(d), np.maximum(row_energy - values, 0.0))
        scales = np.maximum(values + ridge, _SMALLEST)
        transform = vectors / np.sqrt(scales)
        second = RowShape(transform, self._whitened_bound(values / scales, transform))
        # The eigenvalues of the whitened Hessian are about 1 at most: those above are noise, or clipped rows before.
        values, vectors, std = self._hessian(second, 1, shares.second_hessian, 1.5 * d)
        ridged = np.maximum(values + _RIDGES[1] * std * math.sqrt(d), _SMALLEST)
        scales = np.where(ridged > 1.0, np.maximum(values, 1.0), ridged)
        transform = transform @ (vectors / np.sqrt(scales))
        return _Whitening(transform, self._whitened_bound(values / scales, transform))

    def _whitened_bound(self, explained: Array, transform: Array) -> float:
        """Norm bound of whitened rows, whose squared norms sum to about the sum of `explained`."""
        bound = math.sqrt(self.plan.row_multiple * max(float(explained.sum()), 1.0) / self.plan.target.num_rows)
        return min(bound, float(np.linalg.norm(transform, 2)))

    def _hessian(self, shape: RowShape, index: int, share: float, trace_bound: float) -> tuple[Array, Array, float]:
        """Release the Gram matrix of shaped rows; return its eigenvalues, shrunk to their mean, and vectors and noise.

        The shrinking is Ledoit and Wolf's, with the variance of the noise known.
        """
        plan, d = self.plan, self.plan.target.num_columns
        sensitivity = shape.norm_bound**2
        gram = self.data.gram(shape)
        if plan.sketch_size is None:
            released, std = self._release(gram, sensitivity, share, "hessian", index)
        else:
            # Rows of norm 1 after division by the bound: gamma I keeps every eigenvalue over gamma.
            added = plan.eigenvalue_floor * sensitivity
            half: Array = np.linalg.cholesky(gram + added * np.eye(d)).T.astype(np.float64)
            sketch = wishart_gram(self._stream("sketch", index), half, plan.sketch_size)
            released = sketch / plan.sketch_size - added * np.eye(d)
            std = added * math.sqrt(2.0 / plan.sketch_size)
        mean = min(max(float(np.trace(released)) / d, 0.0), trace_bound / d)
        centred = released - mean * np.eye(d)
        spread = float(np.sum(centred**2)) / d
        weight = min(1.0, std**2 * (d + 1) / 2 / max(spread, 1e-300))
        values, vectors = np.linalg.eigh((1 - weight) * centred + mean * np.eye(d))
        return np.maximum(values, 0.0), vectors, std

    def _iterate(self, whitening: _Whitening, label_mean_square: float, norm_bound: float | None) -> PrivateEstimate:
        plan = self.plan
        n, rounds = plan.target.num_rows, plan.num_iterations
        transform = whitening.transform
        width = transform.shape[1]
        strength = 1.0 / np.maximum(np.sum(transform**2, axis=0), 1e-300)
        growth = plan.round_growth ** np.arange(rounds)
        gradient_shares = plan.shares.gradients * growth / growth.sum()
        squares_share = plan.shares.squares / max(rounds - 1, 1)
        # Of normal residuals, this share is not clipped: the slope of the clipped gradient.
        slope = float(special.erf(plan.residual_multiple / math.sqrt(2.0)))
        root_mean_square = math.sqrt(label_mean_square)
        whitened = np.zeros(width)
        sum_of_solutions, precision, other_error = np.zeros(width), 0.0, 0.0
        factors = np.zeros(width)
        for t in range(rounds):
            # Residuals of coefficients worth having are hardly ever larger than labels can be.
            clip = min(plan.residual_multiple * root_mean_square, plan.target.label_bound)
            sums = self.data.residual_sums(ResidualQuery(transform @ whitened, whitening.shape, clip))
            sensitivity = self._gradient_sensitivity(whitening.norm_bound, clip)
            gradient, std = self._release(sums.gradient, sensitivity, float(gradient_shares[t]), "gradient", t)
            solution = whitened + gradient / slope
            variance = (std / slope) ** 2
            if t == 0:
                other_error = _FIRST_ROUND_ERROR * max(float(solution @ solution) / max(width, 1) - variance, 0.0)
            else:
                other_error *= _ERROR_DECREASE
            sum_of_solutions += solution / (variance + other_error)
            precision += 1.0 / (variance + other_error)
            average = sum_of_solutions / precision
            factors = shrink_factors(average, 1.0 / precision, strength, n * label_mean_square)
            whitened = factors * average
            if t + 1 < rounds:
                released, std = self._release(np.array([sums.squares]), clip**2, squares_share, "squares", t)
                squares = max(float(released[0]), std)
                root_mean_square = min(1.2 * root_mean_square, math.sqrt(squares / n))
        coefficients = transform @ whitened
        noise = (transform * (factors / max(precision, 1e-300))) @ transform.T
        sampling = root_mean_square**2 * (transform @ transform.T)
        root: Array = np.linalg.pinv(transform).astype(np.float64)
        return _judged(coefficients, noise, sampling, factors, root, norm_bound)

    def _gradient_sensitivity(self, norm_bound: float, clip: float) -> float:
        # A label moves its clipped residual by at most twice the clip and by at most the label range, 2 B.
        return norm_bound * (2.0 * min(clip, self.plan.target.label_bound) if self._is_label_dp else clip)


def _judged(
    coefficients: Array, noise: Array, sampling: Array, factors: Array, root: Array, norm_bound: float | None
) -> PrivateEstimate:
    if norm_bound is not None and np.linalg.norm(coefficients) > norm_bound:
        message = (
            f"The coefficients were held at the norm bound {norm_bound:g}; their norm without it is "
            f"{np.linalg.norm(coefficients):.4g}. The errors are those without the bound."
        )
        held = held_in_ball(coefficients, root, norm_bound)
        return PrivateEstimate(held, noise, sampling, EstimateStatus.BOUND_ACTIVE, message)
    if factors.size == 0 or factors.mean() < _NOISE_DOMINATES:
        message = (
            "The noise hides nearly all of the signal: coefficients are close to zero. Use more rows, a larger "
            "epsilon, fewer columns or tighter declared bounds."
        )
        return PrivateEstimate(coefficients, noise, sampling, EstimateStatus.NOISE_DOMINATES, message)
    return PrivateEstimate(coefficients, noise, sampling, EstimateStatus.OK, "The signal is well above the noise.")
