"""Questions of libraries about a tensor or its device, answered as on the GPU whose kernels are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gpuwise.tracing.kernels.keras_library import keras_on
from gpuwise.tracing.patching import patched


@contextmanager
def answering_as_on_a_gpu(device_type: str) -> Iterator[None]:
    """While entered, fake tensors are no sign of tracing, and "is autocast on" means the virtual device.

    transformers builds a 4-D attention mask for every fake tensor (masking_utils.py), which a real step does without
    where nothing is padded; instead it then looks at the mask, and is answered by the recorder's policy. peft and torchao
    call `torch.is_autocast_enabled()` and `torch.get_autocast_gpu_dtype()`, which mean CUDA's.
    """
    is_autocast_enabled = torch.is_autocast_enabled

    def enabled(device: str = device_type) -> bool:
        return is_autocast_enabled(device)

    def dtype() -> torch.dtype:
        return torch.get_autocast_dtype(device_type)

    transformers = sys.modules.get("transformers.utils.import_utils")
    with ExitStack() as stack:
        stack.enter_context(patched(torch, "is_autocast_enabled", enabled))
        stack.enter_context(patched(torch, "get_autocast_gpu_dtype", dtype))
        if hasattr(transformers, "is_fake_tensor"):
            stack.enter_context(patched(transformers, "is_fake_tensor", lambda tensor: False))
        stack.enter_context(keras_on(device_type))
        yield
