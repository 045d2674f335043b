"""Products whose operands PyTorch's kernels want in one type, which fake tensors multiply in any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

aten = torch.ops.aten
# Positions of the operands that must have one type.
_OPERANDS: dict[OpOverload, tuple[int, ...]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.mv.default: (0, 1),
    aten.dot.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.addmv.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.linear.default: (0, 1),
    aten.convolution.default: (0, 1),
}


def check_operand_types(op: OpOverload, args: Sequence[object]) -> None:
    """Raises RuntimeError, as the step itself would, where the operands of a product have different types.

    Operands on different devices are left to PyTorch, whose error is of these.
    """
    positions = _OPERANDS.get(op)
    if positions is None:
        return
    a, b = (args[position] for position in positions)
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype != b.dtype and a.device == b.device:
        raise RuntimeError(f"{op.name()} takes operands of one type, but got {a.dtype} and {b.dtype}")
