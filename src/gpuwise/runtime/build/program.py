"""build: the one place where a training step is made, for running it and for tracing it alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError, message_of
from gpuwise.job import Job
from gpuwise.job.batches import map_tensors
from gpuwise.runtime.build.adapters import adapted
from gpuwise.runtime.build.ema import ExponentialMovingAverage
from gpuwise.runtime.checkpoint import plain_name
from gpuwise.runtime.build.compiling import apply_compile
from gpuwise.runtime.build.named_loss import Parts, check_trains, mean_parts, separated
from gpuwise.runtime.build.offload import HostCopies, HostOptimizer, StreamedBlocks, refuse_host
from gpuwise.runtime.build.optimizers import InBackward, check_fused_sgd, hidden_matrices, make_optimizer
from gpuwise.runtime.build.own_optimizers import NamedOptimizers, named_optimizers, needs_closure
from gpuwise.runtime.build.own_step import ONLY, OwnStep, StepContext, check_own_step
from gpuwise.runtime.build.placement import in_channels_last, make_model, to_channels_last
from gpuwise.runtime.build.precision import autocast, make_scaler, parameter_dtype, set_matmul_precision, with_fp8_products
from gpuwise.runtime.build.recompute import apply_recompute
from gpuwise.strategy import Strategy


class _ForwardDoneError(Exception):
    """Ends an inference pass once the model has answered: the loss is not part of it."""


class Program:
    """One rank's training (or inference) step.

    model, optimizer (None in infer mode), average (of the parameters, where the job wants one), job, strategy, device.
    `step` takes as many micro-batches as the strategy accumulates; it is `forward_backward` for each and one `update`.
    own: the job's own step, None for most. It is all of `forward_backward`, and leaves little for `update`.
    parts: named numbers that the loss of the latest step came with.
    """

    def __init__(self, job: Job, strategy: Strategy, device: torch.device, model: nn.Module):
        self.job, self.strategy, self.device, self.model = job, strategy, device, model
        self.trains = strategy.mode == "train"
        trainable = [p for p in model.parameters() if p.requires_grad]
        if self.trains and not trainable:
            raise JobError(
                f"{job.name or 'the model'} has no parameter that requires a gradient.",
                ["set requires_grad on what should be trained", "use --mode infer"],
            )
        if not self.trains and job.loss is None:
            raise UnsupportedError(
                f"{job.name or 'the job'} has its own step and no loss, so a forward pass is not known.",
                ["loss=lambda model, batch: ... in the Job, beside its step"],
            )
        _check_techniques(strategy, device)
        _check_update(job, strategy)
        copies = None if strategy.offload == "none" else HostCopies(model.parameters())
        visiting = StreamedBlocks(model, copies) if copies and strategy.offload == "parameters" else None
        self.own: OwnStep | None = None
        self.parts: Parts = {}
        self._parts: list[Parts] = []  # of the micro-batches of this step
        self.optimizer = self._make_optimizer(trainable, copies, visiting) if self.trains else None
        self.average = ExponentialMovingAverage(model, job.ema_decay) if self.trains and job.ema_decay is not None else None
        self.scaler = make_scaler(strategy.precision, device.type)
        self._scales = self.scaler.is_enabled()
        self.gradient_norm: torch.Tensor | None = None  # of the latest update, before it was clipped
        if self.trains and (job.step is not None or needs_closure(self.optimizer)):
            check_own_step(job, strategy, model, closure=job.step is None)
            self.own = OwnStep(job, self._step_context(), strategy)
        self._dtype = parameter_dtype(strategy.precision)
        self._batch_is_ready = device.type == "cpu" and self._dtype is None and not strategy.channels_last
        model.train(self.trains)

    def forward_backward(self, batch: Any) -> torch.Tensor:
        """One micro-batch: moves it to the device, adds its share to the gradients. Returns its mean loss, detached."""
        batch = self._on_device(batch)
        if self.own is not None:
            loss = self.own.take(batch)
            self.parts = self.own.parts
            return loss
        assert self.job.loss is not None
        with autocast(self.strategy.precision, self.device.type):
            loss, parts = separated(self.job.loss(self.model, batch))
        check_trains(loss)
        if parts:
            self._parts.append(parts)
        share = loss if self.strategy.accumulation == 1 else loss / self.strategy.accumulation
        (self.scaler.scale(share) if self._scales else share).backward()
        return loss.detach()

    def update(self, *, checks_norm: bool = False) -> bool:
        """The optimizer step, after gradients are clipped where the job says so; then they are freed, or set to zero where the
        strategy keeps them.

        checks_norm: where gradients are clipped, waits for their norm and makes no update of one that is not finite. A loss
        scaler does so by itself, a job's own step has made it. Returns whether the gradients were sound, as far as is known.
        """
        if self.own is not None:
            self.gradient_norm = self.own.context.end()
            sound = self._scales or not checks_norm or self._norm_is_finite()
        else:
            sound = self._update(checks_norm=checks_norm)
        if sound and self.average is not None:
            self.average.update()
        self.zero_grad()
        return sound

    def _update(self, *, checks_norm: bool) -> bool:
        assert isinstance(self.optimizer, torch.optim.Optimizer)
        self._arrive()
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
        """Scales the gradients of all parameters, or of these, down together where their 2-norm is larger. Returns that."""
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self._held if parameters is None else parameters, norm)
        return self.gradient_norm

    def accumulate_gradients(self, batches: Sequence[Any]) -> torch.Tensor:
        """The gradients of one optimizer step, over all its micro-batches. Returns the mean loss, detached, on the device."""
        losses = [self.forward_backward(batch) for batch in batches]
        if self._parts:
            self.parts, self._parts = mean_parts(self._parts), []
        return losses[0] if len(losses) == 1 else torch.stack(losses).mean()

    def step(self, batches: Sequence[Any]) -> torch.Tensor:
        """One optimizer step: `accumulate_gradients` and `update`."""
        loss = self.accumulate_gradients(batches)
        self.update()
        return loss

    def gradients_are_finite(self) -> bool:
        """Whether the gradients at hand are numbers; waits for the device. A scale of fp16 is left in them."""
        self._arrive()
        held = [p.grad for p in self._held if p.grad is not None]
        return bool(torch.isfinite(torch.nn.utils.get_total_norm(held)))

    def without_gradient(self) -> list[str]:
        """Names of trained parameters that backward left without a gradient, where gradients wait for the update."""
        if self.strategy.optimizer_in_backward or self.strategy.offload != "none":
            return []
        if self.own is not None:
            return self.own.never_updated(self.model)
        return [name for name, p in self.model.named_parameters() if p.requires_grad and p.grad is None]

    def left_out_of_optimizer(self) -> list[str]:
        """Names of parameters with a gradient that the optimizer, one of the job's own, was not given."""
        if self.strategy.offload != "none":
            return []
        held = {id(p) for p in self._held}
        return [name for name, p in self.model.named_parameters() if id(p) not in held and p.grad is not None and p.grad.any()]

    def names_of_updated(self) -> dict[int, str]:
        """Names of what the optimizer updates, parameters or their copies in host memory, by id."""
        copies = self.optimizer.copies if isinstance(self.optimizer, HostOptimizer) else {}
        return {id(copies.get(p, p)): plain_name(name) for name, p in self.model.named_parameters()}

    def parameters_are_finite(self) -> bool:
        """Whether what is trained still is numbers; waits for the device."""
        return bool(torch.isfinite(torch.nn.utils.get_total_norm([p.detach() for p in self._held], norm_type=math.inf)))

    def zero_grad(self) -> None:
        """Frees the gradients, or sets them to zero where the strategy keeps them."""
        if self.strategy.keep_gradients:
            assert isinstance(self.optimizer, torch.optim.Optimizer)
            self.optimizer.zero_grad(set_to_none=False)
            return
        for parameter in self._held:  # as zero_grad does, without its profiling
            parameter.grad = None

    def infer(self, batch: Any) -> Any:
        """One forward pass without gradients. Returns what the model returns."""
        answer: list[Any] = []

        def stop(module: nn.Module, args: Any, output: Any) -> None:
            answer.append(output)
            raise _ForwardDoneError

        batch = self._on_device(batch)
        hook = self.model.register_forward_hook(stop)
        try:
            with torch.no_grad(), autocast(self.strategy.precision, self.device.type):
                assert self.job.loss is not None
                self.job.loss(self.model, batch)
        except _ForwardDoneError:
            pass
        finally:
            hook.remove()
        return answer[0] if answer else None

    def _make_optimizer(
        self, trainable: list[nn.Parameter], copies: HostCopies | None, visiting: StreamedBlocks | None
    ) -> torch.optim.Optimizer | NamedOptimizers:
        """The optimizer of the trainable parameters, or of their copies in host memory; or the job's own, by name."""
        if isinstance(self.job.optimizer, Mapping):
            check_own_step(self.job, self.strategy, self.model, closure=False)  # before anything is made
            named = named_optimizers(self.job.optimizer, self.model)
            for part in named.parts.values():
                check_fused_sgd(part, scaled=self.strategy.precision == "amp-fp16")
            return named
        choice = self.strategy.optimizer or self.job.optimizer
        hidden = hidden_matrices(self.model) if choice == "muon" else []
        if copies is not None:
            hidden = [copies[p] for p in hidden]
        make = partial(
            make_optimizer,
            choice,
            learning_rate=self.job.learning_rate,
            kernels=self.strategy.optimizer_kernels,
            hidden=hidden,
            scaled=self.strategy.precision == "amp-fp16",
        )
        if copies is not None:
            return HostOptimizer(copies, make, visiting)
        return InBackward(trainable, make) if self.strategy.optimizer_in_backward else make(trainable)

    def _arrive(self) -> None:
        """Waits for gradients on their way to the host, where its optimizer has them: they are read there."""
        if isinstance(self.optimizer, HostOptimizer):
            self.optimizer.arrive()

    @cached_property
    def _held(self) -> list[nn.Parameter]:
        """What the optimizer updates: the trained parameters, or their copies in host memory. With a job's own step what else
        may get a gradient, too."""
        assert self.optimizer is not None
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        return held if self.own is None else list(dict.fromkeys([*held, *self.model.parameters()]))

    def _step_context(self) -> StepContext:
        assert self.optimizer is not None
        named = self.optimizer.parts if isinstance(self.optimizer, NamedOptimizers) else {ONLY: self.optimizer}
        norm = self.job.clip_norm
        clip = None if norm is None else lambda parameters: self.clip_gradients(norm, parameters)
        return StepContext(
            self.model, named, precision=self.strategy.precision, device=self.device, scaler=self.scaler, clip=clip
        )

    def _on_device(self, batch: Any) -> Any:
        return batch if self._batch_is_ready else map_tensors(batch, self._to_device)

    def _to_device(self, leaf: torch.Tensor) -> torch.Tensor:
        leaf = leaf.to(self.device, self._dtype if leaf.is_floating_point() else None, non_blocking=True)
        return in_channels_last(leaf) if self.strategy.channels_last else leaf


def build(job: Job, strategy: Strategy, device: str | torch.device, rank: int = 0, world: int = 1) -> Program:
    """Builds the training program of one rank of `job` under `strategy` on `device`, real or virtual.

    Raises JobError when the model cannot be built, UnsupportedError for what one process cannot do yet.
    """
    device = torch.device(device)
    if world != 1 or rank != 0:
        raise UnsupportedError(
            "this version runs one process; it cannot build a rank of several.", ["use a mesh of one device"]
        )
    set_matmul_precision(strategy.precision)
    try:
        model = make_model(
            lambda: adapted(job.model(), strategy),
            device,
            parameter_dtype(strategy.precision),
            on_host=strategy.adapter == "qlora",
        )
        if strategy.precision == "fp8":
            model = with_fp8_products(model, device)
        if strategy.channels_last:
            to_channels_last(model, device)
    except GpuwiseError:
        raise
    except Exception as error:  # the user's own code may raise anything
        raise JobError(
            f"the model of {job.name or 'the job'} cannot be built: {type(error).__name__}: {message_of(error)}."
        ) from error
    apply_recompute(model, strategy.recompute)
    program = Program(job, strategy, device, model)
    if strategy.compile:
        apply_compile(model)
    return program


def _check_techniques(strategy: Strategy, device: torch.device) -> None:
    """Raises InputError for techniques that exclude each other, or that this device or mode has no use for."""
    if strategy.offload != "none":
        refuse_host(device)
    if strategy.mode != "train":
        return
    frees = strategy.optimizer_in_backward or strategy.offload != "none"
    if strategy.optimizer_in_backward and strategy.precision == "amp-fp16":
        raise InputError(
            "an optimizer in backward cannot scale fp16 gradients: whether to skip a step is known only once "
            "all of them are there.",
            ["--precision amp-bf16", "leave out --optimizer-in-backward"],
        )
    if strategy.optimizer_in_backward and strategy.offload != "none":
        raise InputError(
            "offload frees each gradient as soon as it is there, so an optimizer in backward adds nothing.",
            ["leave out --optimizer-in-backward", "--offload none"],
        )
    if strategy.keep_gradients and frees:
        raise InputError("gradients cannot be kept where each is freed as soon as it was used.", ["leave out --keep-gradients"])


def _check_update(job: Job, strategy: Strategy) -> None:
    """Raises InputError where the job asks something of the update that the strategy's way to update cannot do."""
    if job.clip_norm is not None and strategy.optimizer_in_backward:
        raise InputError(
            "gradients cannot be clipped together where each is used and freed as it comes.",
            ["leave out --optimizer-in-backward", "a Job without clip_norm"],
        )
    if job.ema_decay is not None and strategy.offload == "parameters":
        raise InputError(
            "the average of the parameters stays on the device, which offloaded parameters are to leave.",
            ["--offload optimizer", "a Job without ema_decay"],
        )
