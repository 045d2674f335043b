"""RankModel: what one rank runs of a job's model, as the parallelisms leave it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from gpuwise.job.job import Batch
from gpuwise.notes import Note
from gpuwise.runtime.build.named_loss import LossParts
from gpuwise.runtime.parallel.buffers import SharedBuffers
from gpuwise.runtime.parallel.gradient_numbers import GradientNumbers
from gpuwise.runtime.parallel.job_loss import LossFunction
from gpuwise.runtime.parallel.tensor import plain_outputs


class Synchronisation(Protocol):
    """How gradients of data-parallel ranks are reduced."""

    @property
    def root(self) -> nn.Module:
        """The module that computes (loss, named parts) of a batch; every forward pass goes through it."""
        ...

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        """The context of the forward and backward pass of a micro-batch, the first or last of its optimizer step."""
        ...

    def outside_loss(self) -> AbstractContextManager[object]:
        """A context in which all ranks may call the model outside the job's loss, without gradients."""
        ...


class Pipeline(Protocol):
    """Runs the micro-batches of an optimizer step through the stages of this and other ranks."""

    @property
    def has_loss(self) -> bool:
        """Whether this rank has the last stage."""
        ...

    def accumulate_gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, LossParts]:
        """Adds the gradients of the micro-batches. Returns their mean loss, detached, and its named parts.

        Ranks without the last stage return a loss of zero.
        """
        ...

    def infer(self, batch: Batch) -> object:
        """One forward pass without gradients. Returns the model's output on ranks with the last stage, elsewhere None."""
        ...

    def whole_model(self) -> nn.Module:
        """The job's model, which all ranks of the pipeline may call alike and without gradients. All get the output."""
        ...

    @property
    def copies(self) -> Sequence[nn.Parameter]:
        """Parameters of this rank that another rank of the pipeline has, too, and counts in norms."""
        ...

    def scale_loss(self, scale: Callable[[Tensor], Tensor]) -> None:
        """Lets each loss be scaled before its backward pass, as fp16 needs."""
        ...

    def around_models(self, change: Callable[[nn.Module], None]) -> None:
        """Applies a change to the job's model as each stage has it, and as shapes are derived from it."""
        ...

    def share_buffers(self, buffers: SharedBuffers) -> None:
        """Lets data-parallel ranks begin each step with the same buffers."""
        ...


@dataclass
class RankModel:
    """What one rank runs of a job's model. The functions of gpuwise.runtime.parallel.order change it, one after another.

    Attributes:
        model: the job's model, or a module that holds this rank's pipeline stages. The names of its parameters, after
            gpuwise.runtime.build.names.plain_name, are the job's.
        parts: the modules that recompute, compile and sharding are applied to: the model, or each of its stages.
        loss: (model, batch) -> the loss of this rank's share of a micro-batch; begins as the job's.
        autocasts: whether mixed precision is PyTorch's autocast; FSDP2 casts parameters instead.
        contexts: entered around the forward and backward pass of each micro-batch.
        pipeline: runs the stages; None without stages.
        synchronisation: reduces gradients over data-parallel ranks; None for a single one.
        buffers: shared by data-parallel ranks; None for a single one.
        gradient_numbers: averages numbers of each rank with the gradients; None where nothing does.
        notes: on how the parallelisms split the model.
    """

    model: nn.Module
    parts: list[nn.Module]
    loss: LossFunction | None
    autocasts: bool = True
    contexts: list[Callable[[], AbstractContextManager[object]]] = field(default_factory=list)
    pipeline: Pipeline | None = None
    synchronisation: Synchronisation | None = None
    buffers: SharedBuffers | None = None
    gradient_numbers: GradientNumbers | None = None
    notes: list[Note] = field(default_factory=list)

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        """The context of the forward and backward pass of a micro-batch; its gradients are reduced when they are due."""
        stack = ExitStack()
        if self.synchronisation is not None:
            stack.enter_context(self.synchronisation.micro_batch(first=first, last=last))
        stack.enter_context(self.split())
        return stack

    def split(self) -> AbstractContextManager[object]:
        """The context in which the model computes this rank's part of a micro-batch."""
        stack = ExitStack()
        for context in self.contexts:
            stack.enter_context(context())
        return stack

    def share_buffers(self) -> None:
        """Gives all data-parallel ranks the buffers of the first, which a checkpoint has. All of them call it."""
        if self.buffers is not None:
            self.buffers.share()

    @contextmanager
    def outside_loss(self) -> Iterator[nn.Module]:
        """Gives the job's model as all ranks may call it alike: outside the job's loss, and without gradients."""
        whole = self.model if self.pipeline is None else self.pipeline.whole_model()
        outside = nullcontext() if self.synchronisation is None else self.synchronisation.outside_loss()
        with outside, nullcontext() if self.pipeline is not None else plain_outputs(self.model):
            yield whole

    @property
    def copies(self) -> Sequence[nn.Parameter]:
        """Parameters of this rank that another rank of a pipeline has, too, and counts in norms."""
        return () if self.pipeline is None else self.pipeline.copies

    def scale_loss(self, scaler: torch.amp.GradScaler) -> None:
        """Lets a pipeline scale its losses; other losses are scaled where they are computed."""
        if self.pipeline is not None and scaler.is_enabled():
            self.pipeline.scale_loss(scaler.scale)

    @property
    def is_plain(self) -> bool:
        """Whether micro-batches need no context."""
        return self.synchronisation is None and not self.contexts
