"""Questions of Keras about devices, answered as on the device whose kernels are recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from gpuwise.tracing.kernels.attention import flash_can_run
from gpuwise.tracing.patching import patched


@contextmanager
def keras_on(device_type: str) -> Iterator[None]:
    """While entered, Keras makes tensors on a device where no scope of its own says otherwise: in recomputed forwards, say.

    PyTorch has no random generator for the virtual device, so seeded layers draw without one; the seeds are still drawn,
    which are operators of the step. Keras's attention chooses flash attention by what PyTorch's CUDA build says of it.
    """
    core, random = (sys.modules.get(f"keras.src.backend.torch.{name}") for name in ("core", "random"))
    if core is None or random is None:
        yield
        return
    draw_seed, get_device = random.draw_seed, core.get_device

    def without_generator(seed: object) -> None:
        if get_device() != "meta":  # where Keras infers shapes
            first, second = draw_seed(seed)
            int(first + second)

    with ExitStack() as stack:
        stack.enter_context(patched(core, "DEFAULT_DEVICE", device_type))
        if device_type != "cpu":
            stack.enter_context(patched(random, "torch_seed_generator", without_generator))
            stack.enter_context(patched(torch.backends.cuda, "can_use_flash_attention", flash_can_run))
        yield
