"""Recurrent layers as cuDNN runs them: one operator forward, one backward (aten/src/ATen/native/cudnn/RNN.cpp).

What cuDNN keeps for backward and works with is not published. The formulas here give the figures printed in
pytorch/pytorch issue 2895, exactly: an LSTM of 4 layers, 320 wide, 123 inputs, keeps 736,000,000 bytes of 25,000 rows and
works with 17,730,560; a GRU 864,000,000 and 13,169,920. The plain RNN and dropout's masks are upper bounds in their
manner, and newer versions of cuDNN may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuwise.tracing.kernels.schemas import CudnnRnnArguments, CudnnRnnBackwardArguments

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}  # numbers a unit, layer and row: gates, and LSTM's cells or GRU's products


def register(library: torch.library.Library) -> None:
    """Makes at::lstm and its like call cuDNN's operator on the virtual device."""
    for name, mode in MODES.items():
        for overload in ("input", "data"):
            library.impl(f"{name}.{overload}", _layer(name, overload, mode), "AutogradPrivateUse1")


def _layer(name: str, overload: str, mode: int) -> Callable[..., tuple[Tensor, ...]]:
    portable = getattr(aten, name).input
    packed = overload == "data"

    def layer(x: Tensor, *args: Any) -> tuple[Tensor, ...]:
        if not _acceptable(x):
            # PyTorch's own layers in C++; its Python decomposition takes cells apart, which CUDA does not.
            key = torch._C.DispatchKey.CompositeImplicitAutograd
            if packed:  # the rows of a time are data
                states = args[1] if isinstance(args[1], Tensor) else args[1][0]
                output, *last = portable._op_dk(key, x.view(-1, states.shape[1], x.shape[1]), *args[1:], False)
                return output.flatten(0, 1), *last
            outputs: tuple[Tensor, ...] = portable._op_dk(key, x, *args)
            return outputs
        if packed:  # which rows belong together is data; only their number matters to memory
            hidden, params, has_biases, layers, dropout, train, bidirectional = args[1:]
            batch_first = False
        else:
            hidden, params, has_biases, layers, dropout, train, bidirectional, batch_first = args
        hx, cx = hidden if mode == MODES["lstm"] else (hidden, None)
        units = hx.shape[2] if cx is None else cx.shape[2]
        projected = hx.shape[2] if units != hx.shape[2] else 0
        out = aten._cudnn_rnn(
            x,
            params,
            (4 if has_biases else 2) + bool(projected),
            None,
            hx,
            cx,
            mode,
            units,
            projected,
            layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            [hx.shape[1]] if packed else [],
            None,
        )
        return tuple(out[: 2 if cx is None else 3])

    return layer


def _acceptable(x: Tensor) -> bool:
    """cudnn_is_acceptable in aten/src/ATen/native/TensorProperties.cpp: bfloat16 is not."""
    return torch.backends.cudnn.enabled and x.numel() > 0 and x.dtype in (torch.float16, torch.float32, torch.float64)


def rows_of(x: Tensor) -> int:
    """Rows over all time steps: time × batch, or those of a packed sequence. x: the input, features last."""
    return x.numel() // x.shape[-1]


def reserve_bytes(call: CudnnRnnArguments) -> int:
    """What forward keeps for backward beside the output: see the head of this module."""
    numbers = _KEPT[call.mode] * call.layers + (call.layers - 1) * (2 if call.dropout else 1)
    directions = 2 if call.bidirectional else 1
    return rows_of(call.x) * call.hidden_size * directions * numbers * call.x.element_size()


def workspace_bytes(call: CudnnRnnArguments | CudnnRnnBackwardArguments) -> int:
    """The weights once more and a few rows a layer: see the head of this module.

    hx has the shape (layers × directions, batch, units).
    """
    matrices = sum(w.numel() for w in call.weight if w.dim() == 2)
    rows = (6 * _GATES[call.mode] - 2) * call.hx.shape[0] * call.hx.shape[1]
    return (matrices + rows * call.hidden_size) * call.x.element_size()


def forward_shapes(fake: FakeTensorMode, op: OpOverload, *args: Any) -> tuple[Tensor, ...]:
    """Output, last hidden and cell state, what is kept for backward, weights as one (nothing: they lie as they are)."""
    call = CudnnRnnArguments(*args)
    x, hx = call.x, call.hx
    width = (call.projected_size or call.hidden_size) * (2 if call.bidirectional else 1)
    transposed = call.batch_first and not call.batch_sizes
    with fake:
        shape = [*((x.shape[1], x.shape[0]) if transposed else x.shape[:-1]), width]
        output = x.new_empty(shape).transpose(0, 1) if transposed else x.new_empty(shape)
        cy = hx.new_empty(0) if call.cx is None else torch.empty_like(call.cx)
        reserve = x.new_empty(reserve_bytes(call) if call.train else 0, dtype=torch.uint8)
        return output, torch.empty_like(hx), cy, reserve, call.weight[0].new_empty(0)


def backward_shapes(fake: FakeTensorMode, op: OpOverload, *args: Any) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Gradients of input, hidden and cell state, and of the weights, which are slices of one buffer."""
    call = CudnnRnnBackwardArguments(*args)
    x, weight = call.x, call.weight
    with fake:
        grads: list[Tensor] = []
        if call.output_mask[3]:
            flat, start = weight[0].new_empty(sum(w.numel() for w in weight)), 0
            for w in weight:
                grads.append(flat[start : start + w.numel()].view(w.shape))
                start += w.numel()
        if call.batch_first and not call.batch_sizes:
            dx = x.new_empty(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
        else:
            dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        dcx = None if call.cx is None else torch.empty_like(call.cx)
        return dx, torch.empty_like(call.hx), dcx, grads


_GRU_KEPT = 5  # numbers a unit and row (GRU_WORKSPACE_MULTIPLIER in aten/src/ATen/native/cuda/RNN.cu)


def gru_cell_shapes(
    fake: FakeTensorMode,
    op: OpOverload,
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The next state, and what is kept for backward."""
    with fake:
        return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty(hx.shape[0], _GRU_KEPT * hx.shape[1])


def gru_cell_backward_shapes(
    fake: FakeTensorMode, op: OpOverload, grad: Tensor, kept: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Gradients of both gates, of the state, and of both biases."""
    gates = kept.shape[1] // _GRU_KEPT * _GATES[MODES["gru"]]
    with fake:
        of_input, of_hidden = (kept.new_empty(kept.shape[0], gates) for _ in range(2))
        biases = (kept.new_empty(gates), kept.new_empty(gates)) if has_bias else (None, None)
        return of_input, of_hidden, torch.empty_like(grad, memory_format=torch.contiguous_format), *biases
