"""What libraries ask about a tensor or its device, answered as on the GPU that is stood for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def answering_as_on_a_gpu(device_type: str) -> Iterator[None]:
    """While entered, fake tensors are no sign of tracing, and "is autocast on" is asked of the virtual device.

    transformers builds a 4-D attention mask for every fake tensor (masking_utils.py), which a real step does without
    where nothing is padded; instead it then looks at the mask, and is answered by the recorder's policy. peft and torchao
    ask `torch.is_autocast_enabled()` and `torch.get_autocast_gpu_dtype()`, which mean CUDA's.
    """
    questions: Any = sys.modules.get("transformers.utils.import_utils")
    is_fake = getattr(questions, "is_fake_tensor", None)
    is_autocast_enabled = torch.is_autocast_enabled

    def enabled(device: str = device_type) -> bool:
        return is_autocast_enabled(device)

    def dtype() -> torch.dtype:
        return torch.get_autocast_dtype(device_type)

    asked = {"is_autocast_enabled": enabled, "get_autocast_gpu_dtype": dtype}
    originals = {name: getattr(torch, name) for name in asked}
    if is_fake is not None:
        questions.is_fake_tensor = lambda tensor: False
    for name, answer in asked.items():
        setattr(torch, name, answer)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(torch, name, original)
        if is_fake is not None:
            questions.is_fake_tensor = is_fake
