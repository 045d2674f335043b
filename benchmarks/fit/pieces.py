"""Piece: a part of the fit, on one kind of measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.fit.store import Store
from gpuwise.hardware.catalog import Catalog


@dataclass(frozen=True)
class Context:
    """reference: the folder of measurements. cache: where recordings of published jobs are kept. chips: that whole steps of
    language models are learned from, and whose own figures alone they move; empty: all. classes: those of kernels, without
    numerics, that whole steps of vision models move; empty: all."""

    reference: Path
    cache: Path
    catalog: Catalog
    chips: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Piece:
    """fit: puts entries into the store, using no row of its `without`, and gives the error rows (store.error_rows) of what it
    fitted and kept out. unseen: error rows of devices or architectures left out, from fits of its own on top of a store as
    it was before the piece. final: the error rows again, of what later pieces left in the store."""

    name: str
    fit: Callable[[Context, Store], pd.DataFrame]
    unseen: Callable[[Context, Store], pd.DataFrame] | None = None
    final: Callable[[Context, Store, pd.DataFrame], pd.DataFrame] | None = None
