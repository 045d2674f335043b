"""Attention of one rank's part of the sequence to all of it: keys and values gathered, all-to-all, or passed on in a ring."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.parallel.torch_types import Argument, Saved
from gpuwise.strategy.parallelism import check_heads

SEQUENCE_DIM, HEAD_DIM = 2, 1  # of queries, keys and values (n, heads, seq, head_dim)

# (query, key, value, causal, scale) -> output, each of this rank's part of the sequence
Attention = Callable[[Tensor, Tensor, Tensor, bool, float | None], Tensor]


def gathered(mesh: DeviceMesh) -> Attention:
    """Each rank's queries attend to the keys and values of all ranks (as in Llama 3, Dubey et al. 2024, section 3.3.2)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> Tensor:
        _check_alike(query, key)
        key, value = _gather(key, mesh), _gather(value, mesh)
        mask = None
        if causal:
            rows = (
                torch.arange(query.shape[SEQUENCE_DIM], device=query.device) + mesh.get_local_rank() * query.shape[SEQUENCE_DIM]
            )
            mask = rows[:, None] >= torch.arange(key.shape[SEQUENCE_DIM], device=query.device)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=_grouped(query, key))

    return attend


def by_heads(mesh: DeviceMesh) -> Attention:
    """Parts of the sequence are exchanged for parts of the heads, and back (DeepSpeed-Ulysses, Jacobs et al. 2023)."""

    def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> Tensor:
        _check_alike(query, key)
        check_heads(mesh.size(), [query.shape[HEAD_DIM]])
        if key.shape[HEAD_DIM] % mesh.size():
            key, value = _repeated(query, key), _repeated(query, value)
        query, key, value = (_exchange(t, mesh, split=HEAD_DIM, join=SEQUENCE_DIM) for t in (query, key, value))
        output = F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=scale, enable_gqa=_grouped(query, key)
        )
        return _exchange(output, mesh, split=SEQUENCE_DIM, join=HEAD_DIM)

    return attend


def in_a_ring(mesh: DeviceMesh) -> Attention:
    """Keys and values are passed on from rank to rank (PyTorch's ring attention; Liu et al. 2023), with the CPU's kernel."""

    def attend(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None) -> Tensor:
        _check_alike(query, key)
        if query.device.type != "cpu":
            raise UnsupportedError(
                "ring attention has been compared with one device on CPUs alone so far.",
                ["--context all-to-all", "--context gather"],
            )
        result: Tensor = _Ring.apply(query, _repeated(query, key), _repeated(query, value), causal, scale, mesh.get_group())
        return result

    return attend


class _Ring(torch.autograd.Function):
    """PyTorch's templates of ring attention around the flash attention kernel of CPUs, without load balancing."""

    @staticmethod
    def forward(
        ctx: Saved, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float | None, group: dist.ProcessGroup
    ) -> Tensor:
        ring = _ring_templates()
        output, logsumexp = ring._templated_ring_attention(
            group,
            SEQUENCE_DIM,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu,
            query=query,
            key=key,
            value=value,
            is_causal=causal,
            scale=scale,
        )
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.causal, ctx.scale, ctx.group = causal, scale, group
        result: Tensor = output
        return result

    @staticmethod
    def backward(ctx: Saved, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, output, logsumexp = ctx.saved_tensors
        ring = _ring_templates()

        def kernel(*, grad_out: Tensor, query: Tensor, is_causal: bool, **tensors: Tensor) -> tuple[Tensor, ...]:
            names = ("key", "value", "out", "logsumexp")
            result: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_out, query, *(tensors[name] for name in names), 0.0, is_causal, scale=ctx.scale
            )
            return result

        gradients = ring._templated_ring_attention_backward(
            ctx.group,
            SEQUENCE_DIM,
            kernel,
            grad_out=gradient.contiguous(),
            grad_out_name="grad_out",
            query=query,
            key=key,
            value=value,
            out=output,
            logsumexp=logsumexp,
            is_causal=ctx.causal,
        )
        return (*gradients[:3], None, None, None)


def _ring_templates() -> Argument:
    from torch.distributed.tensor.experimental._context_parallel import _attention

    _attention._cp_options.enable_load_balance = False  # ranks have neighbouring parts of the sequence
    return _attention


def _check_alike(query: Tensor, key: Tensor) -> None:
    if query.dim() != 4 or query.shape[SEQUENCE_DIM] != key.shape[SEQUENCE_DIM]:
        raise UnsupportedError(
            f"context parallelism splits attention of (n, heads, seq, head_dim) with as many keys as queries, got queries "
            f"{tuple(query.shape)} and keys {tuple(key.shape)}.",
            ["--mesh dp_shard=N or tp=N"],
        )


def _gather(tensor: Tensor, mesh: DeviceMesh) -> Tensor:
    """The tensor of all ranks along the sequence; gradients are summed over the ranks, each of which used all of it."""
    part = DTensor.from_local(tensor, mesh, (Shard(SEQUENCE_DIM),), run_check=False)
    return part.redistribute(placements=(Replicate(),)).to_local(grad_placements=(Partial(),))


def _exchange(tensor: Tensor, mesh: DeviceMesh, *, split: int, join: int) -> Tensor:
    """Cuts along `split` into a part for each rank, and joins what the ranks sent along `join`."""
    parts = torch.stack(tensor.chunk(mesh.size(), split)).contiguous()
    sizes = [parts.numel() // mesh.size()] * mesh.size()
    received = collectives.all_to_all_single_autograd(parts.flatten(), sizes, sizes, mesh.get_group())
    return torch.cat(list(collectives.wait_tensor(received).view(parts.shape)), join)


def _grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[HEAD_DIM] != key.shape[HEAD_DIM]


def _repeated(query: Tensor, shared: Tensor) -> Tensor:
    """Keys or values that several heads share, once for each head."""
    return shared.repeat_interleave(query.shape[HEAD_DIM] // shared.shape[HEAD_DIM], HEAD_DIM)
