"""ColdStart: seconds until a new instance answers, in five terms."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files

from gpuwise.cost.forecast import Interval

TERMS = ("image", "weights", "process_and_compile", "graphs", "cache_profiling")


@dataclass(frozen=True)
class ColdStart:
    """Seconds of each term: the usual one, with every cache warm (low), and the slowest that was reported (high).

    Attributes:
        image: pull of the container's image.
        weights: their bytes over the rate of disk or network.
        process_and_compile: imports, workers, torch.compile.
        graphs: capture of CUDA graphs.
        cache_profiling: what memory keys and values may take, and the first passes.
    """

    image: Interval
    weights: Interval
    process_and_compile: Interval
    graphs: Interval
    cache_profiling: Interval

    @property
    def total_s(self) -> Interval:
        """All terms one after the other: at both ends all of them are."""
        terms = [getattr(self, name) for name in TERMS]
        return Interval(*(sum(getattr(term, end) for term in terms) for end in ("value", "low", "high")))

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "total_s": asdict(self.total_s), "sources": sources()}


def cold_start(weight_bytes: float) -> ColdStart:
    """The cold start of an instance with so many bytes of weights, on all of its devices together. Figures and their sources
    are in data/cold_start.toml."""
    table = _figures()
    image_bytes = _number(table["image"], "bytes")
    return ColdStart(
        _over_rates(image_bytes, table["image"]),
        _over_rates(weight_bytes, table["weights"]),
        *(_seconds(table[name]) for name in TERMS[2:]),
    )


def sources() -> dict[str, str]:
    """Where the figures of each term come from."""
    return {name: str(_figures()[name]["source"]) for name in TERMS}


def _over_rates(size_bytes: float, row: Mapping[str, object]) -> Interval:
    """Bytes over the rates; without a best one they are there already."""
    usual, best, worst = (
        size_bytes / _number(row, f"{end}_bytes_per_s") if f"{end}_bytes_per_s" in row else 0.0
        for end in ("usual", "best", "worst")
    )
    return Interval(usual, best, worst)


def _seconds(row: Mapping[str, object]) -> Interval:
    return Interval(_number(row, "usual_s"), _number(row, "best_s"), _number(row, "worst_s"))


def _number(row: Mapping[str, object], name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)


@cache
def _figures() -> dict[str, dict[str, object]]:
    return tomllib.loads(files("gpuwise.serving").joinpath("data", "cold_start.toml").read_text(encoding="utf-8"))
