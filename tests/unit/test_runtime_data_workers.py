"""Worker processes and random draws: who reads the data changes no batch and nothing that training draws."""

import multiprocessing
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.draws import draws_of
from gpuwise.runtime.data.workers import IGNORED_SIGNALS
from gpuwise.strategy import HostSettings, Strategy

# One core is enough for these two processes.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Noisy(Dataset):
    def __init__(self, count=10):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()), random.random(), np.random.randn(), np.random.rand()])


class OwnProcess(Dataset):
    """Says in which process it was read, and how that treats signals."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        ignored = all(signal.getsignal(number) is signal.SIG_IGN for number in IGNORED_SIGNALS)
        here = multiprocessing.parent_process() is not None
        return torch.tensor([here, ignored, torch.get_num_threads()])


class Broken(Noisy):
    def __getitem__(self, index):
        if get_worker_info() is not None:
            raise ValueError(f"sample {index} is broken")
        return super().__getitem__(index)


class Sharded(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from ((torch.tensor([n, random.random()]),) for n in range(info.id, 20, info.num_workers))


def loader_of(data, *, example=lambda n: torch.zeros(n, 5), micro_batch=4, accumulation=1, **host):
    job = Job(model=nn.Identity, batch=example, loss=lambda model, batch: batch, data=data)
    return MicroBatchLoader(job, Strategy(micro_batch=micro_batch, accumulation=accumulation), HostSettings(**host))


def batches(loader, count):
    try:
        steps = loader.steps()
        return [next(steps)[0].tolist() for _ in range(count)]
    finally:
        loader.close()


def test_the_number_of_workers_changes_no_batch():
    expected = batches(loader_of(Noisy), 7)
    assert len({row[1] for batch in expected for row in batch}) == 28
    for workers, prefetch in [(1, None), (2, 6)]:
        assert batches(loader_of(Noisy, loader_workers=workers, prefetch=prefetch), 7) == expected
    assert multiprocessing.active_children() == []


def test_a_resume_with_other_workers():
    expected = batches(loader_of(Noisy), 6)
    whole = loader_of(Noisy, loader_workers=1)
    assert batches(whole, 3) == expected[:3]
    resumed = loader_of(Noisy)
    resumed.load(whole.state())
    assert batches(resumed, 3) == expected[3:]


def test_reading_draws_nothing_of_the_training():
    def draws():
        return torch.rand(1).item(), random.random(), np.random.randn(), np.random.rand()

    def seed():
        torch.manual_seed(7), random.seed(7), np.random.seed(7)

    seed()
    np.random.randn()  # leaves the half of a pair
    expected = [draws() for _ in range(4)]
    for data in (Noisy, lambda: iter(Noisy())):
        seed()
        np.random.randn()
        steps, got = loader_of(data).steps(), []
        for _ in range(4):
            next(steps)
            got.append(draws())
        assert got == expected
    seed()
    np.random.randn()
    steps = loader_of(Noisy, loader_workers=1)
    stream = steps.steps()
    assert [(next(stream), draws())[1] for _ in range(4)] == expected
    steps.close()


def test_draws_of_a_place():
    def drawn(*place):
        with draws_of(*place):
            return torch.rand(1).item(), random.random(), np.random.randn()

    with draws_of(1, 2):
        inside = torch.rand(1).item(), random.random()
        nested = drawn(1, 3)
        after = np.random.randn()
    assert (*inside, after) == drawn(1, 2)
    assert nested == drawn(1, 3) != drawn(1, 2)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937])
def test_another_generator_of_numpys_is_left_as_it_was(kind):
    result = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(kind(3))
        expected = np.random.RandomState(kind(3)).randn(4).tolist()
        got = []
        for place in range(4):
            got.append(np.random.randn())
            with draws_of(place):
                np.random.randn()
        assert got == expected
    finally:
        np.random.set_bit_generator(result)


def test_workers_are_shielded_and_use_one_thread():
    [batch] = batches(loader_of(OwnProcess, loader_workers=1, example=lambda n: torch.zeros(n, 3, dtype=torch.int64)), 1)
    assert batch == [[1, 1, 1]] * 4


def test_the_loader_says_how_many_workers_and_the_strategy_has_the_last_word():
    data = lambda: DataLoader(OwnProcess(), num_workers=1, prefetch_factor=3)  # noqa: E731
    example = lambda n: torch.zeros(n, 3, dtype=torch.int64)  # noqa: E731
    assert batches(loader_of(data, example=example), 1)[0][0][0] == 1
    assert batches(loader_of(data, example=example, loader_workers=0), 1)[0][0][0] == 0


def test_reading_ahead_on_the_cpu_takes_a_worker():
    example = lambda n: torch.zeros(n, 3, dtype=torch.int64)  # noqa: E731
    assert batches(loader_of(OwnProcess, example=example, prefetch=2), 1)[0][0][0] == 1
    loader = loader_of(OwnProcess, example=example, prefetch=2, loader_workers=0)
    assert "nothing is read ahead" in loader.notes[0].text


def test_an_error_in_a_worker_arrives_as_it_was():
    with pytest.raises(JobError, match=r"in a worker process \(.*test_runtime_data_workers.py:\d+\): ValueError: sample \d is"):
        batches(loader_of(Broken, loader_workers=1), 1)


def test_unpicklable_data_where_it_must_be_pickled():
    class Local(Noisy):
        pass

    data = lambda: DataLoader(Local(), num_workers=1, multiprocessing_context="spawn")  # noqa: E731
    with pytest.raises(JobError, match="cannot be sent to worker processes") as caught:
        batches(loader_of(data), 1)
    assert len(caught.value.ways_out) == 2
    assert multiprocessing.active_children() == []
    assert len(batches(loader_of(Local, loader_workers=1), 1)) == 1  # forked it needs no pickling


def test_an_iterable_that_workers_share():
    data = lambda: DataLoader(Sharded(), num_workers=2)  # noqa: E731
    example = lambda n: (torch.zeros(n, 2),)  # noqa: E731

    def read(loader, count):
        steps = loader.steps()
        got = [next(steps)[0][0].tolist() for _ in range(count)]
        loader.close()
        return got

    whole = loader_of(data, example=example)
    first, rest = read(whole, 3), None
    assert [row[0] for batch in first for row in batch] == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14]
    rest = read(whole, 2)
    assert [row[0] for batch in rest for row in batch] == [9, 11, 13, 15, 0, 2, 4, 6]
    resumed = loader_of(data, example=example)
    resumed.load({**whole.state(), "offset": 12, "epoch": 0, "mark": None})
    assert read(resumed, 2) == rest
    assert multiprocessing.active_children() == []


class Counted(IterableDataset):
    def __init__(self):
        self.next, self.reads = 0, 0

    def __iter__(self):
        while self.next < 40:
            self.next, self.reads = self.next + 1, self.reads + 1
            yield torch.tensor([self.next, self.reads])

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's own call
@pytest.mark.parametrize("workers", [0, 1])
def test_the_stateful_loader_of_torchdata_continues_by_its_state(workers):
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return loader_of(
            lambda: torchdata.StatefulDataLoader(Counted(), num_workers=workers),
            example=lambda n: torch.zeros(n, 2, dtype=torch.int64),
        )

    whole, resumed = loader(), loader()
    steps = whole.steps()
    for _ in range(3):
        next(steps)
    resumed.load(whole.state())
    [batch] = batches(resumed, 1)
    assert [row[0] for row in batch] == [13, 14, 15, 16] == next(steps)[0][:, 0].tolist()
    assert batch[0][1] == 1  # nothing was read again
    whole.close()
