"""Batches on their way to the device: how many, in what order, and what is waited for."""

from collections import OrderedDict, UserDict, namedtuple

import pytest
import torch

from gpuwise.job.batches import map_tensors
from gpuwise.runtime.data.order import Chunk
from gpuwise.runtime.data.prefetch import ahead


class Copies:
    """A device that notes what it is asked for."""

    def __init__(self):
        self.events = []

    def start(self, batch):
        self.events.append(f"start {batch}")
        return batch

    def finish(self, batch):
        self.events.append(f"finish {batch}")
        return -batch


def chunks(*sizes, fails=False):
    for number, size in enumerate(sizes, 1):
        yield Chunk(number, 0, number, size)
    if fails:
        raise ValueError("broken")


@pytest.mark.parametrize("micro_batches", [0, 1, 2, 9])
def test_the_order_stays(micro_batches):
    assert [chunk.batch for chunk in ahead(chunks(1, 1, 1, 1), Copies(), micro_batches=micro_batches)] == [-1, -2, -3, -4]


def test_so_many_are_on_their_way():
    copies = Copies()
    stream = ahead(chunks(1, 1, 1, 1, 1), copies, micro_batches=2)
    next(stream)
    assert copies.events == ["start 1", "start 2", "start 3", "finish 1"]
    next(stream)
    assert copies.events[4:] == ["start 4", "finish 2"]


def test_a_chunk_counts_as_the_micro_batches_in_it():
    copies = Copies()
    next(ahead(chunks(5, 5, 5), copies, micro_batches=2))
    assert copies.events == ["start 1", "start 2", "finish 1"]


def test_nothing_ahead_copies_just_in_time():
    copies = Copies()
    next(ahead(chunks(1, 1), copies, micro_batches=0))
    assert copies.events == ["start 1", "finish 1"]


def test_an_error_comes_in_its_turn():
    stream = ahead(chunks(1, 1, fails=True), Copies(), micro_batches=4)
    assert [next(stream).batch, next(stream).batch] == [-1, -2]
    with pytest.raises(ValueError, match="broken"):
        next(stream)


def test_mapped_keeps_every_type():
    pair = namedtuple("pair", "a b")
    one = torch.ones(2)
    batch = {"x": [one, (one,)], "y": pair(one, "text"), "z": UserDict(k=one), "o": OrderedDict(k=one), "n": 3}
    got = map_tensors(batch, lambda tensor: tensor + 1)
    assert type(got["y"]) is pair
    assert type(got["z"]) is UserDict
    assert type(got["o"]) is OrderedDict
    assert got["y"].b == "text"
    assert got["n"] == 3
    tensors = [got["x"][0], got["x"][1][0], got["y"].a, got["z"]["k"], got["o"]["k"]]
    assert all(torch.equal(tensor, one + 1) for tensor in tensors)
    assert torch.equal(batch["z"]["k"], one)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("pinned", [False, True])
def test_batches_arrive_on_a_gpu(pinned):
    from gpuwise.runtime.data.prefetch import StreamCopies

    device = torch.device("cuda", 0)
    source = (Chunk({"x": torch.full((1000, 1000), float(n))}, 0, n) for n in range(8))
    for number, chunk in enumerate(ahead(source, StreamCopies(device, pinned=pinned), micro_batches=2)):
        assert chunk.batch["x"].device == device
        assert (chunk.batch["x"] * 2).sum().item() == 2e6 * number
