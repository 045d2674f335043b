"""OperatorCall: one call of an operator, as the recorder sees it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from gpuwise.trace.parallel.recorded_rows import CallShapes


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of a dispatched operator.

    Attributes:
        op: the overload, such as aten.mm.default.
        args: its positional arguments, in the order of its schema; trailing ones that have their defaults are left out.
        kwargs: its keyword arguments; none by default.
        outputs: the tensors it returned on the recorded device; none by default.
    """

    op: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, object] = field(default_factory=dict)
    outputs: Sequence[Tensor] = ()

    @property
    def packet(self) -> OpOverloadPacket:
        """The operator of all overloads, such as aten.mm."""
        return self.op._overloadpacket

    @property
    def name(self) -> str:
        """Of the operator, without namespace and overload, such as "mm"."""
        return self.op._overloadpacket.__name__

    def shapes(self) -> CallShapes:
        """The shapes of the tensors of each argument, and of the results."""
        values = [*self.args, *self.kwargs.values(), self.outputs]
        return tuple(tuple(tuple(tensor.shape) for tensor in tensors) for value in values if (tensors := tensors_in([value])))

    def tensor(self, position: int) -> Tensor:
        """The positional argument at this position, which is a tensor."""
        tensor: Tensor = self.args[position]
        return tensor

    def tensors(self, *positions: int) -> tuple[Tensor, ...]:
        """The positional arguments at these positions, which are tensors."""
        return tuple(self.args[position] for position in positions)


def tensors_in(values: Iterable[object]) -> list[Tensor]:
    """The tensors among arguments, one level of lists deep (operators nest no deeper)."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [item for item in value if isinstance(item, Tensor)]
    return tensors
