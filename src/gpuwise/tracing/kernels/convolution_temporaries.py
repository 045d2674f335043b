"""Memory that cuDNN's convolutions take and free inside one operator. Upper bounds: cuDNN chooses at run time."""

from __future__ import annotations

from torch import Tensor

from gpuwise.tracing.kernels.convolution import channels_last, copied_operands
from gpuwise.tracing.kernels.schemas import ConvolutionArguments, ConvolutionBackwardArguments
from gpuwise.tracing.operator_call import OperatorCall


def convolution_bytes(call: OperatorCall) -> int:
    """Upper bound: input, filter and output in the layout of the tensor cores' kernels (cuDNN's nchwToNhwc). In
    channels-last, only what does not lie so is copied."""
    x, weight = call.tensors(0, 1)
    if channels_last(x, weight):
        return sum(t.nbytes for t in copied_operands(call))
    depthwise = _is_depthwise(x, weight, ConvolutionArguments(*call.args).groups)
    return _own_layout(x, weight, call.outputs[0], depthwise=depthwise)


def convolution_backward_bytes(call: OperatorCall) -> int:
    """As `convolution_bytes`, with the filter's gradient in fp32; gradients of input and filter come one after the other."""
    arguments = ConvolutionBackwardArguments(*call.args)
    x, weight, computed = arguments.x, arguments.weight, arguments.output_mask
    depthwise = _is_depthwise(x, weight, arguments.groups)
    partial = max(0, 4 - weight.element_size()) * weight.numel() if computed[1] else 0
    if channels_last(x, weight):
        return sum(t.nbytes for t in copied_operands(call)) + partial
    if not (computed[0] or computed[1]) or depthwise:
        return 0
    return _own_layout(x, weight, arguments.grad, depthwise=depthwise) + partial


def _is_depthwise(x: Tensor, weight: Tensor, groups: int) -> bool:
    """PyTorch has kernels of its own for these, without workspace (aten/src/ATen/native/cuda/DepthwiseConv2d.cu)."""
    return groups > 1 and groups == x.shape[1] and weight.shape[0] % groups == 0


def _own_layout(x: Tensor, weight: Tensor, y: Tensor, *, depthwise: bool) -> int:
    if depthwise or x.element_size() == 8:
        return 0
    unit = 16 // x.element_size()  # channels are padded to 128 bits
    return sum(t.nbytes // t.shape[1] * (-(-t.shape[1] // unit) * unit) for t in (x, weight, y))
