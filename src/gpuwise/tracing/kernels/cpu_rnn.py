"""The LSTM that oneDNN runs on the CPU: its results and its memory, which PyTorch's own shape rule leaves out.

The workspace, kept from forward to backward, is rnn_utils.hpp of oneDNN 3.12 (set_workspace_sizes,
set_offsets_fwd_gemm): regions rounded up to pages, rows to cache lines. Weights are brought to rows of the same kind.
PyTorch calls it for one layer and direction at a time (aten/src/ATen/native/mkldnn/RNN.cpp).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuwise.tracing.kernels.schemas import OneDnnRnnArguments
from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
_PAGE, _LINE = 4096, 64  # bytes
_LAYERS_AND_INPUT = 2  # states of one layer, and what enters it


def register() -> None:
    """Gives fake tensors the results of the real operator; the workspace is empty in PyTorch's own rule."""
    register_op_impl(aten.mkldnn_rnn_layer.default)(_results)


def _results(fake: FakeTensorMode, op: OpOverload, *args: Any) -> tuple[Tensor, ...]:
    """Output, last states and workspace. x is (time, samples, features) by the time PyTorch calls this."""
    call = OneDnnRnnArguments(*args)
    times, samples, inputs = call.x.shape
    size = workspace_bytes(times, samples, inputs, call.hidden_size, call.x.element_size()) if call.train else 0
    with fake:
        return (
            call.x.new_empty((times, samples, call.hidden_size)),
            call.hx.new_empty(call.hx.shape),
            call.cx.new_empty(call.cx.shape),
            call.x.new_empty((size,), dtype=torch.uint8),
        )


def workspace_bytes(times: int, samples: int, inputs: int, hidden: int, element_bytes: int) -> int:
    """What an LSTM layer keeps for its backward: gates, states, and room for the gradients of states."""
    wide = max(inputs, hidden)
    steps, states = times * samples, _LAYERS_AND_INPUT * (times + 1) * samples
    regions = [
        steps * _row(4 * hidden, element_bytes) * element_bytes,
        steps * _row(hidden, element_bytes) * element_bytes,
        states * _row(wide, element_bytes) * element_bytes,
        states * hidden * element_bytes,  # of the cell
        states * _row(wide, 4) * 4,  # gradients are fp32
        states * _row(wide, 4) * 4,
        states * hidden * 4,
    ]
    return sum(-(-region // _PAGE) * _PAGE for region in regions)


def _row(length: int, element_bytes: int) -> int:
    """A row's length in numbers: whole cache lines, and one more where rows would fall on the same cache sets."""
    line = _LINE // element_bytes
    length = -(-length // line) * line
    return length + line if length % 256 == 0 else length


def rnn_bytes(call: OperatorCall) -> int:
    """Bytes beyond the results while aten.mkldnn_rnn_layer runs: weights and the sum of biases in oneDNN's layout, and
    in fp32 the gates of all times."""
    times, samples, inputs, hidden, size = _sizes(call)
    if size == 2:
        return (inputs + hidden + 1) * 4 * hidden * size
    return _fp32_bytes(times, samples, inputs, hidden)


def rnn_backward_bytes(call: OperatorCall) -> int:
    """The same for aten.mkldnn_rnn_layer_backward, which also holds gradients of the weights in oneDNN's layout. In half
    precision those are fp32, as is a copy of what comes from above."""
    times, samples, inputs, hidden, size = _sizes(call)
    if size == 2:
        weights = (inputs + hidden) * 4 * hidden * size
        gradients = (inputs + hidden) * _row(4 * hidden, 4) + 4 * hidden
        return weights + 4 * (gradients + (times + 2) * samples * hidden)
    weights = sum(4 * hidden * _row(n, size) * size for n in (inputs, hidden) if _row(n, size) != n)
    return weights + _fp32_bytes(times, samples, inputs, hidden)


def _fp32_bytes(times: int, samples: int, inputs: int, hidden: int) -> int:
    return ((inputs + hidden + times * samples) * _row(4 * hidden, 4) + 4 * hidden) * 4


def _sizes(call: OperatorCall) -> tuple[int, int, int, int, int]:
    """Times, samples, features in, features of the state, bytes of a number."""
    x, recurrent = call.tensors(0, 2)
    return x.shape[0], x.shape[1], x.shape[2], recurrent.shape[1], x.element_size()
