"""Fits what no kernel table holds, on published steps of whole models: run it through benchmarks.fit_efficiency.

Convolutions on tensor cores and in TF32, backward passes, and CPUs. Rows of kept-out devices and models are never seen.
"""

from __future__ import annotations

import copy
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from benchmarks.check_published import trace_of
from benchmarks.support.figures import error_line, get, put, write_evidence, write_figures
from benchmarks.support.published import Case, cases
from gpuwise.cost.kernels import family, kernel_times
from gpuwise.cost.parameters import Parameters, from_dict
from gpuwise.cost.price import host_s
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.trace import Trace


@dataclass(frozen=True)
class Group:
    """Figures (dotted keys, with bounds) fitted on the published steps of one family of chips.

    unlike: programs and chips unlike the rows are taken to be off by this factor more; it widens the interval.
    """

    family: str
    source: str
    unlike: float
    keys: dict[str, tuple[float, float]]


GROUPS = [
    Group(
        "gpu",
        "published steps on one GPU: Lambda Labs benchmarks, NeuSight fp32 transformers, timm results",
        1.1,
        {
            "rates.tensor.conv": (0.2, 0.95),
            "rates.tensor.conv_backward": (0.2, 0.95),
            "rates.tf32.gemm": (0.4, 0.9),
            "rates.tf32.conv": (0.2, 0.9),
            "rates.vector.conv_backward": (0.3, 1),
            "bandwidth.gpu.conv": (0.2, 0.95),
            "bandwidth.gpu.conv_backward": (0.15, 0.95),
            "bandwidth.gpu.conv_depthwise": (0.05, 0.95),
            "bandwidth.gpu.conv_depthwise_backward": (0.05, 0.95),
            "bandwidth.gpu.norm_backward": (0.2, 0.95),
            "bandwidth.gpu.copy": (0.4, 0.9),
        },
    ),
    Group(
        "cpu",
        "timm results on a Core i9-10940X, one image, compiled",
        1.8,  # one chip, inference only
        {
            "rates.cpu.gemm": (0.05, 0.9),
            "rates.cpu.conv": (0.05, 0.7),
            "bandwidth.cpu.other": (0.1, 0.75),
            "rates.cpu.fill": (0, 1e4),
            "kernel_floor_s.cpu": (2e-6, 1.2e-5),
        },
    ),
]


def fit_published(text: str, *, reference: Path, cache: Path, catalog: Catalog) -> str:
    """The data file with the figures of each group fitted, its spread and its evidence; prints them."""
    for group in GROUPS:
        known = [
            (case, trace_of(case, cache)[0])
            for case in cases(reference)
            if case.count * case.machines == 1
            and case.chip_id in catalog.chips
            and family(catalog.chip(case.chip_id)) == group.family
        ]
        figures, pairs = _fit(group, known, tomllib.loads(text), catalog)
        seen, kept = (np.array([error for case, error in pairs if case.kept_out == value]) for value in (False, True))
        interval = spread(seen, group.unlike)
        key = f"spread.{group.family}"
        text = write_figures(text, {**figures, key: interval})
        entry = {
            "figures": ", ".join([*figures, key]),
            "source": group.source,
            "seen": error_line(seen),
            "kept_out": error_line(kept),
        }
        text = write_evidence(text, {f"published steps, {group.family}": entry})
        print(f"published steps, {group.family}: " + ", ".join(f"{k} = {v:.3g}" for k, v in figures.items()))
        print(f"  seen     {error_line(seen)}\n  kept out {error_line(kept)}, interval {interval}")
    return text


def _fit(
    group: Group, known: list[tuple[Case, Trace]], data: dict[str, Any], catalog: Catalog
) -> tuple[dict[str, float], list[tuple[Case, float]]]:
    """The fitted figures, and (case, log(measured / forecast)) of every case.

    Rows of one job, chip, precision and mode count as one: the median of their ratios decides.
    """
    low, high = (np.array([bounds[i] for bounds in group.keys.values()]) for i in (0, 1))
    start = np.clip([get(data, key) for key in group.keys], low + 0.01 * (high - low), high - 0.01 * (high - low))

    def changed(z: np.ndarray) -> dict[str, Any]:
        copied = copy.deepcopy(data)
        for key, value in zip(group.keys, low + z * (high - low), strict=True):
            put(copied, key, float(value))
        return copied

    def residual(z: np.ndarray) -> np.ndarray:
        alike: dict[tuple[str, ...], list[float]] = {}
        for case, error in _errors(known, from_dict(changed(z)), catalog):
            if not case.kept_out:
                alike.setdefault((case.job, case.chip_id, case.strategy.precision, case.strategy.mode), []).append(error)
        return np.array([np.median(values) for values in alike.values()])

    first = (start - low) / (high - low)
    result = least_squares(residual, first, bounds=(0, 1), loss="soft_l1", f_scale=0.1, diff_step=1e-2, max_nfev=10)
    final = changed(result.x)
    return {key: get(final, key) for key in group.keys}, _errors(known, from_dict(final), catalog)


def _errors(known: list[tuple[Case, Trace]], parameters: Parameters, catalog: Catalog) -> list[tuple[Case, float]]:
    """log(measured / forecast) of the cases that can be priced."""
    found = []
    for case, trace in known:
        chip = catalog.chip(case.chip_id)
        try:
            device_s = float(trace.counts() @ kernel_times(trace, chip, parameters).device_s)
        except GpuwiseError:
            continue
        found.append((case, float(np.log(case.seconds / max(device_s, host_s(trace, chip, parameters))))))
    return found


def spread(errors: np.ndarray, unlike: float) -> tuple[float, float]:
    """90 % interval of measured / forecast of the rows seen, widened for programs unlike any of these: kept-out rows
    then say whether it holds."""
    low, high = np.exp(np.quantile(errors, [0.05, 0.95]))
    return float(low) / unlike, float(high) * unlike
