"""state_kernels: delta rules and state space models as engines run them, in one kernel a layer.

Without the kernels of flash-linear-attention and mamba-ssm, Transformers computes these in loops of plain PyTorch, whose
hundreds of small operations no engine runs. What a kernel reads and writes for each token is that of what it takes and returns;
the state of each sequence is priced by its bytes (gpuwise.serving.step_time).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from gpuwise.tracing.patching import patched


def delta_rule(
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
    n, _, heads, size = value.shape
    return out, _state(initial_state, (n, heads, key.shape[-1], size), value) if output_final_state else None


def selective_scan(
    values: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    z: Tensor | None = None,
    return_last_state: bool = False,
    **settings: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Outputs of Mamba's scan over a prompt, (n, width, tokens), and its state (n, width, state size), by shapes alone."""
    out = _gated(values, dt, z)
    return (out, _state(None, (*values.shape[:2], A.shape[-1]), values)) if return_last_state else out


def chunk_scan(
    values: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    z: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    **settings: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Outputs of Mamba-2's scan over a prompt, (n, tokens, heads, size), and its state (n, heads, size, state size), by shapes
    alone."""
    out = _gated(values, dt[..., None], z)
    n, _, heads, size = values.shape
    return (out, _state(initial_states, (n, heads, size, B.shape[-1]), values)) if return_final_states else out


def state_update(
    state: Tensor,
    values: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    z: Tensor | None = None,
    **settings: object,
) -> Tensor:
    """Outputs of one token of Mamba or Mamba-2, shaped as `values`, by shapes alone."""
    return _gated(values, dt, z)


def _gated(values: Tensor, dt: Tensor, z: Tensor | None) -> Tensor:
    dt = dt.to(values.dtype)
    return values * dt if z is None else torch.addcmul(z, values, dt)


def _state(before: Tensor | None, shape: tuple[int, ...], values: Tensor) -> Tensor:
    return torch.zeros(shape, dtype=torch.float32, device=values.device) if before is None else before


# Functions of Transformers' models, which it replaces by those kernels where they are installed.
KERNELS: dict[str, Callable[..., object]] = {
    "torch_chunk_gated_delta_rule": delta_rule,
    "torch_recurrent_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "recurrent_kimi_delta_attention": delta_rule,
    "mamba_selective_scan": selective_scan,
    "mamba_selective_state_update": state_update,
    "mamba2_chunk_scan": chunk_scan,
    "mamba2_selective_state_update": state_update,
}


@contextmanager
def states_as_kernels(model: nn.Module) -> Iterator[None]:
    """Within it, models of Transformers compute KERNELS by shapes alone, which is what recordings see."""
    files = {sys.modules[type(module).__module__] for module in model.modules()}
    with ExitStack() as replaced:
        for file in files:
            for name, kernel in KERNELS.items():
                if hasattr(file, name):
                    replaced.enter_context(patched(file, name, kernel))
        yield
