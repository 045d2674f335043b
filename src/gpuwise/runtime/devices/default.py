"""default_device, default_stream: what libraries find where they look for PyTorch's default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def default_device(device: torch.device) -> Iterator[None]:
    """Within, PyTorch's default device is the one that serves.

    The forecast has registered the virtual accelerator of recordings in this process, which PyTorch takes for the default from
    then on; Transformers looks for streams and graphs there.
    """
    module_of, is_available = torch.get_device_module, torch.accelerator.is_available
    torch.get_device_module = lambda named=None: module_of(device if named is None else named)  # type: ignore[assignment]
    torch.accelerator.is_available = lambda: device.type != "cpu"
    try:
        yield
    finally:
        torch.get_device_module, torch.accelerator.is_available = module_of, is_available


@contextmanager
def default_stream(stream: Callable[[], torch.Stream]) -> Iterator[None]:
    """Within, the current stream of PyTorch's accelerator is what this function returns.

    FSDP2 lets that stream wait for gathers that nothing used, and those of a recording lie on streams of the virtual device.
    """
    current_stream = torch.accelerator.current_stream
    torch.accelerator.current_stream = lambda device=None: stream()
    try:
        yield
    finally:
        torch.accelerator.current_stream = current_stream
