"""What a convolution on the CPU holds while it runs: oneDNN computes on copies in its own layouts.

Sources: which library computes is ConvParams::use_mkldnn in aten/src/ATen/native/Convolution.cpp; the order of copies
is aten/src/ATen/native/mkldnn/Conv.cpp and ideep's convolution_forward, convolution_backward_data and
convolution_backward_weights; layouts are what oneDNN 3.12 prints under ONEDNN_VERBOSE=1 on AVX-512 and AVX2: channels
in blocks of a vector (nChw16c, nChw8c), the first layer's few channels read as they are, strided backward in
channels-last. Small scratchpads of single kernels are left out. Channels-last inputs are used in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

_LARGEST_FIRST_KERNEL = {4: 14, 2: 31}  # widest kernel of a first layer by element size (oneDNN's jit backward weights)
_LARGEST_DEPTHWISE_KERNEL = 3  # with larger ones oneDNN multiplies matrices to get the gradient of the weights


@dataclass(frozen=True)
class _Convolution:
    """Sizes of one convolution: samples, channels in and out, groups, the product of spatial sizes; threads at work."""

    samples: int
    channels_in: int
    channels_out: int
    groups: int
    positions_in: int
    positions_out: int
    kernel: int
    kernel_width: int
    strided: bool
    dilated: bool
    wide: bool  # a kernel wider than 3 in both directions
    element_bytes: int
    half: bool
    channels_last: bool
    threads: int

    @classmethod
    def of(cls, x: Tensor, weight: Tensor, out: Tensor, stride: Sequence[int], dilation: Sequence[int],
           groups: int) -> _Convolution:  # fmt: skip
        return cls(
            samples=x.shape[0], channels_in=x.shape[1], channels_out=out.shape[1], groups=groups,
            positions_in=prod(x.shape[2:]), positions_out=prod(out.shape[2:]),
            kernel=prod(weight.shape[2:]), kernel_width=weight.shape[-1],
            strided=any(s != 1 for s in stride), dilated=any(d != 1 for d in dilation),
            wide=all(k > 3 for k in weight.shape[2:]), element_bytes=x.element_size(),
            half=x.dtype in (torch.bfloat16, torch.float16),
            channels_last=any(suggest_memory_format(t) != torch.contiguous_format for t in (x, weight)),
            threads=torch.get_num_threads(),
        )  # fmt: skip

    @property
    def onednn(self) -> bool:
        """Whether oneDNN computes it (ConvParams::use_mkldnn)."""
        if self.element_bytes == 8 or not (torch.backends.mkldnn.enabled and torch._C._has_mkldnn):
            return False
        if self.half:
            return _vector() == 16
        point = self.kernel == 1 and not self.strided and not self.dilated
        if point and self.samples < 16 and self.threads == 1:
            return False
        return (self.groups > 1 or self.wide or self.samples > 1
                or self.samples * self.channels_in * self.positions_in > 20_480)  # fmt: skip

    @property
    def workers(self) -> int:
        """Threads that have a sample (of a group) to work on."""
        return min(self.threads, self.samples * self.groups)

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.channels_in == self.channels_out

    @property
    def columns_bytes(self) -> int:
        """One image unfolded into the columns of a matrix, of one group."""
        return self.channels_in // self.groups * self.kernel * self.positions_out * self.element_bytes

    @property
    def first(self) -> bool:
        """A first layer: fewer channels than a vector holds, read as they are."""
        return self.groups == 1 and self.channels_in < _vector()

    def blocked(self, channels: int) -> int:
        """Channels as oneDNN lays them out."""
        if self.groups > 1 and not self.depthwise:
            return channels
        return -(-channels // _vector()) * _vector()

    @property
    def input_bytes(self) -> int:
        return self.samples * self.blocked(self.channels_in) * self.positions_in * self.element_bytes

    @property
    def output_bytes(self) -> int:
        return self.samples * self.blocked(self.channels_out) * self.positions_out * self.element_bytes

    def weight_bytes(self, channels_in: int) -> int:
        """Weights with this many input channels in all."""
        outputs = self.blocked(self.channels_out)
        return outputs * (1 if self.depthwise else channels_in // self.groups) * self.kernel * self.element_bytes


@cache
def _vector() -> int:
    """fp32 numbers in a vector register, which are the channels of a block."""
    return 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8


def _dense(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def convolution_bytes(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes beyond the result while aten.convolution runs."""
    x, weight, _, stride, _, dilation, transposed, _, groups = args
    out = outputs[0]
    if transposed:  # the gradient of the input of a convolution from out to x
        c = _Convolution.of(out, weight, x, stride, dilation, groups)
        return max(_data_peak(c, x, out, weight) - _dense(out), 0)
    c = _Convolution.of(x, weight, out, stride, dilation, groups)
    if not c.onednn:
        return _reordered(c, x, weight) + (_unfolded_bytes(c) if c.groups == 1 else _dense(out))
    if c.channels_last:
        return _reordered(c, x, weight) + c.weight_bytes(c.blocked(c.channels_in))
    inside = c.weight_bytes(_forward_channels(c)) + (0 if c.first else c.input_bytes) + c.output_bytes
    if c.kernel == 1:
        inside += c.workers * _point_scratch(c)
    return max(inside, c.output_bytes + _dense(out)) - _dense(out)


def _forward_channels(c: _Convolution) -> int:
    """Input channels of the weights as the forward pass lays them out: of a first layer as they are, in half precision
    in pairs."""
    if not c.first:
        return c.blocked(c.channels_in)
    return c.channels_in + c.channels_in % 2 if c.half else c.channels_in


def _point_scratch(c: _Convolution) -> int:
    """A strided point convolution first gathers its input; one in half precision adds up in fp32."""
    gathered = c.channels_in * c.positions_out * c.element_bytes if c.strided else 0
    return gathered + (4 * c.channels_out * c.positions_out if c.half else 0)


def convolution_backward_bytes(args: Sequence[Any], outputs: Sequence[Tensor]) -> int:
    """Bytes beyond the gradients while aten.convolution_backward runs: first that of the input, then of weight and bias."""
    grad, x, weight, _, stride, _, dilation, transposed, _, groups, wanted = args
    if transposed:
        c = _Convolution.of(grad, weight, x, stride, dilation, groups)
    else:
        c = _Convolution.of(x, weight, grad, stride, dilation, groups)
    if not c.onednn:
        return _reordered(c, x, weight) + (_unfolded_bytes(c) if wanted[1] else 0)
    data = _dense(x) if wanted[0] else 0
    weights = _dense(weight) if wanted[1] else 0
    bias = c.channels_out * c.element_bytes if wanted[2] else 0
    copies = _reordered(c, grad, x, weight)
    peak = _data_peak(c, grad, x, weight) if wanted[0] else 0
    if wanted[1]:
        blocks = c.weight_bytes(c.channels_in if c.first else c.blocked(c.channels_in))
        inside = blocks + bias
        if _by_matrix_product(c):
            inside += c.workers * (16 * weight.numel() + c.columns_bytes)  # four partial sums in fp32, and the matrix
        elif not c.channels_last:
            inside += (0 if c.first else c.input_bytes) + c.output_bytes
        if c.half and not _by_matrix_product(c):
            # Sums in fp32; the products want pairs of rows: one transposed image of each side.
            inside += 4 * weight.numel()
            if c.kernel > 1 and c.groups == 1:
                inside += (c.output_bytes + (0 if c.first else c.input_bytes)) // c.samples
        peak = max(peak, data + inside, data + blocks + 2 * bias + weights)
        if c.channels_last:  # the weights' gradient goes from blocks to rows to channels-last
            peak = max(peak, data + 3 * weights + 2 * bias)
    return copies + max(peak - data - weights - bias, 0)


def _data_peak(c: _Convolution, grad: Tensor, x: Tensor, weight: Tensor) -> int:
    """Peak while the gradient of the input is computed, itself included."""
    if c.strided and (c.half or not c.depthwise):
        # In channels-last, without blocks; the result is copied twice on its way back.
        gathered = c.workers * c.channels_out * c.positions_out * c.element_bytes
        inside = _dense(grad) + c.weight_bytes(c.blocked(c.channels_in)) + _dense(x) + gathered
        return max(inside, 3 * _dense(x))
    if c.channels_last:
        return c.weight_bytes(c.blocked(c.channels_in)) + _dense(x)
    inside = c.output_bytes + c.weight_bytes(c.blocked(c.channels_in)) + c.input_bytes
    if c.kernel == 1 and c.half:
        inside += c.workers * 4 * c.channels_in * c.positions_in
    return max(inside, c.input_bytes + _dense(x))


def _by_matrix_product(c: _Convolution) -> bool:
    """Whether the gradient of the weights is left to unfolded columns and a matrix product."""
    if c.first:
        return c.kernel_width > _LARGEST_FIRST_KERNEL[c.element_bytes]
    if c.depthwise:
        return c.kernel_width > _LARGEST_DEPTHWISE_KERNEL
    return c.groups > 1 and c.channels_in // c.groups % _vector() != 0


def _unfolded_bytes(c: _Convolution) -> int:
    """PyTorch's own convolution unfolds every image, one group after the other, unless it is a matrix product already
    (aten/src/ATen/native/ConvolutionMM2d.cpp)."""
    if c.kernel == 1 and not c.strided:
        return 0
    return c.samples * c.columns_bytes


def _reordered(c: _Convolution, *tensors: Tensor) -> int:
    """Copies of tensors that are not in the one layout, contiguous or channels-last, that all are brought to."""
    wanted = torch.contiguous_format
    if c.channels_last:
        wanted = torch.channels_last if tensors[0].dim() == 4 else torch.channels_last_3d
    return sum(_dense(t) for t in tensors if not t.is_contiguous(memory_format=wanted))
