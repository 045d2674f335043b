"""Micro-batches: what may be data, in what order it comes, and what is said about it."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.notes import sentences
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import Strategy

NUMBERS = torch.arange(10.0)


class Mapped(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        return {"x": NUMBERS[index]}


class Streamed(IterableDataset):
    def __iter__(self):
        return iter({"x": number} for number in NUMBERS)


class Shifted(TensorDataset):
    def __getitem__(self, index):
        return {"x": self.tensors[0][index] + 100}


def batches_of(data, *, micro_batch=4, accumulation=1, seed=0, example=lambda n: {"x": torch.zeros(n)}, samples=None):
    job = Job(model=nn.Identity, batch=example, loss=lambda model, batch: batch, data=data, samples=samples)
    return MicroBatchLoader(job, Strategy(micro_batch=micro_batch, accumulation=accumulation), seed=seed)


def values(batches, steps):
    taken = batches.steps()
    leaves = [batch["x"] if isinstance(batch, dict) else batch for _ in range(steps) for batch in next(taken)]
    return [leaf[0].tolist() if isinstance(leaf, tuple | list) else leaf.tolist() for leaf in leaves]


@pytest.mark.parametrize(
    "data",
    [
        Mapped,
        lambda: {"x": NUMBERS},
        lambda: {"x": NUMBERS.numpy()},
        lambda: TensorDataset(NUMBERS),
        lambda: (NUMBERS,),
        lambda: NUMBERS,
        lambda: DataLoader(Mapped(), batch_size=3),
        lambda: [{"x": number} for number in NUMBERS],
    ],
    ids=["mapped", "dict", "numpy", "tensor-dataset", "tuple", "tensor", "loader", "list"],
)
def test_an_epoch_has_every_sample_once_and_all_kinds_agree(data):
    got = values(batches_of(data, micro_batch=5), 4)
    assert sorted(got[0] + got[1]) == sorted(got[2] + got[3]) == NUMBERS.tolist()
    assert got[:2] != got[2:]
    assert got == values(batches_of(Mapped, micro_batch=5), 4)


def test_left_over_samples_are_dropped_and_said():
    batches = batches_of(lambda: {"x": NUMBERS})
    first, second, third = values(batches, 3)
    assert len(first) == len(second) == len(third) == 4
    assert not set(first) & set(second)
    assert sentences(batches.notes) == ("2 of 10 samples are left over each epoch.",)
    assert batches.micro_batches_per_epoch == 2


def test_seed_decides_the_order():
    assert values(batches_of(Mapped, seed=1), 2) == values(batches_of(Mapped, seed=1), 2)
    assert values(batches_of(Mapped, seed=1), 2) != values(batches_of(Mapped, seed=2), 2)


def test_accumulated_micro_batches_come_together():
    step = next(batches_of(Mapped, micro_batch=3, accumulation=3).steps())
    assert [len(batch["x"]) for batch in step] == [3, 3, 3]


def test_a_dataset_with_its_own_items_is_asked_for_them():
    assert min(values(batches_of(lambda: Shifted(NUMBERS)), 1)[0]) >= 100


@pytest.mark.parametrize("data", [Streamed, lambda: ({"x": n} for n in NUMBERS), lambda: DataLoader(Streamed())])
def test_iterables_come_in_order_and_again(data):
    assert values(batches_of(data), 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_collate_function_of_a_loader_is_kept():
    loader = DataLoader(Mapped(), batch_size=2, collate_fn=lambda rows: {"x": torch.stack([r["x"] for r in rows]) + 7})
    assert min(values(batches_of(lambda: loader), 1)[0]) >= 7


@pytest.mark.parametrize("data", [Mapped, Streamed, lambda: {"x": NUMBERS}])
def test_data_shorter_than_a_step(data):
    with pytest.raises(JobError, match=r"10 samples, one optimizer step takes 12 \(4 a micro-batch × 3\)") as caught:
        next(batches_of(data, accumulation=3).steps())
    assert len(caught.value.ways_out) == 2
    assert "--micro-batch 3" in caught.value.ways_out[0]


def test_no_data_at_all():
    with pytest.raises(JobError, match="0 samples"):
        batches_of(list)


def test_columns_of_different_lengths():
    with pytest.raises(JobError, match="differ in length"):
        batches_of(lambda: {"x": NUMBERS, "y": NUMBERS[:3]})


def test_differences_from_the_job_are_said():
    notes = sentences(batches_of(lambda: {"x": torch.zeros(8, 3)}, samples=99).notes)
    assert "99" in notes[0]
    assert "[3] float32 a sample in the data, [] float32" in notes[1]


def test_looking_at_the_data_draws_no_random_numbers():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    batches_of(Mapped, example=lambda n: {"x": torch.randn(n)})
    assert torch.equal(torch.rand(1), expected)


def test_synthetic_batches_of_the_wrong_shape():
    with pytest.raises(JobError, match="first dimension must be 4"):
        next(batches_of(None, example=lambda n: {"x": torch.zeros(n + 1)}).steps())
