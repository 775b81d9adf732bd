"""A trained network in a folder: the model as JSON that any tool can read, the losses of its training beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dpagg.config import SchemaConfig
from dpagg.errors import DataError
from dpagg.kernels.network import Network
from dpagg.kernels.schema import Schema

__all__ = ["FORMAT", "MODEL_FILE", "VERSION", "NetworkModel"]

FORMAT, VERSION = "dpagg-network", 1
MODEL_FILE = "model.json"

_HOW_TO_PREDICT = (
    "Encode features as the release did (its columns; numeric ones are clipped to their bounds and scaled to -1..1). "
    "v = encoded features; for each layer but the last: v = max(0, weight v + bias). z = weight v + bias of the last "
    "layer; if output_bound is a number B, z = B tanh(z / B). prediction = label_center + label_half_width * z."
)


@dataclass(frozen=True, eq=False)
class NetworkModel:
    """A network of a declared schema, trained on a release.

    Attributes
    ----------
    network : Network
        From encoded features to the label's units.
    schema_document : mapping
        The schema as its certificate has it.
    training : mapping
        JSON values about the training: identity, epochs, losses, numbers of bags.
    release : mapping
        JSON values about the release that it is made from: mechanism, epsilon, delta, identity.
    """

    network: Network
    schema_document: Mapping[str, Any]
    training: Mapping[str, Any] = field(default_factory=dict)
    release: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> Schema:
        """What the encoded columns mean."""
        return SchemaConfig.model_validate(self.schema_document).to_kernel()

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Predict labels, (k,) in the user's units, from encoded features (k, d)."""
        return self.network(features)

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON values; `from_dict` reads it."""
        network = self.network
        return {
            "format": FORMAT,
            "version": VERSION,
            "how_to_predict": _HOW_TO_PREDICT,
            "schema": dict(self.schema_document),
            "columns": [column.name for column in self.schema.columns],
            "network": {
                "label_center": network.label_center,
                "label_half_width": network.label_half_width,
                "output_bound": network.output_bound,
                "lipschitz_bound": network.lipschitz_bound(),
                "layers": [
                    {"weight": weight.tolist(), "bias": bias.tolist()}
                    for weight, bias in zip(network.weights, network.biases, strict=True)
                ],
            },
            "training": dict(self.training),
            "release": dict(self.release),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> NetworkModel:
        """Read a model written by `to_dict`.

        Raises
        ------
        DataError
            If it is damaged, or of a version this code does not know.
        """
        if document.get("version") != VERSION:
            raise DataError(
                f"the model has version {document.get('version')!r}, this dpagg reads version {VERSION}",
                remedy="Train it again, or use the dpagg that wrote it.",
            )
        try:
            stored = document["network"]
            network = Network(
                tuple(np.array(layer["weight"], dtype=np.float64) for layer in stored["layers"]),
                tuple(np.array(layer["bias"], dtype=np.float64) for layer in stored["layers"]),
                float(stored["label_center"]),
                float(stored["label_half_width"]),
                None if stored["output_bound"] is None else float(stored["output_bound"]),
            )
            model = cls(network, document["schema"], dict(document["training"]), dict(document["release"]))
            names = [column.name for column in model.schema.columns]
            fits = names == document["columns"] and network.num_columns == len(names)
        except (KeyError, TypeError, ValueError, ValidationError):
            fits = False
        if not fits:
            raise DataError(
                "the model is damaged: an entry is missing or does not fit the others", remedy="Train it again."
            )
        return model


def read_network(folder: Path) -> NetworkModel | None:
    """Return the trained network in a folder, None if there is none.

    Raises
    ------
    DataError
        If its file is no model of this version.
    """
    try:
        found = json.loads((folder / MODEL_FILE).read_text(encoding="utf-8"))
        if found["format"] != FORMAT:
            raise ValueError
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(
            f"{folder / MODEL_FILE} is not a trained network", remedy="Give a folder written by dpagg train."
        ) from None
    return NetworkModel.from_dict(found)
