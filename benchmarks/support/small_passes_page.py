"""The section of docs/measured-here.md on passes of small models (benchmarks.small_passes)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parents[1] / "results" / "small_passes.json"
COMMAND = "python -m benchmarks.small_passes --write"


@dataclass(frozen=True)
class Row:
    """A model's passes. median_s, low_s, high_s: of the rounds' medians. forecasts: seconds by their figures. inside: whether
    the median is inside the interval of the whole fit."""

    model: str
    samples: int
    median_s: float
    low_s: float
    high_s: float
    forecasts: dict[str, float]
    inside: bool


def section(results: dict[str, Any]) -> str:
    """The part of the page that shows results of benchmarks.small_passes."""
    table = [Row(**row) for row in results["rows"]]
    names = list(table[0].forecasts)
    errors = {name: np.array([row.forecasts[name] / row.median_s - 1 for row in table]) for name in names}
    summary = [f"| {name} | {' | '.join(_percents(of_all))} |" for name, of_all in errors.items()]
    lines = [
        "## Passes of small models",
        "",
        f"Made by `{COMMAND}` on one core of {results['machine']}, PyTorch {results['torch']}, {results['date']}, in processor",
        "time. Plain PyTorch, fp32, inference. No fit sees any of these models; the passes of small networks are those of",
        f"`gpuwise measure`. {sum(row.inside for row in table)} of {len(table)} are inside the 90 % interval of the whole fit.",
        "",
        "| forecasts by | median error | 90th percentile | bias |",
        "| --- | ---: | ---: | ---: |",
        *summary,
        "",
        f"| model | samples | measured (least to most of {results['rounds']} rounds) | {' | '.join(names)} |",
        f"| --- | ---: | ---: |{' ---: |' * len(names)}",
        *[_line(row) for row in table],
    ]
    return "\n".join(lines) + "\n"


def _percents(errors: np.ndarray) -> list[str]:
    figures = np.median(np.abs(errors)), np.quantile(np.abs(errors), 0.9)
    return [*(f"{100 * figure:.1f} %" for figure in figures), f"{100 * np.median(errors):+.1f} %"]


def _line(row: Row) -> str:
    forecasts = " | ".join(f"{_ms(s)} ({100 * (s / row.median_s - 1):+.0f} %)" for s in row.forecasts.values())
    return f"| {row.model} | {row.samples} | {_ms(row.median_s)} ({_ms(row.low_s)} to {_ms(row.high_s)}) | {forecasts} |"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
