"""Recorded traces of well-known models: forecasts for them need no PyTorch. Recorded by `gpuwise record`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.notes.job import fp16_from_bf16_recording
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.files import load

DATA = Path(__file__).parent / "data"


def preset_path(
    name: str, *, precision: str, recompute: str, mode: str, adapter: str = "none", folder: Path | None = None
) -> Path:
    """Where one variant is stored. tf32 runs the operations of fp32 and shares its file."""
    recorded = "fp32" if precision == "tf32" else precision
    adapted = "" if adapter == "none" else f"-{adapter}"
    return (folder or DATA) / name / f"{mode}-{recorded}-{recompute}{adapted}.npz"


@cache
def load_preset(
    name: str, *, precision: str, recompute: str = "none", mode: str = "train", adapter: str = "none"
) -> TraceFamily | None:
    """The recorded family of a preset's variant; None where it is not shipped. Raises FileFormatError when damaged."""
    path = preset_path(name, precision=precision, recompute=recompute, mode=mode, adapter=adapter)
    if not path.exists() and precision == "amp-fp16":
        bf16 = load_preset(name, precision="amp-bf16", recompute=recompute, mode=mode, adapter=adapter)
        return None if bf16 is None else _with_note(_in_fp16(bf16, precision))
    if not path.exists() and precision == "fp16" and mode == "infer":
        bf16 = load_preset(name, precision="bf16", recompute=recompute, mode=mode, adapter=adapter)
        return None if bf16 is None else _in_fp16(bf16, precision)
    if not path.exists():
        return None
    family = load(path)
    if not isinstance(family, TraceFamily):
        raise FileFormatError(f"{path} holds one trace, not a family of sizes.", ["record it again: gpuwise record"])
    return replace(family, header=replace(family.header, strategy=family.header.strategy.but(precision=precision)))


def _in_fp16(family: TraceFamily, precision: str) -> TraceFamily:
    """A recording in bf16 as one in fp16: the same sizes."""
    header = replace(family.header, strategy=family.header.strategy.but(precision=precision))
    return replace(family, header=header, operations=family.operations.in_fp16())


def _with_note(family: TraceFamily) -> TraceFamily:
    """With the note that the loss scaler's pass over the gradients is left out."""
    notes = (*family.header.assumption_notes, fp16_from_bf16_recording())
    return replace(family, header=replace(family.header, assumption_notes=notes))
