"""The CTC loss on fake tensors: how long its targets are is data, so all are taken to be as long as the longest may be.

aten/src/ATen/native/LossCTC.cpp and cuda/LossCTC.cu: forward keeps alpha, a number for each sample, time and place between and
at the labels of the longest target; backward makes beta of the same size, and frees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from gpuwise.tracing.operator_call import OperatorCall

aten = torch.ops.aten
Lengths = Tensor | Sequence[int]


NONE, MEAN, SUM = range(3)  # at::Reduction


def ctc_loss(
    log_p: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = MEAN,
    zero_infinity: bool = False,
) -> Tensor:
    """As CUDA has it: targets and lengths may be on the CPU (ctc_loss in LossCTC.cpp). log_p: (time, classes) of one sample, or
    (time, samples, classes)."""
    one = log_p.dim() == 2
    log_p = log_p.unsqueeze(1) if one else log_p
    lengths = targets.new_empty(log_p.shape[1], device=log_p.device)  # what they hold is data
    loss: Tensor = aten._ctc_loss(log_p, targets.to(log_p.device), lengths, lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == float("inf"), loss.new_zeros(()), loss)
    if reduction == MEAN:
        return (loss / loss.new_ones(loss.shape).clamp_min(1)).mean()
    if reduction == SUM:
        return loss.sum()
    return loss.squeeze(0) if one else loss


def forward_shapes(
    fake: FakeTensorMode,
    op: OpOverload,
    log_p: Tensor,
    targets: Tensor,
    input_lengths: Lengths,
    target_lengths: Lengths,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    """-log p of each sample, and alpha. log_p: (time, samples, classes); targets: (samples, longest), or all in a row."""
    times, samples = log_p.shape[:2]
    longest = targets.shape[1] if targets.dim() == 2 else -(-targets.numel() // samples)
    with fake:
        return log_p.new_empty(samples), log_p.new_empty(samples, times, 2 * longest + 1)


def backward_shapes(fake: FakeTensorMode, op: OpOverload, grad: Tensor, log_p: Tensor, *args: object) -> Tensor:
    """The gradient of log_p."""
    with fake:
        return torch.empty_like(log_p, memory_format=torch.contiguous_format)


def backward_bytes(call: OperatorCall) -> int:
    """Beta, which is as large as alpha."""
    return call.tensor(6).nbytes
