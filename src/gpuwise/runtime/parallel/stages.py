"""Pipeline stages as modules: each runs the job's whole loss, where other stages' modules do nothing."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_iter, tree_unflatten

from gpuwise.errors import UnsupportedError
from gpuwise.runtime.parallel.stages_absent import WAYS, AbsentTensor, Arguments, Keywords, Tree, received
from gpuwise.runtime.parallel.stages_calls import intercept
from gpuwise.runtime.parallel.stages_cut import Cut
from gpuwise.runtime.parallel.stages_flow import BlockCall, Flow
from gpuwise.runtime.parallel.stages_state import stages_state

Task = Callable[[nn.Module, int], Tree]


def _nothing(number: int) -> None: ...


class _StageDoneError(BaseException):
    """Ends a stage's run of the user's code where the next stage begins. User code that catches Exception lets it pass."""

    def __init__(self, tensors: list[object]):
        super().__init__()
        self.tensors = tensors


class OwnPaths(nn.Module, ABC):
    """A module around others that names their modules by the paths of the job's model."""

    @property
    @abstractmethod
    def inner(self) -> Iterable[nn.Module]:
        """The modules that are named."""

    def named_modules(
        self, memo: set[nn.Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Module]]:
        """This module, and those of the job's model under its own paths."""
        memo = set() if memo is None else memo
        if self not in memo:
            memo.add(self)
            yield prefix, self
        for module in self.inner:
            yield from module.named_modules(memo, prefix, remove_duplicate)


class ModelStage(OwnPaths):
    """One stage: what stages before it send -> what the next stage needs, or on the last stage the result of `task`.

    The stage calls `task`, which runs the job's loss on `model`. In this model the blocks and parameters of other stages
    are absent. The stage's first block takes what was received instead of the absent arguments; the call of the next
    stage's first block ends the run. So the user's own code, with its control flow, runs on every stage.

    Attributes:
        model: the job's model with this stage's parameters alone, under their own names.
        index: number of the stage.
        cut: of the model.
        pipeline_blocks: this stage's blocks (see gpuwise.job.blocks).
        task: (model, number of the micro-batch) -> the loss.
        count: micro-batches since `begin`.
        started, entered: called with the micro-batch's number where its run and where the stage's own work begins.
    """

    def __init__(self, model: nn.Module, cut: Cut, index: int, edges: Sequence[str]):
        super().__init__()
        self.model, self.cut, self.index = model, cut, index
        self.is_first, self.is_last = index == 0, index == cut.stages - 1
        vars(self)["pipeline_blocks"] = [model.get_submodule(path) for path in cut.blocks_of(index)]
        self.task: Task | None = None
        self.started: Callable[[int], object] = _nothing
        self.entered: Callable[[int], object] = _nothing
        self.count = 0
        self._flow = Flow()
        self._received: tuple[Tensor, ...] = ()
        self._inside = False
        self._edge_calls = dict.fromkeys(edges, 0)
        for number, path in enumerate(cut.blocks):
            intercept(model.get_submodule(path), self._block_call(number, path))
        for path in edges:
            intercept(model.get_submodule(path), self._edge_call(path))

    def begin(self, flow: Flow, task: Task) -> None:
        """Starts at micro-batch 0. flow: of a dry run at the shapes of the micro-batches."""
        self._flow, self.task, self.count = flow, task, 0
        self.started = self.entered = _nothing

    @property
    def inputs(self) -> BlockCall | None:
        """What the stage receives; None on the first stage."""
        return None if self.is_first else self._flow.blocks[self.cut.first[self.index]]

    @property
    def outputs(self) -> BlockCall | None:
        """What the stage sends; None on the last stage."""
        return None if self.is_last else self._flow.blocks[self.cut.first[self.index + 1]]

    def forward(self, *tensors: Tensor) -> Tree:
        assert self.task is not None
        number, self.count = self.count, self.count + 1
        self._received, self._inside = tensors, self.is_first
        self._edge_calls = dict.fromkeys(self._edge_calls, 0)
        self.started(number)
        if self.is_first:
            self.entered(number)
        try:
            result = self.task(self.model, number)
        except _StageDoneError as done:
            return self._sent(done.tensors)
        finally:
            self._received = ()
        if not self.is_last or any(isinstance(leaf, AbsentTensor) for leaf in tree_iter(received(result))):
            raise UnsupportedError("the model did not run the blocks of this pipeline stage as in its dry run.", WAYS)
        return received(result)

    @property
    def inner(self) -> Iterable[nn.Module]:
        return [self.model]

    def get_submodule(self, target: str) -> nn.Module:
        """A module of the job's model by its own path."""
        return self.model.get_submodule(target) if target else self

    def _sent(self, leaves: list[object]) -> tuple[Tensor, ...]:
        """The tensors for the next stage, of the expected shapes."""
        assert self.outputs is not None
        tensors = []
        for expected in self.outputs.inputs:
            tensor = leaves[expected.index] if expected.index < len(leaves) else None
            if not isinstance(tensor, Tensor) or isinstance(tensor, AbsentTensor):
                raise UnsupportedError(f"the stage before {self.outputs.path} has no values for its arguments.", WAYS)
            if tuple(tensor.shape) != expected.shape or tensor.dtype != expected.dtype:
                raise UnsupportedError(
                    f"{self.outputs.path} is to receive a tensor of shape {expected.shape} and {expected.dtype}, but the stage "
                    f"before computed {tuple(tensor.shape)} and {tensor.dtype}.",
                    WAYS,
                )
            # Schedules detach what they have sent in place, which views and received tensors do not allow.
            aliases = tensor._is_view() or any(tensor is other for other in self._received)
            tensors.append(tensor.clone(memory_format=torch.contiguous_format) if aliases else tensor.contiguous())
        return tuple(tensors)

    def _block_call(self, number: int, path: str) -> Callable[..., object]:
        first, own = self.cut.first[self.index], self.cut.blocks_of(self.index)
        after = first + len(own)

        def call(module: nn.Module, original: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
            leaves, structure = tree_flatten((args, kwargs))
            if number < first:
                return self._without_values(path, 0, original, leaves, (args, kwargs))
            if number == first and not self.is_first:
                self._enter(leaves)
            leaves = [received(leaf) for leaf in leaves]
            if number >= after:
                if number > after or not self._inside:
                    raise UnsupportedError(f"the model ran {path} out of order.", WAYS)
                raise _StageDoneError(leaves)
            if any(isinstance(leaf, AbsentTensor) for leaf in leaves):
                raise UnsupportedError(f"{path} needs a tensor of another pipeline stage that was not received.", WAYS)
            args, kwargs = tree_unflatten(leaves, structure)
            return original(*args, **kwargs)

        return call

    def _enter(self, leaves: list[object]) -> None:
        """Takes the received tensors instead of absent ones."""
        assert self.inputs is not None
        self._inside = True
        self.entered(self.count - 1)
        for expected, tensor in zip(self.inputs.inputs, self._received, strict=True):
            leaf = leaves[expected.index]
            if isinstance(leaf, AbsentTensor):
                leaf.value = tensor
            leaves[expected.index] = tensor

    def _edge_call(self, path: str) -> Callable[..., object]:
        def call(module: nn.Module, original: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
            number = self._edge_calls[path]
            self._edge_calls[path] += 1
            return self._without_values(path, number, original, tree_flatten((args, kwargs))[0], (args, kwargs))

        return call

    def _without_values(
        self,
        path: str,
        number: int,
        original: Callable[..., object],
        leaves: list[object],
        arguments: tuple[Arguments, Keywords],
    ) -> object:
        """The result of another stage's module: rebuilt, or computed by its own code from absent parameters."""
        templates = self._flow.results[path]
        template = templates[number] if number < len(templates) else None
        return original(*arguments[0], **arguments[1]) if template is None else template.rebuild(leaves)


class Stages(OwnPaths):
    """The stages of one rank, as a model whose parameters have the job's own names.

    Attributes:
        list: the stages, from the first to the last.
        pipeline_blocks: their blocks.
    """

    def __init__(self, stages: Sequence[ModelStage]):
        super().__init__()
        self.list = nn.ModuleList(stages)
        vars(self)["pipeline_blocks"] = [block for stage in stages for block in vars(stage)["pipeline_blocks"]]

    def __iter__(self) -> Iterator[ModelStage]:
        return iter(self.list)  # type: ignore[arg-type]

    def forward(self, *args: object, **kwargs: object) -> object:
        raise UnsupportedError(
            "a model in pipeline stages cannot be called: no rank has all of it.", ["Program.infer, on every rank", *WAYS]
        )

    @property
    def inner(self) -> Iterable[nn.Module]:
        return self

    def state_dict(self, *, prefix: str = "", keep_vars: bool = False) -> dict[str, object]:  # type: ignore[override]
        """This rank's part of the job's state dict."""
        stages = list(self)
        return stages_state([(s.model, s.index) for s in stages], stages[0].cut, prefix=prefix, keep_vars=keep_vars)


def stage_of(
    model: nn.Module, cut: Cut, index: int, *, edges: Sequence[str], device: torch.device, shares_buffers: bool
) -> ModelStage:
    """A stage of the model: the same parameters in a copy of its modules, without those of other stages.

    Arguments:
        model: the whole model.
        cut: of the model.
        index: number of the stage.
        edges: paths of the modules outside the blocks that have parameters.
        device: that the stage runs on.
        shares_buffers: whether buffers are the model's own tensors; else they are copied.
    """
    memo: dict[int, object] = {id(parameter): parameter for parameter in model.parameters()}
    for name, buffer in model.named_buffers():
        own = index in cut.owners.get(name, (index,))
        memo[id(buffer)] = AbsentTensor(buffer, device) if not own else buffer if shares_buffers else buffer.clone()
    for name, parameter in model.named_parameters():
        memo[id(parameter)] = parameter if index in cut.owners[name] else AbsentTensor(parameter, device)
    part = copy.deepcopy(model, memo)
    for module in part.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in list(table.items()):
                if isinstance(tensor, AbsentTensor):  # readable as an attribute, but no parameter of this rank
                    del table[name]
                    vars(module)[name] = tensor
    absent = [path for path in edges if not _has_own(model.get_submodule(path), path, cut, index)]
    return ModelStage(part, cut, index, absent)


def _has_own(module: nn.Module, path: str, cut: Cut, index: int) -> bool:
    names = [name for name, _ in [*module.named_parameters(), *module.named_buffers()]]
    return any(index in cut.owners.get(f"{path}.{name}", ()) for name in names)
