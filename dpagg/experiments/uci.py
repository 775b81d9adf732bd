"""The regression sets of the iterative Hessian mixing paper, and how its protocol prepares them."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpagg.errors import DataError

__all__ = ["KNOWN_SETS", "Split", "available_sets", "load_rows", "paper_split"]

Array = NDArray[np.float64]

# The 33 names of the paper's runs, and where their users get them. Anything else under the folder runs as well.
KNOWN_SETS = {
    "3droad": "UCI: 3D Road Network (North Jutland, Denmark)",
    "airfoil": "UCI: Airfoil Self-Noise",
    "autompg": "UCI: Auto MPG",
    "autos": "UCI: Automobile",
    "bike": "UCI: Bike Sharing (hourly)",
    "breastcancer": "UCI: Breast Cancer Wisconsin (Prognostic)",
    "buzz": "UCI: Buzz in Social Media",
    "concrete": "UCI: Concrete Compressive Strength",
    "concreteslump": "UCI: Concrete Slump Test",
    "crime": "UCI: Communities and Crime",
    "elevators": "L. Torgo's regression sets: Elevators",
    "energy": "UCI: Energy Efficiency",
    "fertility": "UCI: Fertility",
    "forest": "UCI: Forest Fires",
    "gas": "UCI: Gas Sensor Array Drift",
    "housing": "StatLib: Boston housing",
    "keggdirected": "UCI: KEGG Metabolic Relation Network (Directed)",
    "keggundirected": "UCI: KEGG Metabolic Reaction Network (Undirected)",
    "kin40k": "A. Schwaighofer's KIN40K",
    "machine": "UCI: Computer Hardware",
    "parkinsons": "UCI: Parkinsons Telemonitoring",
    "pendulum": "the collection uci_datasets: Pendulum",
    "pol": "L. Torgo's regression sets: Pole Telecomm",
    "protein": "UCI: Physicochemical Properties of Protein Tertiary Structure",
    "pumadyn32nm": "DELVE: Pumadyn, 32nm",
    "servo": "UCI: Servo",
    "slice": "UCI: Relative Location of CT Slices on Axial Axis",
    "sml": "UCI: SML2010",
    "solar": "the collection uci_datasets: Solar",
    "tamielectric": "the collection uci_datasets: Tami Electric",
    "tecator": "StatLib: Tecator",
    "wine": "UCI: Wine Quality (red)",
    "yacht": "UCI: Yacht Hydrodynamics",
}

_TRAINING_SHARE = 0.8


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows as the paper's protocol prepares them, with the data's own moments. NOT private.

    Attributes
    ----------
    features, labels : ndarray (n, d), (n,)
        Training rows of norm at most 1, labels of size at most 1.
    test_features, test_labels : ndarray
        The rest, transformed likewise.
    """

    features: Array
    labels: Array
    test_features: Array
    test_labels: Array


def available_sets(folder: Path, sets: Sequence[str] | None = None) -> list[str]:
    """Return the names of the sets under a folder, or those asked for.

    Raises
    ------
    DataError
        If there is none, or one that was asked for is not there.
    """
    found = sorted(file.parent.name for file in folder.glob("*/data.csv.gz"))
    for name in sets or ():
        if name not in found:
            source = KNOWN_SETS.get(name)
            raise DataError(
                f"there is no {name}/data.csv.gz under the data folder",
                remedy=f"Get it from: {source}." if source else f"There are: {', '.join(found) or 'none'}.",
            )
    if not found:
        raise DataError("there is no NAME/data.csv.gz under the data folder")
    return list(sets) if sets else found


def load_rows(folder: Path, name: str) -> Array:
    """Return all rows of a set, the response last.

    Raises
    ------
    DataError
        If the file cannot be read as numbers.
    """
    try:
        with gzip.open(folder / name / "data.csv.gz", "rt") as stream:
            rows = np.loadtxt(stream, delimiter=",", ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{name}/data.csv.gz is not a gzip file of comma-separated numbers") from error
    if rows.shape[1] < 2 or len(rows) < 5:
        raise DataError(f"{name}/data.csv.gz needs a feature, a response and five rows, it has shape {rows.shape}")
    return rows


def paper_split(rows: Array, seed: int) -> Split:
    """Split 80/20 at random, standardise by training moments, divide by the largest row norm and the largest |y|."""
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = int(_TRAINING_SHARE * len(rows))
    train, test = rows[order[:cut]], rows[order[cut:]]
    center, scale = train[:, :-1].mean(axis=0), train[:, :-1].std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    features, test_features = (train[:, :-1] - center) / scale, (test[:, :-1] - center) / scale
    longest = max(float(np.linalg.norm(features, axis=1).max()), 1e-300)
    largest = max(float(np.abs(train[:, -1]).max()), 1e-300)
    return Split(features / longest, train[:, -1] / largest, test_features / longest, test[:, -1] / largest)
