"""Memory that CUDA's attention kernels take and free inside one operator.

Forward of flash attention takes nothing but its split of the keys, which is left out (see `temporaries`).
"""

from __future__ import annotations

from math import prod

from torch import Tensor

from gpuwise.tracing.operator_call import OperatorCall


def _heads_inside(tensor: Tensor) -> bool:
    """Whether (batch, heads, sequence, size) lies as (batch, sequence, heads, size), as attention kernels want it."""
    _, heads, length, size = tensor.shape
    strides = (heads * length * size, size, heads * size, 1)
    return all(a == b or n == 1 for a, b, n in zip(tensor.stride(), strides, tensor.shape, strict=True))


def flash_backward(call: OperatorCall) -> int:
    """Copies of gradient and output; dk and dv of every query head where heads are grouped (flash_api.cpp, mha_bwd)."""
    grad, query, key, _, out = call.tensors(0, 1, 2, 3, 4)
    copies = sum(t.nbytes for t in (grad, out) if not _heads_inside(t))
    if key.shape[1] == query.shape[1]:
        return copies
    return copies + 2 * key.nbytes // key.shape[1] * query.shape[1]


def efficient_forward(call: OperatorCall) -> int:
    """The output in fp32 where half precision does not fit in registers: heads over 128 wide
    (kNeedsOutputAccumulatorBuffer in mem_eff_attention/kernel_forward.h)."""
    query, value = call.tensors(0, 2)
    if query.element_size() != 2 or max(query.shape[3], value.shape[3]) <= 128:
        return 0
    return 4 * prod(query.shape[:3]) * value.shape[3]


def efficient_backward(call: OperatorCall) -> int:
    """A copy of the gradient (attention_backward.cu)."""
    grad = call.tensor(0)
    return 0 if _heads_inside(grad) else grad.nbytes


def cudnn_backward(call: OperatorCall) -> int:
    """dq in fp32 and row sums; every head's dk and dv where heads are grouped. Upper bound."""
    _, query, key = call.tensors(0, 1, 2)
    rows = prod(query.shape[:3])
    grouped = 0 if key.shape[1] == query.shape[1] else 2 * key.nbytes // key.shape[1] * query.shape[1]
    return 4 * rows * (query.shape[3] + 2) + grouped
