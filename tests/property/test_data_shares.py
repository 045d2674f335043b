"""Data-parallel ranks together read what a single process reads: the same samples in the same steps, whatever the mesh."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from gpuwise import Job, Strategy
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.order import DataShare
from gpuwise.strategy import Mesh

KINDS = ("columns", "rows", "stream", "stateful stream", "synthetic")


class Squares(Dataset[dict[str, torch.Tensor]]):
    """Samples with random noise, to show that a sample's draws do not depend on the rank that reads it."""

    def __init__(self, samples: int):
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index), torch.rand(()).item()])}


class Counted(IterableDataset[dict[str, torch.Tensor]]):
    """The same as a stream."""

    def __init__(self, samples: int):
        self.samples, self.at = samples, 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while self.at < self.samples:
            self.at += 1
            yield {"x": torch.tensor([float(self.at), torch.rand(()).item()])}
        self.at = 0


class Stateful(Counted):
    """A stream that goes on from its state."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def job_of(kind: str, samples: int) -> Job:
    data = {
        "columns": lambda: {"x": torch.arange(2.0 * samples).view(samples, 2)},
        "rows": lambda: Squares(samples),
        "stream": lambda: Counted(samples),
        "stateful stream": lambda: Stateful(samples),
        "synthetic": None,
    }[kind]
    return Job(
        model=lambda: nn.Linear(2, 1),
        batch=lambda n: {"x": torch.rand(n, 2)},
        loss=lambda model, batch: model(batch["x"]).mean(),
        data=data,
    )


def loaders(job: Job, micro_batch: int, accumulation: int, ranks: int) -> list[MicroBatchLoader]:
    strategy = Strategy(micro_batch=micro_batch, accumulation=accumulation, mesh=Mesh(dp_shard=ranks))
    return [MicroBatchLoader(job, strategy, seed=3, share=DataShare(rank, ranks)) for rank in range(ranks)]


def steps_of(loaders: list[MicroBatchLoader], count: int) -> list[torch.Tensor]:
    """The global batches, in the order of a single process: micro-batch a of rank r is number a × ranks + r."""
    readers = [loader.steps() for loader in loaders]
    batches = []
    for _ in range(count):
        of_ranks = [next(reader) for reader in readers]
        batches.append(torch.cat([part["x"] for parts in zip(*of_ranks, strict=True) for part in parts]))
        states = [{key: value for key, value in loader.state().items() if key != "mark"} for loader in loaders]
        assert all(state == states[0] for state in states)
    return batches


@given(
    kind=st.sampled_from(KINDS),
    ranks=st.integers(1, 4),
    micro_batch=st.integers(1, 4),
    accumulation=st.integers(1, 3),
    extra=st.integers(0, 11),
    epochs=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None)
def test_ranks_read_the_batches_of_one_process(
    kind: str, ranks: int, micro_batch: int, accumulation: int, extra: int, epochs: int
):
    job = job_of(kind, ranks * micro_batch * accumulation + extra)
    count = 2 * epochs
    alone = loaders(job, micro_batch, accumulation * ranks, 1)
    together = loaders(job, micro_batch, accumulation, ranks)
    for ours, theirs in zip(steps_of(together, count), steps_of(alone, count), strict=True):
        assert torch.equal(ours, theirs)
    expected = alone[0].where(alone[0].positions)
    assert all(loader.where(loader.positions) == expected for loader in together)


@given(
    kind=st.sampled_from(KINDS),
    before=st.sampled_from([(1, 4), (2, 2), (4, 1)]),
    after=st.sampled_from([(1, 4), (2, 2), (4, 1)]),
    micro_batch=st.integers(1, 3),
    extra=st.integers(0, 9),
    steps=st.integers(0, 4),
)
@settings(max_examples=60, deadline=None)
def test_another_mesh_goes_on_at_the_same_sample(
    kind: str, before: tuple[int, int], after: tuple[int, int], micro_batch: int, extra: int, steps: int
):
    """before, after: ranks and micro-batches of each in a step."""
    job = job_of(kind, 4 * micro_batch + extra)
    uninterrupted = steps_of(loaders(job, micro_batch, 4, 1), steps + 3)
    first = loaders(job, micro_batch, before[1], before[0])
    steps_of(first, steps)
    second = loaders(job, micro_batch, after[1], after[0])
    for loader in second:
        loader.load(first[0].state())
    for ours, theirs in zip(steps_of(second, 3), uninterrupted[steps:], strict=True):
        assert torch.equal(ours, theirs)
