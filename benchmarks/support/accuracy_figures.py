"""The figures of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

matplotlib.use("Agg")
# The same rows give the same file: no date, no random ids, text kept as text.
matplotlib.rcParams.update(
    {
        "svg.hashsalt": "gpuwise",
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.grid": True,
        "grid.alpha": 0.3,
        "axes.axisbelow": True,
    }
)
SEEN, KEPT_OUT, PARALLEL = "#8a9ba8", "#d1495b", "#2e6f95"


SPLIT_COLOURS = {"fitted": SEEN, "unseen models": KEPT_OUT, "unseen device": PARALLEL}


def step_times(rows: pd.DataFrame, path: Path) -> None:
    """Forecast against measured seconds a step, both logarithmic, by split."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 6))
    for split, colour in SPLIT_COLOURS.items():
        # A drawing of a thousand points says as much as one of ten thousand.
        some = rows[rows.split == split].iloc[:: max(1, (rows.split == split).sum() // 1000)]
        forecast_s = some.seconds * np.exp(-some.log_error)
        axes.scatter(
            some.seconds,
            forecast_s,
            s=10,
            c=colour,
            alpha=0.5,
            linewidths=0,
            label=f"{split} ({(rows.split == split).sum():,} rows)",
        )
    ends = np.array([rows.seconds.min() / 1.5, rows.seconds.max() * 1.5])
    axes.plot(ends, ends, color="black", linewidth=1)
    for factor in (0.5, 2):
        axes.plot(ends, ends * factor, color="black", linewidth=0.7, linestyle=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured, seconds a step",
        ylabel="forecast, seconds a step",
        title="Forecast against published step times (dotted: factor 2)",
    )
    axes.legend(loc="upper left", frameon=False)
    _save(figure, path)


def ratios(groups: Mapping[str, pd.DataFrame], path: Path) -> None:
    """Measured over forecast by group: median, middle half, and 5th to 95th percentile."""
    from matplotlib import pyplot

    groups = {name: rows for name, rows in groups.items() if len(rows)}
    figure, axes = pyplot.subplots(figsize=(7.2, 0.6 + 0.3 * len(groups)))
    for row, (name, rows) in enumerate(groups.items()):
        low, q1, middle, q3, high = np.exp(np.quantile(rows.log_error, [0.05, 0.25, 0.5, 0.75, 0.95]))
        colour = PARALLEL if "unseen device" in name or "unseen GPU" in name else KEPT_OUT
        axes.plot([low, high], [row, row], color=colour, linewidth=1.5)
        axes.plot([q1, q3], [row, row], color=colour, linewidth=6, solid_capstyle="butt")
        axes.plot(middle, row, marker="|", color="black", markersize=12)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured over forecast, rows kept out")
    axes.set_yticks(range(len(groups)), list(groups))
    ticks = [0.5, 0.7, 1, 1.4, 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.invert_yaxis()
    _save(figure, path)


def memory(groups: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Forecast against measured peak memory in GiB, both logarithmic."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 6))
    for (label, rows), (colour, marker) in zip(groups.items(), ((PARALLEL, "o"), (KEPT_OUT, "^"), (SEEN, "s")), strict=True):
        axes.scatter(
            *zip(*rows, strict=True),
            s=18,
            c=colour,
            marker=marker,
            alpha=0.7,
            linewidths=0,
            label=f"{label} ({len(rows)} rows)",
        )
    sizes = [value for rows in groups.values() for row in rows for value in row]
    ends = np.array([min(sizes) / 1.5, max(sizes) * 1.5])
    axes.plot(ends, ends, color="black", linewidth=1, zorder=0)
    for factor in (0.9, 1.1):
        axes.plot(ends, ends * factor, color="black", linewidth=0.7, linestyle=":", zorder=0)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=ends,
        ylim=ends,
        xlabel="measured, GiB",
        ylabel="forecast, GiB",
        title="Forecast against measured peak memory (dotted: 10 %)",
    )
    axes.legend(loc="upper left", frameon=False)
    _save(figure, path)


def _save(figure: matplotlib.figure.Figure, path: Path) -> None:  # type: ignore[name-defined]
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
