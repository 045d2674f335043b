"""The costs of torch.compile on a CPU: the compile time, and slow random numbers in compiled steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Shapes
from gpuwise.hardware.types import Chip
from gpuwise.notes.step import compiled_random_numbers
from gpuwise.trace.tables import KINDS
from gpuwise.trace.trace import Trace

# The compiler is loaded, each kernel written in C++ and compiled. Set by ResNet-50 and GPT-2 on two Zen 4 cores, with nothing
# in Inductor's cache: `python -m benchmarks.cpu_plan --only candidates` shows what compiling takes beside what is forecast.
LOADING_S, KERNEL_S = 11.0, 0.29
# Clocks of a core for a random number of a compiled graph, where Inductor's Philox is computed number by number on CPUs.
# Assumed; set by GPT-2 with dropout on such a core.
DRAWN_CLOCKS = 60.0


def compile_s(trace: Trace) -> float:
    """Seconds of compilation, from the number of distinct generated kernels.

    Inductor's cache from an earlier run makes it shorter. 0 for a trace of an eager step.
    """
    if not trace.header.strategy.compile:
        return 0.0
    generated = sum(name.startswith("fused.") for name in trace.operations.name)
    return LOADING_S + KERNEL_S * generated


def drawing_s(eager: Trace, chip: Chip) -> float:
    """Seconds of random numbers in a compiled step on a CPU. Its own trace does not tell them from other loops.

    eager: the trace of the same step without compilation.
    """
    rows = np.flatnonzero(eager.operations.kind == KINDS.index("random"))
    shapes = Shapes.of(eager.operations).take(rows)
    numbers = float(eager.counts()[rows] @ (shapes.bytes_written / shapes.element_bytes))
    return numbers * DRAWN_CLOCKS / ((chip.boost_clock_hz or USUAL_CLOCK_HZ) * (chip.sm_count or 1))


def slowed(forecast: Forecast, added_s: float) -> Forecast:
    """The forecast of a compiled step with the seconds of its random numbers added."""
    if not added_s:
        return forecast
    factor = 1 + added_s / forecast.step_time_s.value
    note = compiled_random_numbers(added_s=added_s)
    return replace(
        forecast,
        step_time_s=forecast.step_time_s.scaled(factor),
        throughput=forecast.throughput / factor,
        mfu=None if forecast.mfu is None else forecast.mfu / factor,
        energy_j=None if forecast.energy_j is None else forecast.energy_j * factor,
        assumption_notes=(*forecast.assumption_notes, note),
    )


def pays_back_after(compile_s: float, *, eager_step_s: float, compiled_step_s: float) -> float:
    """The number of steps after which compilation has paid off; infinite if compiled steps are not faster."""
    saved_s = eager_step_s - compiled_step_s
    return math.ceil(compile_s / saved_s) if saved_s > 0 else math.inf
