"""The arguments of operators that have many, in the order of their schemas: `ConvolutionArguments(*call.args)`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class ConvolutionArguments(NamedTuple):
    """Of aten.convolution."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


class ConvolutionBackwardArguments(NamedTuple):
    """Of aten.convolution_backward. output_mask: whether gradients of input, weight and bias are computed."""

    grad: Tensor
    x: Tensor
    weight: Tensor
    bias_sizes: Sequence[int] | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int
    output_mask: Sequence[bool]


class CudnnRnnArguments(NamedTuple):
    """Of aten._cudnn_rnn. mode: cudnnRNNMode_t; batch_sizes: rows at each time of a packed sequence, else empty."""

    x: Tensor
    weight: Sequence[Tensor]
    weight_stride: int
    weight_buffer: Tensor | None
    hx: Tensor
    cx: Tensor | None
    mode: int
    hidden_size: int
    projected_size: int
    layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]
    dropout_state: Tensor | None


class CudnnRnnBackwardArguments(NamedTuple):
    """Of aten._cudnn_rnn_backward. output_mask: whether gradients of input, hx, cx and weights are computed."""

    x: Tensor
    weight: Sequence[Tensor]
    weight_stride: int
    weight_buffer: Tensor
    hx: Tensor
    cx: Tensor | None
    output: Tensor
    grad_output: Tensor | None
    grad_hy: Tensor | None
    grad_cy: Tensor | None
    mode: int
    hidden_size: int
    projected_size: int
    layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: Sequence[int]
    dropout_state: Tensor | None
    reserve: Tensor
    output_mask: Sequence[bool]


class OneDnnRnnArguments(NamedTuple):
    """Of aten.mkldnn_rnn_layer: one layer and direction. x: (time, samples, features)."""

    x: Tensor
    input_weight: Tensor
    recurrent_weight: Tensor
    input_bias: Tensor
    recurrent_bias: Tensor
    hx: Tensor
    cx: Tensor
    reverse: bool
    batch_sizes: Sequence[int]
    mode: int
    hidden_size: int
    layers: int
    has_biases: bool
    bidirectional: bool
    batch_first: bool
    train: bool
