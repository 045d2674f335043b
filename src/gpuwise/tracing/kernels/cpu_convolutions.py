"""Memory that a convolution on the CPU takes while it runs: oneDNN computes on copies in its own layouts.

Sources: the order of copies is aten/src/ATen/native/mkldnn/Conv.cpp and ideep's convolution_forward,
convolution_backward_data and convolution_backward_weights; which kernel computes, in which layout, is in `onednn`.
Scratchpads of single kernels are left out: some tens of kB for a thread, up to a MB where AMX reads a first layer.
Channels-last inputs are used in place. Columns of a matrix product in the forward pass are an upper bound: oneDNN unfolds a
large image in parts. Threads that each add up the weights' gradient of a blocked layout are left out.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from gpuwise.tracing.kernels.onednn import Convolution
from gpuwise.tracing.kernels.schemas import ConvolutionArguments, ConvolutionBackwardArguments
from gpuwise.tracing.operator_call import OperatorCall


def convolution_bytes(call: OperatorCall) -> int:
    """Bytes beyond the result while aten.convolution runs."""
    x, weight, _, stride, padding, dilation, transposed, _, groups = ConvolutionArguments(*call.args)
    out = call.outputs[0]
    if transposed:  # the gradient of the input of a convolution from out to x
        c = Convolution.of(out, weight, x, stride, padding, dilation, groups)
        return max(_data_peak(c, x, out, weight) - out.nbytes, 0)
    c = Convolution.of(x, weight, out, stride, padding, dilation, groups)
    if not c.taken:
        return _reordered(c, x, weight) + (_unfolded_bytes(c) if c.groups == 1 else out.nbytes)
    if c.tiles:
        copies = weight.nbytes + (0 if c.channels_last else max(x.nbytes, 2 * out.nbytes - weight.nbytes))
        return _reordered(c, x, weight) + copies
    block = c.forward_block
    if block == 0:  # the result is copied once
        return _reordered(c, x, weight) + max(c.threads * _columns_bytes(c), 0 if c.channels_last else out.nbytes)
    if c.channels_last:
        return _reordered(c, x, weight) + _weight_bytes(c, c.blocked(c.channels_in, block), block)
    as_it_is = c.reads_images_as_they_are(block)
    inside = _weight_bytes(c, _forward_channels(c, block), block) + _output_bytes(c, block)
    inside += 0 if as_it_is else _input_bytes(c, block)
    if prod(c.kernel) == 1:
        inside += (_workers(c) if c.half else c.threads) * _point_scratch(c, block)
    return max(inside, _output_bytes(c, block) + out.nbytes) - out.nbytes


def convolution_backward_bytes(call: OperatorCall) -> int:
    """Bytes beyond the gradients while aten.convolution_backward runs: first that of the input, then of weight and bias."""
    a = ConvolutionBackwardArguments(*call.args)
    grad, x, weight, computed = a.grad, a.x, a.weight, a.output_mask
    first, last = (grad, x) if a.transposed else (x, grad)
    c = Convolution.of(first, weight, last, a.stride, a.padding, a.dilation, a.groups)
    data = x.nbytes if computed[0] else 0
    weights = weight.nbytes if computed[1] else 0
    bias = c.channels_out * c.element_bytes if computed[2] else 0
    if not c.taken:
        pieces = data + weights + bias if c.groups > 1 else 0  # of each group, put together at the end
        return _reordered(c, x, weight) + max(_unfolded_bytes(c) if computed[1] else 0, pieces)
    copies = _reordered(c, grad, x, weight)
    peak = _data_peak(c, grad, x, weight) if computed[0] else 0
    if computed[1]:
        peak = max(peak, data + _weights_peak(c, weight, bias))
    return copies + max(peak - data - weights - bias, 0)


def _weights_peak(c: Convolution, weight: Tensor, bias: int) -> int:
    """Peak while the gradients of weights and bias are computed, themselves included."""
    block, weights = c.weights_block, weight.nbytes
    if c.tiles:  # activations in channels-last, sums in fp32, one transposed image of each side
        ends = (c.samples * (c.channels_in * prod(c.sizes_in) + c.channels_out * prod(c.sizes_out))) * c.element_bytes
        copies = 0 if c.channels_last else ends
        return max(weights + bias + copies + 4 * weight.numel() + ends // c.samples, 2 * (weights + bias))
    if block == 0:
        # Columns, and in fp32 a sum of each thread, for which oneDNN takes four times the bytes it needs: it books as many
        # floats as the weights have bytes (jit_gemm_convolution_utils::init_conf).
        peak = weights + bias + _sums(c) * (16 * weight.numel() + _columns_bytes(c))
        return max(peak, 2 * (weights + bias)) if not c.channels_last else max(peak, 3 * weights + 2 * bias)
    as_it_is = c.reads_images_as_they_are(block, weights=True)
    blocks = _weight_bytes(c, c.channels_in if as_it_is else c.blocked(c.channels_in, block), block)
    inside = blocks + bias
    if not c.channels_last:
        inside += (0 if as_it_is else _input_bytes(c, block)) + _output_bytes(c, block)
    if c.half:
        # Sums in fp32; the products want pairs of rows: one transposed image of each side.
        inside += 4 * weight.numel()
        if prod(c.kernel) > 1 and c.groups == 1:
            inside += (_output_bytes(c, block) + (0 if as_it_is else _input_bytes(c, block))) // c.samples
    peak = max(inside, blocks + 2 * bias + weights)
    if c.channels_last:  # the weights' gradient goes from blocks to rows to channels-last
        peak = max(peak, 3 * weights + 2 * bias)
    return peak


def _data_peak(c: Convolution, grad: Tensor, x: Tensor, weight: Tensor) -> int:
    """Peak while the gradient of the input is computed, itself included."""
    block = c.data_block
    if c.tiles or (c.strided and (c.half or not c.depthwise)):
        # In channels-last, without blocks; the result is copied twice on its way back.
        gathered = 0 if c.tiles else _workers(c) * c.channels_out * prod(c.sizes_out) * c.element_bytes
        inside = grad.nbytes + _weight_bytes(c, c.blocked(c.channels_in, c.vector), c.vector) + x.nbytes + gathered
        return max(inside, 3 * x.nbytes)
    if block == 0:
        return x.nbytes + max(_workers(c) * _columns_bytes(c), 0 if c.channels_last else x.nbytes)
    if c.channels_last:
        return _weight_bytes(c, c.blocked(c.channels_in, block), block) + x.nbytes
    inside = _output_bytes(c, block) + _weight_bytes(c, c.blocked(c.channels_in, block), block) + _input_bytes(c, block)
    if prod(c.kernel) == 1 and c.half:
        inside += _workers(c) * 4 * c.channels_in * prod(c.sizes_in)
    return max(inside, _input_bytes(c, block) + x.nbytes)


def _forward_channels(c: Convolution, block: int) -> int:
    """Input channels of the weights as the forward pass lays them out: of a first layer as they are, in half precision
    in pairs."""
    if not c.reads_images_as_they_are(block):
        return c.blocked(c.channels_in, block)
    return c.channels_in + c.channels_in % 2 if c.half else c.channels_in


def _point_scratch(c: Convolution, block: int) -> int:
    """A strided point convolution first gathers its input; one in half precision adds up in fp32."""
    positions = prod(c.sizes_out)
    gathered = c.blocked(c.channels_in, block) * positions * c.element_bytes if c.strided and c.gathered_point else 0
    return gathered + (4 * c.channels_out * positions if c.half else 0)


def _workers(c: Convolution) -> int:
    """Threads that have a sample (of a group) to work on."""
    return min(c.threads, c.samples * c.groups)


def _sums(c: Convolution) -> int:
    """Threads that add up a gradient of the weights each: all of them where outputs are few, else one."""
    apart = prod(c.sizes_out) // c.threads < 256 and (c.samples != 1 or c.groups > 2)
    return c.threads if apart else 1


def _columns_bytes(c: Convolution) -> int:
    """One image unfolded into the columns of a matrix, of one group."""
    return c.group_in * prod(c.kernel) * prod(c.sizes_out) * c.element_bytes


def _input_bytes(c: Convolution, block: int) -> int:
    return c.samples * c.blocked(c.channels_in, block) * prod(c.sizes_in) * c.element_bytes


def _output_bytes(c: Convolution, block: int) -> int:
    return c.samples * c.blocked(c.channels_out, block) * prod(c.sizes_out) * c.element_bytes


def _weight_bytes(c: Convolution, channels_in: int, block: int) -> int:
    """Weights with this many input channels in all."""
    group_in = 1 if c.depthwise else channels_in // c.groups
    return c.blocked(c.channels_out, block) * group_in * prod(c.kernel) * c.element_bytes


def _unfolded_bytes(c: Convolution) -> int:
    """PyTorch's own convolution unfolds every image, one group after the other, unless it is a matrix product already
    (aten/src/ATen/native/ConvolutionMM2d.cpp)."""
    if prod(c.kernel) == 1 and not c.strided:
        return 0
    return c.samples * _columns_bytes(c)


def _reordered(c: Convolution, *tensors: Tensor) -> int:
    """Copies of tensors that are not in the one layout, contiguous or channels-last, that all are brought to."""
    layout = torch.contiguous_format
    if c.channels_last:
        layout = torch.channels_last if tensors[0].dim() == 4 else torch.channels_last_3d
    return sum(t.nbytes for t in tensors if not t.is_contiguous(memory_format=layout))
