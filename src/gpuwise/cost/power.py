"""The power that a device draws in a step: what it draws while its kernels wait, and what bandwidth and arithmetic add."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from gpuwise.cost.kernels import KernelTimes
from gpuwise.hardware.types import Chip
from gpuwise.trace.trace import Trace

# Measured over forecast, 5th to 95th percentile, of each device (A100, H100, B200) by a fit to the other two.
ENERGY_SPREAD = (0.70, 1.25)


def share_of_tdp(arithmetic: float, bandwidth: float, figures: Mapping[str, float]) -> float:
    """Power over TDP of a device at these shares of its dense peak and of its bandwidth. No board draws more than its TDP.

    Arithmetic enters by its square root: kernels far from the peak keep caches and schedulers as busy as those near it.

    figures: Parameters.power.
    """
    added = figures["bandwidth"] * bandwidth + figures["arithmetic_root"] * math.sqrt(arithmetic)
    return min(1.0, figures["waiting"] + added)


def step_energy_j(
    chip: Chip, trace: Trace, times: KernelTimes, *, busy_s: float, step_s: float, figures: Mapping[str, float]
) -> float | None:
    """Joules of one device in a step; None where its TDP is unknown. The host, power supplies and cooling are not counted.

    busy_s: seconds without exposed communication, input and idle pipeline stages; during those the device waits.
    """
    if not chip.tdp_w or not chip.memory_bandwidth_bytes_per_s or busy_s <= 0:
        return None
    counts = trace.counts()
    moved = sum(trace.operations.column(name) for name in ("bytes_read", "bytes_written"))
    memory_s = float(np.sum(counts * moved)) / chip.memory_bandwidth_bytes_per_s
    arithmetic_s = float(np.sum(counts * times.ideal_s))
    busy = share_of_tdp(min(1.0, arithmetic_s / busy_s), min(1.0, memory_s / busy_s), figures)
    return chip.tdp_w * (busy * busy_s + figures["waiting"] * max(0.0, step_s - busy_s))
