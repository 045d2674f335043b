"""Expert parallelism of mixtures whose experts lie in one tensor, as in Hugging Face's models: each rank has some of its rows.

Every token is computed by all the experts it has chosen, however many tokens choose the same one, so ranks first tell each
other how many rows they send.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch._guards import active_fake_mode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from gpuwise.runtime.parallel.tensor_styles import distribute, read_locally

Run = Callable[[Tensor, Tensor, Tensor], Tensor]

# transformers' experts: rows (n, width), the numbers of each row's experts (n, k) and their weights (n, k) -> (n, width).
_ARGUMENTS = (("hidden_states", "top_k_index", "top_k_weights"), ("hidden_states", "router_indices", "routing_weights"))


def packed_experts(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules of a model that hold all experts of a mixture, each parameter with one row an expert, with their paths."""
    return [(path, module) for path, module in model.named_modules() if _is_packed(module)]


def count_of(experts: nn.Module) -> int:
    """The number of experts that this rank has."""
    count = experts.num_experts
    assert isinstance(count, int)
    return count


def split_packed(experts: nn.Module, mesh: DeviceMesh) -> None:
    """Leaves each rank its part of the experts. Parameters are DTensors of all experts, which checkpoints and norms see."""
    own = count_of(experts) // mesh.size()
    for name in list(experts._parameters):
        distribute(experts, name, mesh, Shard(0))
    read_locally(experts)
    experts.num_experts = own  # type: ignore[assignment]
    run: Run = experts.forward
    experts.forward = partial(_run_everywhere, run, experts, mesh)


def shard_placement(parameter: nn.Parameter, shards: int) -> Shard | None:
    """How so many ranks that have the same experts shard a parameter of theirs; None for its first dimension.

    Experts in one tensor that are fewer than ranks are sharded by their features, so that each rank has some.
    """
    if not isinstance(parameter, DTensor):
        return None
    rows, features = parameter.to_local().shape[:2]
    return Shard(1) if rows % shards and features % shards == 0 else None


def _is_packed(module: nn.Module) -> bool:
    if not isinstance(getattr(module, "num_experts", None), int) or not module._parameters:
        return False
    return tuple(inspect.signature(type(module).forward).parameters)[1:] in _ARGUMENTS


def _run_everywhere(
    run: Run, experts: nn.Module, mesh: DeviceMesh, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Sends each row to the ranks that have its experts, runs this rank's experts on the rows of all, and sends back."""
    ranks, own = mesh.size(), count_of(experts)
    chosen = top_k_index.flatten()
    order = chosen.argsort(stable=True)  # choices sorted by expert, and so by rank
    token = order // top_k_index.shape[-1]
    counts, sent, received = _exchanged(chosen, ranks, own, mesh)
    rows = _all_to_all(hidden_states.index_select(0, token), sent, received, mesh)
    # Rows come by rank, and by expert from each.
    numbers = torch.arange(own, device=rows.device).repeat(ranks).repeat_interleave(counts, output_size=rows.shape[0])
    if rows.shape[0]:
        outputs = run(rows, numbers[:, None], top_k_weights.new_ones(rows.shape[0], 1))
    else:  # gradients of zero, where ranks that shard the same experts expect some
        outputs = rows + sum(getattr(experts, name).sum() for name in experts._parameters) * 0.0
    del rows
    back = _all_to_all(outputs, received, sent, mesh)
    weighted = back * top_k_weights.flatten().index_select(0, order)[:, None]
    # Added up by gathers: index_add would keep these rows until backward.
    position = torch.empty_like(order)
    position[order] = torch.arange(order.shape[0], device=order.device)
    of_tokens = weighted.index_select(0, position).view(*top_k_index.shape, -1)
    return of_tokens.sum(1).to(hidden_states.dtype)


def _exchanged(chosen: Tensor, ranks: int, own: int, mesh: DeviceMesh) -> tuple[Tensor, list[int], list[int]]:
    """Rows that come for each of this rank's experts, by rank; rows sent to each rank, and received from it."""
    if active_fake_mode() is not None:  # a recording has no values: as many rows for each rank, the rest for the first
        each, rest = divmod(chosen.numel(), ranks)
        sizes = [each + rest, *[each] * (ranks - 1)]
        return chosen.new_zeros(ranks * own), sizes, sizes
    counts = (chosen[:, None] == torch.arange(ranks * own, device=chosen.device)).sum(0)
    arriving = collectives.all_to_all_single(counts, None, None, mesh.get_group())
    arriving = collectives.wait_tensor(arriving)
    sent, received = torch.stack([counts, arriving]).view(2, ranks, own).sum(-1).tolist()
    return arriving, sent, received


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], mesh: DeviceMesh) -> Tensor:
    moved = collectives.all_to_all_single_autograd(rows.contiguous(), received, sent, mesh.get_group())
    return collectives.wait_tensor(moved)
