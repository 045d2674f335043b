"""Expert parallelism: each rank of the ep axis has some of the experts of a mixture, and computes the rows sent to them."""

from __future__ import annotations

from functools import partial
from typing import Protocol, runtime_checkable

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.runtime.parallel.experts_packed import count_of, packed_experts, shard_placement, split_packed
from gpuwise.runtime.parallel.world import World


@runtime_checkable
class Mixture(Protocol):
    """A mixture whose experts can be split: a module with these two attributes (gpuwise.job.models.mixtral has one).

    Attributes:
        experts: the experts, each a module from rows (n, width) to rows (n, width), alike but for their weights.
    """

    experts: nn.ModuleList

    def run_experts(self, rows: Tensor) -> Tensor:
        """Runs each expert on its rows: the same number for each expert, in the order of the experts."""
        ...


def mixtures(model: nn.Module) -> list[Mixture]:
    """The mixtures of a model whose experts can be split."""
    return [m for m in model.modules() if isinstance(m, Mixture) and isinstance(m.experts, nn.ModuleList)]


def check_experts(model: nn.Module, degree: int) -> None:
    """Raises UnsupportedError for a model without experts to split, InputError where so many ranks do not divide them."""
    counts = [len(mixture.experts) for mixture in mixtures(model)] + [count_of(experts) for _, experts in packed_experts(model)]
    if not counts:
        raise UnsupportedError(
            f"{type(model).__name__} has no mixture whose experts could be split: a module with `experts`, a ModuleList, and "
            "`run_experts(rows)`, which runs each on the same number of rows; or one of Hugging Face's.",
            ["--mesh dp_shard=N", "write it like gpuwise.job.models.mixtral.MixtureOfExperts"],
        )
    for count in counts:
        if count % degree:
            raise InputError(
                f"expert parallelism over {degree} devices does not divide {count} experts.",
                [f"--mesh ep={next(n for n in range(degree, 0, -1) if count % n == 0)}"],
            )


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leaves each rank its part of the experts of every mixture; their names stay those of the whole model."""
    for _, experts in packed_experts(model):
        split_packed(experts, mesh)
    for mixture in mixtures(model):
        own = len(mixture.experts) // mesh.size()
        first = own * mesh.get_local_rank()
        names = range(first, first + own)
        mixture.experts._modules = {str(i): mixture.experts._modules[str(i)] for i in names}
        mixture.run_experts = partial(_run_everywhere, mixture.experts, mesh)  # type: ignore[method-assign]


def _run_everywhere(experts: nn.ModuleList, mesh: DeviceMesh, rows: Tensor) -> Tensor:
    """Sends the rows of each expert to the rank that has it, runs this rank's experts on the rows of all, and sends back."""
    ranks, own = mesh.size(), len(experts)
    width = rows.shape[-1]
    received = _all_to_all(rows, mesh).view(ranks, own, -1, width)
    outputs = [expert(part.reshape(-1, width)) for expert, part in zip(experts, received.unbind(1), strict=True)]
    # (own, ranks, rows, width) -> (ranks, own, rows, width), the order in which the rows came
    back = torch.stack(outputs).view(own, ranks, -1, width).transpose(0, 1)
    return _all_to_all(back.reshape(-1, width), mesh)


def _all_to_all(rows: Tensor, mesh: DeviceMesh) -> Tensor:
    sizes = [rows.shape[0] // mesh.size()] * mesh.size()
    sent = collectives.all_to_all_single_autograd(rows.contiguous(), sizes, sizes, mesh.get_group())
    return collectives.wait_tensor(sent)


def expert_parameters(model: nn.Module) -> set[str]:
    """Names of the parameters of experts."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)] for experts in _units(model) for expert in experts for p in expert.parameters()}


def _units(model: nn.Module) -> list[list[nn.Module]]:
    """The experts of each mixture on this rank: those that are gathered together."""
    return [list(mixture.experts) for mixture in mixtures(model)] + [[experts] for _, experts in packed_experts(model)]


def shard_experts(root: nn.Module, world: World, *, reshard: bool, policy: MixedPrecisionPolicy) -> None:
    """Shards experts over the ranks that have the same ones, and reduces their gradients there.

    The rows of all ranks of ep have been computed by the rank of an expert, so its gradient is a sum over them already: the
    mean over all data-parallel ranks divides by their number.
    """
    assert world.experts is not None
    replicated = world.mesh.dp_replicate > 1
    mesh = world.experts["expert_replicate", "expert_shard"] if replicated else world.experts["expert_shard"]
    placement = partial(shard_placement, shards=world.mesh.dp_shard // world.mesh.ep)
    for experts in _units(root):
        fully_shard(experts, mesh=mesh, reshard_after_forward=reshard, shard_placement_fn=placement, mp_policy=policy)
        for expert in experts:
            assert isinstance(expert, FSDPModule)
            # Division within the reduction is NCCL's alone. A single shard is divided as it is copied, and would be so twice
            # (foreach_reduce in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, PyTorch 2.13).
            expert.set_force_sum_reduction_for_comms(world.mesh.dp_shard > world.mesh.ep)
            expert.set_gradient_divide_factor(float(world.mesh.data_parallel))


def separate_meshes(optimizer: Optimizer) -> None:
    """Gives parameters on different meshes parameter groups of their own: kernels over many tensors take one mesh at a time."""
    groups = []
    for group in optimizer.param_groups:
        by_mesh: dict[object, list[nn.Parameter]] = {}
        for parameter in group["params"]:
            by_mesh.setdefault(parameter.device_mesh if isinstance(parameter, DTensor) else None, []).append(parameter)
        groups += [{**group, "params": parameters} for parameters in by_mesh.values()]
    optimizer.param_groups[:] = groups
