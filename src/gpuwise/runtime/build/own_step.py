"""A job's own step: forward, backward and update in the user's order, both for training and for tracing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.build.compiling import compiled_parts
from gpuwise.runtime.build.named_loss import TOTAL, LossParts, check_trains, separated
from gpuwise.runtime.build.own_optimizers import needs_closure
from gpuwise.runtime.build.precision import autocast
from gpuwise.strategy import StepFacts, Strategy, check_techniques

ONLY = "optimizer"  # default name of a job's only optimizer

Clip = Callable[[list[Parameter]], Tensor]


class StepContext:
    """The context of a job's own step: `Job(step=lambda context, batch: ...)`.

    The step runs under autocast if the precision is mixed; `backward` and `update` run outside autocast. Gradients add up
    until `zero_grad`, as in PyTorch, and all of them are freed at the end of the step.

    Attributes:
        model: the job's model, on its device.
        optimizers: optimizers by name; a single unnamed optimizer is "optimizer".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Mapping[str, Optimizer],
        *,
        precision: str,
        device: torch.device,
        scaler: torch.amp.GradScaler,
        clip: Clip | None,
    ):
        self.model, self.optimizers, self.device = model, dict(optimizers), device
        self._precision, self._scaler, self._clip = precision, scaler, clip
        self.norms: list[Tensor] = []  # gradient norm of each update of the step, before clipping
        self.updated: set[int] | None = set()  # ids of parameters updated with a gradient; None when no longer tracked
        self._stepped: set[str] = set()
        # Context of a closure's evaluations, by which a recording separates them from the optimizer's own operations.
        self.evaluation: Callable[[], AbstractContextManager[object]] = nullcontext

    def backward(self, loss: Tensor, **arguments: object) -> None:
        """Adds the gradients of a loss, scaled for fp16.

        Arguments:
            loss: the loss.
            arguments: arguments of torch.Tensor.backward, such as retain_graph.
        """
        check_trains(loss)
        with self._outside_autocast():
            (self._scaler.scale(loss) if self._scaler.is_enabled() else loss).backward(**arguments)

    def zero_grad(self, name: str | None = None) -> None:
        """Frees the gradients of an optimizer's parameters, or without a name those of the whole model."""
        if name is None:
            self.model.zero_grad()
        else:
            self._named(name).zero_grad()

    def update(self, name: str | None = None, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Unscales and clips an optimizer's gradients as configured in the job, then takes the optimizer's step.

        Arguments:
            name: name of the optimizer; optional if the job has only one.
            closure: evaluates the loss again, with zero_grad and backward, for optimizers such as LBFGS.

        Returns the optimizer's result: with a closure, the loss of its first evaluation.
        """
        name = self._name(name)
        optimizer = self.optimizers[name]
        if closure is not None or needs_closure(optimizer):
            return self._update_by_closure(name, optimizer, closure)
        updated = [p for group in optimizer.param_groups for p in group["params"]]
        if self.updated is not None:
            self.updated |= {id(p) for p in updated if p.grad is not None}
        with self._outside_autocast():
            if self._scaler.is_enabled() and name in self._stepped:
                raise JobError(
                    f"the step updates {name!r} twice, and fp16's gradient scale holds for one update of each.",
                    ["--precision amp-bf16", "one update of each optimizer a step"],
                )
            self._stepped.add(name)
            if self._clip is not None:
                self._scaler.unscale_(optimizer)
                self.norms.append(self._clip(updated))
            if self._scaler.is_enabled():
                self._scaler.step(optimizer)
            else:
                optimizer.step()
        return None

    def end(self) -> Tensor | None:
        """Ends the step and updates the loss scale. Returns the 2-norm of all clipped gradients; None without clipping."""
        if self._scaler.is_enabled() and self._stepped:
            self._scaler.update()
        norms, self.norms = self.norms, []
        self._stepped.clear()
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else None

    def _update_by_closure(self, name: str, optimizer: Optimizer, closure: Callable[[], Tensor] | None) -> Tensor | None:
        if closure is None:
            raise JobError(
                f"{type(optimizer).__name__} evaluates the loss itself: its update needs a closure.",
                [f"context.update({name!r}, closure); closure() does zero_grad and backward, and returns the loss"],
            )
        if self._scaler.is_enabled() or self._clip is not None:
            what = "fp16 gradients cannot be scaled" if self._scaler.is_enabled() else "gradients cannot be clipped"
            raise UnsupportedError(f"{what} inside the evaluations of {type(optimizer).__name__}'s closure.", _CLOSURE_WAYS)

        def evaluate() -> Tensor:
            with self.evaluation(), autocast(self._precision, self.device.type):
                loss = closure()
            if self.updated is not None:
                self.updated |= {id(p) for group in optimizer.param_groups for p in group["params"] if p.grad is not None}
            return loss

        with self._outside_autocast():
            optimizer_step: Callable[[Callable[[], Tensor]], Tensor] = optimizer.step  # type: ignore[assignment]  # typed in floats
            return optimizer_step(evaluate)

    def _name(self, name: str | None) -> str:
        if name is None and len(self.optimizers) == 1:
            return next(iter(self.optimizers))
        if name not in self.optimizers:
            raise JobError(
                f"the step names the optimizer {name!r}; the job has {', '.join(map(repr, self.optimizers))}.",
                [f"context.update({next(iter(self.optimizers))!r})"],
            )
        return name

    def _named(self, name: str) -> Optimizer:
        return self.optimizers[self._name(name)]

    @contextmanager
    def _outside_autocast(self) -> Iterator[None]:
        """A context without autocast that drops cached casts of weights, because an update changes the weights."""
        if not torch.is_autocast_enabled(self.device.type):
            yield
            return
        with torch.autocast(self.device.type, enabled=False):
            yield
        torch.clear_autocast_cache()


_CLOSURE_WAYS = ["--precision amp-bf16 or fp32", "a Job without clip_norm"]


class OwnStep:
    """A job's own step on one program. A job with a loss and an optimizer that needs a closure gets a generated step.

    Attributes:
        context: the step's context.
        parts: named numbers that the latest step returned beside its loss.
    """

    def __init__(self, job: Job, context: StepContext, strategy: Strategy):
        self.context = context
        self._step: Callable[[StepContext, object], object] = job.step if job.step is not None else _by_closure(job)
        self._precision = strategy.precision
        self.parts: LossParts = {}

    def take(self, batch: object) -> Tensor:
        """Runs the step on one batch. Returns the loss, detached."""
        with autocast(self._precision, self.context.device.type):
            result = self._step(self.context, batch)
        loss, self.parts = separated(result, what="step")
        return loss.detach()

    def never_updated(self, model: nn.Module) -> list[str]:
        """Names of trained parameters that no update so far had a gradient for. A call ends the tracking."""
        updated, self.context.updated = self.context.updated or set(), None
        return [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in updated]


def _by_closure(job: Job) -> Callable[[StepContext, object], object]:
    """The step of a job whose optimizer evaluates the loss itself."""
    assert job.loss is not None
    compute = job.loss

    def step(context: StepContext, batch: object) -> object:
        first: list[object] = []

        def closure() -> Tensor:
            context.zero_grad()
            loss, parts = separated(compute(context.model, batch))
            context.backward(loss)
            if not first:
                first.append({**parts, TOTAL: loss.detach()})
            return loss

        context.update(closure=closure)
        return first[0]

    return step


def check_own_step(job: Job, strategy: Strategy, model: nn.Module, *, closure: bool) -> None:
    """Checks that the strategy is compatible with a job's own step.

    Arguments:
        closure: True if the job has no step of its own, but an optimizer that needs a closure.

    Raises InputError or UnsupportedError for incompatible techniques, PrecisionError for an incompatible precision.
    """
    name = job.name or "the job"
    check_techniques(strategy, StepFacts(name, own_step=True, closure=closure, clips=job.clip_norm is not None))
    if not closure and strategy.compile and compiled_parts(model) == [model]:
        raise UnsupportedError(
            f"{name} has a step of its own: it may call parts of the model, so the model is not compiled as a whole.",
            ["leave out --compile", "torch.compile parts in the Job's model function"],
        )
    if isinstance(job.optimizer, Mapping) and (strategy.optimizer or strategy.optimizer_kernels):
        flag = "optimizer" if strategy.optimizer else "optimizer-kernels"
        raise InputError(
            f"{name} makes its own optimizers ({', '.join(job.optimizer)}); none of them is --{flag}'s.",
            [f"leave out --{flag}", "choose it in the job's own functions"],
        )
