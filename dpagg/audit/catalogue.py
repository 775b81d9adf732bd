"""All attacks by name."""

from __future__ import annotations

from collections.abc import Callable

from dpagg.audit.attack import Case
from dpagg.audit.bag_cases import noisy_label_aggregation, sampled_aggregation
from dpagg.audit.label_cases import (
    column_pair,
    hidden_noise,
    intercept_pair,
    private_floor,
    residual_norm_release,
    unweighted_sums,
    user_aggregation,
    weighted_aggregation,
)
from dpagg.audit.row_cases import adassp, hessian_mixing, linear_mixing
from dpagg.audit.solver_cases import label_gaussian, noisy_gradient_descent, padded_sketch
from dpagg.kernels.bags import AUTO_ACCEPTANCE

# Each makes a case for a claim: epsilon and delta.
CASES: dict[str, Callable[[float, float], Case]] = {
    "wtd-flag/factor": lambda e, d: weighted_aggregation(epsilon=e, delta=d, pair=intercept_pair(2)),
    "wtd-flag/rows": lambda e, d: weighted_aggregation(
        epsilon=e, delta=d, pair=intercept_pair(2), name="wtd-flag/rows", engine="rows"
    ),
    "wtd-flag/no-intercept": lambda e, d: weighted_aggregation(
        epsilon=e, delta=d, pair=column_pair(0.8), name="wtd-flag/no-intercept"
    ),
    "wtd-flag/private-floor": lambda e, d: private_floor(epsilon=e, delta=d, pair=intercept_pair(2)),
    "wtd-flag/hidden-noise": lambda e, d: hidden_noise(epsilon=e, delta=d, pair=intercept_pair(2)),
    "wtd-flag/users": lambda e, d: user_aggregation(epsilon=e, delta=d),
    "sampled-wtd-flag": lambda e, d: sampled_aggregation(epsilon=e, delta=d, pair=intercept_pair(2)),
    "sampled-noisy-wtd-lag/any-weights": lambda e, d: noisy_label_aggregation(epsilon=e, delta=d),
    "sampled-noisy-wtd-lag/capped": lambda e, d: noisy_label_aggregation(
        epsilon=e, delta=d, acceptance=AUTO_ACCEPTANCE
    ),
    "residual-norm": lambda e, d: residual_norm_release(epsilon=e, delta=d, pair=intercept_pair(200)),
    "unweighted-sums": lambda e, d: unweighted_sums(pair=intercept_pair(3)),
    "hessian-mixing/rows": lambda e, d: hessian_mixing(epsilon=e, delta=d, sketch="rows"),
    "hessian-mixing/share": lambda e, d: hessian_mixing(epsilon=e, delta=d, sketch="share"),
    "hessian-mixing/wishart": lambda e, d: hessian_mixing(epsilon=e, delta=d, sketch="wishart"),
    "hessian-mixing/eigenvalue": lambda e, d: padded_sketch(epsilon=e, delta=d),
    "linear-mixing": lambda e, d: linear_mixing(epsilon=e, delta=d),
    "adassp": lambda e, d: adassp(epsilon=e, delta=d),
    "label-gaussian": lambda e, d: label_gaussian(epsilon=e, delta=d),
    "dp-gd": lambda e, d: noisy_gradient_descent(epsilon=e, delta=d),
}


def cases(mechanism: str | None = None) -> list[str]:
    """Return the names of all cases, or of those of one mechanism (``wtd-flag`` has several)."""
    return [name for name in CASES if mechanism is None or mechanism in (name, name.split("/")[0])]
