"""Recurrent layers as cuDNN runs them: one operator forward, one backward (aten/src/ATen/native/cudnn/RNN.cpp).

What cuDNN keeps for backward and works with is its own secret. The formulas here give the figures printed in
pytorch/pytorch issue 2895, exactly: an LSTM of 4 layers, 320 wide, 123 inputs, keeps 736,000,000 bytes of 25,000 rows and
works with 17,730,560; a GRU 864,000,000 and 13,169,920. The plain RNN and dropout's masks are upper bounds in their
manner, and newer versions of cuDNN may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # cudnnRNNMode_t
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
_KEPT = {0: 1, 1: 1, 2: 5, 3: 6}  # numbers a unit, layer and row: gates, and LSTM's cells or GRU's products


def register(library: Any) -> None:
    """Makes at::lstm and its like call cuDNN's operator on the virtual device."""
    for name, mode in MODES.items():
        for overload in ("input", "data"):
            library.impl(f"{name}.{overload}", _layer(name, overload, mode), "AutogradPrivateUse1")


def _layer(name: str, overload: str, mode: int) -> Callable[..., Any]:
    portable = getattr(getattr(aten, name), overload)
    packed = overload == "data"

    def layer(x: Tensor, *args: Any) -> Any:
        if not _acceptable(x):
            # PyTorch's own layers in C++; its Python decomposition takes cells apart, which CUDA does not.
            return portable._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, x, *args)
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


def reserve_bytes(x: Tensor, mode: int, units: int, layers: int, dropout: float, bidirectional: bool) -> int:
    """What forward keeps for backward beside the output: see the head of this module."""
    numbers = _KEPT[mode] * layers + (layers - 1) * (2 if dropout else 1)
    return rows_of(x) * units * (2 if bidirectional else 1) * numbers * x.element_size()


def workspace_bytes(x: Tensor, weight: Sequence[Tensor], hx: Tensor, mode: int, units: int) -> int:
    """The weights once more and a few rows a layer: see the head of this module. hx: (layers × directions, batch, units)."""
    matrices = sum(w.numel() for w in weight if w.dim() == 2)
    return (matrices + (6 * _GATES[mode] - 2) * hx.shape[0] * hx.shape[1] * units) * x.element_size()


def forward_shapes(
    fake: Any,
    func: Any,
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Any,
    hx: Tensor,
    cx: Tensor | None,
    mode: int,
    units: int,
    projected: int,
    layers: int,
    batch_first: bool,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_sizes: Sequence[int],
    dropout_state: Any,
) -> Any:
    """Output, last hidden and cell state, what is kept for backward, weights as one (nothing: they lie as they are)."""
    width = (projected or units) * (2 if bidirectional else 1)
    transposed = batch_first and not batch_sizes
    with fake:
        shape = [*((x.shape[1], x.shape[0]) if transposed else x.shape[:-1]), width]
        output = x.new_empty(shape).transpose(0, 1) if transposed else x.new_empty(shape)
        cy = hx.new_empty(0) if cx is None else torch.empty_like(cx)
        kept = reserve_bytes(x, mode, units, layers, dropout, bidirectional) if train else 0
        reserve = x.new_empty(kept, dtype=torch.uint8)
        return output, torch.empty_like(hx), cy, reserve, weight[0].new_empty(0)


def backward_shapes(
    fake: Any,
    func: Any,
    x: Tensor,
    weight: Sequence[Tensor],
    weight_stride0: int,
    weight_buf: Tensor,
    hx: Tensor,
    cx: Tensor | None,
    output: Tensor,
    grad_output: Tensor | None,
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    mode: int,
    units: int,
    projected: int,
    layers: int,
    batch_first: bool,
    *rest: Any,
) -> Any:
    """Gradients of input, hidden and cell state, and of the weights, which are slices of one buffer."""
    batch_sizes, needed = rest[3], rest[6]
    with fake:
        grads: list[Tensor] = []
        if needed[3]:
            flat, start = weight[0].new_empty(sum(w.numel() for w in weight)), 0
            for w in weight:
                grads.append(flat[start : start + w.numel()].view(w.shape))
                start += w.numel()
        if batch_first and not batch_sizes:
            dx = x.new_empty(x.shape[1], x.shape[0], x.shape[2]).transpose(0, 1)
        else:
            dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        dcx = None if cx is None else torch.empty_like(cx)
        return dx, torch.empty_like(hx), dcx, grads
