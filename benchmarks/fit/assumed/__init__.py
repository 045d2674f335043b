"""Piece "assumed": figures that no table of measurements has, set by hand in the TOML files here, with the reason."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmarks.fit.pieces import Context, Piece
from benchmarks.fit.store import Store
from benchmarks.fit.write import comments
from gpuwise.cost.calibration import parse


def fit(context: Context, store: Store) -> pd.DataFrame:
    """Puts them into the store; there are no rows."""
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        file = parse(text, path.name)
        store.put(file.level, file.of, dict(file.entries))
        store.put_scale(file.level, file.of, dict(file.scale))
        store.said[file.level, file.of] = comments(text)
    return pd.DataFrame({"piece": [], "split": [], "device": [], "log_error": []})


PIECE = Piece("assumed", fit)
