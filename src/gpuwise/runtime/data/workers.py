"""Worker processes that read data: PyTorch's own, ignoring signals that are meant for the training.

A signal to a whole process group (Ctrl-C, a scheduler's SIGTERM) must not end the workers before the training has
finished its step and saved. They end with `close`, when the training's process is gone, or by its end at the latest.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pickle import PicklingError
from typing import Any, Protocol, TypedDict, cast

import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from gpuwise.errors import GpuwiseError, JobError, message_of
from gpuwise.runtime.build.failure import job_line

IGNORED_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name))
# How long a worker may take to end once it was asked to; then it is ended.
CLOSING_S = 2.0
_NO_WORKERS = "read in the training's own process: --loader-workers 0"


class Workers:
    """What worker processes deliver, in order, from the first `next` to `close`.

    Raises JobError when a worker dies, when the data cannot be sent to one, or with what the job's code raised there.
    """

    def __init__(self, loader: DataLoader[object]):
        self.loader = loader
        self._batches = _started(loader)
        self._processes = list(self._batches._workers)
        self._end = weakref.finalize(self, _kill, self._processes)  # also when Python ends

    @classmethod
    def of_samples(
        cls, reader: Indexed, indices: Iterable[object], *, workers: int, ahead: int, loader: DataLoader[object] | None = None
    ) -> Workers:
        """Processes that read `reader[index]` for each index, `ahead` of them each; the rest as the job's loader says."""
        return cls(
            DataLoader(
                ErrorsAsItems(reader),
                batch_size=None,
                sampler=indices,
                collate_fn=_as_it_is,
                prefetch_factor=ahead,
                generator=torch.Generator().manual_seed(0),
                **settings(loader, workers),
            )
        )

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        self._check_alive()
        try:
            batch = next(self._batches)
        except RuntimeError:
            self._check_alive()
            raise
        if isinstance(batch, WorkerFailure):
            raise JobError(batch.what, batch.ways_out)
        return batch

    def next_of(self) -> str | None:
        """Which process the next batch comes from; None where PyTorch keeps its account of that in another way."""
        try:
            number = self._batches._task_info[self._batches._rcvd_idx][0]
            return f"worker process {number} (pid {self._processes[number].pid})"
        except (AttributeError, LookupError, TypeError):
            return None

    def close(self) -> None:
        """Ends the processes: asks them first, and does not wait long for one that hangs."""
        if not self._end.alive:
            return
        late = threading.Timer(CLOSING_S, _kill, [self._processes])
        late.start()
        with suppress(RuntimeError):  # what a worker that died before has to say
            self._batches._shutdown_workers()
        late.cancel()
        self._end()

    def _check_alive(self) -> None:
        for number, process in enumerate(self._processes):
            code = process.exitcode
            if code:  # 0: it had nothing left to read
                _kill(self._processes)
                raise _died(number, process.pid, code)


class WorkerSettings(TypedDict):
    """What a DataLoader is told about its worker processes."""

    num_workers: int
    multiprocessing_context: str | BaseContext | None
    timeout: float
    worker_init_fn: Callable[[int], None]


def settings(loader: DataLoader[object] | None, workers: int) -> WorkerSettings:
    """Workers that ignore signals, and for the rest as the job's loader has them.

    Processes are forked where that works well (Linux): it takes milliseconds, needs nothing pickled, and shares the data
    set's memory. A loader of the job's that names another way keeps it.
    """
    context = getattr(loader, "multiprocessing_context", None)
    if context is None and sys.platform == "linux":
        context = "fork"
    return {
        "num_workers": workers,
        "multiprocessing_context": context,
        "timeout": getattr(loader, "timeout", 0),
        "worker_init_fn": IgnoreSignals(getattr(loader, "worker_init_fn", None)),
    }


class IgnoreSignals:
    """The first thing a worker runs: ignores signals, ends with its parent, then what the job's loader asks for."""

    def __init__(self, then: Callable[[int], None] | None):
        self.then = then

    def __call__(self, number: int) -> None:
        for signal_ in IGNORED_SIGNALS:
            signal.signal(signal_, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
        threading.Thread(target=_end_with_parent, daemon=True).start()
        if self.then is not None:
            self.then(number)


@dataclass(frozen=True)
class WorkerFailure:
    """What went wrong in a worker, on its way to the training's process."""

    what: str
    ways_out: tuple[str, ...] = ()


class Indexed(Protocol):
    """What is read by an index."""

    def __getitem__(self, index: Any, /) -> object: ...


class ErrorsAsItems(Dataset[object]):
    """A map-style data set whose errors arrive in the training's process as they were, and in their turn."""

    def __init__(self, data: Indexed):
        self.data = data

    def __getitem__(self, index: object) -> object:
        try:
            return self.data[index]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit would end this process without a word
            return _failed(error)


def _failed(error: BaseException) -> WorkerFailure:
    line = job_line(error, None)
    at = f" ({line})" if line else ""
    if isinstance(error, GpuwiseError):
        return WorkerFailure(error.what, error.ways_out)
    text = message_of(error)[:400]
    if "CUDA" in text and "fork" in text:
        return WorkerFailure(
            f"the job's data uses the GPU in a worker process{at}, which a forked process cannot.",
            ("leave the GPU to the training: give tensors of the CPU", _NO_WORKERS),
        )
    return WorkerFailure(f"reading the data failed in a worker process{at}: {type(error).__name__}: {text}.")


def _started(loader: DataLoader[object]) -> _MultiProcessingDataLoaderIter:
    """The loader's iterator, its processes running. Raises JobError when the data cannot be sent to them."""
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    try:
        with _signals_wait(), warnings.catch_warnings():
            # Python's warning that a lock another thread holds stays locked in a fork: workers use none of ours.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message="Got pickle error", category=UserWarning)
            return cast(_MultiProcessingDataLoaderIter, iter(loader))  # or torchdata's, which is made like it
    except (PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise JobError(
            f"the job's data cannot be sent to worker processes: {error}.",
            ["define its class and functions at the top of a module", _NO_WORKERS],
        ) from error
    finally:
        # PyTorch's handler raises wherever the training happens to be when a worker dies: in the middle of an update,
        # say. Here it is noticed when the next batch is asked for.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Holds signals back while processes start, so that none meets a worker before it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Ends this process when its parent is gone, even when the job's code hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode is None:
            process.kill()
    for process in processes:
        process.join(CLOSING_S)


def _died(number: int, pid: int | None, code: int) -> JobError:
    if code > 0:
        return JobError(
            f"the worker process {number} that reads the data (pid {pid}) ended with exit code {code}.",
            ["see what it wrote to stderr", _NO_WORKERS],
        )
    name = signal.Signals(-code).name
    why = {
        "SIGKILL": "; the system does that when memory runs out",
        "SIGBUS": "; that happens when shared memory (/dev/shm) runs out",
    }.get(name, "")
    return JobError(
        f"the worker process {number} that reads the data (pid {pid}) was killed by {name}{why}.",
        ["fewer workers: --loader-workers 1", _NO_WORKERS],
    )


def _as_it_is(batch: object) -> object:
    return batch
