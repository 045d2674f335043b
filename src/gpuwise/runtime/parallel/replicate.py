"""Replicas: every rank has whole parameters, and DistributedDataParallel averages their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpuwise.errors import JobError
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.buffers import SharedBuffers
from gpuwise.runtime.parallel.gradient_numbers import GradientNumbers, LossWithNumbers
from gpuwise.runtime.parallel.job_loss import JobLoss
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy

Gradient = tuple[nn.Parameter, Tensor]


class Replicas:
    """Averages gradients during the backward pass of the last micro-batch of a step.

    The first step shows which parameters the loss depends on, and in which order they get their gradients. DDP averages these
    after backward, in the buckets that it has from then on: sums of more than two ranks depend on the buckets, and a run that
    is continued has the same as one that is not. Where each rank uses all parameters in each micro-batch, DDP need not look
    for unused ones in later steps, and a later step that leaves one out is an error. Otherwise it looks
    (find_unused_parameters): a parameter that no rank uses keeps no gradient, and one that some ranks use gets their
    gradients, divided by the number of all ranks.

    Attributes:
        numbers: numbers of each rank that are averaged with the gradients; None where gradients are averaged in bf16 or on an
            accelerator.
    """

    def __init__(self, loss: JobLoss, group: dist.ProcessGroup, buffers: SharedBuffers, *, in_bf16: bool):
        self._loss, self._group, self._buffers, self._in_bf16 = loss, group, buffers, in_bf16
        self._trained = {name: p for name, p in loss.model.named_parameters() if p.requires_grad}
        self._uses: Counter[nn.Parameter] = Counter()  # gradients that a parameter got in the first step
        self._order: list[nn.Parameter] = []  # in which parameters got their gradients in the latest micro-batch
        self._hooks = [p.register_post_accumulate_grad_hook(self._count) for p in self._trained.values()]
        on_host = all(backend_of(p.device).is_host for p in self._trained.values())
        self.numbers = GradientNumbers(group.size()) if on_host and not in_bf16 else None
        self._with_numbers: LossWithNumbers | None = None
        self._ddp: DistributedDataParallel | None = None
        if dist.get_backend(group) == "fake":
            # A recording is of the usual step. DDP that looks for unused parameters cuts its buckets at once; otherwise
            # its first step reduces a single one (bucket_size_limits in torch/nn/parallel/distributed.py).
            self._ddp = self._wrapped(finds_unused=True)

    @property
    def root(self) -> nn.Module:
        """The job's loss, inside DistributedDataParallel after the first step."""
        return self._loss if self._ddp is None else self._ddp

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        if first:
            self._buffers.share()
            self._micro_batches = 0
        self._micro_batches += 1
        if self._ddp is None:
            return self._first_step(last=last)
        if self._with_numbers is not None:
            self._with_numbers.reduces = last
        return self._reduced(self._ddp) if last else self._ddp.no_sync()

    def outside_loss(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _count(self, parameter: nn.Parameter) -> None:
        self._uses[parameter] += 1
        self._order.append(parameter)

    @contextmanager
    def _first_step(self, *, last: bool) -> Iterator[None]:
        self._order.clear()
        yield
        if not last:
            return
        parameters = list(self._trained.values())
        not_always = torch.tensor(
            float(any(self._uses[p] < self._micro_batches for p in parameters)), device=parameters[0].device
        )
        dist.all_reduce(not_always, op=dist.ReduceOp.MAX, group=self._group)
        order = dict.fromkeys([*self._order, *self._uses])
        gradients = [(p, p.grad) for p in order if p.grad is not None]
        _clear(parameters)  # DDP would take the memory of their gradients for its buckets
        self._ddp = self._wrapped(finds_unused=bool(not_always))
        self._average_first(self._ddp, gradients)

    def _average_first(self, ddp: DistributedDataParallel, gradients: list[Gradient]) -> None:
        """Lets DDP average the gradients of the first step, as if a backward pass made them in their order."""
        if self._with_numbers is not None:  # a backward pass begins with them
            gradients = [(self._with_numbers.parameter, self._with_numbers.numbers.of_step()), *gradients]
        parameters = [parameter for parameter, _ in gradients]
        with _without_hooks(parameters):
            if not ddp.find_unused_parameters:
                # DDP learns the order of gradients from its first pass, and cuts its lasting buckets after it.
                _reduce(ddp, parameters, (torch.zeros_like(gradient) for _, gradient in gradients))
                _clear(parameters)
                ddp.reducer._rebuild_buckets()
            _reduce(ddp, parameters, (gradient for _, gradient in gradients))

    def _wrapped(self, *, finds_unused: bool) -> DistributedDataParallel:
        for hook in self._hooks:
            hook.remove()
        if self.numbers is not None and self.numbers.size:
            self._with_numbers = LossWithNumbers(self._loss, self.numbers)
        ddp = DistributedDataParallel(
            self._loss if self._with_numbers is None else self._with_numbers,
            process_group=self._group,
            init_sync=False,  # all ranks have rank 0's weights: see same_weights
            gradient_as_bucket_view=True,
            find_unused_parameters=finds_unused,
        )
        ddp.broadcast_buffers = False  # once a step: see SharedBuffers
        if self._in_bf16:
            # A function without annotations: DDP compares those of a hook with types, and here they are strings.
            ddp.register_comm_hook(self._group, lambda group, bucket: _average_bucket_in_bf16(group, bucket))
        return ddp

    @contextmanager
    def _reduced(self, ddp: DistributedDataParallel) -> Iterator[None]:
        """Raises JobError after a backward pass that did not reduce all gradients: they differ between ranks."""
        yield
        try:
            ddp.reducer._check_reducer_finalized()
        except RuntimeError as error:
            unused = [name for name, p in self._trained.items() if p.grad is None]
            raise JobError(
                f"this step's loss does not depend on {', '.join(unused[:3]) or 'some parameters'}, which all ranks used in "
                "the first step, so DistributedDataParallel did not average the gradients.",
                ["add 0.0 * parameter.sum() to the loss for parameters that it leaves out", "--mesh dp=1"],
            ) from error


def apply_replicas(rank_model: RankModel, strategy: Strategy, world: World) -> None:
    """Averages the gradients of all data-parallel ranks, in bf16 if the strategy compresses them."""
    assert rank_model.loss is not None
    loss = JobLoss(rank_model.model, rank_model.loss)
    in_bf16 = strategy.parallelism.compress_gradients
    group = world.group("dp_replicate")
    rank_model.buffers = SharedBuffers(loss, group)
    rank_model.synchronisation = replicas = Replicas(loss, group, rank_model.buffers, in_bf16=in_bf16)
    rank_model.gradient_numbers = replicas.numbers


def _reduce(ddp: DistributedDataParallel, parameters: list[nn.Parameter], gradients: Iterable[Tensor]) -> None:
    """Gives DDP the gradients of these parameters in their order. The parameters have the averages for gradients after it."""
    # DDP looks for unused parameters in the graph of an output: here it is one of those that have a gradient.
    ddp.reducer.prepare_for_backward([parameter.view_as(parameter) for parameter in parameters])
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.autograd.backward(parameter, gradient)


def _clear(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


@contextmanager
def _without_hooks(parameters: list[nn.Parameter]) -> Iterator[None]:
    """The job's own hooks on gradients have run in the backward pass; they do not run again here."""
    hooks = [(p, p._backward_hooks, p._post_accumulate_grad_hooks) for p in parameters]
    for parameter, _, _ in hooks:
        parameter._backward_hooks = None
        # The type stubs of PyTorch 2.13 leave None out.
        parameter._post_accumulate_grad_hooks = None  # type: ignore[assignment]
    try:
        yield
    finally:
        for parameter, before, after in hooks:
            parameter._backward_hooks, parameter._post_accumulate_grad_hooks = before, after


def _average_bucket_in_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients in bf16. PyTorch's own hook (bf16_compress_hook) refuses gloo."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(compressed, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
