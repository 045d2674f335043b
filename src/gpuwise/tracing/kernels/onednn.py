"""Which kernels oneDNN takes for a convolution on x86, and in which layouts they want their tensors.

Read from oneDNN 3.12 (src/cpu/x64: jit_avx2_conv_kernel_f32.cpp, jit_avx512_common_conv_kernel.cpp, jit_uni_dw_conv_*,
and cpu_convolution_list.cpp for their order), and checked against the names it prints under ONEDNN_VERBOSE=1 for
1,700 convolutions under AVX2 and AVX-512 each. Where none of its kernels takes a shape, oneDNN unfolds images into
columns and multiplies matrices. Half precision has kernels of its own, to which the rules of fp32 are applied; with AMX
they compute in channels-last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from gpuwise.tracing.kernels.instruction_sets import has_tiles, vector_floats

_LARGEST_KERNEL = {8: 13, 16: 14}  # widest kernel of the gradient of the weights, by floats in a vector
_LARGEST_FIRST_KERNEL = {4: 14, 2: 31}  # the same where AVX-512 reads images as they are, by element size
_DEPTHWISE_STEP = {8: 4, 16: 6}  # outputs that a depthwise kernel computes at once, by floats in a vector
_WIDE_FIRST = 4  # AVX-512 reads images of fewer channels as they are for the gradient of the weights


@dataclass(frozen=True)
class Convolution:
    """Shapes of one convolution, and the machine that computes it.

    Attributes:
        samples: in the batch.
        channels_in: of the input, all groups together.
        channels_out: of the result, all groups together.
        groups: of channels.
        sizes_in: of the input, one number a spatial dimension. So are sizes_out, kernel, stride, padding and dilation.
        element_bytes: of a number of the input.
        half: whether that is bfloat16 or float16.
        channels_last: whether PyTorch hands tensors over in channels-last.
        threads: that compute.
        vector: fp32 numbers in a vector register.
        tiles: whether AMX multiplies, on tensors in channels-last. Default False.
    """

    samples: int
    channels_in: int
    channels_out: int
    groups: int
    sizes_in: tuple[int, ...]
    sizes_out: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    element_bytes: int
    half: bool
    channels_last: bool
    threads: int
    vector: int
    tiles: bool = False

    @classmethod
    def of(
        cls,
        x: Tensor,
        weight: Tensor,
        out: Tensor,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> Convolution:
        kernel = tuple(weight.shape[2:])
        return cls(
            samples=x.shape[0],
            channels_in=x.shape[1],
            channels_out=out.shape[1],
            groups=groups,
            sizes_in=tuple(x.shape[2:]),
            sizes_out=tuple(out.shape[2:]),
            kernel=kernel,
            stride=_each(stride, kernel),
            padding=_each(padding, kernel),
            dilation=_each(dilation, kernel),
            element_bytes=x.element_size(),
            half=x.dtype in (torch.bfloat16, torch.float16),
            channels_last=any(suggest_memory_format(t) != torch.contiguous_format for t in (x, weight)),
            threads=torch.get_num_threads(),
            vector=vector_floats(),
            tiles=x.dtype == torch.bfloat16 and has_tiles() and not (groups > 1 and groups == x.shape[1] == out.shape[1]),
        )

    @property
    def taken(self) -> bool:
        """Whether PyTorch leaves it to oneDNN (ConvParams::use_mkldnn in aten/src/ATen/native/Convolution.cpp)."""
        if self.element_bytes == 8 or not (torch.backends.mkldnn.enabled and torch._C._has_mkldnn):
            return False
        if self.half:
            return self.vector == 16
        dense_point = prod(self.kernel) == 1 and not self.strided and max(self.dilation) == 1
        if dense_point and self.samples < 16 and self.threads == 1:
            return False
        return (
            self.groups > 1
            or all(k > 3 for k in self.kernel)
            or self.samples > 1
            or self.samples * self.channels_in * prod(self.sizes_in) > 20_480
        )

    @property
    def strided(self) -> bool:
        return max(self.stride) > 1

    @property
    def depthwise(self) -> bool:
        return self.groups > 1 and self.groups == self.channels_in == self.channels_out

    @property
    def group_in(self) -> int:
        """Input channels of a group."""
        return self.channels_in // self.groups

    @property
    def point(self) -> bool:
        """A product of matrices as it stands: each output position reads one input position."""
        return self.groups == 1 and prod(self.kernel) == 1 and not any(self.padding)

    @property
    def gathered_point(self) -> bool:
        """A point convolution whose strides divide the image, so that its input can be gathered without gaps."""
        fits = all(n * s == size for n, s, size in zip(self.sizes_out, self.stride, self.sizes_in, strict=True))
        return self.point and fits

    @property
    def forward_block(self) -> int:
        """Channels of a block in the layout of the forward pass; 0 where matrices are multiplied."""
        if self._padding_exceeds_kernel():
            return 0
        if self.depthwise:
            fits = self.padding[-1] <= min(_DEPTHWISE_STEP[self.vector], self.sizes_out[-1])
            return self.vector if fits else 0
        block = self._group_block(smallest=4 if self.vector == 16 else 8)
        if block == 0 or self.gathered_point:
            return block
        if self.vector == 16 and self.padding[-1] <= self.sizes_out[-1]:
            return block
        return min(block, 8) if self._avx2_forward() else 0

    @property
    def weights_block(self) -> int:
        """Channels of a block in the layout of the weights' gradient; 0 where matrices are multiplied."""
        if self.depthwise:
            return self.vector if self._depthwise_weights() else 0
        if self._padding_exceeds_kernel():
            return 0
        block = self._group_block(smallest=8)
        if block == 0 or self.gathered_point:
            return block
        if block == 16 and self._avx512_weights():
            return 16
        return 8 if self._avx2_weights() else 0

    @property
    def data_block(self) -> int:
        """Channels of a block in the layout of the input's gradient, where no stride is; 0 where matrices are multiplied."""
        if self._padding_exceeds_kernel():
            return 0
        return self.vector if self.depthwise else self._group_block(smallest=4 if self.vector == 16 else 8)

    def reads_images_as_they_are(self, block: int, *, weights: bool = False) -> bool:
        """Whether few channels are read without blocks: by the forward pass, or for the gradient of the weights."""
        if self.groups > 1 or self.gathered_point:
            return False
        if not weights or self.half:
            return self.channels_in < self.vector
        return self.channels_in < _WIDE_FIRST if block == 16 else self.channels_in == 3

    def blocked(self, channels: int, block: int) -> int:
        """Channels as they are laid out in blocks; groups are never filled up."""
        if block == 0 or (self.groups > 1 and not self.depthwise):
            return channels
        return -(-channels // block) * block

    def _group_block(self, *, smallest: int) -> int:
        """The largest block that divides the channels of a group; without groups they are filled up."""
        if self.groups == 1:
            return self.vector
        sizes = [n for n in (16, 8, 4) if smallest <= n <= self.vector]
        return next((n for n in sizes if self.group_in % n == 0 == self.channels_out // self.groups % n), 0)

    def _ends(self) -> list[int]:
        """Positions beyond the image that the last output reads, by dimension."""
        rows = zip(self.sizes_out, self.stride, self._extents(), self.sizes_in, self.padding, strict=True)
        return [max(0, (out - 1) * step + extent - size - pad) for out, step, extent, size, pad in rows]

    def _extents(self) -> list[int]:
        """Input positions that a kernel spans."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]

    def _padding_exceeds_kernel(self) -> bool:
        """Whether some output reads nothing but padding."""
        rows = zip(self._extents(), self.padding, self._ends(), strict=True)
        return any(extent <= pad or extent <= end for extent, pad, end in rows)

    def _avx2_forward(self) -> bool:
        """jit_avx2_conv_fwd_kernel_f32::init_conf: outputs go three by three, and the first three hold the left padding."""
        if self.padding[-1] > min(3, self.sizes_out[-1]):
            return False
        return self.kernel[-1] <= 7 or not any(self.padding[-2:]) or not self.strided

    def _avx2_weights(self) -> bool:
        """jit_avx2_conv_bwd_weights_kernel_f32::init_conf: the kernel is no higher than the image, no dilation."""
        if max(self.dilation) > 1 or self.kernel[-1] > _LARGEST_KERNEL[8]:
            return False
        if len(self.kernel) == 3 and (self.padding[0] or self._ends()[0]):
            return False
        return all(k <= size for k, size in zip(self.kernel[:-1], self.sizes_in[:-1], strict=True))

    def _avx512_weights(self) -> bool:
        """jit_avx512_common_conv_bwd_weights_kernel_f32::init_conf."""
        spans = any(extent > size for extent, size in zip(self._extents(), self.sizes_in, strict=True))
        if max(self.dilation) > 1 and (self.strided or spans):
            return False
        if self.groups > 1 or self.channels_in >= 16:
            return self.kernel[-1] <= _LARGEST_KERNEL[16]
        return self.channels_in < _WIDE_FIRST and self.kernel[-1] <= _LARGEST_FIRST_KERNEL[self.element_bytes]

    def _depthwise_weights(self) -> bool:
        """jit_uni_dw_conv_bwd_weights_kernel::init_conf: at most three wide, and padded by no more than half a kernel."""
        if self.groups % 8 or self.kernel[-1] > 3 or self.stride[-1] > self.kernel[-1] or max(self.dilation) > 1:
            return False
        rows = zip(self.kernel, self.padding, self._ends(), strict=True)
        return self.kernel[0] <= self.sizes_in[0] and all(max(pad, end) <= k // 2 for k, pad, end in rows)


def _each(values: Sequence[int], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """One number for all dimensions, or one for each."""
    return tuple(values) if len(values) == len(kernel) else tuple(values) * len(kernel)
