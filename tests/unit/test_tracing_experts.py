"""A rank with some of the experts of a mixture that holds them in one tensor, recorded in one process."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gpuwise.job import Job
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace import CATEGORIES, KINDS, Trace
from gpuwise.tracing import record

WIDTH, EXPERTS, CHOICES, BLOCKS = 32, 8, 2, 2
EXCHANGES = 4 * BLOCKS - 1


class Experts(nn.Module):
    """Linear layers in one tensor, called as Hugging Face's experts are."""

    def __init__(self) -> None:
        super().__init__()
        self.num_experts = EXPERTS
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        outputs = torch.einsum("eoi,ni->neo", self.weight, hidden_states)
        chosen = outputs.gather(1, top_k_index[..., None].expand(-1, -1, WIDTH))
        return (chosen * top_k_weights[..., None]).sum(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, EXPERTS, bias=False), Experts()

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(CHOICES, -1)
        return x + self.experts(x, chosen, weights)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def mixture_job() -> Job:
    return Job(Net, lambda n: {"x": torch.randn(n, WIDTH)}, lambda model, batch: model(batch["x"]).square().mean())


def parameter_bytes(trace: Trace) -> int:
    storages = trace.storages
    return int(storages.size_bytes[storages.category == CATEGORIES.index("parameter")].sum())


def exchanged_bytes(trace: Trace) -> list[int]:
    """Payloads of the exchanges of rows."""
    exchanges = [
        (int(trace.operations.payload_bytes[operation]), int(trace.counts()[operation]))
        for operation in np.flatnonzero(trace.operations.kind == KINDS.index("collective")).tolist()
        if "all_to_all" in trace.operations.name[operation]
    ]
    return [payload for payload, count in exchanges for _ in range(count)]


def test_a_rank_has_its_experts_and_exchanges_the_rows_of_all():
    """Rows go to their experts and back, and gradients the same way, but for those of the data."""
    alone = record(mixture_job(), Strategy(micro_batch=6))
    rank = record(mixture_job(), Strategy(micro_batch=6, mesh=Mesh(dp_shard=4, ep=4)), rank=1)
    assert parameter_bytes(rank) == parameter_bytes(alone) / 4
    assert exchanged_bytes(rank) == [6 * CHOICES * WIDTH * 4] * EXCHANGES


def test_rows_that_ranks_do_not_divide_are_recorded_too():
    rank = record(mixture_job(), Strategy(micro_batch=3, mesh=Mesh(dp_shard=4, ep=4)))
    assert len(exchanged_bytes(rank)) == EXCHANGES
