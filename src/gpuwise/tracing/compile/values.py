"""The values and kernels of a compiled graph, and which operators are computed element by element.

A Value is a tensor with memory of its own, a CompiledKernel one launch.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field

import torch
from torch import fx

aten = torch.ops.aten

# Functions that a CPU does not compute twice (StorageBox.should_realize_on_reuse).
HEAVY = frozenset("exp log log10 log1p log2 sigmoid tanh".split())

REDUCTIONS = frozenset("sum mean amax amin prod any all argmax argmin var var_mean std linalg_vector_norm xor_sum".split())
POINTWISE = frozenset(
    "full full_like zeros zeros_like ones ones_like scalar_tensor arange iota clone copy _to_copy convert_element_type "
    "rand randn embedding index index_select gather cat stack constant_pad_nd select_scatter slice_scatter repeat roll "
    "flip tril triu _unsafe_index _unsafe_masked_index where inductor_random inductor_randint inductor_lookup_seed fma "
    "avg_pool2d avg_pool2d_backward upsample_nearest2d _low_memory_max_pool_with_offsets "
    "_low_memory_max_pool_offsets_to_indices max_pool2d_with_indices_backward split_with_sizes_copy empty "
    "lift_fresh_copy empty_like new_zeros new_ones new_full new_empty bitwise_not logical_not".split()
)
SCATTERS = frozenset(
    "index_put _unsafe_index_put _unsafe_masked_index_put_accumulate scatter scatter_add scatter_reduce "
    "index_add embedding_dense_backward".split()
)
GATHERS = frozenset("embedding index index_select gather _unsafe_index _unsafe_masked_index".split())
MOVES = frozenset("cat stack clone flip roll repeat constant_pad_nd".split())  # write elsewhere than they read


@dataclass(eq=False)
class Value:
    """A tensor of the graph with storage of its own, or one that would have it if it were stored.

    Attributes:
        node: of the graph, which makes it.
        stored: whether it has memory.
        size: its elements. Default 0.
        reduced: elements that each of them reduces. Default 1: none.
        trailing: whether those are the innermost. Default True.
        reads: the stored values its loop loads, with the bytes loaded.
        operators: in that loop. Default 0.
        heavy: whether that has a function that a CPU does not compute twice. Default False.
        scatters: whether it adds into what it overwrites. Default False.
    """

    node: fx.Node
    stored: bool
    size: int = 0
    reduced: int = 1
    trailing: bool = True
    reads: dict[Value, int] = field(default_factory=dict)
    operators: int = 0
    heavy: bool = False
    scatters: bool = False


@dataclass(eq=False)
class CompiledKernel:
    """One launch.

    Attributes:
        values: what it makes.
        library: the node it runs, where it is a kernel of a library; None (the default) where its loop is generated.
        reads: the stored values it loads, with the bytes loaded.
        position: in the order of the graph. Default 0.
        size: elements that its loop runs over, as of a Value. So are reduced and trailing.
    """

    values: list[Value]
    library: fx.Node | None = None
    reads: dict[Value, int] = field(default_factory=dict)
    position: int = 0
    size: int = 0
    reduced: int = 1
    trailing: bool = True

    @property
    def fuses(self) -> bool:
        return self.library is None and not self.values[0].scatters


def is_view(node: fx.Node) -> bool:
    target = node.target
    if target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    return isinstance(target, torch._ops.OpOverload) and (target.is_view or target is aten._unsafe_view.default)


def may_overwrite(source: Value, result: Value) -> bool:
    """Whether a result may take its input's memory: equal in size, and read where it is written. Inputs of the graph belong to
    its caller, except those that the forward saved (donated buffers)."""
    of_caller = source.node.op == "placeholder" and str(source.node.target).startswith(("primals", "tangents"))
    a, b = source.node.meta["val"], result.node.meta["val"]
    return not of_caller and a.numel() == b.numel() and a.dtype == b.dtype and operator_name(result.node) not in MOVES


def operator_name(node: fx.Node) -> str:
    packet = getattr(node.target, "_overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def is_pointwise(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return torch.Tag.pointwise in target.tags or operator_name(node) in POINTWISE


def node_bytes(node: fx.Node) -> int:
    value = node.meta.get("val")
    return value.nbytes if isinstance(value, torch.Tensor) else 0
