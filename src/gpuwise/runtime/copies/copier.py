"""Copier: copies checkpoints in a thread beside the training, the newest next; on other machines a Follower does their part."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import GpuwiseError
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore
from gpuwise.runtime.copies.copy_folder import CopyFolder
from gpuwise.runtime.copies.machines import OVER, Machines
from gpuwise.runtime.copies.mount import CopyGivenUpError
from gpuwise.runtime.copies.records import write_record

SILENT_S = 600.0  # a mount may upload a whole file in its close; one that is silent for longer is waited for no more


@dataclass(frozen=True)
class Copied:
    """A checkpoint is complete in the folder of copies.

    nbytes: its size. copy_s: seconds that the copy took; 0 for one that was there before.
    """

    step: int
    nbytes: int
    copy_s: float


@dataclass(frozen=True)
class CopyFailure:
    """A checkpoint or a record could not be copied. Those before it are still there. why: a clause."""

    step: int
    why: str


CopyOutcome = Copied | CopyFailure


class CopyThread:
    """A thread that does one task at a time, and next the latest of those that were wanted meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next: Callable[[], object] | None = None
        self._busy, self._given_up, self._moved_s = False, False, 0.0

    @property
    def busy(self) -> bool:
        return self._busy

    def begin(self, task: Callable[[], object]) -> None:
        """Has a task done after the one in progress, in place of another that waits."""
        with self._changed:
            self._next = task
            if not self._busy:
                self._busy, self._moved_s = True, time.perf_counter()
                threading.Thread(target=self._work, name="copies", daemon=True).start()

    def progress(self) -> None:
        """Called from tasks as they move on. Raises CopyGivenUpError once there is no more time."""
        self._moved_s = time.perf_counter()
        if self._given_up:
            raise CopyGivenUpError

    def wait(self, *, until_s: float | None = None, silent_s: float = SILENT_S) -> bool:
        """Waits until all is done. Returns whether it is; what is not is given up, and nothing is begun any more.

        Arguments:
            until_s: the latest time, by perf_counter; None: as long as it moves on.
            silent_s: for which it may not move on then.
        """
        with self._changed:
            self._moved_s = time.perf_counter()
            while self._busy:
                left_s = (self._moved_s + silent_s if until_s is None else until_s) - time.perf_counter()
                if left_s <= 0:
                    self._given_up = True
                    return False
                self._changed.wait(min(left_s, 1.0))
        return True

    def give_up(self) -> None:
        """Ends the task in progress at its next chunk."""
        self._given_up = True

    def _work(self) -> None:
        while True:
            with self._changed:
                task, self._next = self._next, None
                if task is None or self._given_up:
                    self._busy = False
                    self._changed.notify_all()
                    return
            task()


class Copier:
    """Copies the checkpoints of a run as they are made. For rank 0, or a process alone.

    Arguments:
        store: the run's checkpoints.
        copy: where they are copied to.
        run: folder of the run.
        machines: how machines share the work.

    Attributes:
        work: its thread.
        copied_step: step of the newest checkpoint that is complete in the folder; None before one is.
        copy_s: seconds of the latest copy; 0 before the first.
    """

    def __init__(self, store: CheckpointStore, copy: CopyFolder, run: Path, machines: Machines):
        self.work = CopyThread()
        self.copied_step: int | None = None
        self.copy_s = 0.0
        self._store, self._copy, self._run, self._machines = store, copy, run, machines
        self._outcomes: deque[CopyOutcome] = deque()

    def begin(self, step: int) -> None:
        """Has the checkpoint of a step copied, and the best one where that is not there yet."""
        self.work.begin(lambda: self._copy_with_best(step))

    def begin_record(self, step: int) -> None:
        """Has the log and what else belongs to the run copied, as they are after `step`."""
        self.work.begin(lambda: self._attempt(step, self._write_record))

    def end(self) -> None:
        """Ends the work of other machines."""
        self._machines.order(OVER)

    def poll(self) -> list[CopyOutcome]:
        """What has ended since the last call."""
        return [self._outcomes.popleft() for _ in range(len(self._outcomes))]

    def _copy_with_best(self, step: int) -> None:
        if self._attempt(step, lambda: self._put(step)):
            self.copied_step = step
        best = next((c for c in self._store.all() if c.looks_whole() and c.manifest.best), None)
        if best is not None and best.step < step:
            self._attempt(best.step, lambda: self._put(best.step))

    def _attempt(self, step: int, call: Callable[[], CopyOutcome | None]) -> bool:
        """Whether it is copied. The training goes on in any case."""
        try:
            outcome = call()
        except CopyGivenUpError:
            outcome = CopyFailure(step, "there was no more time")
        except Exception as error:
            outcome = CopyFailure(step, reason_of(error))
        if outcome is not None:
            self._outcomes.append(outcome)
        return isinstance(outcome, Copied)

    def _put(self, step: int) -> CopyOutcome:
        """Copies a checkpoint, its manifest last, then removes those that are no longer kept."""
        checkpoint = Checkpoint(self._store.path_of(step), step)
        self._store.in_use.add(step)
        try:
            if self._copy.has(checkpoint):
                return self._is_there(checkpoint, 0.0)
            began_s = time.perf_counter()
            self._copy.begin(checkpoint)
            self._machines.order(step)
            try:
                own = self._machines.share(checkpoint.manifest.files)
                self._copy.copy(checkpoint, own, progress=self.work.progress)
            finally:  # the others answer in any case
                problems = self._machines.problems(progress=self.work.progress)
            if problems:
                return CopyFailure(step, problems[0])
            self._write_record()
            self._copy.conclude(checkpoint, own)
        finally:
            self._store.in_use.discard(step)
        outcome = self._is_there(checkpoint, time.perf_counter() - began_s)
        with suppress(OSError):  # what stays there costs room alone
            self._copy.prune()
        return outcome

    def _is_there(self, checkpoint: Checkpoint, copy_s: float) -> Copied:
        self.copy_s = copy_s or self.copy_s
        return Copied(checkpoint.step, checkpoint.manifest.nbytes, copy_s)

    def _write_record(self) -> None:
        write_record(self._copy.files, self._run, self._copy.path, progress=self.work.progress)


class Follower:
    """Copies the files of another machine than rank 0's, whenever that orders it. Its `work` ends when rank 0 ends it.

    Arguments:
        store: the run's checkpoints, which all machines share.
    """

    def __init__(self, store: CheckpointStore, copy: CopyFolder, machines: Machines):
        self.work = CopyThread()
        self.copy_s = 0.0
        self._store, self._copy, self._machines = store, copy, machines
        self._over = False
        self.work.begin(self._follow)

    def end(self) -> None:
        """Ends it where rank 0 does not: the run has failed."""
        self._over = True

    def _follow(self) -> None:
        while (step := self._machines.ordered(until=lambda: self._over)) not in (None, OVER):
            assert step is not None
            began_s, problem = time.perf_counter(), None
            checkpoint = Checkpoint(self._store.path_of(step), step)
            try:
                self._copy.make_folder(checkpoint)
                self._copy.copy(checkpoint, self._machines.share(checkpoint.manifest.files), progress=self.work.progress)
            except CopyGivenUpError:
                problem = "there was no more time"
            except Exception as error:
                problem = reason_of(error)
            self._machines.answer(problem)
            self.copy_s = time.perf_counter() - began_s


def reason_of(error: Exception) -> str:
    """A clause without the path, which is the folder's."""
    if isinstance(error, GpuwiseError):
        return error.what.rstrip(".")
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return f"{type(error).__name__}: {error}"
