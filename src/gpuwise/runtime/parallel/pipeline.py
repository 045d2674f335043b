"""Pipeline parallelism: the job's model in stages, each on a rank, and the micro-batches of a step on their way through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError
from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import map_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.build.named_loss import LossParts, check_trains, mean_loss, mean_parts, separated
from gpuwise.runtime.build.precision import autocast, parameter_dtype
from gpuwise.runtime.devices.random_state import unchanged_generators
from gpuwise.runtime.parallel.buffers import SharedBuffers
from gpuwise.runtime.parallel.job_loss import LossFunction
from gpuwise.runtime.parallel.pipeline_flows import Flows, first_of_other_shapes, in_words, shapes
from gpuwise.runtime.parallel.pipeline_forward import forward_through
from gpuwise.runtime.parallel.pipeline_model import PipelineModel, on_all_ranks
from gpuwise.runtime.parallel.pipeline_schedule import Schedule, Watch, make_schedule
from gpuwise.runtime.parallel.pipeline_seeds import StageSeeds
from gpuwise.runtime.parallel.pipeline_ties import Ties
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.shard import COMPUTE_DTYPES
from gpuwise.runtime.parallel.stages import Stages, stage_of
from gpuwise.runtime.parallel.stages_absent import WAYS, Arguments, Keywords
from gpuwise.runtime.parallel.stages_cut import check_trained
from gpuwise.runtime.parallel.stages_flow import Flow
from gpuwise.runtime.parallel.tensor import plain_outputs
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy
from gpuwise.strategy.pipeline import rank_of_stage, stages_of_rank


class StagePipeline:
    """The stages of this rank, and the schedule that runs them.

    Attributes:
        stages: this rank's stages, a model whose parameters have the job's names.
        cut: where the job's model is cut.
        ties: parameters that several stages use.
        has_loss: whether this rank has the last stage.
        watch: called with ("forward" | "backward" | "weights", stage, micro-batch) before each part of a stage's work.

    The same object runs on PyTorch's fake process group, for tracing: `build` with a World of any rank, made outside the
    fake tensor mode, then `accumulate_gradients` with all micro-batches of a step inside it. What stages receive has the
    shapes of the dry run and no values; sends and receives are operators of c10d; `watch` tells which part of the schedule
    the following operators belong to. Absent tensors and dry runs are seen by no dispatch mode but fake tensors.
    """

    def __init__(self, job: Job, strategy: Strategy, rank_model: RankModel, *, device: torch.device, world: World):
        self._job, self._strategy, self._world = job, strategy, world
        self._rank_model, model = rank_model, rank_model.model
        self._device = device
        self._group = world.group("pp")
        self._schedule: Schedule | None = None
        self._flow: Flow | None = None  # of the schedule
        self._losses: list[Tensor] = []
        self._parts: list[LossParts] = []
        self._scale: Callable[[Tensor], Tensor] = lambda loss: loss
        self._buffers: SharedBuffers | None = None
        self.watch: Watch | None = None

        ranks, parallelism = strategy.mesh.pp, strategy.parallelism
        trains, example = strategy.mode == "train", self._example()
        self._flows = Flows(model, device=device, dtype=_gathered_dtype(strategy))
        self.cut = self._flows.cut_by(
            lambda dry: self._whole_loss(dry, example), ranks * parallelism.stages_per_rank, model, trains=trains
        )
        own = stages_of_rank(parallelism, ranks=ranks, rank=world.coordinate("pp"))
        stage = partial(stage_of, model, self.cut, edges=self._flows.edges, device=device)
        self.stages = Stages([stage(index, shares_buffers=index == own[0]) for index in own])
        self.stages.train(trains)
        self.has_loss = self.cut.stages - 1 in own
        homes = {
            name: tuple(sorted({self._rank_of(stage) for stage in self.cut.owners[name]}))
            for name, _ in model.named_parameters()
        }
        self._check_ties(homes)
        if trains:
            check_trained(model, self.cut)
        self.ties = Ties(homes, self.stages, self._group)
        self._seeds = StageSeeds(self.stages, device=self._device, group=self._group)

    def accumulate_gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, LossParts]:
        """Runs the schedule over the micro-batches of a step, which all ranks of the pipeline have read.

        Returns the mean loss, detached, and its named parts; a loss of zero on ranks without the last stage.

        Raises JobError for micro-batches of several shapes.
        """
        if self._buffers is not None:
            self._buffers.share()
        schedule, flow = self._prepared(batches)
        self._losses, self._parts = [], []

        def loss_of(model: nn.Module, number: int) -> Tensor:
            return self._loss_of(model, batches[number])

        for stage in self.stages:
            stage.begin(flow, loss_of)
        numbers = torch.arange(len(batches))
        with self._contexts(), self._seeds.step(draws_inputs=flow.draws_inputs):
            try:
                schedule.step(target=numbers, return_outputs=False)
            except RuntimeError as error:
                raise _cause_of(error) from None
        self.ties.add_gradients()
        if not self.has_loss:
            none = torch.zeros((), device=self._device)
            self._scale(none)  # a loss scaler begins to exist with the first loss
            return none, {}
        return mean_loss(self._losses), mean_parts(self._parts) if any(self._parts) else {}

    def infer(self, batch: Batch) -> object:
        """One forward pass without gradients, on all ranks of the pipeline. Returns the model's output on the last stage's."""
        flow, loss = self._flow_of(batch), self._loss
        with self._contexts(), self._autocast():
            return self._through(flow, lambda model: loss(model, batch))

    def whole_model(self) -> PipelineModel:
        """The job's model, which all ranks of the pipeline may call alike and without gradients. All get the output."""
        return PipelineModel(self.stages, self._called)

    def _called(self, args: Arguments, kwargs: Keywords) -> object:
        def call(model: nn.Module) -> object:
            return model(*args, **kwargs)

        leaves, structure = tree_flatten((args, kwargs))
        described = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves)
        precision = torch.is_autocast_enabled(self._device.type) and torch.get_autocast_dtype(self._device.type)
        flow = self._flows.of((described, repr(structure), precision), call, trains=self.stages.training)
        output = self._through(flow, call)
        root = self._rank_of(self.cut.stages - 1)
        return on_all_ranks(output, flow, has_output=self.has_loss, root=root, device=self._device, group=self._group)

    def _through(self, flow: Flow, call: Callable[[nn.Module], object]) -> object:
        with torch.no_grad(), plain_outputs(*(stage.model for stage in self.stages)):
            return forward_through(self.stages, flow, call, rank_of=self._rank_of, device=self._device, group=self._group)

    def _rank_of(self, stage: int) -> int:
        return rank_of_stage(self._strategy.parallelism, ranks=self._strategy.mesh.pp, stage=stage)

    @property
    def copies(self) -> Sequence[nn.Parameter]:
        """Parameters of this rank that a lower rank has, too, and counts in norms."""
        return self.ties.copied

    def scale_loss(self, scale: Callable[[Tensor], Tensor]) -> None:
        """Lets each loss be scaled before its backward pass."""
        self._scale = scale

    def around_models(self, change: Callable[[nn.Module], None]) -> None:
        """Applies a change to the job's model as each stage has it, and as dry runs have it."""
        for model in (*(stage.model for stage in self.stages), self._flows.model):
            change(model)

    def share_buffers(self, buffers: SharedBuffers) -> None:
        """Lets data-parallel ranks begin each step with the same buffers."""
        self._buffers = buffers

    @property
    def _loss(self) -> LossFunction:
        assert self._rank_model.loss is not None
        return self._rank_model.loss

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self._strategy.precision, self._device.type) if self._rank_model.autocasts else nullcontext()

    def _loss_of(self, model: nn.Module, batch: Batch) -> Tensor:
        """The share of a micro-batch's loss in the gradients; ends earlier on stages before the last."""
        with self._autocast():
            loss, parts = separated(self._loss(model, batch))
        check_trains(loss)
        self._losses.append(loss.detach())
        self._parts.append(parts)
        return self._scale(loss / self._strategy.accumulation)

    def _watched(self, part: str, stage: int, micro_batch: int) -> None:
        if self.watch is not None:
            self.watch(part, stage, micro_batch)

    def _prepared(self, batches: Sequence[Batch]) -> tuple[Schedule, Flow]:
        """The schedule for micro-batches of these shapes."""
        count = self._strategy.accumulation
        if len(batches) != count:
            raise InputError(f"the pipeline runs {count} micro-batches a step, got {len(batches)}.", ["--accumulate"])
        if (other := first_of_other_shapes(batches)) is not None:
            raise JobError(
                f"the micro-batches of a step differ in shape: {in_words(batches[0])}, and {in_words(other)}; a pipeline "
                "sends tensors of one shape.",
                ["pad sequences to one length", "drop the last, smaller batch", *WAYS][:2],
            )
        flow = self._flow_of(batches[0])
        if self._schedule is None or flow is not self._flow:
            for stage in self.stages:
                stage.begin(flow, lambda model, number: None)
            name = self._strategy.parallelism.pipeline_schedule
            self._schedule = make_schedule(
                name, list(self.stages), count, device=self._device, group=self._group, watch=self._watched
            )
            self._flow = flow
        return self._schedule, flow

    def _flow_of(self, batch: Batch) -> Flow:
        """What flows between blocks where the loss of a batch of these shapes is computed."""
        key = (shapes(batch), self._loss, self._rank_model.autocasts)
        return self._flows.of(key, lambda model: self._whole_loss(model, batch), trains=self.stages.training)

    def _whole_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        with self._autocast():
            return separated(self._loss(model, batch))[0]

    def _example(self) -> Batch:
        """A micro-batch of the job's example batch, on the device."""
        with unchanged_generators(torch.device("cpu")):
            batch = checked_batch(self._job, self._strategy.micro_batch)
        dtype = parameter_dtype(self._strategy.precision)
        return map_tensors(batch, lambda tensor: tensor.to(self._device, dtype if tensor.is_floating_point() else None))

    @contextmanager
    def _contexts(self) -> Iterator[None]:
        with ExitStack() as stack:
            for context in self._rank_model.contexts:
                stack.enter_context(context())
            yield

    def _check_ties(self, homes: dict[str, tuple[int, ...]]) -> None:
        """Raises UnsupportedError for a parameter that two stages of one rank would shard twice."""
        if self._strategy.mesh.data_parallel * self._strategy.mesh.cp == 1:
            return
        for name, ranks in homes.items():
            stages = self.cut.owners[name]
            if len(stages) > len(ranks):
                raise UnsupportedError(
                    f"{name} is used by stages {stages[0]} and {stages[-1]}, which lie on one rank and would each shard it.",
                    ["--pipeline-schedule 1f1b", "a mesh without dp"],
                )


def cut_into_stages(
    job: Job, strategy: Strategy, rank_model: RankModel, *, device: torch.device, world: World
) -> StagePipeline:
    """Replaces the model by this rank's stages of it.

    Raises InputError for fewer blocks than stages, UnsupportedError for a model that cannot be cut, with the reason.
    """
    pipeline = StagePipeline(job, strategy, rank_model, device=device, world=world)
    rank_model.model, rank_model.parts = pipeline.stages, list(pipeline.stages)
    rank_model.pipeline = pipeline
    return pipeline


def _gathered_dtype(strategy: Strategy) -> torch.dtype | None:
    """The dtype in which sharded parameters are gathered, if it is not their own."""
    sharded = strategy.mesh.data_parallel * strategy.mesh.cp > 1
    return COMPUTE_DTYPES.get(strategy.precision) if sharded else None


def _cause_of(error: BaseException) -> BaseException:
    """What a stage raised, out of the RuntimeErrors that schedules wrap it in."""
    while isinstance(error, RuntimeError) and not isinstance(error, GpuwiseError) and error.__cause__ is not None:
        error = error.__cause__
    return error
