"""The pieces of the fit, in order: each may stand on the entries of those before it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pandas as pd

from benchmarks.fit import assumed, attention, cpu, gemm, language, operators, updates, vision
from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.store import Store
from benchmarks.support.figures import error_line

KERNELS: tuple[Piece, ...] = (assumed.PIECE, gemm.PIECE, attention.PIECE, operators.VECTOR, operators.CONV)
STEPS: tuple[Piece, ...] = (vision.PIECE, language.PIECE, cpu.PIECE)
PIECES = (*KERNELS, *STEPS, updates.PIECE)


def fit_all(context: Context, store: Store, *, unseen: bool, names: Collection[str] = ()) -> None:
    """Fits the pieces named, or all, into the store; prints their errors and keeps those of every row in the cache.

    unseen: forecast every device without its own rows, too.
    """
    context.cache.mkdir(parents=True, exist_ok=True)
    for piece in PIECES:
        if names and piece.name not in names:
            continue
        before = store.copy()
        rows = piece.fit(context, store)
        if unseen and piece.unseen:
            rows = pd.concat([rows, piece.unseen(context, before)], ignore_index=True)
        for (split, device), part in rows.groupby(["split", "device"]):
            print(f"{piece.name:12} {split:14} {device:32} {error_line(part.log_error.to_numpy())}", flush=True)
        for split, part in rows.groupby("split"):
            print(f"{piece.name:12} {split:14} {'all':32} {error_line(part.log_error.to_numpy())}", flush=True)
        rows.to_parquet(_errors_path(context, piece))
    for piece in PIECES:
        if piece.final and (not names or piece.name in names):
            rows = piece.final(context, store, pd.read_parquet(_errors_path(context, piece)))
            rows.to_parquet(_errors_path(context, piece))


def errors_of(context: Context, pieces: Collection[Piece] = PIECES) -> pd.DataFrame | None:
    """The errors of every row that the last fits of these pieces left in the cache; None where one has left none."""
    paths = [_errors_path(context, piece) for piece in pieces]
    if not all(path.exists() for path in paths):
        return None
    return pd.concat([pd.read_parquet(path) for path in paths], ignore_index=True)


def _errors_path(context: Context, piece: Piece) -> Path:
    return context.cache / f"errors-{piece.name}.parquet"
