"""gpuwise's loader beside torchdata's StatefulDataLoader: does a resume give the same batches, and what does each cost?

    python -m benchmarks.loader_resume      # a minute; prints the table of docs/train.md

Both are stopped in the middle of an epoch, and continued in a new loader by what they saved. The random numbers of the process
are put back as a checkpoint does. "the same" means equal bits in every batch after the stop.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from gpuwise.job import Job
from gpuwise.runtime.checkpoint.program_state import random_state, seed_everything, set_random_state
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.strategy import HostSettings, Strategy

ROWS, BATCH, STOP, MORE = 400, 8, 7, 12
CPU = torch.device("cpu")


class Rows(Dataset[torch.Tensor]):
    """Samples by index; `drawn` adds what transforms commonly draw."""

    def __init__(self, rows: int = ROWS, *, drawn: bool = False):
        self.rows, self.drawn = rows, drawn

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> torch.Tensor:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(())) if self.drawn else 0.0
        return torch.full((16,), float(index) + noise)


class Stream(IterableDataset[torch.Tensor]):
    """The same samples, one after another."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((16,), float(index)) for index in range(ROWS))


class Ours:
    def __init__(self, data: Callable[[], object], workers: int, batch: int, accumulation: int = 1):
        job = Job(model=torch.nn.Identity, batch=lambda n: torch.zeros(n, 16), loss=lambda model, x: x.sum(), data=data)
        self.loader = MicroBatchLoader(
            job, Strategy(micro_batch=batch, accumulation=accumulation), HostSettings(loader_workers=workers)
        )
        self.steps = self.loader.steps()

    def load(self, state: object) -> None:
        self.loader.load(state)
        self.steps = self.loader.steps()

    def state(self) -> object:
        return self.loader.state()

    def next(self) -> torch.Tensor:
        return torch.cat(next(self.steps))

    def close(self) -> None:
        self.loader.close()


class Theirs:
    def __init__(self, data: Callable[[], object], workers: int, batch: int, accumulation: int = 1):
        made = data()
        generator = torch.Generator().manual_seed(0)
        shuffle = None if isinstance(made, IterableDataset) else True
        context = "fork" if workers else None
        self.loader = StatefulDataLoader(
            made, batch, shuffle=shuffle, num_workers=workers, generator=generator, multiprocessing_context=context
        )
        self.accumulation, self.batches = accumulation, iter(())

    def load(self, state: object) -> None:
        self.loader.load_state_dict(state)

    def state(self) -> object:
        return self.loader.state_dict()

    def next(self) -> torch.Tensor:
        if not hasattr(self.batches, "_index_sampler"):
            self.batches = iter(self.loader)
        return torch.cat([next(self.batches) for _ in range(self.accumulation)])

    def close(self) -> None:
        if hasattr(self.batches, "_shutdown_workers"):
            self.batches._shutdown_workers()


def resumed(kind: type, data: Callable[[], object], workers: int, *, then: tuple[int, int, int] | None = None) -> str:
    """Whether a run that is stopped goes on with the same batches. then: workers, batch and accumulation after the stop."""
    seed_everything(1)
    whole = kind(data, workers, BATCH)
    for _ in range(STOP):
        whole.next()
    saved, numbers = deepcopy(whole.state()), random_state(CPU)
    expected = [whole.next() for _ in range(MORE)]
    whole.close()
    seed_everything(2)
    again = kind(data, *(then or (workers, BATCH, 1)))
    try:
        again.load(saved)
        set_random_state(numbers, CPU)
        equal = all(torch.equal(again.next(), batch) for batch in expected)
        return "the same" if equal else "others"
    except Exception as error:
        return f"refused ({type(error).__name__})"
    finally:
        again.close()


def microseconds(kind: type, workers: int) -> float:
    """Processor time of a micro-batch of 32 rows, workers included: the least of five rounds, as other programs take no part
    in it."""
    costs = []
    for _ in range(5):
        began_s = _processor_s()
        loader = kind(lambda: Rows(64_000), workers, 32)
        for _ in range(600):
            loader.next()
        loader.close()
        costs.append((_processor_s() - began_s) / 600)
    return min(costs) * 1e6


def _processor_s() -> float:
    """Of this process, and of those that it started and waited for."""
    return sum(os.times()[:4])


def first_batch_s(kind: type) -> float:
    """Processor time from a saved position at nine tenths of two million rows to the first batch."""
    before = kind(lambda: Rows(2_000_000), 0, 4096)
    if kind is Ours:
        state = {**before.state(), "offset": 440 * 4096}
    else:
        for _ in range(440):
            before.next()
        state = before.state()
    before.close()
    again = kind(lambda: Rows(2_000_000), 0, 4096)
    began_s = time.process_time()
    again.load(state)
    again.next()
    return time.process_time() - began_s


def after_signal(kind: type) -> str:
    """What becomes of the next batches where SIGTERM goes to the whole process group; in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.loader_resume", "--signal", kind.__name__]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.strip()


def read_after_signal(kind: type) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: None)
    loader = kind(Rows, 2, 8)
    loader.next()
    os.killpg(0, signal.SIGTERM)
    try:
        deadline, ends = time.monotonic() + 1, "raised in the midst of the step"
        while time.monotonic() < deadline:
            pass
        ends = "raised by the next batch"
        for _ in range(20):
            loader.next()
        print("they come")
    except RuntimeError:
        print(f"RuntimeError, {ends}")
    finally:
        sys.stdout.flush()
        os._exit(0)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--signal"]:
        return read_after_signal({"Ours": Ours, "Theirs": Theirs}[sys.argv[2]])
    plain, drawn = Rows, lambda: Rows(drawn=True)
    rows: list[tuple[str, Callable[[type], str]]] = [
        ("rows, no workers", lambda kind: resumed(kind, plain, 0)),
        ("rows, 2 workers", lambda kind: resumed(kind, plain, 2)),
        ("rows with random transforms, no workers", lambda kind: resumed(kind, drawn, 0)),
        ("rows with random transforms, 2 workers", lambda kind: resumed(kind, drawn, 2)),
        ("rows, 2 workers, then 3", lambda kind: resumed(kind, plain, 2, then=(3, BATCH, 1))),
        ("rows, then half the micro-batch, accumulated", lambda kind: resumed(kind, plain, 0, then=(0, BATCH // 2, 2))),
        ("iterable without a state, no workers", lambda kind: resumed(kind, Stream, 0)),
        ("SIGTERM to the process group, 2 workers: the next batches", after_signal),
        ("processor time of 32 rows, no workers", lambda kind: f"{microseconds(kind, 0):.0f} µs"),
        ("processor time of 32 rows, 2 workers", lambda kind: f"{microseconds(kind, 2):.0f} µs"),
        ("first batch after a resume at 1.8 million rows", lambda kind: f"{first_batch_s(kind):.2g} s"),
    ]
    print("| stopped and continued | gpuwise | StatefulDataLoader |\n| --- | --- | --- |")
    for name, measure in rows:
        print(f"| {name} | {measure(Ours)} | {measure(Theirs)} |", flush=True)


if __name__ == "__main__":
    main()
