"""The position in the data: wherever a run is stopped, what comes after a resume is what would have come anyway."""

import itertools
import json
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from gpuwise.errors import FileFormatError, JobError
from gpuwise.job import Job
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.data.streams import SavedStream, Stream
from gpuwise.strategy import HostSettings, Strategy

NUMBERS = torch.arange(22.0)
MANY = torch.arange(30.0)


class Mapped(Dataset):
    def __len__(self):
        return len(NUMBERS)

    def __getitem__(self, index):
        return {"x": NUMBERS[index] + torch.rand(()) / 4 + random.random() / 4 + np.random.rand() / 4}


class Streamed(IterableDataset):
    """Draws its order and its noise, and tells neither."""

    def __iter__(self):
        for index in torch.randperm(len(NUMBERS)).tolist():
            yield {"x": NUMBERS[index] + random.random() / 4 + np.random.rand() / 4}


class Stateful(IterableDataset):
    """Continues by its state, and cannot be read twice from its start."""

    def __init__(self):
        self.next, self.epoch, self.reads = 0, 0, []

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        while self.next < len(NUMBERS):
            self.next += 1
            self.reads.append(self.next)
            yield {"x": NUMBERS[self.next - 1] + 100 * self.epoch + random.random() / 4}

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class StatefulIterator(IterableDataset):
    def __init__(self, count=22):
        self.count = count

    def __iter__(self):
        return _Counter(self.count)


class _Counter:
    def __init__(self, count):
        self.next, self.count = 0, count

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == self.count:
            raise StopIteration
        self.next += 1
        return {"x": torch.tensor(self.next - 1.0)}

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


KINDS = {
    "columns": lambda: {"x": NUMBERS},
    "subset": lambda: Subset(TensorDataset(NUMBERS), list(range(1, 22))),
    "mapped": Mapped,
    "loader": lambda: DataLoader(Mapped(), batch_size=3),
    "streamed": Streamed,
    "generator": lambda: ({"x": n + torch.rand(())} for n in NUMBERS),
    "stateful": Stateful,
    "stateful-iterator": StatefulIterator,
    "synthetic": None,
}


def loader_of(data, *, micro_batch=4, accumulation=1, seed=3, **host):
    job = Job(model=nn.Identity, batch=lambda n: {"x": torch.rand(n)}, loss=lambda model, batch: batch, data=data)
    return MicroBatchLoader(job, Strategy(micro_batch=micro_batch, accumulation=accumulation), HostSettings(**host), seed=seed)


def numbers(steps, count):
    """The samples of the next steps, one list a step."""
    leaves = [[b["x"] if isinstance(b, dict) else b[0] for b in step] for step in itertools.islice(steps, count)]
    return [torch.cat(step).tolist() for step in leaves]


@pytest.mark.parametrize("data", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_resume_at_every_step_continues_as_if_nothing_had_happened(data, accumulation):
    whole = loader_of(data, accumulation=accumulation)
    steps, states, expected = whole.steps(), [whole.state()], []
    for _ in range(14):
        expected += numbers(steps, 1)
        states.append(whole.state())
    for done, state in enumerate(states[:12]):
        resumed = loader_of(data, accumulation=accumulation)
        resumed.load(json.loads(json.dumps(state)))
        assert resumed.state() == state
        assert numbers(resumed.steps(), 2) == expected[done : done + 2], done
        assert resumed.state() == states[done + 2]


@settings(max_examples=30, deadline=None)
@given(samples=st.integers(12, 60), micro_batch=st.integers(1, 6), accumulation=st.integers(1, 2), done=st.integers(0, 12))
def test_columns_continue_at_any_position(samples, micro_batch, accumulation, done):
    def loader():
        return loader_of(lambda: torch.arange(float(samples)), micro_batch=micro_batch, accumulation=accumulation)

    class Raw(Dataset):
        def __len__(self):
            return samples

        def __getitem__(self, index):
            return (float(index),)

    whole = loader()
    steps = whole.steps()
    list(itertools.islice(steps, done))
    resumed, mapped = loader(), loader_of(Raw, micro_batch=micro_batch, accumulation=accumulation)
    resumed.load(whole.state())
    mapped.load(whole.state())
    expected = [torch.cat(list(step)).tolist() for step in itertools.islice(steps, 4)]
    assert [torch.cat(list(step)).tolist() for step in itertools.islice(resumed.steps(), 4)] == expected
    assert [torch.cat([b[0] for b in step]).tolist() for step in itertools.islice(mapped.steps(), 4)] == expected


@pytest.mark.parametrize("name", ["columns", "mapped", "stateful", "generator"])
@pytest.mark.parametrize(("micro_batch", "accumulation"), [(2, 6), (6, 2), (12, 1)])
def test_another_micro_batch_goes_on_from_the_same_sample(name, micro_batch, accumulation):
    plain = {
        "columns": lambda: {"x": MANY},
        "mapped": lambda: [{"x": n} for n in MANY],
        "stateful": lambda: StatefulIterator(30),
        "generator": lambda: ({"x": n} for n in MANY),
    }[name]
    whole = loader_of(plain, micro_batch=4, accumulation=3)
    steps = whole.steps()
    next(steps)
    resumed = loader_of(plain, micro_batch=micro_batch, accumulation=accumulation)
    resumed.load(whole.state())
    mine, expected = numbers(resumed.steps(), 1)[0], numbers(steps, 1)[0]
    assert mine == expected
    resumed_again = loader_of(plain, micro_batch=micro_batch, accumulation=accumulation)
    resumed_again.load(resumed.state())
    assert numbers(resumed_again.steps(), 1) == numbers(resumed.steps(), 1)


def test_a_state_that_goes_on_changing_is_kept_as_it_was():
    class Shared(Stateful):
        """Hands out the dict that it counts in."""

        def __init__(self):
            super().__init__()
            self.state = {"next": 0}

        def __iter__(self):
            for sample in super().__iter__():
                self.state["next"] = self.next
                yield sample

        def state_dict(self):
            return self.state

    loader = loader_of(Shared)
    steps = loader.steps()
    numbers(steps, 1)
    state = loader.state()
    before = json.dumps(state)
    numbers(steps, 2)
    assert json.dumps(state) == before


def test_a_state_in_use_reads_nothing_again():
    made = []

    def data():
        made.append(Stateful())
        return made[-1]

    whole = loader_of(data)
    list(itertools.islice(whole.steps(), 3))
    resumed = loader_of(data)
    resumed.load(whole.state())
    numbers(resumed.steps(), 1)
    assert made[-1].reads == [13, 14, 15, 16]


def test_steps_can_be_asked_for_again():
    for name in ("columns", "mapped", "streamed", "stateful"):
        whole, broken = loader_of(KINDS[name]), loader_of(KINDS[name])
        expected = numbers(whole.steps(), 9)
        got = [row for _ in range(3) for row in numbers(broken.steps(), 3)]
        assert got == expected, name


def test_marks_lead_to_where_reading_was_not_yet():
    """Read ahead, a stream is past the position: then the latest mark before it counts, and what follows is read again."""
    clock = itertools.count(0, 0.4)
    stream = Stream(
        lambda seed, epoch: (Stateful(), None), torch.utils.data.default_collate, marks=True, clock=lambda: next(clock)
    )
    chunks = list(itertools.islice(stream.read(micro_batch=2, seed=0, epoch=0, offset=0), 9))
    marks = [chunk.mark for chunk in chunks]
    assert marks[0] is None
    assert {mark["offset"] for mark in marks[1:] if mark} == {6, 12}
    for chunk in chunks:
        again = Stream(lambda seed, epoch: (Stateful(), None), torch.utils.data.default_collate)
        first = next(again.read(micro_batch=2, seed=0, epoch=0, offset=chunk.start, before=SavedStream(chunk.mark)))
        assert torch.equal(first.batch["x"], chunk.batch["x"])


def test_an_iterable_of_another_order_is_noticed():
    def data():
        return ({"x": n + next(noise)} for n in NUMBERS)

    noise = itertools.count()
    whole = loader_of(data)
    next(whole.steps())
    resumed = loader_of(data)
    resumed.load(whole.state())
    next(resumed.steps())
    assert "other samples than before" in resumed.notes[-1].text


def test_other_data_is_refused():
    state = loader_of(lambda: NUMBERS).state()
    for other, match in [
        (lambda: NUMBERS[1:], "22 samples, now it is 21"),
        (Streamed, "rows, now it is iterable"),
        (None, "synthetic"),
    ]:
        with pytest.raises(JobError, match=match) as caught:
            loader_of(other).load(state)
        assert len(caught.value.ways_out) == 2


def test_another_global_batch_is_refused():
    with pytest.raises(JobError, match="4 × 1 samples a step, now it is 4 × 2"):
        loader_of(lambda: NUMBERS, accumulation=2).load(loader_of(lambda: NUMBERS).state())


@pytest.mark.parametrize("change", [{"epoch": -1}, {"offset": "4"}, {"seed": None}, {"micro_batch": 1.5}])
def test_a_damaged_position_is_refused(change):
    loader = loader_of(lambda: NUMBERS)
    with pytest.raises(FileFormatError, match="cannot be read"):
        loader.load({**loader.state(), **change})
    with pytest.raises(FileFormatError, match="cannot be read"):
        loader.load({})


def test_an_iterable_shorter_than_the_position():
    whole = loader_of(lambda: ({"x": n} for n in NUMBERS))
    list(itertools.islice(whole.steps(), 4))
    resumed = loader_of(lambda: ({"x": n} for n in NUMBERS[:9]))
    resumed.load(whole.state())
    with pytest.raises(JobError, match="ended after 9 samples; the run had used 16"):
        next(resumed.steps())


def test_the_seed_of_the_run_is_kept():
    whole = loader_of(lambda: NUMBERS, seed=5)
    steps = whole.steps()
    next(steps)
    resumed = loader_of(lambda: NUMBERS, seed=9)
    resumed.load(whole.state())
    assert torch.equal(next(resumed.steps())[0], next(steps)[0])


@pytest.mark.parametrize("name", ["columns", "mapped"])
def test_where_names_the_samples(name):
    data = KINDS["columns"] if name == "columns" else (lambda: [{"x": n} for n in NUMBERS])
    loader = loader_of(data, micro_batch=4, accumulation=3)
    assert loader.where(loader.positions)["micro_batches"] == []
    steps = loader.steps()
    for _ in range(2):
        step = next(steps)
        result = loader.where(loader.positions)["micro_batches"]
        assert [NUMBERS[m["samples"]].tolist() for m in result] == [b["x"].tolist() for b in step]
    assert [(m["epoch"], m["micro_batch"]) for m in result] == [(0, 3), (0, 4), (1, 0)]
    assert json.dumps(loader.where(loader.positions))


def test_a_batch_changed_in_place_spoils_no_other():
    for data in (lambda: {"x": NUMBERS}, None):
        spoiled, clean = loader_of(data).steps(), loader_of(data).steps()
        for _ in range(12):
            mine, other = next(spoiled)[0]["x"], next(clean)[0]["x"]
            assert torch.equal(mine, other)
            mine.zero_()
    assert NUMBERS.tolist() == list(range(22))


def test_a_batch_changed_in_place_spoils_no_gradient_of_another():
    steps = loader_of(lambda: {"x": NUMBERS}, accumulation=2).steps()
    first, second = (batch["x"] for batch in next(steps))
    weight = torch.ones(4, requires_grad=True)
    loss = (weight * first).sum()
    second.zero_()  # would raise in backward if both had one version
    loss.backward()
    assert torch.equal(weight.grad, first)
