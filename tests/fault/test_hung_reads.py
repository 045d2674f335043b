"""Data that does not come: neither a signal nor a time limit waits for it, and the state between two steps is saved."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.checkpoint import CheckpointStore
from gpuwise.runtime.data import workers
from gpuwise.runtime.interruption import ReadGivenUp, ReadWatch, StopRequest, reading
from gpuwise.runtime.show import read_log
from gpuwise.strategy import HostSettings, Strategy

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals of POSIX"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
STOP = 5  # the last step whose data comes


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reading, "TICK_S", 0.01)
    monkeypatch.setattr(reading, "GRACE_S", 0.05)
    monkeypatch.setattr(reading, "AGAIN_S", 0.05)
    monkeypatch.setattr(workers, "CLOSING_S", 0.05)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGURG)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.getsignal(signal.SIGURG) == before[1]
    signal.signal(signal.SIGTERM, before[0])


class InWorker(Dataset[Any]):
    """The 21st row that is read never comes, where `hangs`."""

    hangs = True

    def __init__(self) -> None:
        self.read = itertools.count(1)

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None and next(self.read) > 4 * STOP and self.hangs:
            signal.pause()
        return ROWS[index]


class WholeInWorker(InWorker):
    hangs = False


def blocked_in_a_socket() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.recv(1)


def blocked_in_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def swallowing() -> None:
    """What tries again whatever happens, as code that reads from a network does."""
    for _ in range(3):
        try:
            blocked_in_a_lock()
        except Exception:
            continue


def stream_of(block: Callable[[], None] | None) -> Callable[[], IterableDataset[Any]]:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            yield from ROWS[: 4 * STOP]
            if block is not None:
                block()
            yield from ROWS[4 * STOP :]

    return Stream


def job_of(data: Callable[[], Any]) -> Job:
    return Job(
        model=lambda: nn.Linear(3, 1),
        batch=lambda n: torch.zeros(n, 3),
        loss=lambda model, x: model(x).square().mean(),
        data=data,
        samples=len(ROWS),
        name="toy",
        optimizer="momentum",
    )


def training(data: Callable[[], Any], folder: Path, *, loader_workers: int | None = None, **settings: Any) -> Training:
    strategy, host = Strategy(micro_batch=2, accumulation=2), HostSettings(loader_workers=loader_workers)
    return Training(
        job_of(data),
        strategy,
        TrainSettings(folder=folder, progress="silent", preemption="none", host=host, **{"steps": 10, **settings}),
    )


def losses(run: Training) -> dict[int, float]:
    return {step.step: step.loss for step in run}


def stopped(run: Training) -> dict[int, float]:
    """SIGTERM comes while the data of step STOP + 1 does not."""
    seen: dict[int, float] = {}
    blocked = threading.Event()

    def send() -> None:
        blocked.wait()
        while not run._run.loader.reading:  # step STOP was handed out: the next read begins at once
            pass
        signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    for step in run:
        seen[step.step] = step.loss
        if step.step == STOP:
            blocked.set()
    sender.join()
    return seen


def stubborn() -> None:
    """What catches more than it should."""
    for _ in range(2):
        try:
            blocked_in_a_lock()
        except BaseException:
            continue
    blocked_in_a_lock()


@pytest.mark.parametrize("block", [blocked_in_a_socket, blocked_in_a_lock, swallowing, stubborn])
def test_a_read_in_this_process_is_given_up_and_the_run_goes_on_later(block: Callable[[], None], tmp_path: Path):
    whole = losses(training(stream_of(None), tmp_path / "whole"))
    run = training(stream_of(block), tmp_path / "run")
    first = stopped(run)
    assert list(first) == list(range(1, STOP + 1))
    result = run.result
    assert result is not None
    assert (result.stopped, result.stop_reason, result.steps, result.unsaved) == ("interrupted", "SIGTERM", STOP, ())
    assert any(f"the data of step {STOP + 1} had not come for" in note for note in result.notes)
    assert [checkpoint.step for checkpoint in CheckpointStore(tmp_path / "run" / "checkpoints").all()] == [STOP]
    records = [record["record"] for record in read_log(tmp_path / "run" / "log.jsonl")]
    assert records[-2:] == ["checkpoint", "summary"]
    assert "interrupted" in records
    assert first | losses(training(stream_of(None), tmp_path / "run")) == whole


def test_a_hung_worker_is_given_up_named_and_ended(tmp_path: Path):
    whole = losses(training(WholeInWorker, tmp_path / "whole", loader_workers=1))
    run = training(InWorker, tmp_path / "run", loader_workers=1)
    first = stopped(run)
    assert run.result is not None
    assert (run.result.stopped, run.result.steps) == ("interrupted", STOP)
    [note] = [note for note in run.result.notes if "had not come" in note]
    assert "from worker process 0 (pid " in note
    assert_workers_end()
    assert first | losses(training(WholeInWorker, tmp_path / "run", loader_workers=1)) == whole


def assert_workers_end() -> None:
    """Workers are killed where they hang; on a busy machine that is not at once."""
    for child in multiprocessing.active_children():
        child.join(30)
    assert multiprocessing.active_children() == []


def test_a_time_limit_holds_while_a_worker_hangs(tmp_path: Path):
    run = training(InWorker, tmp_path / "run", loader_workers=1, time_limit_s=1.0)
    assert max(losses(run)) == STOP
    assert run.result is not None
    assert (run.result.stopped, run.result.steps) == ("time limit", STOP)
    assert_workers_end()


def test_data_that_never_comes_at_all_leaves_nothing_behind(tmp_path: Path):
    class Never(IterableDataset[Any]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            blocked_in_a_lock()
            yield ROWS[0]

    run = training(Never, tmp_path / "run", time_limit_s=0.2)
    assert losses(run) == {}
    assert run.result is not None
    assert (run.result.stopped, run.result.steps, run.result.run_folder) == ("time limit", 0, None)
    assert list(tmp_path.iterdir()) == []


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Reading:
    reading, reads = False, 0


def test_a_read_has_its_time_and_only_the_end_of_the_run_ends_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reading, "GRACE_S", 2.0)
    monkeypatch.setattr(reading, "AGAIN_S", 5.0)
    clock, reads, request = Clock(), Reading(), []
    watch = ReadWatch(reads, lambda: request[0] if request else None, clock=clock)
    assert not watch.look()
    reads.reading, reads.reads = True, 1
    for clock.now_s in range(100):
        assert not watch.look()  # slow is no reason
    request.append(StopRequest("signal", "SIGTERM"))
    assert watch.look()
    reads.reads = 2  # it came after all
    assert not watch.look()
    clock.now_s += 1.9
    assert not watch.look()
    clock.now_s += 0.2
    assert watch.look()
    reads.reading = False
    assert not watch.look()
    watch._on(signal.SIGURG, None)  # a signal too late raises nothing
    reads.reading = True
    with pytest.raises(ReadGivenUp) as caught:
        watch._on(signal.SIGURG, None)
    assert caught.value.request is request[0]
    assert not watch.look()  # it has time to clean up
    clock.now_s += 5.0
    assert watch.look()  # somebody's bare `except:` has caught it


def test_a_run_in_another_thread_changes_no_handler():
    watched = []

    def run() -> None:
        with ReadWatch(Reading(), lambda: None) as watch:
            watched.append((watch._thread, signal.getsignal(signal.SIGURG)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert watched == [(None, signal.SIG_DFL)]
