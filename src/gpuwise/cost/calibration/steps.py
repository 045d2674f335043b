"""Spreads of measured over forecast step times. Errors of kernels partly cancel, so steps have their own spreads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, log

from gpuwise.cost.calibration.entry import WAYS_OUT
from gpuwise.cost.calibration.files import LEVELS, PROVENANCE, tables
from gpuwise.cost.calibration.files import STEPS as FILE
from gpuwise.errors import FileFormatError

FAMILIES = ("gpu", "cpu", "systolic")
MODES = ("train", "infer")


@dataclass(frozen=True)
class StepSpread:
    """The 90 % spread of measured over forecast step times.

    Attributes:
        family, mode, compiled, several: the kind of steps; several: on several devices.
        level: calibration level of most of their kernels, a key of PROVENANCE.
        low, high: bounds of 90 % of measured / forecast.
        rows: number of measured steps behind it, none of them used in a fit; 0 if the spread is assumed.
    """

    family: str
    level: str
    mode: str
    low: float
    high: float
    compiled: bool = False
    rows: int = 0
    several: bool = False


def parse_steps(text: str, name: str = FILE) -> tuple[StepSpread, ...]:
    """The table [[spread]] of a file. Raises FileFormatError that names the file and the row."""
    data = tables(text.encode(), name)
    rows = data.get("spread")
    if not isinstance(rows, list):
        raise FileFormatError(f"{name}: has no table [[spread]].", WAYS_OUT)
    spreads = [spread_from(row, f"{name}: row {number} of [[spread]]") for number, row in enumerate(rows, 1)]
    missing = {(f, m) for f in FAMILIES for m in MODES} - {
        (s.family, s.mode) for s in spreads if s.level == "family" and not s.compiled and not s.several
    }
    if missing:
        raise FileFormatError(f"{name}: has no spread of level family for {sorted(missing)[0]}.", WAYS_OUT)
    return tuple(spreads)


def spread_from(row: object, where: str) -> StepSpread:
    """A row of the table. Raises FileFormatError that says `where`."""
    either = (False, True)
    allowed = {"family": FAMILIES, "level": tuple(PROVENANCE), "mode": MODES, "compiled": either, "several": either}
    if not isinstance(row, dict) or set(row) - {*allowed, "low", "high", "rows"}:
        raise FileFormatError(f"{where} has unknown keys.", WAYS_OUT)
    for key, values in allowed.items():
        if row.get(key, False) not in values:
            raise FileFormatError(f"{where} needs `{key}`, one of {', '.join(map(str, values))}.", WAYS_OUT)
    low, high = row.get("low", 0), row.get("high", 0)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (low, high))
    if not numbers or not 0.01 <= low <= 1 <= high <= 100:
        raise FileFormatError(f"{where} needs 0.01 <= low <= 1 <= high <= 100.", WAYS_OUT)
    rows = row.get("rows", 0)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 0:
        raise FileFormatError(f"{where} needs a whole number of `rows`, or none.", WAYS_OUT)
    kind = row.get("compiled", False), rows, row.get("several", False)
    return StepSpread(row["family"], row["level"], row["mode"], low, high, *kind)


@cache
def shipped_steps() -> tuple[StepSpread, ...]:
    """The shipped spreads."""
    return parse_steps(files("gpuwise.cost").joinpath("data/calibration", FILE).read_text(encoding="utf-8"))


def step_spread(
    level: str,
    *,
    family: str,
    mode: str,
    compiled: bool = False,
    several: bool = False,
    spreads: Sequence[StepSpread] | None = None,
) -> StepSpread:
    """The spread of steps at a calibration level. An unknown spread is that of a wider level, of eager steps, or of one device.

    Arguments:
        level: a key of PROVENANCE, or "generic", which is the widest.
    """
    candidates = shipped_steps() if spreads is None else spreads
    table = {(s.family, s.level, s.mode, s.compiled): s for s in candidates if not s.several}
    if several:
        table |= {(s.family, s.level, s.mode, s.compiled): s for s in candidates if s.several}
    levels = ["machine", *LEVELS]
    wider = levels[levels.index(level) :] if level in levels else levels[-1:]
    for kind in (True, False) if compiled else (False,):
        for name in wider:
            if spread := table.get((family, name, mode, kind)):
                return spread
    raise AssertionError("parse_steps sees to a spread at the widest level")


def joined_spread(
    shares: Mapping[str, float],
    *,
    family: str,
    mode: str,
    compiled: bool = False,
    several: bool = False,
    spreads: Sequence[StepSpread] | None = None,
) -> tuple[float, float]:
    """low and high of a step of which `shares` (by level, summing to 1) rest on several levels: their geometric mean."""
    spread_of = {
        level: step_spread(level, family=family, mode=mode, compiled=compiled, several=several, spreads=spreads)
        for level in shares
    }
    return (
        exp(sum(share * log(spread_of[level].low) for level, share in shares.items())),
        exp(sum(share * log(spread_of[level].high) for level, share in shares.items())),
    )
