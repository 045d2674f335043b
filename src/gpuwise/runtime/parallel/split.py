"""Split: tensor, context and expert parallelism of one program, decided and checked on the whole model before it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gpuwise.errors import JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.job.job import Batch
from gpuwise.job.parallel import PlanRemark, TensorPlan, plan_of_config, plan_of_job
from gpuwise.notes import Note
from gpuwise.notes import parallel as notes
from gpuwise.runtime.parallel.context import ContextParallel, check_length
from gpuwise.runtime.parallel.experts import check_experts, split_experts
from gpuwise.runtime.parallel.initial_weights import InitialWeights
from gpuwise.runtime.parallel.job_loss import LossFunction
from gpuwise.runtime.parallel.probe import Probe, spread_over_blocks
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.tensor import TensorParallel, plain_loss
from gpuwise.runtime.parallel.tensor_plan import derived_plan
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy

_OWN_PLAN = "say in the Job's tensor_parallel_plan which modules to split, and how"

# Whether a derived plan splits by heads, by hidden features and by vocabulary: the most efficient plan first.
_ATTEMPTS = ((True, True, True), (False, True, True), (False, False, True), (False, False, False))


@dataclass(frozen=True)
class Split:
    """The parallelisms that act inside blocks.

    Attributes:
        tensor: tensor parallelism; None without.
        sequences: context parallelism; None without.
        experts: the ep axis of expert parallelism; None without.
    """

    tensor: TensorParallel | None = None
    sequences: ContextParallel | None = None
    experts: DeviceMesh | None = None

    def apply(self, model: nn.Module) -> None:
        """Splits a model, or a stage of one, in place."""
        if self.experts is not None:
            split_experts(model, self.experts)
        if self.tensor is not None:
            self.tensor.apply(model)
        if self.sequences is not None:
            self.sequences.apply(model)

    @contextmanager
    def context(self) -> Iterator[None]:
        """What the forward and backward pass of a micro-batch runs in."""
        with ExitStack() as stack:
            if self.tensor is not None:
                stack.enter_context(self.tensor.context())
            if self.sequences is not None:
                stack.enter_context(self.sequences.context())
            yield

    def loss(self, loss: LossFunction) -> LossFunction:
        """A job's loss as this rank computes it."""

        def split_loss(model: nn.Module, batch: Batch) -> Tensor | Mapping[str, Tensor]:
            if self.sequences is not None:
                batch = self.sequences.cut(self.sequences.with_next_labels(model, batch))
            result = loss(model, batch)
            if isinstance(result, Tensor):
                return plain_loss(result)
            return {name: plain_loss(value) for name, value in result.items()}

        return split_loss

    def mean(self, tensor: Tensor, *, of_expert: bool) -> Tensor:
        """The mean of a loss or a gradient over the ranks that each have a part of the sequence, or rows of an expert."""
        if of_expert and self.experts is not None:
            return tensor / self.experts.size()  # the same rows came from each rank
        if self.sequences is None:
            return tensor
        total = tensor.detach().clone()
        dist.all_reduce(total, group=self.sequences.mesh.get_group())
        return total / self.sequences.mesh.size()

    @property
    def notes(self) -> list[Note]:
        """What the user is told of it."""
        return [] if self.tensor is None else [note_of(self.tensor.plan)]


def split_of(
    job: Job, strategy: Strategy, model: nn.Module, *, device: torch.device, world: World, weights: InitialWeights | None = None
) -> Split | None:
    """The tensor, context and expert parallelism of a strategy, compared with the plain model; None without any.

    Raises InputError where sizes do not divide, JobError for a plan that does not fit the model, UnsupportedError where the
    split model would compute something else than the plain one.
    """
    mesh = strategy.mesh
    if max(mesh.tp, mesh.cp, mesh.ep) == 1:
        return None
    name = job.name or "the job"
    if mesh.ep > 1:
        check_experts(model, mesh.ep)
    split = Split(experts=None if world.experts is None else world.experts["ep"])
    if mesh.cp > 1:
        length = check_length(job.seq_len, mesh.cp, name)
        split = replace(split, sequences=ContextParallel(world.device_mesh["cp"], strategy.parallelism.context, length))
    probe = _probe(job, model, device, weights)
    problems: list[str] = []
    for attempt in _attempts(job, strategy, split, probe, world):
        problem = probe.differs(attempt)
        if not problem:
            return _whole(attempt, model, problems)
        problems.append(problem)
    raise UnsupportedError(
        f"{name} split by --mesh {mesh} does not compute what it computes on one device: {problems[-1]}.",
        [*([_OWN_PLAN] if mesh.tp > 1 else []), "--mesh dp_shard=N, which shards parameters and computes with whole ones"],
    )


def _attempts(job: Job, strategy: Strategy, split: Split, probe: Probe, world: World) -> Iterator[Split]:
    """Splits to try, the most efficient one first."""
    if strategy.mesh.tp == 1:
        yield split
        return
    for plan in _plans(job, probe, strategy.mesh.tp):
        yield replace(split, tensor=TensorParallel.of(plan, world.device_mesh["tp"], strategy.parallelism))


def _whole(split: Split, model: nn.Module, problems: list[str]) -> Split:
    """The split of a probe for the whole model, with why others did not do."""
    if split.tensor is None:
        return split
    plan = split.tensor.plan
    words = spread_over_blocks(dict(plan.words), model)
    plan = replace(plan, words=words, remarks=(*plan.remarks, *(PlanRemark((), problem) for problem in problems)))
    return replace(split, tensor=replace(split.tensor, plan=plan))


def apply_split(split: Split, rank_model: RankModel) -> None:
    """Splits this rank's parts of the model, and its loss."""
    for part in rank_model.parts:
        split.apply(part)
    if rank_model.loss is not None:
        rank_model.loss = split.loss(rank_model.loss)
    rank_model.contexts.append(split.context)
    rank_model.notes += split.notes


def note_of(plan: TensorPlan) -> Note:
    """The note on a tensor-parallel plan: modules with one word, repeated ones once."""
    modules: dict[str, dict[str, None]] = {}
    for path, word in plan.words.items():
        modules.setdefault(word, {})[_pattern(path)] = None
    words = "; ".join(f"{word}: {', '.join(patterns)}" for word, patterns in modules.items())
    remarks = {f"{', '.join(dict.fromkeys(map(_pattern, r.modules))) or 'not more'}: {r.reason}": None for r in plan.remarks}
    return notes.tensor_parallel_plan(source=plan.source, modules=words, remarks="; ".join(remarks))


def _plans(job: Job, probe: Probe, degree: int) -> Iterator[TensorPlan]:
    """Plans to try, the most efficient one first. The job's own plan is the only one where there is one."""
    if job.tensor_parallel_plan is not None:
        yield plan_of_job(job.tensor_parallel_plan, probe.model)
        return
    if (plan := plan_of_config(probe.model)) is not None:
        yield plan
    events = probe.plain.events
    tried: list[TensorPlan] = []
    for by_heads, by_hidden, vocabulary in _ATTEMPTS:
        plan = derived_plan(probe.model, events, degree, by_heads=by_heads, by_hidden=by_hidden, vocabulary=vocabulary)
        if plan.words not in [before.words for before in tried]:
            tried.append(plan)
            yield plan


def _probe(job: Job, model: nn.Module, device: torch.device, weights: InitialWeights | None) -> Probe:
    """The probe of a model cut to a few blocks, or of the whole one where the cut model does not run."""
    try:
        return Probe(job, model, device, weights)
    except JobError:
        raise
    except Exception:  # a model may count its blocks
        return Probe(job, model, device, weights, whole=True)


def _pattern(path: str) -> str:
    """The path of a module with * for numbers, as a plan would name all that are alike."""
    return ".".join("*" if part.isdigit() else part for part in path.split("."))
