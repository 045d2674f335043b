"""Worker processes that die, hang, or meet signals that were not meant for them."""

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from gpuwise.errors import JobError
from gpuwise.job import Job
from gpuwise.runtime.data import MicroBatchLoader, workers
from gpuwise.strategy import HostSettings, Strategy

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="needs signals of POSIX"),
]


class Rows(Dataset):
    """Hangs, or ends its process, when a row asks for it."""

    def __init__(self, *, hangs=False, dies=None):
        self.hangs, self.dies = hangs, dies

    def __len__(self):
        return 64

    def __getitem__(self, index):
        if multiprocessing.parent_process() is not None:
            if self.hangs:
                signal.pause()
            if self.dies is not None:
                os.kill(os.getpid(), self.dies)
        return torch.tensor(float(index))


def loader_of(data, count=1):
    job = Job(model=nn.Identity, batch=lambda n: torch.zeros(n), loss=lambda model, batch: batch, data=lambda: data)
    return MicroBatchLoader(job, Strategy(micro_batch=4), HostSettings(loader_workers=count))


def alive(pid):
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_ends_the_run_with_its_cause(number):
    loader = loader_of(Rows(), count=2)
    steps = loader.steps()
    next(steps)
    victim = multiprocessing.active_children()[0]
    os.kill(victim.pid, number)
    victim.join()
    with pytest.raises(JobError, match=f"pid {victim.pid}\\) was killed by {number.name}") as caught:
        list(itertools.islice(steps, 20))
    assert "--loader-workers 0" in caught.value.ways_out[1]
    loader.close()
    assert multiprocessing.active_children() == []


def take(event):
    event._cond.acquire()


def test_a_worker_that_was_killed_with_a_lock_is_not_waited_for():
    source = loader_of(Rows())._source.reader, iter([(0, 0, 0, [number]) for number in range(9)])
    processes = workers.Workers.of_samples(*source, workers=1, ahead=1)
    next(processes)
    fork = multiprocessing.get_context("fork")
    dead = fork.Process(target=take, args=(processes._batches._workers_done_event,))
    dead.start()
    dead.join()  # the lock stays its own, as that of a worker that ends between taking and returning it
    (victim,) = processes._processes
    victim.kill()
    victim.join()
    processes.close()
    assert multiprocessing.active_children() == []


def test_a_worker_that_dies_while_it_reads():
    loader = loader_of(Rows(dies=signal.SIGKILL))
    with pytest.raises(JobError, match="SIGKILL; the system does that when memory runs out"):
        next(loader.steps())
    loader.close()
    assert multiprocessing.active_children() == []


def test_a_dying_worker_does_not_interrupt_the_training():
    """PyTorch's own handler would raise in the middle of whatever the training does."""
    before = signal.getsignal(signal.SIGCHLD)
    loader = loader_of(Rows())
    next(loader.steps())
    assert signal.getsignal(signal.SIGCHLD) is before
    loader.close()


def test_a_hanging_worker_does_not_survive(monkeypatch):
    monkeypatch.setattr(workers, "CLOSING_S", 0.2)
    loader = loader_of(Rows(hangs=True))
    source = loader._source.reader, iter([(0, 0, 0, [0])])
    processes = workers.Workers.of_samples(*source, workers=1, ahead=1)
    [child] = multiprocessing.active_children()
    processes.close()
    assert not child.is_alive()
    processes.close()  # again: nothing to do
    assert multiprocessing.active_children() == []


def test_workers_outlive_signals_to_the_whole_group():
    loader = loader_of(Rows(), count=2)
    steps = loader.steps()
    next(steps)
    for child in multiprocessing.active_children():
        for number in workers.IGNORED_SIGNALS:
            os.kill(child.pid, number)
    for _ in range(30):
        next(steps)
    loader.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="looks at /proc")
def test_workers_end_with_a_killed_run():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import multiprocessing, os, signal, test_data_faults as t\n"
        "loader = t.loader_of(t.Rows(), count=2)\n"
        "next(loader.steps())\n"
        "print(*[child.pid for child in multiprocessing.active_children()], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.02)


def test_a_run_that_forgets_to_close_ends():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_data_faults as t\n"
        "loader = t.loader_of(t.Rows(), count=2)\n"
        "steps = loader.steps()\n"
        "next(steps)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, os.path.dirname(__file__)], timeout=60, check=False)
    assert done.returncode == 0
