"""Collectives under the recorder: what each reads and writes, and among which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.distributed as dist
from torch import ScriptObject, Tensor
from torch._ops import OpOverload
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group
from torch.utils._pytree import tree_leaves

from gpuwise.strategy import Mesh
from gpuwise.trace import KINDS, OperationRow, OperationValues, RankGroup
from gpuwise.tracing.describe import dtype_name, size_bytes
from gpuwise.tracing.operator_call import OperatorCall

_FUNCTIONAL = ("_c10d_functional", "c10d_functional", "_dtensor")
_NAMESPACES = ("c10d", *_FUNCTIONAL)
_NO_PAYLOAD = ("barrier", "monitored_barrier_", "check_for_nan", "wait_tensor")
_SENT = ("send", "isend")
_RECEIVED = ("recv_", "recv_any_source_", "irecv")
# Operators of fully_shard whose results are buffers: what is gathered, and what is to be reduced.
_FILLS_BUFFERS = ("all_gather_copy_in", "split_with_sizes_copy", "chunk_cat")


def is_collective(op: OpOverload) -> bool:
    """Whether an operator exchanges data with other ranks."""
    return op.namespace in _NAMESPACES and op._overloadpacket.__name__ not in _NO_PAYLOAD


def waited_tensor(op: OpOverload, args: Sequence[object]) -> Tensor | None:
    """The tensor whose collective an operator waits for; None for other operators."""
    waits = op.namespace in _FUNCTIONAL and op._overloadpacket.__name__ == "wait_tensor"
    return args[0] if waits and isinstance(args[0], Tensor) else None


def runs_beside(call: OperatorCall) -> bool:
    """Whether a collective runs on the stream of its group, and another call waits for it."""
    if call.op.namespace in _FUNCTIONAL or call.name in (*_SENT, *_RECEIVED):
        return True
    arguments = call.op._schema.arguments
    for argument, value in zip(arguments, call.args, strict=False):
        if argument.name == "async_op":
            return bool(value)
    return any(argument.name == "async_op" and argument.default_value for argument in arguments)


def written_tensors(call: OperatorCall) -> list[Tensor]:
    """The tensors that a collective writes its result to."""
    if call.op.namespace != "c10d":
        return list(call.outputs)
    outputs = [
        tensor
        for argument, value in zip(call.op._schema.arguments, call.args, strict=False)
        if argument.name.startswith("output") and not argument.name.endswith("sizes")
        for tensor in _tensors(value)
    ]
    return outputs or _tensors(call.args)  # in place


def buffers(call: OperatorCall) -> list[Tensor]:
    """The tensors that a call shows to be buffers of communication; none for most operators."""
    if call.op.namespace == "c10d":
        return [tensor for tensor in _tensors(call.args) if tensor.dim()]
    if call.op.namespace == "fsdp" and call.name in _FILLS_BUFFERS:
        return _tensors(call.kwargs["out"]) if "out" in call.kwargs else _tensors(call.args[:2])
    return []


def describe_collective(call: OperatorCall, group: int) -> OperationRow:
    """The row of a collective. group: index of its group of ranks."""
    written = [] if call.name in _SENT else written_tensors(call)
    ids = {id(tensor) for tensor in written}
    read = [tensor for tensor in _tensors([*call.args, *call.kwargs.values()]) if id(tensor) not in ids]
    if call.name in _RECEIVED:
        read = []
    elif not read:
        read = written  # reduced in place
    values = OperationValues(bytes_read=sum(map(size_bytes, read)), bytes_written=sum(map(size_bytes, written)), kernels=1)
    tensor = (read or written)[0]
    return OperationRow(str(call.op), KINDS.index("collective"), dtype_name(tensor.dtype), values, group)


class GroupTable:
    """The groups of ranks of a recording, in the order in which they are first used.

    Attributes:
        mesh: the mesh of the ranks.
        groups: each once.
    """

    def __init__(self, mesh: Mesh) -> None:
        self.groups: list[RankGroup] = []
        self.mesh = mesh
        self._index_of: dict[str, int] = {}

    def index(self, call: OperatorCall) -> int:
        """The index of the group of a collective's ranks."""
        group = _process_group(call)
        name = group.group_name
        if name not in self._index_of:
            ranks = self._rank_group(dist.get_process_group_ranks(group))
            if ranks not in self.groups:
                self.groups.append(ranks)
            self._index_of[name] = self.groups.index(ranks)
        return self._index_of[name]

    def _rank_group(self, ranks: list[int]) -> RankGroup:
        stride = min((b - a for a, b in pairwise(sorted(ranks))), default=1)
        if len(ranks) > self.mesh.devices:
            return RankGroup("", len(ranks), stride)
        positions = [self.mesh.coordinates(rank) for rank in ranks]
        axes = [axis for axis in positions[0] if len({position[axis] for position in positions}) > 1]
        return RankGroup("+".join(axes), len(ranks), stride)


def _process_group(call: OperatorCall) -> dist.ProcessGroup:
    """The group of a collective, which is an argument: the group itself, or its name behind all others."""
    leaves = tree_leaves([*call.args, *call.kwargs.values()])
    for leaf in leaves:
        if isinstance(leaf, dist.ProcessGroup):
            return leaf
        if isinstance(leaf, ScriptObject) and "ProcessGroup" in str(leaf._type()):
            return dist.ProcessGroup.unbox(leaf)
    names = [GroupName(leaf) for leaf in leaves if isinstance(leaf, str)]
    return _resolve_process_group(names[-1])


def _tensors(values: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
