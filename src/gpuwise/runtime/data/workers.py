"""Worker processes that read data: PyTorch's DataLoader workers, made to ignore stop signals.

A signal to a whole process group (Ctrl-C, a scheduler's SIGTERM) must not end the workers before the training has
finished its step and saved. The workers end on `close`, or when the training process ends.
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
# Seconds that a worker has to exit after a request; it is killed after that.
CLOSING_S = 2.0
KILLED_S = 5.0  # until a process is gone that the system has ended; milliseconds, but for a busy machine
_NO_WORKERS = "read in the training's own process: --loader-workers 0"


class Workers:
    """Iterates over the batches of worker processes in order. The first `next` starts them, `close` ends them.

    Raises JobError when a worker dies, when the data cannot be sent to a worker, or when the job's code raises in one.
    """

    def __init__(self, loader: DataLoader[object]):
        self.loader = loader
        self._batches = _started(loader)
        self._processes = list(self._batches._workers)
        self._end = weakref.finalize(self, _kill, self._processes)  # runs at interpreter exit, too

    @classmethod
    def of_samples(
        cls, reader: Indexed, indices: Iterable[object], *, workers: int, ahead: int, loader: DataLoader[object] | None = None
    ) -> Workers:
        """Starts processes that read `reader[index]` for each index. Other settings come from the job's loader.

        Arguments:
            ahead: indices that each process reads ahead.
        """
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
        """The process that delivers the next batch; None if PyTorch's internals do not show it."""
        try:
            number = self._batches._task_info[self._batches._rcvd_idx][0]
            return f"worker process {number} (pid {self._processes[number].pid})"
        except (AttributeError, LookupError, TypeError):
            return None

    def close(self) -> None:
        """Ends the processes: requests an exit first, then kills those that hang."""
        if not self._end.alive:
            return
        if any(process.exitcode for process in self._processes):
            _kill(self._processes)
            # One that was killed may have had the lock of the event that PyTorch sets next, which would wait without end.
            self._batches._workers_done_event = threading.Event()  # type: ignore[assignment]
        late = threading.Timer(CLOSING_S, _kill, [self._processes])
        late.start()
        with suppress(RuntimeError):  # raised for a worker that died earlier
            self._batches._shutdown_workers()
        late.cancel()
        self._end()

    def _check_alive(self) -> None:
        for number, process in enumerate(self._processes):
            code = process.exitcode
            if code:  # 0: the worker had nothing left to read
                _kill(self._processes)
                raise _died(number, process.pid, code)


class WorkerSettings(TypedDict):
    """Arguments of a DataLoader that concern its worker processes."""

    num_workers: int
    multiprocessing_context: str | BaseContext | None
    timeout: float
    worker_init_fn: Callable[[int], None]


def settings(loader: DataLoader[object] | None, workers: int) -> WorkerSettings:
    """DataLoader arguments for workers that ignore signals; other settings come from the job's loader.

    Processes are forked on Linux: a fork takes milliseconds, pickles nothing and shares the data set's memory. A start
    method set on the job's loader takes precedence.
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
    """Initializes a worker: ignores signals, ends with its parent, then calls the job's own worker_init_fn."""

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
    """An error in a worker, sent to the training process."""

    what: str
    ways_out: tuple[str, ...] = ()


class Indexed(Protocol):
    """An object that is read by index."""

    def __getitem__(self, index: Any, /) -> object: ...


class ErrorsAsItems(Dataset[object]):
    """A map-style data set that returns errors as items, so that the training process sees them unchanged and in order."""

    def __init__(self, data: Indexed):
        self.data = data

    def __getitem__(self, index: object) -> object:
        try:
            return self.data[index]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit would end this process silently
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
    """Starts the loader's processes and returns its iterator. Raises JobError when the data cannot be sent to them."""
    handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
    try:
        with _signals_wait(), warnings.catch_warnings():
            # Python warns that a lock held by another thread stays locked in a fork; workers use none of our locks.
            warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
            warnings.filterwarnings("ignore", message="Got pickle error", category=UserWarning)
            return cast(_MultiProcessingDataLoaderIter, iter(loader))  # or torchdata's, which has the same attributes
    except (PicklingError, AttributeError, TypeError) as error:
        if "pickle" not in str(error).lower():
            raise
        raise JobError(
            f"the job's data cannot be sent to worker processes: {error}.",
            ["define its class and functions at the top of a module", _NO_WORKERS],
        ) from error
    finally:
        # When a worker dies, PyTorch's handler raises at an arbitrary point of the training, even within an update.
        # Without it the death is noticed at the request for the next batch.
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, handler)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Blocks signals while processes start, so that no signal reaches a worker before it ignores them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    """Ends this process when its parent ends, even if the job's code hangs."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _kill(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        if process.exitcode is None:
            process.kill()
    for process in processes:
        process.join(KILLED_S)


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
