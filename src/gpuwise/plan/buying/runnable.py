"""Which plans `gpuwise train` can run, and the obstacle for the others."""

from __future__ import annotations

from gpuwise.hardware.types import Chip


def train_obstacle(chip: Chip, devices: float) -> str:
    """Why `gpuwise train` cannot run a plan on these devices, in a few words; empty if it can.

    It runs a plain PyTorch program in one process, on a CPU or on one GPU of any maker that PyTorch is built for.
    """
    if chip.kind == "tpu":
        return "needs PyTorch/XLA"
    if chip.kind == "cpu" or chip.kind.startswith("gpu"):
        return "" if devices <= 1 else "needs torchrun: gpuwise train runs on one device so far"
    return f"needs the PyTorch plug-in of {chip.vendor}"
