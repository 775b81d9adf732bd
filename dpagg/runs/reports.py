"""The HTML page of a release or a model: published with it by each run, and made again on request."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpagg.accounting.certificate import FORMAT as CERTIFICATE_FORMAT
from dpagg.errors import ConfigError, DataError, EnvironmentFault
from dpagg.regression.model import FORMAT as MODEL_FORMAT
from dpagg.regression.model import LinearModel
from dpagg.runs.certificates import load_certificate
from dpagg.runs.network_model import FORMAT as NETWORK_FORMAT
from dpagg.runs.network_model import MODEL_FILE as NETWORK_FILE

__all__ = [
    "NETWORK_REPORT",
    "existing_report",
    "make_report",
    "network_losses",
    "release_page",
    "report_beside",
    "report_path",
    "write_report",
]

_LOG = logging.getLogger(__name__)

# As in the folder of a Delta table: the underscore keeps VACUUM from removing it and readers from reading it.
RELEASE_REPORT = "_report.html"
NETWORK_REPORT = "report.html"
_CERTIFICATE = "_certificate.json"
_MAKE_IT = "Name one release or model: its folder, or its file."


def release_page(
    certificate: Mapping[str, Any],
    model: LinearModel | None = None,
    *,
    burn_down: Sequence[tuple[str, float, float]] = (),
    losses: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str | None:
    """Return the page that a run publishes; arguments as `dpagg.report.render_report`.

    A release is worth more than its page, and may be paid for already: if the page cannot be made, that is logged and
    None returned.
    """
    try:
        from dpagg.report import render_report

        return render_report(certificate, model, burn_down=burn_down, losses=losses)
    except Exception as error:
        _LOG.warning(
            "the report could not be made (%s); dpagg report makes it from the certificate", type(error).__name__
        )
        return None


def report_path(model_file: Path) -> Path:
    """Return where the page of a model file lies: beside it, ``model.html`` for ``model.json``."""
    page = model_file.with_suffix(".html")
    return page if page != model_file else model_file.with_name(f"{model_file.name}.report.html")


def existing_report(model_file: Path) -> Path | None:
    """Return the page of a model file, None if there is none."""
    page = report_path(model_file)
    return page if page.exists() and _is_ours(page) else None


def report_beside(model_file: Path, certificate: Mapping[str, Any] | None = None) -> None:
    """Write the page of a model that a run has just written or found, unless it is there already.

    A file of somebody else is left alone. Nothing here can fail a run: what goes wrong is logged.

    Parameters
    ----------
    model_file : Path
        Written by `dpagg.runs.model_file.write_model`.
    certificate : mapping, optional
        Of the release that the model was fitted on; a private fit has its own in the file.
    """
    page = report_path(model_file)
    try:
        document = json.loads(model_file.read_text(encoding="utf-8"))
        if page.exists() and page.stat().st_mtime_ns >= model_file.stat().st_mtime_ns:
            return
        write_report(page, release_page(document.get("certificate", certificate), LinearModel.from_dict(document)))
    except (OSError, ValueError, DataError) as error:
        _LOG.warning("the report of the model could not be written (%s)", type(error).__name__)


def write_report(page: Path, text: str | None) -> None:
    """Write a page that a run publishes beside files of its own; nothing if there is none, or somebody else's is there.

    Nothing here can fail a run: what goes wrong is logged.
    """
    try:
        if text is not None and (not page.exists() or _is_ours(page)):
            _write(page, text)
    except OSError as error:
        _LOG.warning("the report could not be written (%s)", type(error).__name__)


def make_report(path: Path, out: Path | None = None) -> Path:
    """Make the page of a release or a model again, from its certificate and its file alone.

    Parameters
    ----------
    path : Path
        Folder of a release, model file, folder of a trained network, certificate, or a folder that holds one release,
        one model, or one of each.
    out : Path, optional
        Where to write; by default where a run would have.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    DataError
        If there is nothing to report there, or it cannot be read.
    ConfigError
        If there are several releases or models, or a file of somebody else is where the page should go.
    EnvironmentFault
        If the page cannot be written.
    """
    found = _find(path)
    target = found.place if out is None else out
    if target.is_dir() or (target.exists() and not _is_ours(target)):
        raise ConfigError(f"{target} exists and is no report", path="--out", remedy="Give another file with --out.")
    from dpagg.report import render_report

    try:
        text = render_report(found.certificate, found.model, losses=found.losses)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} does not hold all that a report needs ({type(error).__name__})",
            remedy="Make it with the release of dpagg that wrote it, or a newer one.",
        ) from None
    try:
        _write(target, text)
    except OSError as error:
        raise EnvironmentFault(
            f"the report could not be written to {target}: {error.strerror}", remedy="Give another file with --out."
        ) from None
    return target


def network_losses(training: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Return (epoch, loss) of a training by the name of the curve; epochs without a loss are left out."""
    curves = {"training": training["training_losses"], "held-out bags": training["held_out_losses"]}
    return {
        name: [(epoch, float(loss)) for epoch, loss in enumerate(losses, start=1) if loss is not None]
        for name, losses in curves.items()
    }


@dataclass(frozen=True)
class _Found:
    """What a page is made of, and its place."""

    place: Path
    certificate: Mapping[str, Any] | None
    model: LinearModel | None = None
    losses: Mapping[str, Sequence[tuple[float, float]]] | None = None


def _find(path: Path) -> _Found:
    if not path.is_dir():
        document = _document(path)
        if document.get("format") == NETWORK_FORMAT:
            return _of_network(document, path.parent)
        if document.get("format") == MODEL_FORMAT:
            return _of_model(document, path)
        return _Found(path.with_name(RELEASE_REPORT), load_certificate(path))
    if (path / _CERTIFICATE).is_file():
        return _Found(path / RELEASE_REPORT, load_certificate(path))
    if (path / NETWORK_FILE).is_file() and _peek(path / NETWORK_FILE) == NETWORK_FORMAT:
        return _of_network(_document(path / NETWORK_FILE), path)
    models = [file for file in sorted(path.glob("*.json")) if _peek(file) == MODEL_FORMAT]
    releases = [file.parent for file in sorted(path.glob(f"*/{_CERTIFICATE}")) if _peek(file) == CERTIFICATE_FORMAT]
    if len(models) == 1:
        return _of_model(_document(models[0]), models[0])
    if len(releases) == 1 and not models:
        return _Found(releases[0] / RELEASE_REPORT, load_certificate(releases[0]))
    if not models and not releases:
        raise DataError(f"no release and no model in {path}", remedy=_MAKE_IT)
    names = ", ".join(str(each) for each in [*models, *releases][:8])
    raise ConfigError(f"{path} holds several: {names}", remedy=_MAKE_IT)


def _of_model(document: Mapping[str, Any], file: Path) -> _Found:
    model = LinearModel.from_dict(document)
    certificate = document.get("certificate")
    if not isinstance(certificate, dict):
        certificate = _of_release(model.release.get("release_id"), file.parent)
    return _Found(report_path(file), certificate, model)


def _of_network(document: Mapping[str, Any], folder: Path) -> _Found:
    release, training = document.get("release"), document.get("training")
    if not isinstance(release, dict) or not isinstance(training, dict):
        raise DataError(f"{folder / NETWORK_FILE} is damaged", remedy="Train the network again.")
    certificate = _of_release(release.get("release_id"), folder.absolute().parent)
    if certificate is None:
        raise DataError(
            f"the release that {folder} was trained on does not lie beside it",
            remedy="Put its folder, or a copy of its _certificate.json in a folder, beside that of the network.",
        )
    return _Found(folder / NETWORK_REPORT, certificate, losses=network_losses(training))


def _of_release(release_id: object, folder: Path) -> Mapping[str, Any] | None:
    """Return the certificate of a release in one of the folders of a folder."""
    for file in sorted(folder.glob(f"*/{_CERTIFICATE}")):
        if _peek(file) == CERTIFICATE_FORMAT:
            found = load_certificate(file)
            if found.get("release_id") == release_id:
                return found
    return None


def _document(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no {file}", remedy=_MAKE_IT) from None
    except (OSError, ValueError):
        raise DataError(f"{file} isn't readable as JSON", remedy=_MAKE_IT) from None
    if not isinstance(found, dict):
        raise DataError(f"{file} is neither a certificate nor a model", remedy=_MAKE_IT)
    return found


def _peek(file: Path) -> str | None:
    """What a file says it is; None if it is no JSON object."""
    try:
        return str(_document(file).get("format"))
    except DataError:
        return None


def _is_ours(page: Path) -> bool:
    from dpagg.report import GENERATOR

    try:
        with page.open("rb") as stream:
            return GENERATOR.encode() in stream.read(4096)
    except OSError:
        return False


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    partial = page.with_name(f".{page.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("x", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(partial, page)
    finally:
        partial.unlink(missing_ok=True)
