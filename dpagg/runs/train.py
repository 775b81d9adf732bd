"""One network from a Sampled-Noisy-WTD-LAg release, from its files to a folder with model and losses."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpagg
from dpagg.config import TrainConfig
from dpagg.errors import ConfigError, DataError, DpaggError, EnvironmentFault
from dpagg.kernels.schema import Schema
from dpagg.runs.certificates import load_certificate
from dpagg.runs.loss_curves import write_losses
from dpagg.runs.model_file import local_path, write_model
from dpagg.runs.network_model import MODEL_FILE, NetworkModel, read_network
from dpagg.runs.release_schema import carried_facts, release_schema
from dpagg.runs.reports import NETWORK_REPORT, network_losses, release_page, write_report
from dpagg.spark.delta import read_certificate
from dpagg.spark.release_files import delta_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpagg.neural.streaming import BagLaw
    from dpagg.neural.training import Trained

__all__ = ["TrainResult", "run_train"]

_LOG = logging.getLogger(__name__)
_MECHANISM = "sampled-noisy-wtd-lag"
_CHECKPOINT = "checkpoint.eqx"
_LIBRARIES = ("jax", "optax", "equinox")
# Rows of a batch where its size is not given: large enough for the matrices, small enough for many steps an epoch.
_BATCH_ROWS = 4096


@dataclass(frozen=True)
class Progress:
    """How far a training is.

    Attributes
    ----------
    epoch, max_epochs : int
        Epochs done, and epochs at most.
    batch, num_batches : int
        Batches done of this epoch.
    held_out_loss, best_loss : float or None
        Of the last epoch and of the best one, once there are any.
    """

    epoch: int
    max_epochs: int
    batch: int
    num_batches: int
    held_out_loss: float | None
    best_loss: float | None


@dataclass(frozen=True)
class TrainResult:
    """A trained network and where it is.

    Attributes
    ----------
    path : str
        Of the folder.
    model : NetworkModel
        The model.
    is_new : bool
        False if the folder held this very model already.
    """

    path: str
    model: NetworkModel
    is_new: bool

    def summary(self) -> dict[str, Any]:
        """Return what a person or a scheduler wants to know, as plain JSON values."""
        training = {name: value for name, value in self.model.training.items() if not isinstance(value, list)}
        page = Path(self.path) / NETWORK_REPORT
        return {
            "path": self.path,
            **({"report": str(page)} if page.exists() else {}),
            "written": "now" if self.is_new else "earlier: the folder holds this model already",
            "release": dict(self.model.release),
            "training": training,
        }


def run_train(
    config: TrainConfig, spark: SparkSession, *, report: Callable[[Progress], None] = lambda progress: None
) -> TrainResult:
    """Train a network on a release and write it into the folder ``output.path``, or recognise it there.

    The network is post-processing of the release: it spends no privacy beyond what the certificate states. A run that
    was killed goes on from its last checkpoint when the same configuration is run again, and ends with the very
    network that it would have had. Spark lists the files of the release; training reads them without it.

    Parameters
    ----------
    config : TrainConfig
        Release, network, training and output of the run.
    spark : SparkSession
        With Delta.
    report : callable
        Called with each step's progress.

    Returns
    -------
    TrainResult

    Raises
    ------
    ConfigError
        If the release is of another mechanism, something else is at the output path, or training diverges.
    DataError
        If there is no release, or it does not agree with its certificate.
    EnvironmentFault
        If the extra ``neural`` is not installed, or the folder cannot be written.
    """
    _require_libraries()
    certificate, files = _release(config, spark)
    schema = release_schema(certificate, [_MECHANISM])
    folder = local_path(config.output.path)
    identity = _identity(config, certificate)
    earlier = _settled(folder, identity)
    if earlier is not None:
        _LOG.info("the model is there already")
        if not (folder / NETWORK_REPORT).exists():  # the run that wrote the model ended before its page
            _write_page(folder, certificate, earlier)
        return TrainResult(str(folder), earlier, is_new=False)
    with _alone(folder):
        try:
            model = _trained(config, certificate, schema, files, folder, identity, report)
        except DpaggError:
            with suppress(OSError):
                folder.rmdir()  # unless there is a checkpoint to go on from
            raise
        write_losses(folder, model.training)
        write_model(folder / MODEL_FILE, model.to_dict())
        _write_page(folder, certificate, model)
        (folder / _CHECKPOINT).unlink(missing_ok=True)
    return TrainResult(str(folder), model, is_new=True)


def _write_page(folder: Path, certificate: Mapping[str, Any], model: NetworkModel) -> None:
    write_report(folder / NETWORK_REPORT, release_page(certificate, losses=network_losses(model.training)))


def _require_libraries() -> None:
    absent = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if absent:
        raise EnvironmentFault(
            f"training a network needs {', '.join(absent)}, which this Python does not have",
            remedy="pip install 'dpagg[neural]'",
        )


def _release(config: TrainConfig, spark: SparkSession) -> tuple[dict[str, Any], list[str]]:
    path = config.release.path
    if config.release.format == "delta":
        certificate = read_certificate(spark, path)
        return certificate, delta_files(spark, path)
    folder = local_path(path)
    certificate = load_certificate(folder)
    if (folder / "_delta_log").exists():
        raise ConfigError(
            "the release is a Delta table, parquet is given",
            path="release.format",
            remedy="Leave it out: only its log tells which files belong to it.",
        )
    return certificate, sorted(str(file) for file in folder.glob("*.parquet"))


def _identity(config: TrainConfig, certificate: Mapping[str, Any]) -> str:
    """What is trained on what: the same training ends with the same network, so it may be gone on with."""
    content = config.public_dict()
    for section in ("performance", "output", "release"):  # a folder may be moved between two runs
        del content[section]
    parts = [content, certificate["release_id"], certificate.get("draw_id"), dpagg.__version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _settled(folder: Path, identity: str) -> NetworkModel | None:
    """Return the model that is in the folder already; None if it is free, or holds this training unfinished."""
    from dpagg.neural.checkpoints import checkpoint_identity

    other = ConfigError(
        f"{folder} exists and holds something else than this training",
        path="output.path",
        remedy="Choose a new path; nothing is ever overwritten.",
    )
    try:
        there = {each.name for each in folder.iterdir()} if folder.exists() else set()
    except NotADirectoryError:
        raise other from None
    if MODEL_FILE in there:
        try:
            model = read_network(folder)
        except DataError:
            raise other from None
        if model is None or model.training.get("identity") != identity:
            raise other
        (folder / _CHECKPOINT).unlink(missing_ok=True)
        return model
    if _CHECKPOINT in there and checkpoint_identity(folder / _CHECKPOINT) not in (identity, None):
        raise other
    if any(not name.startswith((_CHECKPOINT, f".{_CHECKPOINT}.", "losses.", f".{MODEL_FILE}.")) for name in there):
        raise other
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{folder} cannot be made: {error.strerror}", path="output.path") from None
    return None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other runs out of the folder until this one ends, however it ends; they would replace its checkpoint."""
    place = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another run trains in {folder} just now",
                path="output.path",
                remedy="Wait for it to end, or choose a new path.",
            ) from None
        except OSError:  # a file system without locks
            _LOG.debug("the folder cannot be locked")
        yield
    finally:
        os.close(place)


def _law(config: TrainConfig, certificate: Mapping[str, Any], schema: Schema) -> BagLaw:
    from dpagg.neural.streaming import BagLaw

    label = schema.label
    try:
        size, noised = int(certificate["bag_size"]), int(certificate["num_noised"])
        variance = float(certificate["label_noise_variance"])
        is_law = 1 <= noised <= size and 0 < variance < math.inf
    except (KeyError, TypeError, ValueError):
        is_law = False
    if not is_law:
        raise DataError(
            "the certificate of the release does not say what noise its bags carry",
            path="release.path",
            remedy="Somebody changed it after the release. Restore its first version.",
        )
    return BagLaw(
        bag_size=size,
        num_columns=schema.num_columns,
        num_noised=noised,
        noise_variance=variance,
        label_center=label.lower / 2 + label.upper / 2,
        label_half_width=label.upper / 2 - label.lower / 2,
        row_variance=config.training.residual_std**2,
    )


def _trained(
    config: TrainConfig,
    certificate: Mapping[str, Any],
    schema: Schema,
    files: list[str],
    folder: Path,
    identity: str,
    report: Callable[[Progress], None],
) -> NetworkModel:
    from dpagg.neural.networks import Architecture
    from dpagg.neural.streaming import BagStream
    from dpagg.neural.training import CheckpointRule, Position, TrainingSettings, train

    law, given, network = _law(config, certificate, schema), config.training, config.network
    batch_size = max(1, _BATCH_ROWS // law.bag_size) if given.batch_size == "auto" else given.batch_size
    stream = BagStream(files, law, batch_size=batch_size, held_out=given.held_out, seed=given.seed)
    if stream.num_bags != certificate["num_bags"]:
        raise DataError(
            f"the release holds {stream.num_bags:,} bags, its certificate says {certificate['num_bags']:,}",
            path="release.path",
            remedy="Somebody changed it after the release. Restore its first version.",
        )
    settings = TrainingSettings(
        max_epochs=given.max_epochs,
        learning_rate=given.learning_rate,
        weight_decay=given.weight_decay,
        averaging=given.averaging,
        patience=given.patience if given.held_out > 0 else given.max_epochs,
        seed=given.seed,
    )
    rule = CheckpointRule(folder / _CHECKPOINT, identity, config.performance.checkpoint_seconds)

    def tell(position: Position, num_batches: int) -> None:
        losses = [loss for loss in position.held_out_loss if math.isfinite(loss)]
        last, best = (losses[-1], min(losses)) if losses else (None, None)
        report(Progress(position.epoch, settings.max_epochs, position.batch, num_batches, last, best))

    try:
        found = train(
            stream,
            Architecture(tuple(network.hidden), network.lipschitz, network.output_bound),
            settings,
            rule,
            tell,
        )
    except ConfigError:  # it diverged, and would again: nothing to go on with
        (folder / _CHECKPOINT).unlink(missing_ok=True)
        raise
    facts = _facts(found, stream.num_training, stream.num_held_out, stream.batch_size)
    return NetworkModel(
        network=found.network.to_network(label_center=law.label_center, label_half_width=law.label_half_width),
        schema_document=certificate["schema"],
        training={"identity": identity, "config_digest": config.digest(), "code_version": dpagg.__version__, **facts},
        release=carried_facts(certificate),
    )


def _facts(found: Trained, num_training: int, num_held_out: int, batch_size: int) -> dict[str, Any]:
    position = found.position
    held_out = [loss if math.isfinite(loss) else None for loss in position.held_out_loss]
    return {
        "epochs": position.epoch,
        "best_epoch": position.best_epoch + 1,
        "stopped_early": found.stopped_early,
        "held_out_loss": held_out[position.best_epoch],
        "num_training_bags": num_training,
        "num_held_out_bags": num_held_out,
        "batch_size": batch_size,
        "training_losses": list(position.training_loss),
        "held_out_losses": held_out,
    }
