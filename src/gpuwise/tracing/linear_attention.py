"""linear_attention_as_kernels: gated delta rules as engines run them, in one kernel a layer.

Without the kernels of flash-linear-attention, Transformers computes the rule in loops of plain PyTorch, whose hundreds of small
operations no engine runs. What a kernel reads and writes for each token is that of queries, keys and values; the state of each
sequence is priced by its bytes (gpuwise.serving.step_time).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from gpuwise.tracing.patching import patched

# Functions of Transformers' models (modeling_qwen3_next.py and its kin).
RULES = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")


def one_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    **settings: object,
) -> tuple[Tensor, Tensor | None]:
    """Outputs of a gated delta rule, (n, tokens, heads, size), and its state (n, heads, key size, size), by shapes alone."""
    out = value * beta[..., None].to(value.dtype)
    if not output_final_state:
        return out, None
    if initial_state is not None:
        return out, initial_state
    n, _, heads, size = value.shape
    return out, torch.zeros((n, heads, key.shape[-1], size), dtype=torch.float32, device=value.device)


@contextmanager
def linear_attention_as_kernels(model: nn.Module) -> Iterator[None]:
    """Within it, models of Transformers compute gated delta rules by `one_kernel`: for recordings, which see shapes alone."""
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    with ExitStack() as replaced:
        for file in files:
            for name in RULES:
                if hasattr(file, name):
                    replaced.enter_context(patched(file, name, one_kernel))
        yield
