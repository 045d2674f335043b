"""What one dispatched operator does: its kind, dtype and numbers (the columns of gpuwise.trace.COLUMNS)."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from gpuwise.trace.stepped import STEPPED
from gpuwise.trace.update.rows import launches_of_many
from gpuwise.tracing.kernels import cpu_temporaries, temporaries
from gpuwise.tracing.kinds import Kind, kind_of

aten = torch.ops.aten
Numbers = tuple[int, int, int, int, int, int, int, int, int, int]


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among arguments, one level of lists deep (operators nest no deeper)."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [item for item in value if isinstance(item, torch.Tensor)]
    return found


def device_type(tensor: torch.Tensor) -> str:
    """The type of a tensor's device; a fake tensor is asked directly, which spares a dispatch."""
    return tensor.fake_device.type if isinstance(tensor, FakeTensor) else tensor.device.type


def size_bytes(tensor: torch.Tensor) -> int:
    """Bytes a kernel touches when it reads the tensor once; an expanded dimension is read once."""
    if 0 in tensor.stride():
        return prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0) * tensor.element_size()
    return tensor.numel() * tensor.element_size()


def describe(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: list[torch.Tensor], fresh: list[torch.Tensor]
) -> tuple[Kind, str, Numbers]:
    """Kind, compute dtype and numbers of one call.

    Arguments:
        outputs: tensors the call returned.
        fresh: those of them whose storage is new.
    """
    inputs = tensors_in([*args, *kwargs.values()])
    kind = kind_of(func)
    mutated = [
        t
        for argument, value in zip(func._schema.arguments, args, strict=False)
        if argument.alias_info is not None and argument.alias_info.is_write
        for t in tensors_in([value])
    ]
    written = sum(size_bytes(t) for t in fresh) + sum(size_bytes(t) for t in mutated)
    read = sum({(t.untyped_storage()._cdata, t.storage_offset()): size_bytes(t) for t in inputs}.values())
    flops, batch, m, n, k, causal, kernels = 0, 0, 0, 0, 0, 0, 1
    if kind == "gemm":
        batch, m, n, k = _product_dims(func, args)
        flops = 2 * batch * m * n * k
    elif kind == "conv":
        (batch, m, n, k), passes = _convolution_dims(func, args, outputs)
        flops, kernels = 2 * batch * m * n * k * passes, passes
    elif kind == "attention":
        flops, (batch, m, n, k), causal, kernels = _attention(func, args, kwargs)
    elif kind == "optimizer":
        kernels = launches_of_many([t.numel() for t in mutated or outputs])
    elif kind == "embedding":  # reads the rows it gathers, not the table
        read = written + sum(size_bytes(t) for t in inputs if not t.is_floating_point())
    elif kind == "scatter" and func._overloadpacket is aten.embedding_dense_backward:
        m, n, k = args[1].numel(), args[2], args[0].shape[-1]
    elif kind == "norm" and func._overloadpacket in _NORMS_BACKWARD:
        batch, m, k = _norm_dims(args)
    elif kind == "rnn" and func._overloadpacket in (aten._cudnn_rnn, aten._cudnn_rnn_backward):
        flops, kernels = _recurrent(func, args)
    elif kind == "rnn" and func._overloadpacket in (aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward):
        flops, (batch, m, n, k), kernels = _recurrent_on_cpu(func, args)
    elif kind == "sort":
        kernels = 4
        if func._overloadpacket is aten.sort and inputs[0].dim():
            m = inputs[0].shape[args[1] if len(args) > 1 else kwargs.get("dim", -1)]
            batch = inputs[0].numel() // max(1, m)
    elif func._overloadpacket in _ALLOCATIONS:
        read = written = kernels = 0
    floating = [t.dtype for t in [*inputs, *outputs] if t.is_floating_point()]
    # A product of int8 numbers has int32 results.
    dtype = floating[0] if floating else (inputs if kind == "gemm" else outputs or inputs)[0].dtype
    name = str(dtype).removeprefix("torch.")
    if device_type((outputs or inputs)[0]) == "cpu":
        k = _window(func, args) if kind == "pool" else k
        workspace = cpu_temporaries.workspace_bytes(func, args, outputs)
    else:
        workspace = temporaries.workspace_bytes(func, args, outputs)
        if func in _STEPPED:
            workspace += _STEPPED[func](name, batch, m, n, k)
    return kind, name, (flops, read, written, workspace, kernels, batch, m, n, k, causal)


_STEPPED = {getattr(getattr(aten, name.split(".")[1]), name.split(".")[2]): rule for name, rule in STEPPED.items()}
_NORMS_BACKWARD = {aten.native_layer_norm_backward, aten._fused_rms_norm_backward}
_ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}


def _product_dims(func: Any, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    name = func._overloadpacket.__name__
    a, b = args[1:3] if name in ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation") else args[:2]
    if a.dtype == torch.float4_e2m1fn_x2:  # two numbers an element, along k
        return 1, a.shape[0], b.shape[1], 2 * a.shape[1]
    if a.dim() == 3:
        return a.shape[0], a.shape[1], b.shape[2], a.shape[2]
    if a.dim() == 1:  # dot
        return 1, 1, 1, a.shape[0]
    return 1, a.shape[0], b.shape[1] if b.dim() == 2 else 1, a.shape[1]


def _convolution_dims(func: Any, args: tuple[Any, ...], outputs: list[torch.Tensor]) -> tuple[tuple[int, int, int, int], int]:
    """The convolution as an implicit matrix product, and how many such products the call does."""
    if func._overloadpacket is aten.convolution_backward:
        grad, x, weight = args[:3]
        transposed, groups, mask = args[7], args[9], args[10]
        result, passes = grad, int(mask[0]) + int(mask[1])
    else:
        x, weight, result, passes = args[0], args[1], outputs[0], 1
        transposed, groups = args[6], args[8]
    positions = x if transposed else result  # each such position meets the whole kernel once
    columns = weight.shape[1] if transposed else weight.shape[0] // groups
    rows_of_kernel = (weight.shape[0] // groups if transposed else weight.shape[1]) * prod(weight.shape[2:])
    return (groups, x.shape[0] * prod(positions.shape[2:]), columns, rows_of_kernel), max(passes, 1)


# Where the operators of a pool have its window among their arguments.
_WINDOWS = {
    aten.max_pool2d_with_indices: 1,
    aten.avg_pool2d: 1,
    aten.max_pool3d_with_indices: 1,
    aten.avg_pool3d: 1,
    aten.max_pool2d_with_indices_backward: 2,
    aten.avg_pool2d_backward: 2,
}


def _window(func: Any, args: tuple[Any, ...]) -> int:
    """Numbers that one result of a pool is of: a CPU takes them one by one. 0 where the operator does not say."""
    place = _WINDOWS.get(func._overloadpacket)
    if place is None:
        return 0
    sides = args[place] if isinstance(args[place], (list, tuple)) else [args[place]]
    return prod(sides) if len(sides) > 1 else sides[0] ** 2


def _attention(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, tuple[int, int, int, int], int, int]:
    """Flops, (batch × heads, queries, keys, head size), causal, kernels.

    Forward is two products, backward five (it computes the scores again). A causal kernel skips the masked half.
    """
    name = func._overloadpacket.__name__
    backward = name.endswith("_backward")
    q, k, v = args[1:4] if backward else args[:3]
    schema = {a.name: i for i, a in enumerate(func._schema.arguments)}
    position = schema.get("is_causal", len(args))
    causal = int(bool(args[position] if position < len(args) else kwargs.get("is_causal", False)))
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    score, value = 2 * batch * heads * queries * keys * size, 2 * batch * heads * queries * keys * v.shape[3]
    flops = 3 * score + 2 * value if backward else score + value
    return flops // 2 if causal else flops, (batch * heads, queries, keys, size), causal, 3 if backward else 1


def _norm_dims(args: tuple[Any, ...]) -> tuple[int, int, int]:
    """Gradients of weights that are asked for, rows, and numbers in a row of a norm's backward."""
    width = prod(args[2])
    return sum(map(bool, args[-1][1:])), args[1].numel() // width, width


def _recurrent(func: Any, args: tuple[Any, ...]) -> tuple[int, int]:
    """Flops and launches of a whole recurrent layer: every row meets every matrix, one launch a time step at least."""
    x, weight = args[:2]
    backward = func._overloadpacket is aten._cudnn_rnn_backward
    rows = x.numel() // x.shape[-1]
    flops = 2 * rows * sum(w.numel() for w in weight if w.dim() == 2)
    steps = -(-rows // args[4].shape[1])
    return (2 * flops, 2 * steps) if backward else (flops, steps)


def _recurrent_on_cpu(func: Any, args: tuple[Any, ...]) -> tuple[int, tuple[int, int, int, int], int]:
    """Flops, (time steps, rows, gates × width, inputs + width) and passes of one layer: a product for each time step."""
    x, weight, recurrent = args[:3]
    passes = 2 if func._overloadpacket is aten.mkldnn_rnn_layer_backward else 1
    steps, rows = x.shape[:2]
    return (
        2 * passes * steps * rows * (weight.numel() + recurrent.numel()),
        (steps, rows, weight.shape[0], weight.shape[1] + recurrent.shape[1]),
        passes,
    )
