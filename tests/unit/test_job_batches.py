"""Batches of every form: what is checked of them, what moves to a device, and what reaches the step."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from tests.training_samples import toy, train
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset

import gpuwise
from gpuwise.errors import JobError
from gpuwise.job import Job, checked_batch
from gpuwise.job.batches import map_tensors, named_tensors
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import HostSettings, Strategy


@dataclass(frozen=True)
class Graphs:
    x: Tensor
    edges: Tensor
    count: int


class Pair(NamedTuple):
    one: Tensor
    two: list[Tensor]


class Applying:
    """As the data of PyTorch Geometric: it goes through its own tensors, and changes itself."""

    def __init__(self, **tensors: Tensor):
        self._store = tensors

    def __copy__(self) -> Applying:
        return Applying(**self._store)

    def apply(self, function: Any) -> Applying:
        self._store = {name: function(value) for name, value in self._store.items()}
        return self


class Bare:
    def __init__(self, boxes: list[Tensor]):
        self.boxes, self.name = boxes, "image"


BATCHES = {
    "dict": {"x": torch.ones(2), "name": "a"},
    "lists": [[torch.ones(2)], (torch.ones(1), 3)],
    "named tuple": Pair(torch.ones(2), [torch.ones(3)]),
    "data class": Graphs(torch.ones(2, 3), torch.ones(2, 5), 2),
    "object": Bare([torch.ones(2), torch.ones(3, 4)]),
    "object in a list": [Bare([torch.ones(2)]), Bare([torch.ones(4)])],
    "object that applies": Applying(x=torch.ones(2), edges=torch.ones(2, 3)),
}


@pytest.mark.parametrize("name", BATCHES)
def test_every_tensor_is_mapped_and_the_batch_stays(name):
    batch = BATCHES[name]
    before = copy.deepcopy(batch)
    changed = map_tensors(batch, lambda tensor: tensor * 2)
    assert type(changed) is type(batch)
    doubled = [tensor for _, tensor in named_tensors(changed)]
    plain = [tensor for _, tensor in named_tensors(batch)]
    assert len(plain) == len(doubled) > 0
    assert all(torch.equal(a, 2 * b) for a, b in zip(doubled, plain, strict=True))
    assert all(torch.equal(a, b) for a, (_, b) in zip(plain, named_tensors(before), strict=True))
    names = [name for name, _ in named_tensors(batch)]
    assert len(set(names)) == len(names)


def test_names_say_where_a_tensor_is():
    assert [name for name, _ in named_tensors({"a": Bare([torch.ones(1)]), "b": (torch.ones(1),)})] == [
        "batch['a'].boxes[0]",
        "batch['b'][0]",
    ]


def test_lengths_of_a_packed_sequence_stay_where_they_are():
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    on_meta = map_tensors(packed, lambda tensor: tensor.to("meta"))
    assert isinstance(on_meta, PackedSequence)
    assert (on_meta.data.device.type, on_meta.batch_sizes.device.type) == ("meta", "cpu")


def graphs(n: int) -> Graphs:
    """Each of three nodes, in a ring."""
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    return Graphs(torch.ones(3 * n, 4), torch.cat([ring + 3 * i for i in range(n)], 1), n)


class Ring(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: Graphs) -> Tensor:
        x = self.layer(batch.x)
        return x.index_add(0, batch.edges[1], x[batch.edges[0]])


class RingData(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Graphs:
        return Graphs(torch.full((3, 4), float(index)), graphs(1).edges, 1)


def joined(samples: list[Graphs]) -> Graphs:
    edges = torch.cat([sample.edges + 3 * i for i, sample in enumerate(samples)], 1)
    return Graphs(torch.cat([sample.x for sample in samples]), edges, len(samples))


def ring_job(**changes: Any) -> Job:
    fields = {
        "model": Ring,
        "batch": graphs,
        "loss": lambda model, batch: model(batch).pow(2).mean(),
        "samples_in": lambda batch: batch.count,
        "data": lambda: DataLoader(RingData(), collate_fn=joined),
    }
    return Job(**(fields | changes))


def test_without_samples_in_first_dimensions_are_samples():
    with pytest.raises(JobError, match=r"batch\(2\) gave batch.x of shape \(6, 4\); its first dimension must be 2") as caught:
        checked_batch(ring_job(samples_in=None), 2)
    assert any("samples_in" in way for way in caught.value.ways_out)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"samples_in": lambda batch: batch.count + 1}, r"batch\(2\) holds 3 samples by the job's samples_in; it must hold 2"),
        ({"samples_in": lambda batch: batch["graphs"]}, "samples_in does not give a whole number: TypeError"),
        ({"samples_in": lambda batch: 2.0}, "samples_in does not give a whole number"),
        ({"batch": lambda n: Graphs(1, 2, n)}, r"batch\(2\) holds no tensors, it is Graphs"),
    ],
)
def test_what_samples_in_says_is_checked(changes, what):
    with pytest.raises(JobError, match=what):
        checked_batch(ring_job(**changes), 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_graphs_are_put_together_by_the_jobs_own_collate_function(workers):
    loader = MicroBatchLoader(ring_job(), Strategy(micro_batch=4), HostSettings(loader_workers=workers), seed=0)
    assert not any("differs" in note.text for note in loader.notes)
    (batch,) = next(loader.steps())
    loader.close()
    assert (batch.count, batch.x.shape, batch.edges.max().item()) == (4, (12, 4), 11)
    assert len(batch.x[:, 0].unique()) == 4


@pytest.mark.parametrize("data", [True, False])
def test_graphs_are_trained_and_forecast(data):
    job = ring_job() if data else ring_job(data=None)
    result = train(job, Strategy(micro_batch=4, precision="amp-bf16"), steps=3)
    assert result.samples == 12
    assert result.last_loss < result.first_loss or data
    forecast = gpuwise.forecast(job, on="rtx-4090", micro_batch=8)
    assert forecast.memory.fits
    assert gpuwise.fit(job, on="t4").rows[0].largest_micro_batch > 1000  # a family over the batch: graphs of one size add up


def test_graphs_of_different_sizes():
    """Example batches may differ, too; a batch of graphs differs from the example in its sizes alone."""

    def uneven(n: int) -> Graphs:
        nodes = int(torch.randint(2, 6, ()).item())
        return Graphs(torch.ones(nodes * n, 4), torch.zeros(2, nodes * n, dtype=torch.int64), n)

    assert train(ring_job(batch=uneven, data=None), Strategy(micro_batch=4), steps=6).steps == 6
    one_node = ring_job(batch=lambda n: Graphs(torch.ones(n, 4), torch.zeros(2, n, dtype=torch.int64), n))
    loader = MicroBatchLoader(one_node, Strategy(micro_batch=2), seed=0)
    assert not any("differs" in note.text for note in loader.notes)
    other = ring_job(batch=lambda n: Graphs(torch.ones(n, 4), torch.zeros(2, n), n))
    (note,) = (note for note in MicroBatchLoader(other, Strategy(micro_batch=2), seed=0).notes if "differs" in note.text)
    assert "batch.edges is [?] int64 a sample in the data, [?] float32 a sample in the example" in note.text


def test_lists_of_images_of_different_sizes():
    """As detectors take them."""

    def detection(n: int) -> dict[str, Any]:
        return {"images": [torch.rand(3, 8, 8 + i) for i in range(n)], "boxes": [torch.rand(1 + i, 4) for i in range(n)]}

    def loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        pairs = zip(batch["images"], batch["boxes"], strict=True)
        return sum(model(image[None]).mean() + boxes.mean() for image, boxes in pairs)

    def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: [sample[name] for sample in samples] for name in ("images", "boxes")}

    data = [{"images": torch.rand(3, 8, 8), "boxes": torch.rand(2, 4)} for _ in range(8)]
    job = Job(
        model=lambda: nn.Conv2d(3, 2, 3),
        batch=detection,
        loss=loss,
        samples_in=lambda batch: len(batch["images"]),
        data=lambda: DataLoader(data, collate_fn=collate),
    )
    result = train(job, Strategy(micro_batch=2, channels_last=True), steps=3)
    assert result.steps == 3
    assert gpuwise.forecast(job, on="rtx-4090", micro_batch=2).memory.fits


def test_a_plain_job_needs_none_of_this():
    assert train(toy(), Strategy(micro_batch=8), steps=2).steps == 2
