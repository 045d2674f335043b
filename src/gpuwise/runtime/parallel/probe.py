"""Compares a program split over ranks with the plain one, on a cut copy of its model, before anything is trained.

A plan can be wrong without an error: a perceptron with a softmax over its hidden features, a norm over all heads, positions
counted from the start of a rank's part. The copy has two blocks of each kind and random weights; loss, gradients and the
shapes of random numbers must be those of the plain model.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch.distributed.tensor import DTensor

from gpuwise.job import Job
from gpuwise.job.batches import checked_batch, map_tensors
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.job import Batch
from gpuwise.runtime.build.named_loss import separated
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.parallel.experts import expert_parameters
from gpuwise.runtime.parallel.forward_pass import ForwardPass, observed
from gpuwise.runtime.parallel.initial_weights import InitialWeights
from gpuwise.runtime.parallel.job_loss import LossFunction
from gpuwise.runtime.parallel.regions import Region, is_dtensor, local_of, shard_of

SAMPLES = 2
KEPT_BLOCKS = 2  # of each kind: what passes from one to the next is compared, too
_SEED = 20_240_229
# Largest difference of a gradient over its norm. Rounding gives 1e-6 in fp32, a missing sum or a wrong position over 0.01.
_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
_NOISE = 1e-5  # of the norm of all gradients: one that is zero but for rounding has no relative difference


@dataclass(frozen=True)
class PassResult:
    """What one forward and backward pass gives.

    Attributes:
        loss: the mean loss.
        gradients: by parameter name, of this rank's parts.
        events: the events of the forward pass.
    """

    loss: Tensor
    gradients: dict[str, Tensor]
    events: ForwardPass


class ProgramSplit(Protocol):
    """How a program is split over ranks."""

    def apply(self, model: nn.Module) -> None:
        """Splits a model in place."""
        ...

    def loss(self, loss: LossFunction) -> LossFunction:
        """Makes of the job's loss that of this rank's share."""
        ...

    def context(self) -> AbstractContextManager[object]:
        """The context of a forward and its backward pass."""
        ...

    def mean(self, tensor: Tensor, *, of_expert: bool) -> Tensor:
        """The mean of the loss or a parameter's gradient over the ranks that each have a part of it."""
        ...


class Probe:
    """A cut copy of a job's model with random weights, and what the plain copy computes.

    Copies are made anew for each pass: of a large model, two blocks and the embedding fill much of a device.

    Attributes:
        model: the plain copy, for reading its modules.
        plain: what it computes.

    Arguments:
        job: the job.
        model: the job's model, plain.
        device: device of the copy.
        weights: the values of a model that is on the meta device.
        whole: whether to keep all blocks.
    """

    def __init__(
        self,
        job: Job,
        model: nn.Module,
        device: torch.device,
        weights: InitialWeights | None = None,
        *,
        whole: bool = False,
    ):
        assert job.loss is not None
        self._loss, self.device = job.loss, device
        self.model, self._weights = copy.deepcopy(model) if whole else cut_copy(model), weights
        self._dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        with _seeded(device):
            batch = checked_batch(job, SAMPLES)
        self.batch: Batch = map_tensors(batch, self._to_device)
        plain = copy.deepcopy(self.model)
        self._give_values(plain)
        self.plain = self._run(plain, self._loss)
        _release(plain)

    def differs(self, split: ProgramSplit) -> str:
        """What the split program computes otherwise than the plain one; "" where it computes the same."""
        model = copy.deepcopy(self.model)
        try:
            split.apply(model)
            self._give_values(model)
            part = self._run(model, split.loss(self._loss), split.context)
            problem = self._difference(split, part, model)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            problem = f"it raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        finally:
            _release(model)
        return _agreed(problem, self.device)

    def _give_values(self, model: nn.Module) -> None:
        """Gives a copy, or this rank's part of it, its random weights: parts of the same ones each time."""
        if self._weights is not None:
            self._weights.copy_into(model, {name for name, _ in self.model.named_parameters()})
        _randomise(model, self.device)

    def _difference(self, split: ProgramSplit, part: PassResult, model: nn.Module) -> str:
        """What a part of the split program computes otherwise than the plain one. All ranks exchange the same tensors."""
        loss, experts = split.mean(part.loss, of_expert=False), expert_parameters(model)
        apart: dict[str, Tensor] = {}
        for name in list(part.gradients):  # one whole gradient at a time
            gradient = split.mean(whole(part.gradients.pop(name)), of_expert=name in experts)
            apart[name] = (gradient - self.plain.gradients[name]).norm()
        if [shape for _, shape in part.events.random] != [shape for _, shape in self.plain.events.random]:
            return "random numbers (dropout) are drawn for a part of a tensor, and would not be those of one device"
        if active_fake_mode() is not None or dist.get_backend() == "fake":
            return ""
        limit = _TOLERANCE.get(self._dtype, 1e-3)
        if abs(loss - self.plain.loss) > limit * abs(self.plain.loss):
            return f"its loss is {float(loss):.6g}, one device's {float(self.plain.loss):.6g}"
        names = {name for name, _ in model.named_parameters()}
        if missing := sorted(set(self.plain.gradients) & names - set(apart)):
            return f"{missing[0]} has no gradient"
        norms = {name: gradient.norm() for name, gradient in self.plain.gradients.items()}
        total = torch.stack(list(norms.values())).norm()
        for name, difference in apart.items():
            if not difference <= limit * norms[name] + _NOISE * total:
                return f"the gradient of {name} differs by {float(difference / norms[name]):.2g} of its norm"
        return ""

    def _run(
        self,
        model: nn.Module,
        compute: LossFunction,
        context: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> PassResult:
        model.train()
        with _seeded(self.device), observed(model) as events, context():
            loss, _ = separated(compute(model, self.batch))
            loss.backward()
        gradients = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
        return PassResult(loss.detach(), gradients, events)

    def _to_device(self, leaf: Tensor) -> Tensor:
        return leaf.to(self.device, self._dtype if leaf.is_floating_point() else None)


def whole(tensor: Tensor) -> Tensor:
    """A tensor that may be distributed, whole."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def cut_copy(model: nn.Module) -> nn.Module:
    """A deep copy of the model with two blocks of each kind; blocks keep their names."""
    dropped = dropped_blocks(model)
    containers = [(m, dict(m._modules)) for m in model.modules() if any(id(child) in dropped for child in m.children())]
    try:
        for container, children in containers:
            container._modules = {name: child for name, child in children.items() if id(child) not in dropped}
        return copy.deepcopy(model)
    finally:
        for container, children in containers:
            container._modules = children


def dropped_blocks(model: nn.Module) -> dict[int, str]:
    """Blocks that have others of the same kind before them, beyond those kept: identity -> the path of the first."""
    paths = {id(module): path for path, module in model.named_modules()}
    alike: dict[object, list[str]] = defaultdict(list)
    dropped: dict[int, str] = {}
    for block in repeated_blocks(model):
        kind = (type(block), tuple((name, tuple(p.shape)) for name, p in block.named_parameters()))
        before = alike[paths[id(block)].rpartition(".")[0], kind]
        before.append(paths[id(block)])
        if len(before) > KEPT_BLOCKS:
            dropped[id(block)] = before[0]
    return dropped


def spread_over_blocks(words: dict[str, str], model: nn.Module) -> dict[str, str]:
    """The words of a cut copy's modules for the blocks that it lacks, too."""
    paths = {id(module): path for path, module in model.named_modules()}
    spread = dict(words)
    for block, kept in dropped_blocks(model).items():
        spread |= {f"{paths[block]}{path[len(kept) :]}": word for path, word in words.items() if path.startswith(f"{kept}.")}
    return spread


@torch.no_grad()
def _randomise(model: nn.Module, device: torch.device) -> None:
    """Adds normal random numbers to the weights, so that no gradient is zero because a weight is.

    A part of a parameter gets its part of the numbers.
    """
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        parameter.requires_grad_(True)
        if active_fake_mode() is None and parameter.device.type != "meta":
            generator = torch.Generator(device.type).manual_seed(_SEED + crc32(name.encode()))
            noise = torch.randn(parameter.shape, generator=generator, device=device, dtype=torch.float32)
            noise *= 0.1 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5 / 2
            if is_dtensor(parameter):
                noise = noise[shard_of(parameter).region.slices(Region.whole(parameter.shape))]
            local_of(parameter).add_(noise.to(parameter.dtype))


@contextmanager
def _seeded(device: torch.device) -> Iterator[None]:
    """Random numbers from a fixed seed; those of the process go on afterwards as if none were drawn."""
    if active_fake_mode() is not None:
        yield
        return
    backend = backend_of(device)
    before = backend.random_state()
    with torch.random.fork_rng([]):
        torch.manual_seed(_SEED)
        try:
            yield
        finally:
            if before is not None:
                backend.set_random_state(before)


def _release(model: nn.Module) -> None:
    """Frees the parameters now: hooks of a split refer to their own modules, which Python frees at some later time."""
    for module in model.modules():
        for name in [name for name, _ in module.named_parameters(recurse=False)]:
            setattr(module, name, None)


def _agreed(problem: str, device: torch.device) -> str:
    """The first rank's problem, on every rank: all decide alike."""
    if active_fake_mode() is not None or dist.get_backend() == "fake":
        return problem
    problems: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(problems, problem)
    return next((text for text in problems if text), "")
