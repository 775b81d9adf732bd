"""The losses of a training as numbers and as a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpagg.errors import EnvironmentFault

LOSSES_FILE, FIGURE_FILE = "losses.json", "losses.svg"
_MEANING = (
    "Mean over bags of (weighted sum of predictions - released label sum)^2 over the known variance of its noise, an "
    "epoch each: about 1 where noise is all that is left unexplained. Training losses are of the weights as they "
    "changed, held-out losses of their running mean, which is what is kept."
)


def write_losses(folder: Path, training: Mapping[str, Any]) -> None:
    """Write the losses of each epoch beside a model, as JSON and as SVG.

    Raises
    ------
    EnvironmentFault
        If a file cannot be written.
    """
    kept = {name: training[name] for name in ("best_epoch", "training_losses", "held_out_losses")}
    try:
        (folder / LOSSES_FILE).write_text(json.dumps({"meaning": _MEANING, **kept}, indent=1) + "\n", encoding="utf-8")
        _draw(folder / FIGURE_FILE, training)
    except OSError as error:
        raise EnvironmentFault(
            f"the losses could not be written to {folder}: {error.strerror}",
            path="output.path",
            remedy="Check that the folder can be written to and the disk has room; the run then goes on from there.",
        ) from None


def _draw(file: Path, training: Mapping[str, Any]) -> None:
    # A figure of its own: `pyplot` would change the backend of the notebook that trains.
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    # Text stays text, and the same losses give the same file.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dpagg"}):
        figure = Figure(figsize=(6.4, 4.0))
        panel = figure.subplots()
        epochs = range(1, len(training["training_losses"]) + 1)
        panel.plot(epochs, training["training_losses"], "o-", markersize=3, label="training")
        held_out = training["held_out_losses"]
        if any(loss is not None for loss in held_out):
            panel.plot(epochs, held_out, "s--", markersize=3, label="held out")
        panel.axvline(training["best_epoch"], color="grey", linewidth=0.8, label="kept")
        panel.set(xlabel="epoch", ylabel="squared error of a bag over its noise variance")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.legend()
        figure.tight_layout()
        figure.savefig(file, metadata={"Date": None, "Title": "Losses of a training on bags"})
