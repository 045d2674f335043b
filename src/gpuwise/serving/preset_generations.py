"""Recorded generations of the presets that write text: plans of serving them need no PyTorch. Recorded by `gpuwise record`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from gpuwise.serving.generation import Generation
from gpuwise.serving.generation_file import load_generation
from gpuwise.trace.presets import DATA

SHIPPED = (("accelerator", "bf16"), ("accelerator", "fp32"), ("cpu", "bf16"), ("cpu", "fp32"))  # targets and precisions


def generation_path(name: str, *, target: str, precision: str, folder: Path | None = None) -> Path:
    """Where the generation of a preset on one kind of device is stored."""
    return (folder or DATA) / name / f"generate-{precision}-{target}.npz"


@cache
def load_preset_generation(name: str, *, target: str, precision: str) -> Generation | None:
    """How a preset generates; None where that is not shipped. Raises FileFormatError when damaged."""
    path = generation_path(name, target=target, precision=precision)
    return load_generation(path) if path.exists() else None
