"""Context parallelism: each rank of the cp axis has a part of every sequence, and attends to all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.job.batches import map_tensors
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.job import Batch
from gpuwise.runtime.parallel.context_attention import Attention, by_heads, gathered, in_a_ring
from gpuwise.runtime.parallel.forward_pass import attention_arguments
from gpuwise.runtime.parallel.torch_types import Argument, Arguments, Function, Keywords

_METHODS = {"gather": gathered, "all-to-all": by_heads, "ring": in_a_ring}
_SEQUENCE = 1  # dimension of the sequence in tensors of a batch
_SEQUENCE_WAYS = ["seq_len=... in the Job", "--mesh dp_shard=N"]
_IGNORED = -100  # label without a loss


@dataclass
class ContextParallel:
    """Cuts the sequences of a batch, and changes what a model computes across positions.

    Attributes:
        mesh: the cp axis of the mesh.
        method: of gpuwise.strategy.parallelism.CONTEXTS.
        seq_len: length of whole sequences.
        runs: whether a micro-batch is on its way through the model.
    """

    mesh: DeviceMesh
    method: str
    seq_len: int
    runs: bool = False

    def cut(self, batch: Batch) -> Batch:
        """This rank's part of each tensor (n, seq_len, ...) of a batch. Raises InputError where none has that length."""
        parts = 0

        def part(tensor: Tensor) -> Tensor:
            nonlocal parts
            if tensor.dim() <= _SEQUENCE or tensor.shape[_SEQUENCE] != self.seq_len:
                return tensor
            parts += 1
            return tensor.chunk(self.mesh.size(), _SEQUENCE)[self.mesh.get_local_rank()].contiguous()

        changed = map_tensors(batch, part)
        if not parts:
            raise InputError(
                f"context parallelism splits sequences of {self.seq_len:,}, the job's seq_len, and no tensor of this batch has "
                "them in its second dimension.",
                ["pad or cut the data to the job's seq_len", "--mesh dp_shard=N"],
            )
        return changed

    @contextmanager
    def context(self) -> Iterator[None]:
        """What the forward and backward pass of a micro-batch runs in. Outside of it the model computes whole sequences."""
        self.runs = True
        try:
            with self._mode():
                yield
        finally:
            self.runs = False

    def apply(self, model: nn.Module) -> None:
        """Lets each repeated block see to its attention by itself, for blocks that are computed again in the backward pass.

        Tensor.backward is a function that modes see, and within such a function the mode of the context is off.
        """
        for block in repeated_blocks(model):
            block.forward = partial(self._inside, block.forward)

    def _inside(self, forward: Callable[..., object], *args: object, **kwargs: object) -> object:
        seen = any(isinstance(mode, _PartOfSequence) for mode in _get_current_function_mode_stack())
        with nullcontext() if seen or not self.runs else self._mode():
            return forward(*args, **kwargs)

    def _mode(self) -> _PartOfSequence:
        return _PartOfSequence(self.mesh, _METHODS[self.method](self.mesh), self.seq_len // self.mesh.size())

    def with_next_labels(self, model: nn.Module, batch: Batch) -> Batch:
        """With labels moved by one before sequences are cut, where a Hugging Face model would move those of a part."""
        shifts = hasattr(model, "loss_function") and type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))
        if not shifts or not isinstance(batch, Mapping) or "labels" not in batch or "shift_labels" in batch:
            return batch
        return {**batch, "shift_labels": F.pad(batch["labels"], (0, 1), value=_IGNORED)[..., 1:].contiguous()}


class _PartOfSequence(TorchFunctionMode):
    """Makes a model's functions across positions those of the whole sequence.

    Attention runs over all ranks. `torch.arange` over as many numbers as this rank has positions counts on from its first
    one. A mean cross entropy is over the labels of all ranks, so that the mean over ranks is that of one device.
    """

    def __init__(self, mesh: DeviceMesh, attention: Attention, length: int):
        super().__init__()
        self._mesh, self._attention, self._length = mesh, attention, length

    def __torch_function__(
        self, func: Function, types: object, args: Arguments = (), kwargs: Keywords | None = None
    ) -> Argument:
        kwargs = dict(kwargs or {})
        if func is F.scaled_dot_product_attention:
            return self._attend(**attention_arguments(args, kwargs))
        if func is torch.arange:
            return self._positions(func(*args, **kwargs), args, kwargs)
        if func is F.cross_entropy:
            return self._cross_entropy(*args, **kwargs)
        return func(*args, **kwargs)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Argument) -> Tensor:
        masked = options.get("attn_mask") is not None
        if masked or options.get("dropout_p"):
            raise UnsupportedError(
                f"context parallelism does not split attention with {'a mask' if masked else 'dropout'} so far, only causal or "
                "full attention.",
                ["attention without it in the Job's model", "--mesh dp_shard=N or tp=N"],
            )
        return self._attention(query, key, value, options.get("is_causal", False), options.get("scale"))

    def _positions(self, numbers: Tensor, args: Arguments, kwargs: Keywords) -> Tensor:
        if numbers.numel() != self._length or (len(args) > 2 and args[2] != 1) or kwargs.get("step", 1) != 1:
            return numbers
        return numbers + self._length * self._mesh.get_local_rank()

    def _cross_entropy(
        self, input: Tensor, target: Tensor, weight: Tensor | None = None, *args: Argument, **kwargs: Argument
    ) -> Tensor:
        if args or weight is not None or kwargs.get("reduction", "mean") != "mean" or target.is_floating_point():
            return F.cross_entropy(input, target, weight, *args, **kwargs)
        labels = (target != kwargs.get("ignore_index", _IGNORED)).sum().to(torch.float32)
        dist.all_reduce(labels, group=self._mesh.get_group())
        total = F.cross_entropy(input, target, **{**kwargs, "reduction": "sum"})
        return total * (self._mesh.size() / labels).to(total.dtype)


def check_length(seq_len: int | None, degree: int, job: str) -> int:
    """The length of a job's sequences. Raises InputError where there are none, or the ranks do not divide them."""
    if seq_len is None:
        raise InputError(
            f"{job} has no sequences for context parallelism to split.", ["seq_len=... in the Job", "--mesh dp_shard=N"]
        )
    if seq_len % degree:
        raise InputError(
            f"context parallelism over {degree} devices does not divide sequences of {seq_len:,}.",
            [f"--seq-len {seq_len // degree * degree or degree}", "another --mesh cp=N"],
        )
    return seq_len
