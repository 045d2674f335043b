"""Which accelerator this process has, and the Backend of a device."""

from __future__ import annotations

import torch

from gpuwise.errors import InputError
from gpuwise.runtime.devices.backend import Backend
from gpuwise.runtime.devices.makers import Cuda, Host, Mps, Virtual, Xpu

VIRTUAL = "virt"  # PyTorch's name of the device of tracing
BACKENDS: dict[str, type[Backend]] = {"cpu": Host, "cuda": Cuda, "xpu": Xpu, "mps": Mps, VIRTUAL: Virtual}
COMPILED_IN = ("cuda", "xpu", "mps", "mtia", "hpu")  # types of accelerators in builds of PyTorch, one in each build


def accelerator() -> torch.device | None:
    """The type of accelerator that PyTorch can use here; None for a CPU alone.

    torch.accelerator tells it. Once tracing has registered its virtual device, that one is named first, and the modules of
    the types that PyTorch is built with are asked.
    """
    current = torch.accelerator.current_accelerator()
    if current is not None and current.type == VIRTUAL:
        names = (name for name in COMPILED_IN if hasattr(torch, name))
        current = next((torch.device(name) for name in names if getattr(torch, name).is_available()), None)
    return current if current is not None and backend_of(current).count() else None


def backend_of(device: torch.device | str) -> Backend:
    """What PyTorch can do on this device."""
    device = torch.device(device)
    return BACKENDS.get(device.type, Backend)(device)


def device_of_rank(local_rank: int) -> torch.device:
    """The device of a rank by its number on this machine: an accelerator of its own, or the CPU, which ranks share.

    Raises InputError for more ranks than accelerators.
    """
    here = accelerator()
    if here is None:
        return torch.device("cpu")
    count = backend_of(here).count()
    if local_rank >= count:
        raise InputError(
            f"rank {local_rank} of this machine has no device: PyTorch sees {count} of type {here.type}.",
            [f"{count} ranks on this machine", "CUDA_VISIBLE_DEVICES that names more of them"][
                : 2 if here.type == "cuda" else 1
            ],
        )
    return torch.device(here.type, local_rank)
