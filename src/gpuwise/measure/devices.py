"""The accelerators of this machine that PyTorch can use, matched to the catalog by their names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date

import torch

from gpuwise.hardware import Catalog, Chip, Gpu, Source
from gpuwise.hardware.detect import detect_cpu, match_gpu, unknown_gpu


@dataclass(frozen=True)
class Accelerator:
    """An accelerator of this machine.

    Attributes:
        device: PyTorch's name of it: cuda:0 (also for AMD), xpu:0 or mps.
        gpu: PyTorch's description of it.
        chip: the catalog's chip, or a local entry without rates.
        in_catalog: whether the catalog contains it.
    """

    device: str
    gpu: Gpu
    chip: Chip
    in_catalog: bool


def accelerators(catalog: Catalog) -> tuple[Accelerator, ...]:
    """GPUs of NVIDIA and AMD (torch.cuda), Intel (torch.xpu) and Apple (mps), in PyTorch's order; never fails."""
    accelerators_ = []
    for device, gpu in (*_cuda(), *_xpu(), *_mps()):
        chip = match_gpu(gpu, catalog.chips)
        local = unknown_gpu(gpu, "PyTorch on this machine") if chip is None else _as_here(chip, gpu)
        accelerators_.append(Accelerator(device, gpu, local, in_catalog=chip is not None))
    return tuple(accelerators_)


def _cuda() -> Iterator[tuple[str, Gpu]]:
    """GPUs of torch.cuda: NVIDIA's, or with ROCm AMD's."""
    vendor = "AMD" if torch.version.hip else "NVIDIA"
    with suppress(RuntimeError, AssertionError):  # the driver is too old or missing
        for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            about = torch.cuda.get_device_properties(index)
            capability = (about.major, about.minor) if vendor == "NVIDIA" else None
            units = getattr(about, "multi_processor_count", None)
            yield (
                f"cuda:{index}",
                Gpu(about.name, about.total_memory, vendor, compute_capability=capability, multiprocessors=units),
            )


def _xpu() -> Iterator[tuple[str, Gpu]]:
    with suppress(RuntimeError, AssertionError):
        for index in range(torch.xpu.device_count() if torch.xpu.is_available() else 0):
            about = torch.xpu.get_device_properties(index)
            yield f"xpu:{index}", Gpu(about.name, about.total_memory, "Intel")


def _mps() -> Iterator[tuple[str, Gpu]]:
    """Apple's GPU, which shares the machine's memory; Metal limits it to recommended_max_memory."""
    with suppress(RuntimeError, AssertionError):
        if torch.backends.mps.is_available():
            cpu = detect_cpu()  # CPU and GPU are one chip with one name
            yield "mps", Gpu(cpu.name, cpu.memory_bytes or torch.mps.recommended_max_memory(), "Apple")


def _as_here(chip: Chip, gpu: Gpu) -> Chip:
    """The catalog's chip. For Apple, memory and GPU cores are this machine's, because one name covers several variants."""
    if gpu.vendor != "Apple":
        return chip
    count = getattr(torch.backends.mps, "get_core_count", None)  # missing in some versions of PyTorch
    cores = count() if count else chip.sm_count
    if (cores, gpu.memory_bytes) == (chip.sm_count, chip.memory_bytes) or not cores or not chip.sm_count:
        return chip
    peaks = {precision: rate * cores / chip.sm_count for precision, rate in chip.peak_flops_per_s.items()}
    source = Source(f"{chip.id} scaled to {cores} GPU cores", date.today().isoformat(), verified=False)
    return replace(
        chip,
        id="here-gpu",
        name=f"{gpu.name} ({cores}-core GPU)",
        memory_bytes=gpu.memory_bytes,
        sm_count=cores,
        peak_flops_per_s=peaks,
        source=source,
        sources={},
    )
