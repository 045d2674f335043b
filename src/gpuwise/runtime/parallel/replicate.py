"""Replicas: every rank has whole parameters, and DistributedDataParallel averages their gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpuwise.errors import JobError
from gpuwise.runtime.parallel.buffers import SharedBuffers
from gpuwise.runtime.parallel.job_loss import JobLoss
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy


class Replicas:
    """Averages gradients during the backward pass of the last micro-batch of a step.

    The first step shows which parameters the loss depends on; its gradients are averaged after backward. Where each rank
    uses all of them in each micro-batch, DDP need not look for unused ones in later steps, and a later step that leaves
    one out is an error. Otherwise it looks (find_unused_parameters): a parameter that no rank uses keeps no gradient,
    and one that some ranks use gets their gradients, divided by the number of all ranks.
    """

    def __init__(self, loss: JobLoss, group: dist.ProcessGroup, buffers: SharedBuffers, *, in_bf16: bool):
        self._loss, self._group, self._buffers, self._in_bf16 = loss, group, buffers, in_bf16
        self._trained = {name: p for name, p in loss.model.named_parameters() if p.requires_grad}
        self._uses: Counter[Tensor] = Counter()  # gradients that a parameter got in the first step
        self._hooks = [p.register_post_accumulate_grad_hook(self._count) for p in self._trained.values()]
        self._ddp: DistributedDataParallel | None = None
        if dist.get_backend(group) == "fake":
            # A recording is of the usual step. DDP that looks for unused parameters cuts its buckets at once; otherwise
            # its first step reduces a single one (bucket_size_limits in torch/nn/parallel/distributed.py).
            self._wrap(finds_unused=True)

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
        return self._reduced(self._ddp) if last else self._ddp.no_sync()

    def outside_loss(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _count(self, parameter: Tensor) -> None:
        self._uses[parameter] += 1

    @contextmanager
    def _first_step(self, *, last: bool) -> Iterator[None]:
        yield
        if not last:
            return
        parameters = list(self._trained.values())
        used = [[self._uses[p] > 0, self._uses[p] < self._micro_batches] for p in parameters]
        anywhere, not_always = torch.tensor(used, dtype=torch.float32, device=parameters[0].device).unbind(1)
        marks = torch.stack([anywhere, not_always])
        dist.all_reduce(marks, op=dist.ReduceOp.MAX, group=self._group)
        for parameter, is_used in zip(parameters, marks[0].tolist(), strict=True):
            if is_used:
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = _averaged(gradient, self._group, in_bf16=self._in_bf16)
        self._wrap(finds_unused=bool(marks[1].any()))

    def _wrap(self, *, finds_unused: bool) -> None:
        for hook in self._hooks:
            hook.remove()
        self._ddp = DistributedDataParallel(
            self._loss,
            process_group=self._group,
            init_sync=False,  # all ranks have rank 0's weights: see same_weights
            gradient_as_bucket_view=True,
            find_unused_parameters=finds_unused,
        )
        self._ddp.broadcast_buffers = False  # once a step: see SharedBuffers
        if self._in_bf16:
            # A function without annotations: DDP compares those of a hook with types, and here they are strings.
            self._ddp.register_comm_hook(self._group, lambda group, bucket: _average_bucket_in_bf16(group, bucket))

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
    rank_model.synchronisation = Replicas(loss, group, rank_model.buffers, in_bf16=in_bf16)


def _averaged(gradient: Tensor, group: dist.ProcessGroup, *, in_bf16: bool) -> Tensor:
    mean = gradient.to(torch.bfloat16 if in_bf16 else gradient.dtype) / group.size()
    dist.all_reduce(mean, group=group)
    return mean.to(gradient.dtype)


def _average_bucket_in_bf16(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages a bucket of gradients in bf16. PyTorch's own hook (bf16_compress_hook) refuses gloo."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(group.size())
    work = dist.all_reduce(compressed, group=group, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))
