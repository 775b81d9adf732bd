"""The attack: the exact likelihood ratio as a test, counted on draws of the kernels that a release calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dpagg.accounting.event import Event
from dpagg.kernels.streams import Secret

FloatArray = NDArray[np.float64]

_LARGEST_BLOCK = 1 << 16
_CANDIDATES = 400
# Chance of an error with which thresholds are compared. The best of many noisy bounds is one that luck favours most; a
# stricter bound keeps away from thresholds that few draws pass, and makes the final bound both larger and steadier.
_CHOICE_ERROR = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """A mechanism on one pair of neighbouring inputs.

    Attributes
    ----------
    name : str
        Of the case, ``mechanism`` or ``mechanism/variant``.
    inputs : str
        The pair in words, and how close to the worst one it is.
    event : Event
        What a certificate of this mechanism would hold: the claim.
    pair : tuple
        Both inputs, as `draw` takes them.
    draw : callable
        ``draw(input, count, secret, release_id)`` returns `count` independent releases. It calls the kernels that the
        Spark path calls.
    log_ratio : callable
        ``ln p(release) / q(release)`` of such releases, shape (count,), where p and q belong to the first and the
        second input. It is computed from the inputs and the mechanism's definition, not from its kernels.
    exact_delta : callable or None
        ``exact_delta(epsilons)`` of this very pair, the larger of both directions, shape (k,).
    """

    name: str
    inputs: str
    event: Event
    pair: tuple[Any, Any]
    draw: Callable[[Any, int, Secret, str], Any]
    log_ratio: Callable[[Any], FloatArray]
    exact_delta: Callable[[FloatArray], FloatArray] | None = None
    block: int = _LARGEST_BLOCK


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """What an attack showed.

    Attributes
    ----------
    name, event, inputs : str
        Of the case; `event` is the class of its event.
    delta : float
        At which epsilons are compared.
    claimed_epsilon : float
        ``event.epsilon(delta)``; may be infinite.
    exact_epsilon : float or None
        Of the attacked pair, without sampling error, where it is known.
    empirical_epsilon : float
        Lower bound on epsilon at `confidence`: no mechanism of a smaller epsilon at this delta would have given such
        counts, except with the remaining probability.
    draws : int
        Releases counted on each side.
    confidence : float
        Of the lower bound.
    direction : str
        ``"first"`` if the test looks for the first input, else ``"second"``.
    """

    name: str
    event: str
    inputs: str
    delta: float
    claimed_epsilon: float
    exact_epsilon: float | None
    empirical_epsilon: float
    draws: int
    confidence: float
    direction: str

    @property
    def holds(self) -> bool:
        """Whether the claim survived the attack."""
        return self.empirical_epsilon <= self.claimed_epsilon

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; infinite numbers as text."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__} | {"holds": self.holds}
        return {name: str(v) if isinstance(v, float) and math.isinf(v) else v for name, v in found.items()}


def attack(case: Case, *, delta: float, secret: Secret, draws: int = 400_000, confidence: float = 0.95) -> AuditResult:
    """Attack a mechanism on one pair of inputs and return a lower bound on its epsilon.

    For every event E an (epsilon, delta)-private mechanism has ``P(E) <= e^epsilon Q(E) + delta``, hence
    ``epsilon >= ln((P(E) - delta) / Q(E))``. E is "the log-likelihood ratio passes a threshold", the most powerful
    test of each size (Neyman and Pearson). The threshold and the direction are chosen on half as many other draws;
    then P(E) is bounded from below and Q(E) from above by Clopper and Pearson (1934), each at half the remaining
    probability.

    Parameters
    ----------
    case : Case
        What is attacked.
    delta : float
        At which epsilon is bounded, in (0, 1).
    secret : Secret
        Of the draws; insecure ones make the audit reproducible.
    draws : int
        Releases counted on each side, at least 1000. An epsilon of 1 at delta 1e-3 is seen as about 0.82, 0.9 and
        0.94 with 1e5, 4e5 and 1e6 draws, give or take 0.05, 0.03 and 0.02.
    confidence : float
        Of the lower bound.

    Returns
    -------
    AuditResult

    Raises
    ------
    ValueError
        If a parameter is out of range.
    """
    if not 0 < delta < 1 or not 0 < confidence < 1 or draws < 1000:
        raise ValueError(f"need delta and confidence in (0, 1) and 1000 draws, got {delta}, {confidence}, {draws}")
    chosen = [_losses(case, side, draws // 2, secret, "choose") for side in (0, 1)]
    first, at_first = _best_threshold(chosen[0], chosen[1], delta)
    second, at_second = _best_threshold(-chosen[1], -chosen[0], delta)
    side = 0 if first >= second else 1  # the input that the test looks for
    sign, threshold = (1.0, at_first) if side == 0 else (-1.0, at_second)
    true, false = (
        np.array([np.count_nonzero(sign * _losses(case, one, draws, secret, "count") > threshold)])
        for one in (side, 1 - side)
    )
    bound = float(_epsilon_bound(true, false, draws, delta, (1 - confidence) / 2)[0])
    return AuditResult(
        name=case.name,
        event=type(case.event).__name__,
        inputs=case.inputs,
        delta=delta,
        claimed_epsilon=case.event.epsilon(delta),
        exact_epsilon=None if case.exact_delta is None else exact_epsilon(case.exact_delta, delta),
        empirical_epsilon=bound,
        draws=draws,
        confidence=confidence,
        direction=("first", "second")[side],
    )


def exact_epsilon(curve: Callable[[FloatArray], FloatArray], delta: float) -> float:
    """Return the least epsilon >= 0 at which a falling curve is at most delta, to 1e-9; ``inf`` beyond 1e4."""
    low, high = 0.0, 1.0
    if curve(np.array([0.0]))[0] <= delta:
        return 0.0
    while curve(np.array([high]))[0] > delta:
        low, high = high, 2 * high
        if high > 1e4:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if curve(np.array([middle]))[0] <= delta else (middle, high)
    return high


def clopper_pearson(hits: NDArray[np.int64] | FloatArray, draws: int, error: float) -> tuple[FloatArray, FloatArray]:
    """Return lower and upper bounds of a probability, each wrong with a chance of at most `error`.

    Source: Clopper and Pearson (1934): quantiles of Beta(hits, draws - hits + 1) and Beta(hits + 1, draws - hits).
    """
    k = np.asarray(hits, dtype=float)
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, special.betaincinv(np.maximum(k, 1e-300), draws - k + 1, error), 0.0)
        high = np.where(k < draws, special.betainccinv(k + 1, np.maximum(draws - k, 1e-300), error), 1.0)
    return low, high


def _losses(case: Case, side: int, count: int, secret: Secret, stage: str) -> FloatArray:
    """The statistic of `count` releases of one input; each block of them is a release id of its own."""
    out: Sequence[FloatArray] = [
        case.log_ratio(
            case.draw(case.pair[side], min(case.block, count - first), secret, f"{case.name} {stage} {side} {first}")
        )
        for first in range(0, count, case.block)
    ]
    return np.concatenate(out)


def _best_threshold(true: FloatArray, false: FloatArray, delta: float) -> tuple[float, float]:
    """The bound at the best threshold, and the threshold, which lies just under a value of the statistic."""
    draws = len(true)
    ranks = np.unique(np.geomspace(1, draws, _CANDIDATES).astype(int)) - 1
    thresholds = np.nextafter(np.sort(true)[::-1][ranks], -np.inf)
    hits = [draws - np.searchsorted(np.sort(x), thresholds, side="right") for x in (true, false)]
    bounds = _epsilon_bound(hits[0], hits[1], draws, delta, _CHOICE_ERROR)
    best = int(np.argmax(bounds))
    return float(bounds[best]), float(thresholds[best])


def _epsilon_bound(
    true: NDArray[np.int64], false: NDArray[np.int64], draws: int, delta: float, error: float
) -> FloatArray:
    """``ln((P - delta) / Q)`` at least 0, where P is bounded from below and Q from above."""
    low, _ = clopper_pearson(true, draws, error)
    _, high = clopper_pearson(false, draws, error)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(np.log(np.maximum(low - delta, 0.0) / high), 0.0))
