"""One release of weighted aggregates, from table to published Delta table."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dpagg.accounting.certificate import LABEL_DP_PUBLIC, certificate, label_dp_terms
from dpagg.config import AggregateConfig, AssumedFloorConfig, SampledConfig, UnweightedSumsConfig
from dpagg.errors import ConfigError, DataError
from dpagg.kernels.rows import RowSummary
from dpagg.kernels.streams import Secret
from dpagg.kernels.weights import Finish, hidden_level
from dpagg.runs.calibrated import Calibrated
from dpagg.runs.charging import Account, ledger_terms
from dpagg.runs.monitoring import Monitor
from dpagg.runs.plan import Plan, make_plan
from dpagg.runs.release_facts import input_terms, refuse_open_window, release_facts, text_terms
from dpagg.runs.reports import release_page
from dpagg.runs.sampled import run_sampled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.spark.reading import InputTable

_LOG = logging.getLogger(__name__)
KEPT = "kept: released from an earlier version of the input; nothing was drawn"
_COMMENTS = {
    "bag_id": "Number of the bag; its order means nothing",
    "features": "Weighted sums of the encoded features, in the order of the certificate's columns",
    "label": "Weighted sum of the clipped labels with the same weights, plus the certificate's label noise",
}
_PLAIN_COMMENTS = {
    "bag_id": "Number of the bag; its order means nothing",
    "features": "Plain sums of the encoded features, in the order of the certificate's columns",
    "label": "Plain sum of the clipped labels: NOT PRIVATE",
}


@dataclass(frozen=True)
class AggregateResult:
    """A published release.

    Attributes
    ----------
    path : str
        Of the Delta table.
    certificate : dict
        Its certificate.
    is_new : bool
        False if the path held this very release already and nothing was drawn.
    is_older : bool
        Whether what the path held is the answer to this request from an earlier version of the input.
    """

    path: str
    certificate: dict[str, Any]
    is_new: bool
    is_older: bool = False

    def summary(self) -> dict[str, Any]:
        """Return what a person or a scheduler wants to know, as plain JSON values."""
        from dpagg.spark.delta import CERTIFICATE_FILE, REPORT_FILE

        names = (
            "statement",
            "private",
            "mechanism",
            "epsilon",
            "delta",
            "num_bags",
            "num_rows",
            "rows_left_out",
            "label_noise_variance",
        )
        return {
            "path": self.path,
            "certificate": f"{self.path}/{CERTIFICATE_FILE}",
            **({"report": f"{self.path}/{REPORT_FILE}"} if self.is_new else {}),
            "published": "now" if self.is_new else KEPT if self.is_older else "earlier: nothing was drawn",
            **{name: self.certificate[name] for name in names},
        }


def run_aggregate(
    spark: SparkSession,
    config: AggregateConfig,
    *,
    insecure_seed: int | None = None,
    allow_open_window: bool = False,
    monitor: Monitor | None = None,
) -> AggregateResult:
    """Draw one release and publish it at ``output.path``, or recognise that it is there already.

    Parameters
    ----------
    spark : SparkSession
        With Delta.
    config : AggregateConfig
        Of the run.
    insecure_seed : int, optional
        Makes the release reproducible and not private; for tests and papers.
    allow_open_window : bool
        Whether labels may still arrive; the release of a partition again is charged again.
    monitor : Monitor, optional
        Is told how far the run has come.

    Returns
    -------
    AggregateResult

    Raises
    ------
    ConfigError
        If something else is at the output path; not if it is what this very configuration released from an earlier
        version of the input: that is kept.
    DataError, PrivacyError
        As `dpagg.runs.plan.make_plan`; if the release is over the ledger's budget (no label is read then); or if the
        input changed while the release was drawn.
    """
    from dpagg.spark.joining import read_input

    refuse_open_window(config, allow_open_window)
    account = Account.opened(spark, config, monitor)
    table = read_input(spark, config.input, config.encoding.label.name, config.columns)
    return aggregate_table(spark, config, table, insecure_seed=insecure_seed, account=account)


def aggregate_table(
    spark: SparkSession,
    config: AggregateConfig,
    table: InputTable,
    *,
    insecure_seed: int | None = None,
    account: Account | None = None,
) -> AggregateResult:
    """Do what `run_aggregate` does with a table that is open already."""
    from dpagg.spark.delta import check_output, publish, published_certificate
    from dpagg.spark.drawn_bags import DrawnBags

    release_id = _release_id(spark, config, table.version, insecure_seed)
    account = Account.opened(spark, config) if account is None else account
    account.name(release_id)
    earlier = published_certificate(spark, config.output.path)
    if earlier is not None:
        is_older = earlier.get("release_id") != release_id
        if is_older and not _asked_before(spark, config, earlier, insecure_seed):
            raise ConfigError(
                f"{config.output.path} holds another release",
                path="output.path",
                remedy="Choose a new path: a release is never overwritten.",
            )
        if is_older:
            account.name(earlier["release_id"])
            _LOG.warning(
                "%s was released from an earlier version of the input and is kept; what came since is not in it. "
                "To release it again, at its price, give another output.path",
                config.output.path,
            )
        else:
            _LOG.info("the release is published already; nothing was drawn")
        account.found(earlier)
        return AggregateResult(config.output.path, earlier, is_new=False, is_older=is_older)

    check_output(spark, config.output.path)
    secret = Secret.fresh() if insecure_seed is None else Secret.insecure(insecure_seed)
    if isinstance(config.mechanism, SampledConfig):
        promise = run_sampled(spark, config, table, secret, release_id, account)
        return AggregateResult(config.output.path, promise, is_new=True)
    plan = make_plan(spark, config, table)
    account.charge(plan.calibrated.event, secret)
    drawn = draw_release(plan, config, secret, release_id)
    promise = drawn.certificate | account.publishing()
    comments = _PLAIN_COMMENTS if promise["engine"] == "plain" else _COMMENTS
    publish(
        DrawnBags(spark, drawn.finish, drawn.sums),
        config.output.path,
        promise,
        comments,
        page=release_page(promise, burn_down=account.burn_down()),
    )
    account.settle()
    return AggregateResult(config.output.path, promise, is_new=True)


@dataclass(frozen=True, eq=False)
class DrawnRelease:
    """A release up to its last step, which draws its rows where they are written.

    Attributes
    ----------
    finish : Finish
        The last step.
    sums : ndarray, shape (m, r + 1), or None
        Sums that are given to it. NOT private.
    certificate : dict
        Of the release.
    """

    finish: Finish
    sums: NDArray[np.float64] | None
    certificate: dict[str, Any]


def draw_release(plan: Plan, config: AggregateConfig, secret: Secret, release_id: str) -> DrawnRelease:
    """Read the labels of a plan's rows and settle everything about its release.

    Raises
    ------
    ConfigError
        If a row key is needed and there is none.
    DataError
        If the input changed since it was planned.
    """
    engine = _engine(config)
    drawn = _draw(plan, config, engine, secret, release_id)
    plan.table.recheck()
    settled = plan.calibrated if drawn.residual_norm is None else plan.calibrated.settle(drawn.residual_norm)
    finish = Finish(
        secret=secret,
        release_id=release_id,
        num_bags=settled.num_bags,
        noise_std=math.sqrt(_noise_variance(settled, secret, release_id)),
        rule=plan.rule,
        factor=drawn.factor,
    )
    return DrawnRelease(finish, drawn.sums, _certificate(plan, settled, drawn, config, engine, secret, release_id))


def _noise_variance(settled: Calibrated, secret: Secret, release_id: str) -> float:
    hidden = settled.hidden
    if hidden is None:
        return settled.noise_variance
    stream = secret.stream(release_id, "noise-level", 0)
    return hidden_level(stream, mean=hidden.noise_mean, std=hidden.noise_std, floor=hidden.noise_floor)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What the pass over the labels brought: a factor or sums (not private), and the released residual norm."""

    factor: NDArray[np.float64] | None = None
    sums: NDArray[np.float64] | None = None
    residual_norm: float | None = None


def _engine(config: AggregateConfig) -> str:
    """The factor is the faster one at any size: no shuffle, and no term in n times m."""
    if isinstance(config.mechanism, UnweightedSumsConfig):
        return "plain"
    return "factor" if config.performance.engine == "auto" else config.performance.engine


def _draw(plan: Plan, config: AggregateConfig, engine: str, secret: Secret, release_id: str) -> _Drawn:
    """Read the labels."""
    factor, norm = None, None
    if engine == "factor" or plan.calibrated.floor is not None:
        seen = plan.rows.labelled_pass(plan.rule)
        _require_same_rows(plan, seen.summary)
        factor = seen.moments.root(plan.released)
        if plan.calibrated.floor is not None:
            noise = secret.stream(release_id, "residual-norm", 0).standard_normal()
            norm = float(seen.moments.residual_norm + plan.calibrated.floor.noise_std * noise)
    if engine == "factor":
        return _Drawn(factor=factor, residual_norm=norm)
    if config.input.row_id is None:
        raise ConfigError(
            "bags of known members need a row key", path="input.row_id", remedy="Name the column that identifies a row."
        )
    if engine == "rows":
        drawn = plan.rows.weighted_sums_pass(
            plan.rule,
            num_bags=plan.calibrated.num_bags,
            num_partitions=config.performance.num_partitions,
            secret=secret,
            release_id=release_id,
        )
    else:
        drawn = plan.rows.plain_sums_pass(plan.rule, num_bags=plan.calibrated.num_bags)
    _require_same_rows(plan, drawn.summary)
    return _Drawn(sums=drawn.sums.totals, residual_norm=norm)


def _require_same_rows(plan: Plan, seen: RowSummary) -> None:
    """Stop if this pass met other rows than the plan was made for: the noise would not fit them."""
    same = dataclasses.replace(seen, largest_leverage=0.0) == dataclasses.replace(plan.summary, largest_leverage=0.0)
    # Leverages may differ in the last bits between passes: matrix products depend on the size of a batch.
    if not same or seen.largest_leverage > plan.summary.largest_leverage * (1.0 + 1e-9):
        raise DataError(
            "the input changed while it was read; nothing was published",
            remedy="Run again when nothing writes to it, or read a Delta table, whose version is pinned.",
        )


def _floor_facts(settled: Calibrated, drawn: _Drawn) -> dict[str, Any]:
    if settled.floor is None:
        return {}
    return {
        "private_floor": {
            **dataclasses.asdict(settled.floor),
            "released_residual_norm": drawn.residual_norm,
            "supplied": settled.floor.supplied(drawn.residual_norm or 0.0),
        }
    }


def _asked_before(
    spark: SparkSession, config: AggregateConfig, earlier: Mapping[str, Any], insecure_seed: int | None
) -> bool:
    """Return whether a release answers the same request but for the version of the input.

    The digest too, since a release id does not say where the input lies. A table of a notebook lies nowhere: each call
    stands for itself.
    """
    version = earlier.get("input_version")
    return (
        earlier.get("config_digest") == config.digest()
        and isinstance(version, Mapping)
        and "request" not in version
        and earlier.get("release_id") == _release_id(spark, config, version, insecure_seed)
    )


def _release_id(
    spark: SparkSession, config: AggregateConfig, version: Mapping[str, Any], insecure_seed: int | None
) -> str:
    """Name the request: what is asked of which input for which output, however their paths are written."""
    from dpagg.spark.files import qualified

    asked = config.asked()
    del asked["output"]
    identity = json.dumps(
        [asked, version, qualified(spark, config.output.path), insecure_seed], sort_keys=True, ensure_ascii=False
    )
    return hashlib.sha256(identity.encode()).hexdigest()


def _certificate(
    plan: Plan,
    settled: Calibrated,
    drawn: _Drawn,
    config: AggregateConfig,
    engine: str,
    secret: Secret,
    release_id: str,
) -> dict[str, Any]:
    privacy = config.privacy
    assumptions = label_dp_terms(
        max_rows=None if privacy.unit is None else privacy.unit.max_rows, hidden_level=settled.hidden is not None
    )
    if isinstance(privacy.floor, AssumedFloorConfig) and engine != "plain":
        assumptions.insert(
            0,
            f"ASSUMED by the user, not checked: the mean squared residual of the least-squares fit is at least "
            f"{privacy.floor.mean_squared_residual:g} per row, whatever the one label is.",
        )
    assumptions += [*text_terms(config), *input_terms(config), *ledger_terms(config)]
    if engine == "plain":
        assumptions = ["None would help: see the statement."]
    unit = "one label" if privacy.unit is None else f"all labels of one {privacy.unit.column}"
    return certificate(
        settled.event,
        unit=unit,
        mechanism=config.mechanism.name,
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        is_private=secret.is_private,
        assumptions=assumptions,
        public=LABEL_DP_PUBLIC,
        facts={
            **release_facts(config, plan.table, secret, release_id),
            "num_bags": settled.num_bags,
            "num_rows": plan.summary.num_rows,
            "rows_left_out": plan.rows_left_out,
            "leverage": {
                "largest": plan.summary.largest_leverage,
                "cap": plan.leverage_cap if math.isfinite(plan.leverage_cap) else None,
            },
            "rank": plan.rank,
            "label_noise_variance": settled.noise_variance,
            "label_noise_level": "known" if settled.hidden is None else "hidden: the variance given is its mean",
            "failure_probability": getattr(settled.event, "failure_probability", 0.0),
            **_floor_facts(settled, drawn),
            "engine": engine,
        },
    )
