"""CalibrationEntry: how one class of kernels runs on a chip, as few named figures a calibration file holds.

seconds = kernels × floor_s + (Σ termᵖ)^(1/p) + Σ latencies. A term, or latency, is a time that follows from shapes and
datasheet figures (arithmetic at the peak, bytes at full bandwidth, …; gpuwise.cost.kernels defines them), times its factor:
`scale`, and a curve for each feature of the shape that matters (the depth of a product, how many waves of tiles, …). Curves
are functions of shapes and unit counts alone, so a chip with more bandwidth or arithmetic is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeGuard

import numpy as np

from gpuwise.errors import FileFormatError
from gpuwise.trace.tables import KINDS

LATENCY = "latency"  # prefix of terms that nothing else hides: they add to the smooth maximum of the others
LARGEST = 1e30  # of any figure: far beyond all that make sense, and products of several are still numbers
WAYS_OUT = ("restore the file, or fit it again: python -m benchmarks.fit",)


@dataclass(frozen=True)
class EfficiencyCurve:
    """A factor as a function of a feature: log-linear between knots, constant beyond them."""

    over: str
    at: tuple[float, ...]
    factor: tuple[float, ...]

    def __call__(self, feature: np.ndarray) -> np.ndarray:
        """Natural logarithm of the factor. feature: any shape, positive."""
        return self.of_log(np.log(feature))

    def of_log(self, log_feature: np.ndarray) -> np.ndarray:
        """The same for the natural logarithm of the feature, which several curves share."""
        return np.interp(log_feature, *self._knots)

    @cached_property
    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        return np.log(self.at), np.log(self.factor)


@dataclass(frozen=True)
class Term:
    """The factor of one term: its curves times `scale`, on the time at datasheet figures (1.25 is 80 % of the sheet)."""

    scale: float
    curves: tuple[EfficiencyCurve, ...] = ()

    def factor(self, log_features: Mapping[str, np.ndarray]) -> np.ndarray | float:
        """The factor on the term's seconds. log_features: natural logarithms of the curves' features."""
        logs = [curve.of_log(log_features[curve.over]) for curve in self.curves if curve.over in log_features]
        return self.scale * np.exp(sum(logs)) if logs else self.scale


@dataclass(frozen=True)
class CalibrationEntry:
    """The figures of one class of kernels.

    `spread` is the 90 % interval of measured / forecast; `evidence` tells the source and quality of the figures.
    """

    terms: Mapping[str, Term]
    sharpness: float = 4.0
    floor_s: float = 0.0
    spread: tuple[float, float] = (0.5, 2.0)
    evidence: Mapping[str, str] | None = None

    def parts_s(self, terms: Mapping[str, np.ndarray], features: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The seconds of each term with a figure in this entry. A term without one costs nothing."""
        priced = {name: self.terms[name] for name in terms if name in self.terms}
        over = dict.fromkeys(curve.over for term in priced.values() for curve in term.curves)
        logs = {name: np.log(features[name]) for name in over if name in features}
        return {name: terms[name] * term.factor(logs) for name, term in priced.items()}

    def join_s(self, parts: Mapping[str, np.ndarray]) -> np.ndarray:
        """The smooth maximum of parts, and all latencies on top."""
        latencies = [part for name, part in parts.items() if name.startswith(LATENCY)]
        hiding = [part for name, part in parts.items() if not name.startswith(LATENCY)]
        if not hiding:
            return np.add.reduce(latencies)
        joined = np.maximum(np.maximum.reduce(hiding), 1e-30)
        if len(hiding) > 1:
            total: np.ndarray = sum((part / joined) ** self.sharpness for part in hiding)
            joined = joined * total ** (1 / self.sharpness)
        return sum(latencies, start=joined)


def to_table(entry: CalibrationEntry) -> dict[str, object]:
    """An entry as `entry_from` reads it: plain types, for a TOML file."""
    terms: dict[str, object] = {}
    for name, term in entry.terms.items():
        curves = [{"over": curve.over, "at": list(curve.at), "factor": list(curve.factor)} for curve in term.curves]
        terms[name] = {"scale": term.scale, **({"curves": curves} if curves else {})}
    table = {"floor_s": entry.floor_s, "sharpness": entry.sharpness, "spread": list(entry.spread), "terms": terms}
    return table | ({"evidence": dict(entry.evidence)} if entry.evidence else {})


def entry_from(name: str, data: Mapping[str, object], where: str) -> CalibrationEntry:
    """An entry of a calibration file. Raises FileFormatError that names the file, the entry and what is wrong with it."""

    def wrong(what: str) -> FileFormatError:
        return FileFormatError(f"{where}: entry {name!r} {what}.", WAYS_OUT)

    if not isinstance(data, dict):
        raise wrong("is not a table")
    if name.partition(".")[0].split("_")[0] not in KINDS:
        raise wrong(f"is of no kind of operation ({', '.join(KINDS)})")
    unknown = set(data) - {"terms", "sharpness", "floor_s", "spread", "evidence"}
    if unknown:
        raise wrong(f"has unknown keys: {', '.join(sorted(unknown))}")
    if not isinstance(data.get("evidence", {}), dict):
        raise wrong("has evidence that is not a table")
    terms = data.get("terms")
    if not isinstance(terms, dict) or not terms:
        raise wrong("has no terms")
    sharpness, floor_s, spread = data.get("sharpness", 4.0), data.get("floor_s", 0.0), data.get("spread", (0.5, 2.0))
    if not _positive(sharpness) or sharpness < 1:
        raise wrong("needs a sharpness of at least 1")
    if not _positive(floor_s, zero=True) or floor_s > 1e-2:
        raise wrong("needs a floor_s between 0 and 0.01 seconds")
    if (
        not isinstance(spread, list | tuple)
        or len(spread) != 2
        or not all(map(_positive, spread))
        or not spread[0] <= 1 <= spread[1]
    ):
        raise wrong("needs a spread of two numbers with 1 between them")
    return CalibrationEntry(
        {key: _term(value, wrong) for key, value in terms.items()},
        sharpness,
        floor_s,
        (spread[0], spread[1]),
        data.get("evidence"),
    )


def _term(data: object, wrong: Callable[[str], FileFormatError]) -> Term:
    if not isinstance(data, dict) or set(data) - {"scale", "curves"} or not _positive(data.get("scale"), zero=True):
        raise wrong("has a term without a scale of at least 0")
    curves = data.get("curves", [])
    if not isinstance(curves, list):
        raise wrong("has curves that are not a list")
    return Term(data["scale"], tuple(_curve(curve, wrong) for curve in curves))


def _curve(data: object, wrong: Callable[[str], FileFormatError]) -> EfficiencyCurve:
    if not isinstance(data, dict) or set(data) != {"over", "at", "factor"} or not isinstance(data["over"], str):
        raise wrong("has a curve without `over`, `at` and `factor`")
    at, factor = data["at"], data["factor"]
    for numbers in (at, factor):
        if not isinstance(numbers, list) or not numbers or not all(map(_positive, numbers)) or len(at) != len(factor):
            raise wrong("has a curve that does not have as many positive factors as knots")
    if any(a >= b for a, b in pairwise(at)):
        raise wrong("has a curve whose knots do not rise")
    return EfficiencyCurve(data["over"], tuple(at), tuple(factor))


def _positive(value: object, *, zero: bool = False) -> TypeGuard[float]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 < value <= LARGEST or (zero and value == 0)
