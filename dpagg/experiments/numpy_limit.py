"""How fast this machine draws weights and multiplies them into rows, without Spark: the limit of the engine `rows`."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpagg.kernels.streams import Secret

# As in `dpagg.kernels.weights`: a tile of weights stays in the second-level cache.
_TILE = 256
_SINGLE_BLAS_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class NumpyLimit:
    """What was measured, every core at work.

    Attributes
    ----------
    seconds : float
        Until the last core has drawn its share of the weights and multiplied it in.
    draw_ns, multiply_ns : float
        On one core, of a normal, and of multiplying it into a row.
    modelled_seconds : float
        Number of weights times both, divided by the cores.
    """

    seconds: float
    draw_ns: float
    multiply_ns: float
    modelled_seconds: float


def numpy_limit(num_weights: int, width: int, cores: int) -> NumpyLimit:
    """Measure `num_weights` weights times rows of `width` columns, in a process a core with one BLAS thread each."""
    share = max(1, round(num_weights / cores / _TILE**2))
    before = {name: os.environ.get(name) for name in _SINGLE_BLAS_THREAD}
    os.environ.update(_SINGLE_BLAS_THREAD)
    try:
        context = multiprocessing.get_context("spawn")
        barrier = context.Barrier(cores)
        with context.Pool(cores, initializer=_meet, initargs=(barrier,)) as pool:
            found = pool.starmap(_measured, [(core, share, width) for core in range(cores)], chunksize=1)
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
    seconds, draws, products = (max(values) for values in zip(*found, strict=True))
    weights = share * _TILE**2
    return NumpyLimit(
        seconds=seconds * num_weights / (weights * cores),
        draw_ns=draws * 1e9,
        multiply_ns=products * 1e9,
        modelled_seconds=num_weights * (draws + products) / cores,
    )


def _meet(barrier: object) -> None:
    global _BARRIER
    _BARRIER = barrier


_BARRIER: object = None


def _measured(core: int, tiles: int, width: int) -> tuple[float, float, float]:
    """Seconds for all tiles, and a weight's seconds of drawing and of multiplying, on a few of them."""
    stream = Secret.insecure(core).stream("limit", "weights", core)
    rows = np.ones((_TILE, width))
    weights, product, total = np.empty((_TILE, _TILE)), np.empty((_TILE, width)), np.zeros((_TILE, width))

    def draw() -> None:
        stream.standard_normal(out=weights)

    def multiply() -> None:
        np.matmul(weights, rows, out=product)
        np.add(total, product, out=total)

    def both() -> None:
        draw()
        multiply()

    few = max(1, min(tiles, 500))
    _seconds(both, min(few, 50))
    _wait()
    apart = [_seconds(step, few) / (few * _TILE**2) for step in (draw, multiply)]
    _wait()
    return _seconds(both, tiles), apart[0], apart[1]


def _wait() -> None:
    wait = getattr(_BARRIER, "wait", None)
    if wait is not None:
        wait()


def _seconds(step: Callable[[], None], times: int) -> float:
    begun = time.perf_counter()
    for _ in range(times):
        step()
    return time.perf_counter() - begun
