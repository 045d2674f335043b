"""A claim as data: what people say, the calls that compute it, what was measured and published, and the verdict."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["right", "wrong", "right under conditions"]


@dataclass(frozen=True)
class Call:
    """A call of gpuwise's public API that can be shown as it is run.

    Attributes:
        function: dotted, below `gpuwise`.
        job: the first argument: a text, or a function of benchmarks.claims.jobs that makes a Job.
        keywords: the other arguments, in the order shown.
        slow: whether it takes seconds (the job has to be traced).
    """

    function: str
    job: str | Callable[[], Any]
    keywords: tuple[tuple[str, Any], ...] = ()
    slow: bool = False

    @property
    def text(self) -> str:
        first = repr(self.job).replace("'", '"') if isinstance(self.job, str) else f"jobs.{self.job.__name__}()"
        arguments = [first, *(f"{name}={value!r}".replace("'", '"') for name, value in self.keywords)]
        return f"gpuwise.{self.function}({', '.join(arguments)})"

    @functools.cache  # noqa: B019 - a handful of frozen calls, shared by rows
    def run(self) -> Any:
        import gpuwise

        function = functools.reduce(getattr, self.function.split("."), gpuwise)
        return function(self.job if isinstance(self.job, str) else self.job(), **dict(self.keywords))


@dataclass(frozen=True)
class Row:
    """One computed figure.

    Attributes:
        source: a call, whose answer `value` takes; keys of rows above, whose figures it takes; or arithmetic in words, for
            which it takes nothing.
        shown: writes the figure.
        holds: the range that the verdict was written for; outside of it the words have to be written anew.
    """

    key: str
    what: str
    source: Call | tuple[str, ...] | str
    value: Callable[..., float]
    shown: Callable[[float], str]
    holds: tuple[float, float] = (-math.inf, math.inf)


@dataclass(frozen=True)
class Published:
    """A figure of others. checked False: well known, but the source was not at hand."""

    what: str
    figure: str
    source: str
    year: str
    checked: bool = True


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        name: the anchor of its section.
        said: as people say it.
        numbers: the verdict in numbers; conditions: a sentence or two; note: what else to know. They are templates over the
            keys of rows.
        measured: names in benchmarks/results/claims_measured.json.
        figure: a drawing below docs/figures, and what it shows.
    """

    name: str
    said: str
    verdict: Verdict
    numbers: str
    conditions: str
    rows: tuple[Row, ...]
    published: tuple[Published, ...] = ()
    measured: tuple[str, ...] = ()
    figure: Sequence[str] = ()
    note: str = ""

    def values(self, *, slow: bool = True) -> dict[str, float]:
        """The computed figures by key; without `slow`, those that need no tracing."""
        figures: dict[str, float] = {}
        for row in self.rows:
            match row.source:
                case str():
                    figures[row.key] = row.value()
                case Call() as call if slow or not call.slow:
                    figures[row.key] = row.value(call.run())
                case tuple() as names if all(name in figures for name in names):
                    figures[row.key] = row.value(*(figures[name] for name in names))
        return figures

    def outside(self, values: Mapping[str, float]) -> list[str]:
        """Rows whose figure has left the range that the words were written for."""
        return [
            f"{self.name}: {row.key} is {row.shown(values[row.key])}"
            for row in self.rows
            if row.key in values and not row.holds[0] <= values[row.key] <= row.holds[1]
        ]

    def filled(self, template: str, values: Mapping[str, float]) -> str:
        """A template with the figures in it, by key."""
        return template.format(**{row.key: row.shown(values[row.key]) for row in self.rows if row.key in values})


# --- how figures are written ---

_SCALES = {
    **{"GB": 1e9, "GB/s": 1e9, "billion": 1e9, "TFLOP/s": 1e12, "million dollars": 1e6, "GiB": 2**30, "MiB": 2**20},
    **{"ms": 1e-3, "minutes": 60.0, "h": 3600.0, "days": 86_400.0},
}


def digits(value: float, figures: int = 3) -> str:
    """A few significant figures, thousands separated, no exponent."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.{figures - 1}e}")
    return f"{rounded:,.{max(0, figures - 1 - math.floor(math.log10(abs(rounded))))}f}"


def scale(unit: str) -> float:
    return _SCALES.get(unit.removesuffix(" 4"), 1.0)


def in_unit(unit: str, value: float) -> str:
    """The figure in a unit of claims.toml; "GB/s 4" has four digits."""
    match unit:
        case "s":
            return seconds(value)
        case "%":
            return f"{value:.0%}"
        case "count":
            return f"{value:,.0f}"
    return f"{digits(value / scale(unit), {'times': 2, 'hours': 4, 'GB/s 4': 4}.get(unit, 3))} {unit.removesuffix(' 4')}"


def seconds(value: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    return _in_largest(value, (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def size(value: float) -> str:
    return _in_largest(value, (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def _in_largest(value: float, *units: tuple[float, str]) -> str:
    """In the first of these units that it reaches, or the last."""
    factor, name = next((unit for unit in units if value >= unit[0]), units[-1])
    return f"{digits(value / factor)} {name}"
