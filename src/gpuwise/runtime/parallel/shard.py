"""Shards: parameters, gradients and optimizer state are split over ranks by fully_shard (FSDP2).

    shard         between two micro-batches a rank holds                    per step, of each parameter
    parameters    its shard of parameters and gradients                     2 gathers, 1 reduce-scatter a micro-batch
    gradients     whole parameters, its shard of gradients                  1 gather, 1 reduce-scatter a micro-batch
    optimizer     whole parameters and gradients                            1 gather, 1 reduce-scatter

The optimizer updates shards in all three. With `optimizer`, gradients are whole only while micro-batches accumulate, and a
gather after a reduce-scatter moves two thirds of what DDP with ZeroRedundancyOptimizer moves (an all-reduce, a broadcast).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gpuwise.errors import UnsupportedError
from gpuwise.job.batches import map_tensors
from gpuwise.job.blocks import repeated_blocks
from gpuwise.job.job import Batch
from gpuwise.runtime.build.names import plain_name
from gpuwise.runtime.parallel.buffers import SharedBuffers
from gpuwise.runtime.parallel.experts import shard_experts
from gpuwise.runtime.parallel.job_loss import JobLoss
from gpuwise.runtime.parallel.rank_model import RankModel
from gpuwise.runtime.parallel.world import World
from gpuwise.strategy import Strategy

# The dtype in which gathered parameters compute; those of other precisions compute in their own.
COMPUTE_DTYPES = {"amp-bf16": torch.bfloat16, "amp-fp16": torch.float16}


class Shards:
    """Gathers parameters where they are used, and reduces and scatters gradients.

    Attributes:
        root: the job's loss under fully_shard.

    Arguments:
        shard: what ranks split, as in gpuwise.strategy.Parallelism.
        replicates: whether there are replicas of the shards, over which gradients are reduced once a step.
    """

    def __init__(self, root: nn.Module, buffers: SharedBuffers, *, shard: str, replicates: bool):
        self.root, self._buffers = root, buffers
        self._shard, self._replicates = shard, replicates
        self._units = [module for module in root.modules() if isinstance(module, FSDPModule)]
        self._due = True  # whether the next backward pass reduces gradients as the last of its step

    def begin(self) -> None:
        """To be called once the parameters have their values.

        FSDP2 takes the first unit that runs for the root. An evaluation before the first step would run a block first.
        """
        assert isinstance(self.root, FSDPModule)
        self.root._get_fsdp_state()._lazy_init()

    def micro_batch(self, *, first: bool, last: bool) -> AbstractContextManager[object]:
        if first:
            self._buffers.share()
        if last != self._due:
            self._set_due(last)
        return nullcontext()

    def _set_due(self, last: bool) -> None:
        self._due = last
        for unit in self._units:
            if self._shard == "optimizer":
                unit.set_requires_gradient_sync(last, recurse=False)
            elif self._replicates:
                unit.set_requires_all_reduce(last, recurse=False)
            if self._shard != "parameters":
                unit.set_reshard_after_backward(last, recurse=False)
            unit.set_is_last_backward(last)

    @contextmanager
    def outside_loss(self) -> Iterator[None]:
        """A context in which the model can be called outside the job's loss, by all ranks alike."""
        root = self.root
        assert isinstance(root, FSDPModule)
        root.unshard()
        try:
            yield
        finally:
            for unit in self._units:
                unit.reshard()


def apply_shards(rank_model: RankModel, strategy: Strategy, world: World) -> None:
    """Shards each repeated block as a unit, and the rest of the model as another."""
    assert rank_model.loss is not None
    compute = COMPUTE_DTYPES.get(strategy.precision)
    if compute is not None:
        cast_around(rank_model.model, compute)
        rank_model.autocasts = False
    rank_model.buffers = SharedBuffers(rank_model.model, world.data.get_group())
    root = JobLoss(rank_model.model, rank_model.loss)
    shard_module(root, strategy, world)
    rank_model.synchronisation = Shards(
        root, rank_model.buffers, shard=strategy.parallelism.shard, replicates=strategy.mesh.dp_replicate > 1
    )


def shard_stages(rank_model: RankModel, strategy: Strategy, world: World) -> None:
    """Shards each pipeline stage as `apply_shards` does a model; the pipeline's schedule gathers and reduces."""
    assert rank_model.pipeline is not None
    compute = COMPUTE_DTYPES.get(strategy.precision)
    if compute is not None:
        rank_model.pipeline.around_models(lambda model: cast_around(model, compute))
        rank_model.autocasts = False
    for stage in rank_model.parts:
        shard_module(stage, strategy, world)
    rank_model.buffers = SharedBuffers(rank_model.model, world.data.get_group())
    rank_model.pipeline.share_buffers(rank_model.buffers)


def shard_module(root: nn.Module, strategy: Strategy, world: World) -> None:
    """Applies fully_shard to the repeated blocks of a module, then to the module itself, whose forward runs them all.

    Raises UnsupportedError for parameters that fully_shard cannot split.
    """
    mesh = shard_mesh(world)
    reduced = torch.bfloat16 if strategy.parallelism.compress_gradients else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPES.get(strategy.precision), reduce_dtype=reduced)
    of_root = MixedPrecisionPolicy(policy.param_dtype, policy.reduce_dtype, cast_forward_inputs=False)
    units = shard_units(root)
    _check(root, units)
    reshard = strategy.parallelism.shard == "parameters" and world.mesh.dp_shard * world.mesh.cp > 1  # else nothing is saved
    if world.experts is not None:
        shard_experts(root, world, reshard=reshard, policy=policy)
    for block in units:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy)
    fully_shard(root, mesh=mesh, reshard_after_forward=False, mp_policy=of_root)


def shard_mesh(world: World) -> DeviceMesh:
    """The mesh of fully_shard: shards alone, or replicas of shards."""
    return world.shards if world.mesh.dp_replicate == 1 else world.replicas_of_shards


def shard_units(root: nn.Module) -> list[nn.Module]:
    """The blocks that are gathered one at a time: repeated blocks that share no parameter with another part of the model.

    A container without a forward pass of its own cannot be one either.
    """
    blocks = [block for block in repeated_blocks(root) if not isinstance(block, nn.ModuleList | nn.ModuleDict)]
    block_of = {module: number for number, block in enumerate(blocks) for module in block.modules()}
    holders: dict[nn.Parameter, set[int]] = defaultdict(set)
    for module in root.modules():
        for parameter in module.parameters(recurse=False):
            holders[parameter].add(block_of.get(module, -1))
    shared = {number for numbers in holders.values() if len(numbers) > 1 for number in numbers}
    return [block for number, block in enumerate(blocks) if number not in shared]


def _check(root: nn.Module, units: list[nn.Module]) -> None:
    """Raises UnsupportedError for parameters that fully_shard cannot split."""
    names = {parameter: plain_name(name.removeprefix("model.")) for name, parameter in root.named_parameters()}
    in_unit = {parameter for unit in units for parameter in unit.parameters()}
    rest = [parameter for parameter in names if parameter not in in_unit]
    for parameter, name in names.items():
        if parameter.dim() == 0:
            raise UnsupportedError(
                f"{name} is a single number without dimensions, which fully_shard (FSDP2) cannot split.",
                ["torch.nn.Parameter of shape (1,) in the model", "--mesh dp=N, which keeps a copy on each device"],
            )
    for group in [*(list(unit.parameters()) for unit in units), rest]:
        # The first parameter of each dtype: of several, the last stays in a dict.
        dtypes = {str(p.dtype).removeprefix("torch."): names[p] for p in reversed(group) if p.requires_grad}
        if len(dtypes) > 1:
            raise UnsupportedError(
                f"fully_shard (FSDP2) gathers parameters of one dtype together, and "
                f"{' and '.join(f'{name} is {dtype}' for dtype, name in dtypes.items())}.",
                ["one dtype for all trained parameters", "--mesh dp=N, which keeps a copy on each device"],
            )


def cast_around(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts the floating-point inputs of a model to `dtype`, and its outputs of that dtype to fp32.

    The job's loss computes in fp32, and targets in its batch keep their dtype.
    """

    def half(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    def enter(module: nn.Module, args: Batch, kwargs: Batch) -> Batch:
        return map_tensors((args, kwargs), half)

    def leave(module: nn.Module, args: object, output: object) -> object:
        return map_tensors(output, lambda tensor: tensor.float() if tensor.dtype == dtype else tensor)

    model.register_forward_pre_hook(enter, with_kwargs=True)
    model.register_forward_hook(leave)
