"""What torch.compile costs on a CPU: the time before the first compiled step, and random numbers drawn the slow way."""

from __future__ import annotations

import math

import numpy as np

from gpuwise.cost.kernels.shapes import USUAL_CLOCK_HZ, Shapes
from gpuwise.hardware.types import Chip
from gpuwise.trace.trace import KINDS, Trace

# Set by two models on two Zen 4 cores, with PyTorch 2.13, g++ and nothing in Inductor's cache: 48 s for ResNet-50 (129
# kernels), 11 to 30 s for the blocks of GPT-2 (32 kernels). The compiler is loaded, each kernel written in C++ and compiled.
LOADING_S, KERNEL_S = 11.0, 0.29
# Clocks of a core for a random number of a compiled graph: Inductor's Philox is computed number by number on CPUs, 23 ns on
# such a core (dropout of GPT-2).
DRAWN_CLOCKS = 60.0


def compile_s(trace: Trace) -> float:
    """Seconds from the first call to a compiled step, by the distinct kernels that are generated for it.

    What Inductor kept from an earlier run makes it shorter. 0 for a trace that is not of a compiled step.
    """
    if not trace.header.strategy.compile:
        return 0.0
    generated = sum(name.startswith("fused.") for name in trace.operations.name)
    return LOADING_S + KERNEL_S * generated


def drawing_s(eager: Trace, chip: Chip) -> float:
    """Seconds of a compiled step on a CPU that random numbers take; a trace of it does not tell them from other loops.

    eager: the trace of the same step, not compiled.
    """
    rows = np.flatnonzero(eager.operations.kind == KINDS.index("random"))
    shapes = Shapes.of(eager.operations, rows)
    numbers = float(eager.counts()[rows] @ (shapes.bytes_written / shapes.element_bytes))
    return numbers * DRAWN_CLOCKS / ((chip.boost_clock_hz or USUAL_CLOCK_HZ) * (chip.sm_count or 1))


def pays_back_after(compile_s: float, *, eager_step_s: float, compiled_step_s: float) -> float:
    """Steps after which compiling has won back its own time; infinite where compiled steps are not faster."""
    saved_s = eager_step_s - compiled_step_s
    return math.ceil(compile_s / saved_s) if saved_s > 0 else math.inf
