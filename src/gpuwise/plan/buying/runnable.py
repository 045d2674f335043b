"""Which plans `gpuwise train` can run, and the obstacle for the others."""

from __future__ import annotations

from gpuwise.errors import GpuwiseError
from gpuwise.hardware.types import Chip
from gpuwise.strategy import StepFacts, Strategy, check_techniques
from gpuwise.units import format_bytes


def train_obstacle(chip: Chip, strategy: Strategy, *, parameters: int = 0) -> str:
    """Why `gpuwise train` cannot run a strategy on such devices, in a few words; empty if it can.

    It runs a plain PyTorch program on a CPU, or on GPUs of any maker that PyTorch is built for: one process a device. Each
    builds the whole model on its device before it keeps its own part.

    Arguments:
        parameters: of the whole model; 0 (default) where they do not matter.
    """
    if chip.kind == "tpu":
        return "needs PyTorch/XLA"
    if chip.kind != "cpu" and not chip.kind.startswith("gpu"):
        return f"needs the PyTorch plug-in of {chip.vendor}"
    if strategy.mesh.devices > 1 and chip.vendor == "Apple":
        return "PyTorch has no collectives for GPUs of Apple"
    whole_bytes = parameters * (2 if strategy.precision == "bf16" else 4)
    if strategy.mesh.devices > 1 and chip.memory_bytes is not None and whole_bytes > chip.memory_bytes:
        return f"each rank builds the whole model first, {format_bytes(whole_bytes)} on its device"
    try:
        check_techniques(strategy, StepFacts(priced=False))
    except GpuwiseError as refusal:  # of a step that can be priced, but not run
        return refusal.what.rstrip(".")
    return ""
