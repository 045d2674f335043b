"""What flows between the blocks of a model, as a dry run has seen it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_iter, tree_unflatten

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.parallel.stages_absent import WAYS, AbsentTensor


@dataclass(frozen=True)
class TensorShape:
    """Shape, dtype and device of a tensor; `index` is its number among the leaves of a call's arguments or results."""

    index: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, index: int, tensor: Tensor) -> TensorShape:
        return cls(index, tuple(tensor.shape), tensor.dtype, tensor.device)

    def absent(self) -> AbsentTensor:
        return AbsentTensor(torch.empty(self.shape, dtype=self.dtype, device="meta"), self.device)


@dataclass(frozen=True)
class ResultTemplate:
    """What a module returns, without values: rebuilt on stages that do not run the module.

    Attributes:
        structure: of the result, as of PyTorch's trees.
        tensors: its tensors.
        arguments: leaves of the result that are arguments passed through: (leaf of the result, leaf of the arguments).
        constants: its other leaves.
    """

    structure: TreeSpec
    tensors: tuple[TensorShape, ...]
    arguments: tuple[tuple[int, int], ...]
    constants: tuple[tuple[int, object], ...]

    def rebuild(self, arguments: list[object]) -> object:
        """The result of a call with these leaves of arguments."""
        leaves: dict[int, object] = {shape.index: shape.absent() for shape in self.tensors}
        leaves |= {leaf: arguments[number] for leaf, number in self.arguments} | dict(self.constants)
        return tree_unflatten([leaves[number] for number in range(len(leaves))], self.structure)


@dataclass(frozen=True)
class BlockCall:
    """A call of a block.

    Attributes:
        path: of the block in the model.
        inputs: tensors among the arguments that depend on parameters: a stage that begins here receives them.
        tensors: the numbers of these tensors in the flow.
    """

    path: str
    inputs: tuple[TensorShape, ...]
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Operation:
    """An operator's call on tensors that depend on parameters, which have numbers.

    Attributes:
        time: blocks entered before.
        reads, gives: numbers of its arguments and results.
        writes: numbers of the arguments that it changes.
        name: of the operator.
    """

    time: int
    reads: tuple[int, ...]
    gives: tuple[int, ...]
    writes: tuple[int, ...]
    name: str


@dataclass
class Flow:
    """What a dry run has seen.

    Attributes:
        blocks: calls of blocks, in order.
        uses: times at which each parameter (or buffer that depends on parameters) is read, by the name of each alias.
        operations: in order.
        flops: floating-point operations of matrix products, by time.
        results: templates of each watched module's calls, by path; None where a result cannot be rebuilt.
        output: what the run returned: the loss, or the model's output.
        shared_draws: operators between blocks that draw random numbers without reading activations, which other stages
            repeat: (time, name). Those before everything that a stage draws alone are left out: stages share their seed.
        draws_inputs: whether random numbers are drawn before the first block without reading activations: noise, say.
        calls: calls of the model.
        inside: whether a block runs.
    """

    blocks: list[BlockCall] = field(default_factory=list)
    uses: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    operations: list[Operation] = field(default_factory=list)
    flops: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    results: dict[str, list[ResultTemplate | None]] = field(default_factory=lambda: defaultdict(list))
    output: object = None
    shared_draws: list[tuple[int, str]] = field(default_factory=list)
    draws_inputs: bool = False
    calls: int = 0
    inside: bool = False

    @property
    def returned(self) -> tuple[int, ...]:
        """The numbers of the tensors in the output that depend on parameters."""
        return tuple(number_of(leaf) for leaf in tree_iter(self.output) if isinstance(leaf, AbsentTensor))


def number_of(tensor: Tensor) -> int:
    """The number of an absent tensor in the flow; 0 for a parameter."""
    return int(getattr(tensor, "number", 0))


def template_of(result: object, arguments: list[object]) -> ResultTemplate | None:
    """The template of a module's result; None where it holds more than tensors, arguments and constants."""
    leaves, structure = tree_flatten(result)
    tensors, passed, constants = [], [], []
    numbers = {id(leaf): number for number, leaf in enumerate(arguments)}
    for number, leaf in enumerate(leaves):
        if leaf is None or isinstance(leaf, bool | int | float | str):
            constants.append((number, leaf))
        elif id(leaf) in numbers:
            passed.append((number, numbers[id(leaf)]))
        elif isinstance(leaf, AbsentTensor):
            tensors.append(TensorShape.of(number, leaf))
        else:
            return None
    return ResultTemplate(structure, tuple(tensors), tuple(passed), tuple(constants))


def check_flow(flow: Flow, blocks: list[str]) -> None:
    """Raises UnsupportedError for a model whose blocks do not each run once, one after the other, for one loss."""
    order = [call.path for call in flow.blocks]
    if flow.calls > 1:
        raise UnsupportedError(f"the loss calls the model {flow.calls} times; a pipeline runs it once.", WAYS)
    repeated = next((path for path in order if order.count(path) > 1), None)
    if repeated is not None:
        raise UnsupportedError(f"the model runs its block {repeated} more than once, so stages cannot follow each other.", WAYS)
    missing = [path for path in blocks if path not in order]
    if missing:
        raise UnsupportedError(f"the model does not run its block {missing[0]}.", WAYS)
    if not flow.returned:
        raise UnsupportedError("the result does not depend on any parameter.", ["do not detach the loss"])
