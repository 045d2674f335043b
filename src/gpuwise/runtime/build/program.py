"""build: makes a training step, both for training and for tracing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property

import torch
from torch import nn

from gpuwise.job import Job
from gpuwise.job.batches import map_tensors
from gpuwise.job.job import Batch
from gpuwise.runtime.build.checks import check_program, check_strategy
from gpuwise.runtime.build.ema import ExponentialMovingAverage
from gpuwise.runtime.build.job_model import model_of
from gpuwise.runtime.build.job_optimizer import optimizer_of
from gpuwise.runtime.build.master_weights import bring_gradients, copies_of
from gpuwise.runtime.build.named_loss import LossParts, check_trains, mean_loss, mean_parts, separated
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.build.offload import HostCopies, StreamedBlocks
from gpuwise.runtime.build.own_optimizers import NamedOptimizers, needs_closure
from gpuwise.runtime.build.own_step import ONLY, OwnStep, StepContext, check_own_step
from gpuwise.runtime.build.placement import in_channels_last
from gpuwise.runtime.build.precision import autocast, make_scaler, parameter_dtype, set_matmul_precision
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.gradients import all_finite, clip_gradients, complete_gradients, local, total_norm
from gpuwise.runtime.parallel.job_loss import output_of
from gpuwise.runtime.parallel.order import arrange
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy


class Program:
    """One rank's training (or inference) step: `accumulate_gradients` over its micro-batches, then `update`.

    Attributes:
        job: the job.
        strategy: the strategy of the step.
        device: device of the model.
        world: this rank's position among several; None for a single process.
        model: the job's model as this rank has it: whole, sharded, or its pipeline stages.
        has_loss: whether this rank computes the loss; of a pipeline, the ranks with the last stage do.
        optimizer: the optimizer; None in infer mode.
        average: moving average of the parameters; None if the job has none.
        scaler: loss scaler, enabled for fp16 only.
        own_step: the job's own step, None for most jobs. It replaces `forward_backward` and most of `update`.
        parts: named parts of the loss of the latest step.
        on_loss: called before each backward pass with its loss and named parts; not by a pipeline or a job's own step.
        notes: on how several ranks share the model.
        gradient_numbers: averages numbers of each rank with the gradients, behind `on_loss`; None where nothing does.
        gradient_norm: gradient norm of the latest update, before clipping; None without clipping.
    """

    def __init__(self, job: Job, strategy: Strategy, device: torch.device, rank_model: RankModel, world: World | None = None):
        self.job, self.strategy, self.device, self.world, self._rank_model = job, strategy, device, world, rank_model
        self.model, self.notes = (model := rank_model.model), rank_model.notes
        self.has_loss = rank_model.pipeline is None or rank_model.pipeline.has_loss
        self.trains = strategy.mode == "train"
        check_program(job, strategy, model)
        self.parts: LossParts = {}
        self.on_loss: Callable[[torch.Tensor, LossParts], None] | None = None
        self._parts: list[LossParts] = []  # one per micro-batch of this step
        # Parameters are copied to the host before other objects refer to them; blocks are freed on the device.
        copies = None if strategy.offload == "none" else HostCopies(model.parameters())
        streamed = StreamedBlocks(model, copies) if copies and strategy.offload == "parameters" else None
        self.optimizer = optimizer_of(job, strategy, model, copies, streamed) if self.trains else None
        self.average = ExponentialMovingAverage(model, job.ema_decay) if self.trains and job.ema_decay is not None else None
        self.scaler = make_scaler(strategy.precision, device.type, agrees=world is not None)
        self._scales = self.scaler.is_enabled()
        rank_model.scale_loss(self.scaler)
        self.gradient_norm: torch.Tensor | None = None
        self.own_step: OwnStep | None = None
        if self.trains and (job.step is not None or needs_closure(self.optimizer)):
            check_own_step(job, strategy, model, closure=job.step is None)
            self.own_step = OwnStep(job, self._step_context(), strategy)
        self.gradient_numbers = rank_model.gradient_numbers if self.own_step is None else None
        self._dtype = parameter_dtype(strategy.precision)
        self._non_blocking = backend_of(device).non_blocking
        self._batch_is_ready = device.type == "cpu" and self._dtype is None and not strategy.channels_last
        model.train(self.trains)

    def forward_backward(self, batch: Batch) -> torch.Tensor:
        """Adds a micro-batch's share to the gradients, reduced over data-parallel ranks. Returns its mean loss, detached."""
        batch = self._on_device(batch)
        if self.own_step is not None:
            loss = self.own_step.take(batch)
            self.parts = self.own_step.parts
            return loss
        with self._autocast():
            loss, parts = self._loss_of(batch)
        check_trains(loss)
        if parts:
            self._parts.append(parts)
        if self.on_loss is not None:
            self.on_loss(loss.detach(), parts)
        share = loss if self.strategy.accumulation == 1 else loss / self.strategy.accumulation
        (self.scaler.scale(share) if self._scales else share).backward()
        return loss.detach()

    def update(self, *, checks_norm: bool = False) -> bool:
        """Clips the gradients if the job requires it, takes the optimizer's step, and frees or zeroes the gradients.

        Arguments:
            checks_norm: with clipping, waits for the gradient norm and skips the update if it is not finite. A loss
                scaler skips by itself, and a job's own step has already made its updates.

        Returns False if the gradients are known to be non-finite.
        """
        if self.own_step is not None:
            self.gradient_norm = self.own_step.context.end()
            sound = self._scales or not checks_norm or self._norm_is_finite()
        else:
            sound = self._update(checks_norm=checks_norm)
        if sound and self.average is not None:
            self.average.update()
        self.zero_grad()
        return sound

    def _update(self, *, checks_norm: bool) -> bool:
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        bring_gradients(self.optimizer)
        if self.job.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            self.clip_gradients(self.job.clip_norm)
            if checks_norm and not self._scales and not self._norm_is_finite():
                return False
        if self._scales:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        return True

    def _norm_is_finite(self) -> bool:
        return self.gradient_norm is None or math.isfinite(self.gradient_norm)

    def clip_gradients(self, norm: float, parameters: list[nn.Parameter] | None = None) -> torch.Tensor:
        """Scales the gradients of these (default: all) parameters down if their 2-norm exceeds `norm`. Returns the 2-norm."""
        parameters = self._updated if parameters is None else parameters
        self.gradient_norm = clip_gradients(parameters, norm, self.world, copies=self._rank_model.copies)
        return self.gradient_norm

    def accumulate_gradients(self, batches: Sequence[Batch]) -> torch.Tensor:
        """Accumulates the gradients of an optimizer step's micro-batches, reduced over data-parallel ranks.

        Returns the mean loss of this rank's micro-batches, detached, on the device; zero if it has none (see has_loss).
        """
        if (pipeline := self._rank_model.pipeline) is not None:
            loss, self.parts = pipeline.accumulate_gradients([self._on_device(batch) for batch in batches])
        else:
            loss = mean_loss(self._losses_of(batches))
            if self._parts:
                self.parts, self._parts = mean_parts(self._parts), []
        if self.strategy.mesh.tp > 1:
            complete_gradients(self._updated)
        return loss

    def _losses_of(self, batches: Sequence[Batch]) -> list[torch.Tensor]:
        """Runs each micro-batch, the last one with the reduction of gradients."""
        if self._rank_model.is_plain:
            return [self.forward_backward(batch) for batch in batches]
        losses = []
        for number, batch in enumerate(batches):
            with self._rank_model.micro_batch(first=number == 0, last=number == len(batches) - 1):
                losses.append(self.forward_backward(batch))
        return losses

    def step(self, batches: Sequence[Batch]) -> torch.Tensor:
        """One optimizer step: `accumulate_gradients` and `update`."""
        loss = self.accumulate_gradients(batches)
        self.update()
        return loss

    def gradients_are_finite(self) -> bool:
        """Whether the gradients, still scaled for fp16, are finite on all ranks; waits for the device."""
        bring_gradients(self.optimizer)
        return bool(torch.isfinite(total_norm([p.grad for p in self._updated if p.grad is not None], self.world)))

    def without_gradient(self) -> list[str]:
        """Names of trained parameters without a gradient after backward; empty if gradients are freed during backward."""
        if self.strategy.optimizer_in_backward or self.strategy.offload != "none":
            return []
        if self.own_step is not None:
            return self.own_step.never_updated(self.model)
        named = [(name, p, copies_of(self.optimizer).get(p, p)) for name, p in self.model.named_parameters()]
        return [name for name, p, copy in named if p.requires_grad and p.grad is None and copy.grad is None]

    def left_out_of_optimizer(self) -> list[str]:
        """Names of parameters that have a gradient but are missing in the job's own optimizer."""
        if self.strategy.offload != "none":
            return []
        updated = {id(p) for p in self._updated}
        return [
            name
            for name, p in self.model.named_parameters()
            if id(copies_of(self.optimizer).get(p, p)) not in updated and p.grad is not None and local(p.grad).any()
        ]

    def names_of_updated(self) -> dict[int, str]:
        """Names of the parameters, or their copies, that the optimizer updates, by id."""
        return {id(copies_of(self.optimizer).get(p, p)): plain_name(name) for name, p in self.model.named_parameters()}

    def parameters_are_finite(self) -> bool:
        """Whether the trained parameters are finite on all ranks; waits for the device."""
        return all_finite([p.detach() for p in self._updated], self.world)

    def zero_grad(self) -> None:
        """Frees the gradients, or sets them to zero if the strategy keeps them."""
        if self.strategy.keep_gradients:
            assert isinstance(self.optimizer, torch.optim.Optimizer)
            self.optimizer.zero_grad(set_to_none=False)
            return
        for parameter in (*self._updated, *copies_of(self.optimizer)):  # as zero_grad does, without its profiling
            parameter.grad = None

    def evaluated(self, evaluate: Callable[[nn.Module], Mapping[str, float]]) -> Mapping[str, float]:
        """evaluate(model), by all ranks alike: the model gathers shards, and runs through all stages of a pipeline.

        Buffers that ranks have changed since the last step began, such as running means, become those of the first.
        """
        self._rank_model.share_buffers()
        with self._rank_model.outside_loss() as model:
            return evaluate(model)

    def infer(self, batch: Batch) -> object:
        """One forward pass without gradients, by all ranks alike.

        Returns the model's output, of this rank's part of the sequence; None where another pipeline stage has it.
        """
        if self._rank_model.pipeline is not None:
            return self._rank_model.pipeline.infer(batch)
        batch = self._on_device(batch)
        with torch.no_grad(), self._autocast(), self._rank_model.outside_loss(), self._rank_model.split():
            if self.job.forward is not None:
                return self.job.forward(self.model, batch)
            assert self._rank_model.loss is not None
            return output_of(self.model, self._rank_model.loss, batch)

    def _autocast(self) -> AbstractContextManager[object]:
        return autocast(self.strategy.precision, self.device.type) if self._rank_model.autocasts else nullcontext()

    def _loss_of(self, batch: Batch) -> tuple[torch.Tensor, LossParts]:
        """The loss of a micro-batch on the device, and its named parts."""
        if self._rank_model.synchronisation is not None:
            result: tuple[torch.Tensor, LossParts] = self._rank_model.synchronisation.root(batch)
            return result
        assert self._rank_model.loss is not None
        return separated(self._rank_model.loss(self.model, batch))

    @cached_property
    def _updated(self) -> list[nn.Parameter]:
        """The trained parameters, or their copies in host memory. A job's own step adds other parameters with a gradient."""
        assert self.optimizer is not None
        updated = [p for group in self.optimizer.param_groups for p in group["params"]]
        return updated if self.own_step is None else list(dict.fromkeys([*updated, *self.model.parameters()]))

    def _step_context(self) -> StepContext:
        assert self.optimizer is not None
        named = self.optimizer.parts if isinstance(self.optimizer, NamedOptimizers) else {ONLY: self.optimizer}
        norm = self.job.clip_norm
        clip = None if norm is None else lambda parameters: self.clip_gradients(norm, parameters)
        return StepContext(
            self.model, named, precision=self.strategy.precision, device=self.device, scaler=self.scaler, clip=clip
        )

    def _on_device(self, batch: Batch) -> Batch:
        return batch if self._batch_is_ready else map_tensors(batch, self._to_device)

    def _to_device(self, leaf: torch.Tensor) -> torch.Tensor:
        leaf = leaf.to(self.device, self._dtype if leaf.is_floating_point() else None, non_blocking=self._non_blocking)
        return in_channels_last(leaf) if self.strategy.channels_last else leaf


def build(job: Job, strategy: Strategy, device: str | torch.device, world: World | None = None) -> Program:
    """Builds the training program of one rank of `job` under `strategy` on `device`, real or virtual.

    Arguments:
        job: the job.
        strategy: the strategy of the step.
        device: device of this rank.
        world: this rank's position in strategy.mesh; None for a single process.

    Raises JobError when the model cannot be built, InputError for a mesh of several devices without a world.
    """
    device = torch.device(device)
    check_strategy(job, strategy, device, world)
    # 1. The precision of fp32 products, a setting of the process.
    set_matmul_precision(strategy.precision)
    # 2. The whole model, in the dtype and layout for the precision and the device.
    built = model_of(job, strategy, device, world)
    # 3. This rank's part of it: stages, tensor, context and expert parallelism, recompute, compilation, shards or replicas.
    rank_model = arrange(job, strategy, built.model, device=device, world=world, weights=built.weights)
    rank_model.notes += built.notes
    # 4. Parts of the update: copies in host memory, the optimizer, averages, the loss scale.
    return Program(job, strategy, device, rank_model, world)
