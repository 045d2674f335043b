"""Applies tensor parallelism: the modules of a plan are split over the ranks of the tp axis, all others replicated there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, loss_parallel, parallelize_module
from torch.utils._pytree import tree_iter

from gpuwise.errors import UnsupportedError
from gpuwise.job.batches import map_tensors
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.parallel import (
    COLWISE,
    COLWISE_GATHERED,
    EMBEDDING,
    REPLICATED_SUMMED,
    ROWWISE,
    ROWWISE_SPLIT,
    TensorPlan,
    check_sizes,
)
from gpuwise.runtime.parallel.tensor_styles import SEQUENCE, Replicated, SplitColumns, SplitRows, move_input, move_output
from gpuwise.strategy import Parallelism


@dataclass(frozen=True)
class TensorParallel:
    """How a program splits its model: the plan, the ranks and the settings.

    Attributes:
        plan: words of the modules, by path.
        mesh: the tp axis of the mesh.
        sequence: whether activations between the split layers of the blocks are split along the sequence.
        loss: whether logits stay split along the vocabulary.
    """

    plan: TensorPlan
    mesh: DeviceMesh
    sequence: bool = False
    loss: bool = False

    @classmethod
    def of(cls, plan: TensorPlan, mesh: DeviceMesh, parallelism: Parallelism) -> TensorParallel:
        return cls(plan, mesh, parallelism.sequence_parallel, parallelism.loss_parallel)

    def apply(self, model: nn.Module) -> None:
        """Splits the model in place. Paths of the plan that this model lacks (of another stage) are left out.

        Raises InputError where the number of ranks does not divide what is split, UnsupportedError where sequence or loss
        parallelism does not fit the plan.
        """
        words = {path: word for path, word in self.plan.words.items() if _has(model, path)}
        check_sizes(TensorPlan(words, self.plan.source), model, self.mesh.size())
        ties = list(_ties(model))
        styles = {path: self._style(word) for path, word in words.items()}
        if self.sequence:
            _split_sequence(model, words, styles, self.mesh)
        if self.loss:
            self._split_loss(model, words, styles)
        for path, module in list(model.named_modules()):
            if any(p is not None for p in module._parameters.values()):
                parallelize_module(module, self.mesh, styles.get(path) or Replicated())
        _tie_again(ties)

    def context(self) -> AbstractContextManager[object]:
        """What a forward and its backward pass run in."""
        return loss_parallel() if self.loss else nullcontext()

    @staticmethod
    def _style(word: str) -> ParallelStyle:
        match word:
            case _ if word == COLWISE:
                return SplitColumns()
            case _ if word == COLWISE_GATHERED:
                return SplitColumns(output_layouts=Replicate())
            case _ if word == ROWWISE:
                return SplitRows()
            case _ if word in (ROWWISE_SPLIT, EMBEDDING):
                return SplitRows(input_layouts=Replicate())
            case _:
                return Replicated(summed=word == REPLICATED_SUMMED)

    def _split_loss(self, model: nn.Module, words: dict[str, str], styles: dict[str, ParallelStyle]) -> None:
        linears = [path for path, word in words.items() if word == COLWISE_GATHERED]
        head = linears[-1] if linears else ""
        blocks = {id(module) for block in repeated_blocks(model) for module in block.modules()}
        if not head or id(model.get_submodule(head)) in blocks:
            raise UnsupportedError(
                f"loss parallelism splits the logits of a model's output layer, and the tensor-parallel plan of "
                f"{type(model).__name__} leaves that whole.",
                ["leave out --loss-parallel", f'say "{COLWISE_GATHERED}" of it in the Job\'s tensor_parallel_plan'],
            )
        styles[head] = SplitColumns(output_layouts=Shard(-1), use_local_output=False)


def plain_loss(loss: Tensor) -> Tensor:
    """A loss as a plain tensor: loss parallelism computes a distributed one."""
    return loss.full_tensor() if isinstance(loss, DTensor) else loss


@contextmanager
def plain_outputs(*models: nn.Module) -> Iterator[None]:
    """Inside, calls of the models return plain tensors.

    Loss parallelism leaves logits split along the vocabulary, for a loss that is computed in its own context.
    """

    def gathered(model: nn.Module, args: object, output: object) -> object:
        split = any(isinstance(leaf, DTensor) for leaf in tree_iter(output))
        return map_tensors(output, plain_loss) if split else output

    hooks = [model.register_forward_hook(gathered) for model in models]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _has(model: nn.Module, path: str) -> bool:
    try:
        model.get_submodule(path)
    except AttributeError:
        return False
    return True


def _ties(model: nn.Module) -> Iterator[list[tuple[nn.Module, str]]]:
    """The modules and names under which each shared parameter stands."""
    owners: dict[int, list[tuple[nn.Module, str]]] = defaultdict(list)
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                owners[id(parameter)].append((module, name))
    return (names for names in owners.values() if len(names) > 1)


def _tie_again(ties: list[list[tuple[nn.Module, str]]]) -> None:
    """Shares again what the styles made separate parameters of."""
    for (first, name), *others in ties:
        parameter = first._parameters[name]
        assert isinstance(parameter, DTensor)
        for module, other in others:
            copy = module._parameters[other]
            assert isinstance(copy, DTensor)
            if copy.placements != parameter.placements:
                raise UnsupportedError(
                    f"a weight shared by {type(first).__name__} and {type(module).__name__} would be split in two ways.",
                    [f'an embedding as "{EMBEDDING}" and its output layer as "{COLWISE_GATHERED}" share one weight'],
                )
            module._parameters[other] = parameter


def _split_sequence(model: nn.Module, words: dict[str, str], styles: dict[str, ParallelStyle], mesh: DeviceMesh) -> None:
    """Between a stack's first and last block activations are split along the sequence (dimension 1).

    Layers split by columns gather their input, or their module does where it holds nothing else; sums of layers split by rows
    are scattered; what else has parameters works on the rank's part of the sequence.
    """
    blocks = {id(block) for block in repeated_blocks(model)}
    stacks = [m for m in model.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and any(id(c) in blocks for c in m)]
    if not stacks:
        raise UnsupportedError(
            f"{type(model).__name__} has no repeated blocks between which sequence parallelism could split activations.",
            ["leave out --sequence-parallel", "group the layers in a torch.nn.ModuleList or Sequential"],
        )
    paths = {id(module): path for path, module in model.named_modules()}
    for stack in stacks:
        children = list(stack)
        if "pipeline_blocks" in vars(model):  # between stages activations are whole
            children = [child for child in children if id(child) in blocks]
        _check_whole_stack(model, children, blocks)
        move_input(children[0], mesh, Replicate(), SEQUENCE)
        move_output(children[-1], mesh, SEQUENCE, Replicate())
        for block in children:
            _split_block(block, paths[id(block)], words, styles, mesh)


def _check_whole_stack(model: nn.Module, children: list[nn.Module], blocks: set[int]) -> None:
    if any(id(child) not in blocks for child in children):
        raise UnsupportedError(
            f"{type(model).__name__} has other modules among its repeated blocks, across which activations cannot stay split.",
            ["leave out --sequence-parallel"],
        )


def _split_block(
    block: nn.Module, path: str, words: dict[str, str], styles: dict[str, ParallelStyle], mesh: DeviceMesh
) -> None:
    columns: dict[nn.Module, list[str]] = defaultdict(list)  # by the module that holds them
    for inner, module in block.named_modules():
        if all(p is None for p in module._parameters.values()):
            continue
        name = f"{path}.{inner}" if inner else path
        word = words.get(name)
        if word in (COLWISE, COLWISE_GATHERED):
            columns[block.get_submodule(inner.rpartition(".")[0])].append(name)
        elif word == ROWWISE:
            styles[name] = SplitRows(output_layouts=SEQUENCE)
        elif word == ROWWISE_SPLIT:
            styles[name] = SplitRows(input_layouts=Replicate(), output_layouts=SEQUENCE)
        elif isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d | nn.Conv2d):
            raise UnsupportedError(
                f"sequence parallelism needs every layer of a block split, and {name!r} is whole.",
                ["leave out --sequence-parallel", "split it in the Job's tensor_parallel_plan"],
            )
        else:
            styles[name] = Replicated(summed=True)
    for holder, names in columns.items():
        if holder is not block and len(names) > 1:
            move_input(holder, mesh, SEQUENCE, Replicate())
            continue
        for name in names:
            output = Replicate() if words[name] == COLWISE_GATHERED else Shard(-1)
            styles[name] = SplitColumns(input_layouts=SEQUENCE, output_layouts=output)
