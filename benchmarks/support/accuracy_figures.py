"""The figures of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

if TYPE_CHECKING:
    from benchmarks.accuracy_report import Point

matplotlib.use("Agg")
# The same rows give the same file: no date, no random ids, text kept as text.
matplotlib.rcParams.update({"svg.hashsalt": "gpuwise", "svg.fonttype": "none", "font.size": 10, "axes.grid": True,
                            "grid.alpha": 0.3, "axes.axisbelow": True})  # fmt: skip
SEEN, KEPT_OUT, PARALLEL = "#8a9ba8", "#d1495b", "#2e6f95"


def step_times(points: Sequence[Point], path: Path) -> None:
    """Forecast against measured seconds a step, both logarithmic; kept-out rows coloured apart."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 6))
    kinds = {
        "one device, seen by the fit": (SEEN, "o", lambda p: p.devices == 1 and not p.case.kept_out),
        "several GPUs": (PARALLEL, "^", lambda p: p.devices > 1),
        "one device, kept out": (KEPT_OUT, "o", lambda p: p.devices == 1 and p.case.kept_out),
    }
    for label, (colour, marker, chosen) in kinds.items():
        rows = [p for p in points if chosen(p)]
        axes.scatter([p.case.seconds for p in rows], [p.forecast_s for p in rows], s=14, c=colour, marker=marker,
                     alpha=0.65, linewidths=0, label=f"{label} ({len(rows)} rows)")  # fmt: skip
    ends = np.array([min(p.case.seconds for p in points) / 1.5, max(p.case.seconds for p in points) * 1.5])
    axes.plot(ends, ends, color="black", linewidth=1)
    for factor in (0.5, 2):
        axes.plot(ends, ends * factor, color="black", linewidth=0.7, linestyle=":")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, seconds a step",
             ylabel="forecast, seconds a step", title="Forecast against published step times (dotted: factor 2)")  # fmt: skip
    axes.legend(loc="upper left", frameon=False)
    _save(figure, path)


def ratios(points: Sequence[Point], path: Path) -> None:
    """Measured over forecast by group: median, middle half, and 5th to 95th percentile; the interval is shaded."""
    from matplotlib import pyplot

    groups = {
        "one GPU, seen": lambda p: p.devices == 1 and not p.on_cpu and not p.case.kept_out,
        "one GPU, kept out": lambda p: p.devices == 1 and not p.on_cpu and p.case.kept_out,
        "data parallel": lambda p: p.devices > 1 and not p.sharded,
        "FSDP": lambda p: p.sharded,
        "one CPU, seen": lambda p: p.on_cpu and not p.case.kept_out,
        "one CPU, kept out": lambda p: p.on_cpu and p.case.kept_out,
    }
    figure, axes = pyplot.subplots(figsize=(6.4, 3.2))
    for row, (name, chosen) in enumerate(groups.items()):
        rows = [p for p in points if chosen(p)]
        ratio = [p.case.seconds / p.forecast_s for p in rows]
        low, q1, middle, q3, high = np.quantile(ratio, [0.05, 0.25, 0.5, 0.75, 0.95])
        colour = KEPT_OUT if "kept out" in name else PARALLEL if name in ("data parallel", "FSDP") else SEEN
        # The interval of NVIDIA GPUs; of AMD GPUs it is wider.
        shown = min(rows, key=lambda p: p.high_s / p.low_s)
        axes.barh(row, (shown.high_s - shown.low_s) / shown.forecast_s, left=shown.low_s / shown.forecast_s, height=0.8,
                  color="#e9edf0")  # fmt: skip
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        axes.plot([q1, q3], [row, row], color=colour, linewidth=6, solid_capstyle="butt")
        axes.plot(middle, row, marker="|", color="black", markersize=12)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured over forecast (grey: the 90 % interval that a forecast states)")
    axes.set_yticks(range(len(groups)), list(groups))
    ticks = [0.5, 0.7, 1, 1.4, 2, 4]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.invert_yaxis()
    _save(figure, path)


def memory(groups: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Forecast against measured peak memory in GiB, both logarithmic."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 6))
    for (label, rows), (colour, marker) in zip(groups.items(), ((PARALLEL, "o"), (KEPT_OUT, "^"), (SEEN, "s")), strict=True):
        axes.scatter(*zip(*rows, strict=True), s=18, c=colour, marker=marker, alpha=0.7, linewidths=0,
                     label=f"{label} ({len(rows)} rows)")  # fmt: skip
    sizes = [value for rows in groups.values() for row in rows for value in row]
    ends = np.array([min(sizes) / 1.5, max(sizes) * 1.5])
    axes.plot(ends, ends, color="black", linewidth=1, zorder=0)
    for factor in (0.9, 1.1):
        axes.plot(ends, ends * factor, color="black", linewidth=0.7, linestyle=":", zorder=0)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured, GiB", ylabel="forecast, GiB",
             title="Forecast against measured peak memory (dotted: 10 %)")  # fmt: skip
    axes.legend(loc="upper left", frameon=False)
    _save(figure, path)


def _save(figure: matplotlib.figure.Figure, path: Path) -> None:  # type: ignore[name-defined]
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
