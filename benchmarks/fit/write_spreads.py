"""Spreads of whole steps into cost/data/calibration/steps.toml, in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tomli_w

from benchmarks.fit.write import FOLDER
from gpuwise.atomic import written_whole
from gpuwise.cost.calibration import parse_steps
from gpuwise.cost.calibration.files import SCHEMA, STEPS
from gpuwise.cost.calibration.steps import StepSpread

HEADER = """\
# 90 % of measured / forecast of whole steps lie between low and high, by the level that the figures of their kernels come
# from. rows: how many steps, kept out of every fit, say so; without, low and high are assumed.
"""


def write_spreads(rows: Iterable[Mapping[str, Any]]) -> None:
    """Puts [[spread]] rows (benchmarks.fit.intervals.spreads gives them) into the file; those of other steps stay."""
    path = FOLDER / STEPS
    known = {_key(spread): _table(spread) for spread in parse_steps(path.read_text(encoding="utf-8"))}
    for row in rows:
        spread = StepSpread(**row)
        known[_key(spread)] = _table(spread)
    text = HEADER + tomli_w.dumps({"schema": SCHEMA, "spread": list(known.values())})
    parse_steps(text, path.name)  # what could not be read again is not written
    with written_whole(path) as file:
        file.write(text.encode())


def _key(spread: StepSpread) -> tuple[str, str, str, bool, bool]:
    return spread.family, spread.level, spread.mode, spread.compiled, spread.several


def _table(spread: StepSpread) -> dict[str, Any]:
    table = {
        "family": spread.family,
        "level": spread.level,
        "mode": spread.mode,
        "low": float(spread.low),
        "high": float(spread.high),
    }
    kind = {name: True for name in ("compiled", "several") if getattr(spread, name)}
    return table | kind | ({"rows": int(spread.rows)} if spread.rows else {})
