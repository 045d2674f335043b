"""describe: one dispatched operator as a row of a trace's operations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import cast

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor

from gpuwise.trace.stepped import STEPPED
from gpuwise.trace.tables import KINDS, NO_LAYOUT, TURNED, OperationRow, OperationValues
from gpuwise.trace.update.rows import launches_of_many
from gpuwise.tracing.kernels import boxes, cpu_temporaries, temporaries
from gpuwise.tracing.kernels.convolution import channels_last, convolution_operands
from gpuwise.tracing.kernels.cpu_rows import rows_moved
from gpuwise.tracing.kernels.layouts import is_turned
from gpuwise.tracing.kernels.schemas import ConvolutionArguments, ConvolutionBackwardArguments
from gpuwise.tracing.kinds import kind_of
from gpuwise.tracing.operator_call import OperatorCall, tensors_in

aten = torch.ops.aten
Dims = tuple[int, int, int, int]  # batch, m, n, k


def device_type(tensor: Tensor) -> str:
    """The type of a tensor's device; of a fake tensor read directly, which spares a dispatch."""
    return tensor.fake_device.type if isinstance(tensor, FakeTensor) else tensor.device.type


def size_bytes(tensor: Tensor) -> int:
    """Bytes a kernel touches when it reads the tensor once; an expanded dimension is read once."""
    if 0 in tensor.stride():
        return prod(n for n, s in zip(tensor.shape, tensor.stride(), strict=True) if s != 0) * tensor.element_size()
    return tensor.numel() * tensor.element_size()


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as in Operations.dtype, such as "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def describe(call: OperatorCall, fresh: list[Tensor]) -> OperationRow:
    """The row of one call.

    Arguments:
        fresh: those of its outputs whose storage is new.
    """
    op, args, outputs = call.op, call.args, call.outputs
    inputs = tensors_in([*args, *call.kwargs.values()])
    kind, packet = kind_of(op), call.packet
    on_cpu = device_type((outputs or inputs)[0]) == "cpu"
    mutated = _mutated(call)
    written = sum(size_bytes(t) for t in fresh) + sum(size_bytes(t) for t in mutated)
    read = sum({(t.untyped_storage()._cdata, t.storage_offset()): size_bytes(t) for t in inputs}.values())
    flops, batch, m, n, k, causal, kernels = 0, 0, 0, 0, 0, 0, 1
    if kind == "gemm":
        batch, m, n, k = _product_dims(call)
        flops = 2 * batch * m * n * k
    elif kind == "conv":
        (batch, m, n, k), passes = _convolution_dims(call)
        flops, kernels = 2 * batch * m * n * k * passes, passes
    elif kind == "attention":
        flops, (batch, m, n, k), causal, kernels = _attention(call)
    elif kind == "optimizer":
        kernels = launches_of_many(updated_sizes(call))
        if not on_cpu:  # whose figures were fitted to all that the operator may write
            written -= _gradients_left_bytes(call)
    elif kind == "embedding":  # reads the rows it gathers, not the table
        gathered = args[1].numel() * size_bytes(args[0][0]) if packet in _BAGS else written
        read = gathered + sum(size_bytes(t) for t in inputs if not t.is_floating_point())
    elif kind == "scatter" and packet is aten.embedding_dense_backward:
        m, n, k = args[1].numel(), args[2], args[0].shape[-1]
    elif kind == "scatter" and packet in (aten._embedding_bag_backward, aten._embedding_bag_dense_backward):
        m, n, k = args[1].numel(), outputs[0].shape[0], args[0].shape[-1]
    elif kind == "scatter" and mutated:  # reads and writes what it adds to, not the whole buffer
        buffer_bytes, touched = _touched_bytes(mutated, inputs)
        read, written = read - buffer_bytes + touched, written - buffer_bytes + touched
    elif kind == "norm" and packet in _NORMS_BACKWARD:
        batch, m, k = _norm_dims(call)
    elif packet in _GROUP_NORMS and not on_cpu:
        again, kernels, (m, k) = _group_norm(call)
        read += again
    elif kind == "rnn" and packet in (aten._cudnn_rnn, aten._cudnn_rnn_backward):
        flops, (batch, m, n, k), kernels = _recurrent(call)
    elif kind == "rnn" and packet in (aten.mkldnn_rnn_layer, aten.mkldnn_rnn_layer_backward):
        flops, (batch, m, n, k), kernels = _recurrent_on_cpu(call)
    elif kind == "sort":
        kernels = 4
        if packet is aten.sort and inputs[0].dim():
            m = inputs[0].shape[args[1] if len(args) > 1 else cast(int, call.kwargs.get("dim", -1))]
            batch = inputs[0].numel() // max(1, m)
    elif packet is aten.roll and len(args) > 2:  # one pass a dimension (roll_common of ATen/native/TensorTransformations.h)
        read, written = (len(args[2]) * moved for moved in (read, written))
    elif packet is aten.im2col and not on_cpu:  # a launch for each image (im2col_out_cuda_template of native/cuda/Im2Col.cu)
        kernels = outputs[0].shape[0] if outputs[0].dim() == 3 else 1
    elif packet in _ALLOCATIONS:
        read = written = kernels = 0
    elif packet in _FILLED:  # the tensor whose type they have is not read
        read = 0
    if op.namespace == "torchvision" and (moved := boxes.moved(call)):
        (read, written), kernels = moved, boxes.launches(call)
    floating = [t.dtype for t in [*inputs, *outputs] if t.is_floating_point()]
    # A product of int8 numbers has int32 results.
    dtype = dtype_name(floating[0] if floating else (inputs if kind == "gemm" else outputs or inputs)[0].dtype)
    workspace = (cpu_temporaries if on_cpu else temporaries).workspace_bytes(call)
    if op.namespace == "torchvision":
        workspace = boxes.workspace_bytes(call, on_cpu=on_cpu)
    if not on_cpu and op in _STEPPED:
        workspace += _STEPPED[op](dtype, batch, m, n, k)
    if kind == "pool":
        k = _window(call)
        m = 0 if on_cpu or not k else (args[0] if packet in _POOLS_BACKWARD else outputs[0]).numel()
        if packet is aten.upsample_bilinear2d and not on_cpu and outputs[0].is_contiguous():
            m, n = prod(outputs[0].shape[:2]), prod(outputs[0].shape[2:])
    elif on_cpu and kind in ("embedding", "scatter") and packet is not aten.embedding_dense_backward:
        m, n, k = rows_moved(call)
    values = OperationValues(flops, read, written, workspace, kernels, batch, m, n, k, causal)
    return OperationRow(str(op), KINDS.index(kind), dtype, values, channels_last=_layout(call, kind, on_cpu=on_cpu))


def _layout(call: OperatorCall, kind: str, *, on_cpu: bool) -> int:
    """Operations.channels_last of a call."""
    if kind in ("elementwise", "copy") and not on_cpu and is_turned(call):
        return TURNED
    if kind == "conv":
        return int(channels_last(*convolution_operands(call)))
    images = [t for t in call.args[:2] if isinstance(t, Tensor) and t.dim() in (4, 5)]
    if kind == "pool" or "batch_norm" in call.name:
        return int(any(suggest_memory_format(t) in _INNERMOST for t in images)) if images else NO_LAYOUT
    return NO_LAYOUT


def updated_sizes(call: OperatorCall) -> list[int]:
    """Element counts of the tensors that a kernel over many tensors updates: of the first list, which the others are beside."""
    return [t.numel() for t in next(_mutated_lists(call), call.outputs)]


def _gradients_left_bytes(call: OperatorCall) -> int:
    """Bytes of gradients that a fused optimizer may write and does not: it writes them where a gradient scaler has scaled them
    (aten/src/ATen/native/cuda/fused_adam_utils.cuh and FusedSgdKernel.cu)."""
    fused = call.name.startswith("_fused_") and call.kwargs.get("grad_scale") is None
    return sum(size_bytes(t) for t in tensors_in(call.args[1:2])) if fused else 0


def _mutated(call: OperatorCall) -> list[Tensor]:
    return [t for tensors in _mutated_lists(call) for t in tensors]


def _mutated_lists(call: OperatorCall) -> Iterator[list[Tensor]]:
    for argument, value in zip(call.op._schema.arguments, call.args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield tensors_in([value])


def _touched_bytes(mutated: list[Tensor], inputs: list[Tensor]) -> tuple[int, int]:
    """Bytes of the buffer that a call scatters into, and of what it touches there: as many numbers as it brings, or, where
    it brings one for all, as it has indices."""
    (buffer,) = mutated
    brought = [t for t in inputs if t is not buffer and (t.dtype == buffer.dtype) and t.dim()]
    numbers = max((t.numel() for t in brought or inputs if t is not buffer), default=0)
    return size_bytes(buffer), min(size_bytes(buffer), numbers * buffer.element_size())


_INNERMOST = (torch.channels_last, torch.channels_last_3d)
_BAGS = {aten._embedding_bag, aten._embedding_bag_forward_only}
_STEPPED = {getattr(getattr(aten, name.split(".")[1]), name.split(".")[2]): rule for name, rule in STEPPED.items()}
_GROUP_NORMS = {aten.native_group_norm, aten.native_group_norm_backward}
_NORMS_BACKWARD = {aten.native_layer_norm_backward, aten._fused_rms_norm_backward}
_FILLED = {aten.new_zeros, aten.new_full, aten.new_ones}
_ALLOCATIONS = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}


def _product_dims(call: OperatorCall) -> Dims:
    added = call.name in ("addmm", "baddbmm", "addmv", "addbmm", "_addmm_activation")
    a, b = call.tensors(1, 2) if added else call.tensors(0, 1)
    if a.dtype == torch.float4_e2m1fn_x2:  # two numbers an element, along k
        return 1, a.shape[0], b.shape[1], 2 * a.shape[1]
    if a.dim() != b.dim() and call.packet is aten._grouped_mm:  # the products of all groups are counted as one
        return 1, a.shape[-2], b.shape[-1], a.shape[-1]
    if a.dim() == 3:
        return a.shape[0], a.shape[1], b.shape[2], a.shape[2]
    if a.dim() == 1:  # dot
        return 1, 1, 1, a.shape[0]
    return 1, a.shape[0], b.shape[1] if b.dim() == 2 else 1, a.shape[1]


def _convolution_dims(call: OperatorCall) -> tuple[Dims, int]:
    """The dimensions of the convolution as an implicit matrix product, and the number of such products."""
    arguments: ConvolutionArguments | ConvolutionBackwardArguments
    if call.packet is aten.convolution_backward:
        arguments = ConvolutionBackwardArguments(*call.args)
        result, passes = arguments.grad, int(arguments.output_mask[0]) + int(arguments.output_mask[1])
    else:
        arguments = ConvolutionArguments(*call.args[:9])  # _convolution has more
        result, passes = call.outputs[0], 1
    x, weight, transposed, groups = arguments.x, arguments.weight, arguments.transposed, arguments.groups
    positions = x if transposed else result  # each such position meets the whole kernel once
    columns = weight.shape[1] if transposed else weight.shape[0] // groups
    rows_of_kernel = (weight.shape[0] // groups if transposed else weight.shape[1]) * prod(weight.shape[2:])
    return (groups, x.shape[0] * prod(positions.shape[2:]), columns, rows_of_kernel), max(passes, 1)


# Positions of the window among the arguments of pooling operators.
_WINDOWS = {
    aten.max_pool2d_with_indices: 1,
    aten.avg_pool2d: 1,
    aten.max_pool3d_with_indices: 1,
    aten.avg_pool3d: 1,
    aten.max_pool2d_with_indices_backward: 2,
    aten.avg_pool2d_backward: 2,
}
_POOLS_BACKWARD = {aten.max_pool2d_with_indices_backward, aten.avg_pool2d_backward}


def _window(call: OperatorCall) -> int:
    """Input elements per output of a pool, which are read one by one; 0 if the operator does not state them."""
    position = _WINDOWS.get(call.packet)
    if position is None:
        return 0
    sides = call.args[position] if isinstance(call.args[position], (list, tuple)) else [call.args[position]]
    return prod(sides) if len(sides) > 1 else sides[0] ** 2


def _attention(call: OperatorCall) -> tuple[int, Dims, int, int]:
    """Flops, (batch × heads, queries, keys, head size), causal, kernels.

    Forward is two products, backward five (it computes the scores again). A causal kernel skips the masked half.
    """
    backward = call.name.endswith("_backward")
    q, k, v = call.tensors(1, 2, 3) if backward else call.tensors(0, 1, 2)
    schema = {argument.name: position for position, argument in enumerate(call.op._schema.arguments)}
    position = schema.get("is_causal", len(call.args))
    causal = int(bool(call.args[position] if position < len(call.args) else call.kwargs.get("is_causal", False)))
    batch, heads, queries, size = q.shape
    keys = k.shape[2]
    score, value = 2 * batch * heads * queries * keys * size, 2 * batch * heads * queries * keys * v.shape[3]
    flops = 3 * score + 2 * value if backward else score + value
    return flops // 2 if causal else flops, (batch * heads, queries, keys, size), causal, 3 if backward else 1


def _norm_dims(call: OperatorCall) -> tuple[int, int, int]:
    """A norm's backward: the number of computed weight gradients, rows, and elements per row."""
    width = prod(call.args[2])
    return sum(map(bool, call.args[-1][1:])), call.tensor(1).numel() // width, width


def _group_norm(call: OperatorCall) -> tuple[int, int, tuple[int, int]]:
    """Bytes read a second time, kernels, and (groups of all samples, elements per group) of a group norm on CUDA.

    Sums are one kernel's, over the input alone (backward: and its gradient), scales and shifts of channels another's, and the
    result that of a third, which reads the same again; backward has two more, for the gradients of weights (GroupNormKernelImpl
    and GroupNormBackwardKernelImpl of native/cuda/group_norm_kernel.cu).
    """
    backward = call.packet is aten.native_group_norm_backward
    x, weight = (call.tensor(1), call.args[4]) if backward else (call.tensor(0), call.args[1])
    samples, channels, positions, groups = call.args[5:9] if backward else call.args[3:7]
    shape = (samples * groups, channels // groups * positions)
    if backward:
        return x.nbytes + call.tensor(0).nbytes, 3 + (weight is not None) + any(call.args[9][1:]), shape
    return x.nbytes, 2 + (weight is not None and positions > 1), shape


def _recurrent(call: OperatorCall) -> tuple[int, Dims, int]:
    """FLOPs, (time steps of all layers and directions, rows, gates × units, units) and launches of a whole recurrent layer:
    every row times every matrix, at least one launch per time step."""
    x, hx = call.tensors(0, 4)
    weight: list[Tensor] = call.args[1]
    backward = call.packet is aten._cudnn_rnn_backward
    rows = x.numel() // x.shape[-1]
    flops = 2 * rows * sum(w.numel() for w in weight if w.dim() == 2)
    steps = -(-rows // hx.shape[1])
    dims = (steps * hx.shape[0], hx.shape[1], weight[1].shape[0], weight[1].shape[1])
    return (2 * flops, dims, 2 * steps) if backward else (flops, dims, steps)


def _recurrent_on_cpu(call: OperatorCall) -> tuple[int, Dims, int]:
    """Flops, (time steps, rows, gates × width, inputs + width) and passes of one layer: a product for each time step."""
    x, weight, recurrent = call.tensors(0, 1, 2)
    passes = 2 if call.packet is aten.mkldnn_rnn_layer_backward else 1
    steps, rows = x.shape[:2]
    return (
        2 * passes * steps * rows * (weight.numel() + recurrent.numel()),
        (steps, rows, weight.shape[0], weight.shape[1] + recurrent.shape[1]),
        passes,
    )
