"""What torchvision's operators over boxes move and hold inside, on a GPU and on a CPU.

roi_align reads four neighbours of every sample (torchvision/csrc/ops/cuda/roi_align_kernel.cu), which come from memory at most
once for a forward pass; its backward adds to each of them atomically, over a gradient filled with zeros. Non-maximum
suppression sorts the boxes and compares each with those after it (csrc/ops/cuda/nms_kernel.cu, csrc/ops/cpu/nms_kernel.cpp).
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gpuwise.tracing.operator_call import OperatorCall

_INDEX_BYTES = 8  # int64
_NEIGHBOURS = 4
_ADAPTIVE = 2  # samples a side where the operator adapts them to the box: a box about twice as large as its grid
_IN_A_WORD = 64  # boxes that one word of the kernel's mask of overlaps stands for
_NMS_KERNELS = 7  # sort (4), boxes in its order, overlaps, what is kept


def moved(call: OperatorCall) -> tuple[int, int] | None:
    """Bytes read and written by a call; None where it is no operator over boxes."""
    rule = _MOVED.get(call.op.name())
    return None if rule is None else rule(call)


def launches(call: OperatorCall) -> int:
    """Kernels of a call."""
    return _NMS_KERNELS if call.op.name() == "torchvision::nms" else 1


def workspace_bytes(call: OperatorCall, *, on_cpu: bool) -> int:
    """Bytes that a call takes beyond its results."""
    if call.op.name() != "torchvision::nms":
        return 0
    boxes = call.tensor(0)
    count = boxes.shape[0]
    if on_cpu:  # areas, the order, and a byte a box that is suppressed
        return count * (boxes.element_size() + _INDEX_BYTES + 1)
    overlaps = count * -(-count // _IN_A_WORD) * _INDEX_BYTES
    return boxes.nbytes + count * _INDEX_BYTES + overlaps  # boxes in order, the order, and their overlaps


def _sampled(pooled: Tensor, sampling: int) -> int:
    side = sampling if sampling > 0 else _ADAPTIVE
    return pooled.nbytes * side * side * _NEIGHBOURS


def _roi_align(call: OperatorCall) -> tuple[int, int]:
    image, boxes = call.tensors(0, 1)
    pooled = call.outputs[0]
    return min(image.nbytes, _sampled(pooled, call.args[5])) + boxes.nbytes, pooled.nbytes


def _roi_align_backward(call: OperatorCall) -> tuple[int, int]:
    grad, boxes = call.tensors(0, 1)
    return grad.nbytes + boxes.nbytes, call.outputs[0].nbytes + _sampled(grad, call.args[9])


def _nms(call: OperatorCall) -> tuple[int, int]:
    boxes, scores = call.tensors(0, 1)
    overlaps = boxes.shape[0] * -(-boxes.shape[0] // _IN_A_WORD) * _INDEX_BYTES // 2  # of each pair once
    return 2 * boxes.nbytes + scores.nbytes + overlaps, boxes.nbytes + overlaps + call.outputs[0].nbytes


_MOVED: dict[str, Callable[[OperatorCall], tuple[int, int]]] = {
    "torchvision::roi_align": _roi_align,
    "torchvision::_roi_align_backward": _roi_align_backward,
    "torchvision::nms": _nms,
}
