"""A job with few of its model's blocks, where the whole model shows that its blocks are alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gpuwise.job import Job, repeated_blocks
from gpuwise.job.batches import checked_batch, map_tensors
from gpuwise.job.job import meta_model
from gpuwise.runtime.build.precision import parameter_dtype
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.alignment import NotPeriodicError, aligned
from gpuwise.trace.parallel.variant import is_sharded
from gpuwise.tracing.answers import Answers

Call = tuple[Hashable, ...]
Within = Callable[[nn.Module], AbstractContextManager[object]]  # makes a context of the model, in which it runs
_PLAIN = (bool, int, float, str, tuple, type(None))


@dataclass(frozen=True)
class FewBlocks:
    """What to record of a job instead of all its blocks.

    Attributes:
        container: path of the ModuleList that the blocks are in. Of several (encoder and decoder, text and images) it is the
            longest, and the others are recorded whole.
        blocks: how many there are.
        short, long: how many blocks the two recordings have.
        period: after how many blocks they are alike again, but for some that may come first.
    """

    container: str
    blocks: int
    short: int
    long: int
    period: int

    @property
    def copies(self) -> int:
        """Periods that the shorter recording leaves out."""
        return (self.blocks - self.short) // self.period

    def job(self, job: Job, blocks: int) -> Job:
        """The job with the first of its blocks alone."""

        def model() -> nn.Module:
            model = job.model()
            del _container(model, self.container)[blocks:]
            return model

        return replace(job, model=model)


def few_blocks(job: Job, strategy: Strategy, *, within: Within = nullcontext) -> FewBlocks | None:
    """How few blocks show the step of a job; None where all are to be recorded.

    The blocks, but for some that may come first, must be alike, or take turns: their modules, parameters and settings, and the
    operators of a forward pass on the `meta` device, which is run with all blocks and with few.

    within: what the model is to run in, as when it is recorded.
    """
    if not _repeats(job, strategy):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the recording shows what matters
        for dtype in _forward_dtypes(strategy.precision):
            try:
                return _few_blocks(job, strategy, within, dtype)
            except Exception:  # the user's model may raise anything; all of it is then recorded
                continue
    return None


def _forward_dtypes(precision: str) -> list[torch.dtype | None]:
    """What to try the forward pass in. There is no autocast on the `meta` device, where grouped products take bf16 alone."""
    own = torch.float16 if precision == "amp-fp16" else parameter_dtype(precision)
    return [torch.bfloat16, own] if precision == "amp-bf16" else [own, torch.bfloat16]


def _few_blocks(job: Job, strategy: Strategy, within: Within, dtype: torch.dtype | None) -> FewBlocks | None:
    model = meta_model(job)
    paths = {id(module): path for path, module in model.named_modules()}
    containers: dict[str, list[nn.Module]] = {}
    for block in repeated_blocks(model):
        containers.setdefault(paths[id(block)].rpartition(".")[0], []).append(block)
    if not containers:
        return None
    container, blocks = max(containers.items(), key=lambda each: len(each[1]))
    turns = _turns(blocks)
    if turns is None:
        return None
    first, period = turns
    # Gradients reach from block to block, and shards are gathered a block ahead: both make the ends of a pass longer.
    ends = 5 if is_sharded(strategy) or strategy.mesh.cp > 1 else 2 if strategy.mode == "infer" else 3
    tail, least = (len(blocks) - first) % period, (ends if period == 1 else period + ends) + (first > 0)
    short = first + tail + period * -(-(least - tail) // period)
    few = FewBlocks(container, len(blocks), short, short + period, period)
    if few.blocks <= few.short + few.long or list(_container(model, container)) != blocks:
        return None
    if any(path.startswith(f"{container}.") and path[len(container) + 1] != "*" for path in job.tensor_parallel_plan or ()):
        return None
    if any(getattr(part, "_backward_hooks", None) for part in [*model.modules(), *model.parameters()]):
        return None
    model.to(dtype)
    with torch.device("meta"):
        batch = map_tensors(
            checked_batch(job, strategy.micro_batch),
            lambda tensor: tensor.to("meta", dtype if tensor.is_floating_point() else None),
        )
    passes = []
    with within(model):
        for count in (few.blocks, few.long, few.short):
            del _container(model, container)[count:]
            passes.append(_forward(job, strategy, model, batch))
    whole, long_pass, short_pass = passes
    try:
        alignment = aligned(short_pass, long_pass, (short_pass, long_pass), few.copies)
    except NotPeriodicError:
        return None
    return few if alignment.choose(short_pass, long_pass) == whole else None


def _repeats(job: Job, strategy: Strategy) -> bool:
    """Whether a step with these settings is known to repeat with the blocks of the model.

    Not so where what runs is cut without regard to blocks (buckets of DistributedDataParallel, stages, compiled graphs), where
    clipping or an average goes over all parameters in an order of its own, or where code of the job's own chooses among them.
    """
    mesh = strategy.mesh
    buckets = mesh.dp_replicate > 1 and not is_sharded(strategy)
    return is_plain(job, strategy) and not (buckets or mesh.pp > 1 or mesh.ep > 1)


def is_plain(job: Job, strategy: Strategy) -> bool:
    """Whether a step is a forward and a backward pass of the model, and the update of an optimizer of gpuwise's: no compiled
    graph, no step of the job's own, no update within backward, no clipping or average over all parameters."""
    named = strategy.mode == "infer" or isinstance(strategy.optimizer or job.optimizer, str)
    over_all = job.clip_norm is not None or job.ema_decay is not None
    return named and job.step is None and not (strategy.compile or strategy.optimizer_in_backward or over_all)


def _container(model: nn.Module, path: str) -> nn.ModuleList:
    container = model.get_submodule(path)
    if type(container) is not nn.ModuleList:
        raise TypeError(f"{path} is a {type(container).__name__}")
    return container


def _turns(blocks: Sequence[nn.Module]) -> tuple[int, int] | None:
    """How many blocks come first, and after how many the others have equal modules, parameters and settings again, but for
    settings that are the number of their block; None where that is never, or not often enough to leave any out.

    Mixtures of experts often begin with a few blocks of one large network.
    """
    settings = [_settings(block) for block in blocks]
    others = {name for number, each in enumerate(settings) for name, value in each.items() if value != number}
    plain = [{name: value if name in others else "its number" for name, value in each.items()} for each in settings]
    kinds = [plain.index(each) for each in plain]
    turns = (
        (first, period)
        for first in range(len(kinds) // 3)
        for period in range(1, (len(kinds) - first) // 3 + 1)
        if kinds[first:-period] == kinds[first + period :]
    )
    return min(turns, key=sum, default=None)


def _settings(block: nn.Module) -> dict[tuple[str, str], object]:
    settings: dict[tuple[str, str], object] = {}
    for path, module in block.named_modules():
        settings[path, ""] = type(module)
        settings |= {(path, name): value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    for path, tensor in [*block.named_parameters(), *block.named_buffers()]:
        settings[path, "tensor"] = (tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
    return settings


def _forward(job: Job, strategy: Strategy, model: nn.Module, batch: object) -> list[Call]:
    compute = job.forward if strategy.mode == "infer" and job.forward else job.loss
    assert compute is not None
    with _Calls() as calls:
        compute(model.train(), batch)
    return calls.calls


class _Calls(TorchDispatchMode):
    """Notes each operator and the shapes and types of its tensors. Values that the model reads are those of a recording."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self._answers = Answers()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        out = self._answers.called(func, args, kwargs or {}, noted=False)
        tensors = [leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor)]
        self.calls.append((func, *((tuple(t.shape), t.dtype) for t in tensors)))
        return out
