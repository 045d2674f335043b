"""The accelerators of this machine that PyTorch can use, matched to the catalog by their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

import torch

from gpuwise.hardware import Catalog, Chip, Gpu, load_catalog
from gpuwise.hardware.detect import chip_of_gpu, detect_cpu, match_gpu, unknown_gpu
from gpuwise.runtime.devices.here import COMPILED_IN, accelerator, backend_of


@dataclass(frozen=True)
class Accelerator:
    """An accelerator of this machine.

    Attributes:
        device: PyTorch's name of it: cuda:0 (also for AMD), xpu:0, mps, or that of another package, such as npu:0.
        gpu: PyTorch's description of it.
        chip: the catalog's chip, or a local entry without rates.
        in_catalog: whether the catalog contains it.
    """

    device: str
    gpu: Gpu
    chip: Chip
    in_catalog: bool


def accelerators(catalog: Catalog) -> tuple[Accelerator, ...]:
    """GPUs of NVIDIA and AMD (torch.cuda), Intel (torch.xpu) and Apple (mps), and devices of other packages; never fails."""
    accelerators_ = []
    for device, gpu in (*_cuda(), *_xpu(), *_mps(), *_others()):
        chip = chip_of_gpu(gpu, catalog.chips, told_by="PyTorch on this machine")
        accelerators_.append(Accelerator(device, gpu, chip, in_catalog=match_gpu(gpu, catalog.chips) is not None))
    return tuple(accelerators_)


def first_chip(device: torch.device, catalog: Catalog) -> Chip:
    """The chip of an accelerator; one without memory and rates if PyTorch tells no more than its type."""
    for each in accelerators(catalog):
        if torch.device(each.device).type == device.type:
            return each.chip
    backend = backend_of(device)
    return replace(unknown_gpu(Gpu(backend.name, 0, backend.vendor), "PyTorch on this machine"), memory_bytes=None)


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
            memory_bytes = cpu.memory_bytes or int(torch.mps.recommended_max_memory())
            yield "mps", Gpu(cpu.name, memory_bytes, "Apple", multiprocessors=backend_of("mps").multiprocessors)


def _others() -> Iterator[tuple[str, Gpu]]:
    """Devices of a package outside PyTorch. Those that do not tell their memory are left out."""
    with suppress(RuntimeError, AssertionError, AttributeError):
        here = accelerator()
        if here is None or here.type in COMPILED_IN[:3]:
            return
        for index in range(backend_of(here).count()):
            backend = backend_of(torch.device(here.type, index))
            memory = backend.free_and_total_bytes()
            if memory is not None:
                yield (
                    f"{here.type}:{index}",
                    Gpu(backend.name, memory[1], backend.vendor, multiprocessors=backend.multiprocessors),
                )


def main() -> None:
    """Prints the accelerators as a line of JSON; see gpuwise.hardware.detect.pytorch."""
    print(json.dumps([asdict(each.gpu) for each in accelerators(load_catalog())]))


if __name__ == "__main__":
    main()
