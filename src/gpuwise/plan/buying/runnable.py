"""Which plans `gpuwise train` can run, and the obstacle for the others."""

from __future__ import annotations

from gpuwise.errors import GpuwiseError
from gpuwise.hardware.types import Chip
from gpuwise.strategy import StepFacts, Strategy, check_techniques


def train_obstacle(chip: Chip, strategy: Strategy, *, job_argument: str = "") -> str:
    """Why `gpuwise train` cannot run a strategy on such devices, in a few words; empty if it can.

    It runs a plain PyTorch program on a CPU, or on GPUs of any maker that PyTorch is built for: one process a device.

    Arguments:
        job_argument: the JOB argument, as a Keras model has another way to a TPU.
    """
    if chip.kind == "tpu":
        keras = job_argument.startswith("keras:")
        return "needs JAX: gpuwise export PLAN --to keras writes the script" if keras else "needs PyTorch/XLA"
    if chip.kind != "cpu" and not chip.kind.startswith("gpu"):
        return f"needs the PyTorch plug-in of {chip.vendor}"
    if strategy.mesh.devices > 1 and chip.vendor == "Apple":
        return "PyTorch has no collectives for GPUs of Apple"
    try:
        check_techniques(strategy, StepFacts(priced=False))
    except GpuwiseError as refusal:  # of a step that can be priced, but not run
        return refusal.what.rstrip(".")
    return ""
