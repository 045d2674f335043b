"""Saves while the training goes on: the state is copied, and a thread writes the copy."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from gpuwise.errors import GpuwiseError
from gpuwise.notes import Note
from gpuwise.runtime.checkpoint.snapshot import Snapshot
from gpuwise.runtime.checkpoint.state import Packed, pack
from gpuwise.runtime.checkpoint.store import CheckpointStore
from gpuwise.units import format_bytes


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk, whole.

    nbytes: its size.
    write_s: from the copy of the state until it was on the disk.
    cpu_s: processor time of that.
    held_up_s: what the training waited, on the host and the device.
    notes: what the user should know, one sentence each.
    """

    step: int
    path: Path
    nbytes: int
    write_s: float
    cpu_s: float
    held_up_s: float = 0.0
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class SaveFailure:
    """A checkpoint could not be written. Nothing of it is left, and the older ones are still there. error: a sentence."""

    step: int
    error: str
    held_up_s: float = 0.0


Outcome = Saved | SaveFailure


@dataclass(frozen=True)
class Save:
    """What is to be saved beside the state.

    Attributes:
        step: optimizer steps done.
        meta: JSON that Checkpoint.meta gives back.
        best: whether no checkpoint of this run was better, so that it outlives the others.
        last: whether it is the run's last.
    """

    step: int
    meta: Mapping[str, object] | None
    best: bool
    last: bool = False


class Saver:
    """Writes a run's checkpoints, one at a time. For the run that has the store's folder to itself.

    A state is a dict of parts (see `state`); meta and best are those of Save.
    """

    def __init__(self, store: CheckpointStore):
        self.store = store
        self._snapshot = Snapshot()
        self._thread: threading.Thread | None = None
        self._outcomes: deque[Outcome] = deque()
        self._remove_leftovers()

    def begin(
        self, step: int, state: Mapping[str, object], *, meta: Mapping[str, object] | None = None, best: bool = False
    ) -> None:
        """Copies the state and has it written.

        Waits first for a checkpoint that is still being written. Where the host's memory is too small for a copy, it
        returns when all is written. Raises InputError or UnsupportedError for a state that cannot be saved.
        """
        start_s, save = time.perf_counter(), Save(step, meta, best)
        self._join()
        packed = self._pack(state)
        lacking = self._lack_of_room(packed, save)
        if lacking is not None or not self._snapshot.has_room_for(packed):
            outcome = lacking or self._write(packed, save)
            self._outcomes.append(replace(outcome, held_up_s=time.perf_counter() - start_s))
            return
        packed = self._snapshot.take(packed)
        held_up_s = time.perf_counter() - start_s
        # A process that is told to end at once does not wait for the thread: what it leaves aside is no checkpoint.
        self._thread = threading.Thread(target=self._write_copy, args=(packed, save, held_up_s), name="checkpoint", daemon=True)
        self._thread.start()

    def save_now(
        self, step: int, state: Mapping[str, object], *, meta: Mapping[str, object] | None = None, best: bool = False
    ) -> Outcome:
        """Writes the run's last checkpoint and returns when it is there, or is not. What was still being written is waited for.

        Raises InputError or UnsupportedError for a state that cannot be saved.
        """
        start_s, save = time.perf_counter(), Save(step, meta, best, last=True)
        self._join()
        packed = self._pack(state)
        outcome = self._lack_of_room(packed, save) or self._write(packed, save)
        return replace(outcome, held_up_s=time.perf_counter() - start_s)

    def poll(self) -> tuple[Outcome, ...]:
        """What has ended since the last call; cheap enough for every step."""
        if not self._outcomes:
            return ()
        return tuple(self._outcomes.popleft() for _ in range(len(self._outcomes)))

    def finish(self) -> tuple[Outcome, ...]:
        """Waits for what is being written, then as `poll`."""
        self._join()
        return self.poll()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _remove_leftovers(self) -> None:
        self.store.remove_leftovers()

    def _pack(self, state: Mapping[str, object]) -> Packed:
        """Raises InputError or UnsupportedError for a state that cannot be saved."""
        return pack(state)

    def _lack_of_room(self, packed: Packed, save: Save) -> SaveFailure | None:
        try:
            lack = self.store.room_for(packed.nbytes, last=save.last)
        except OSError as error:
            lack = f"{self.store.folder} cannot be used: {error.strerror}"
        return None if lack is None else SaveFailure(save.step, self._sentence(save.step, lack))

    def _put(self, packed: Packed, save: Save) -> tuple[Path, int]:
        """Writes the checkpoint. Returns its path and size; raises the error that kept it from being written."""
        checkpoint = self.store.write(packed, step=save.step, meta=save.meta, best=save.best)
        return checkpoint.path, checkpoint.manifest.nbytes

    def _write_copy(self, packed: Packed, save: Save, held_up_s: float) -> None:
        outcome = self._write(packed, save)
        self._outcomes.append(replace(outcome, held_up_s=held_up_s + outcome.held_up_s))

    def _write(self, packed: Packed, save: Save) -> Outcome:
        """Its held_up_s is what the device spent on copies; the caller adds its own."""
        start_s, start_cpu_s, device_s = time.perf_counter(), time.thread_time(), 0.0
        try:
            device_s = self._snapshot.wait()
            path, nbytes = self._put(packed, save)
        except Exception as error:  # the run goes on whatever it was, and its user is told
            return SaveFailure(save.step, self._sentence(save.step, self._why(error, packed.nbytes)), device_s)
        write_s, cpu_s = time.perf_counter() - start_s, time.thread_time() - start_cpu_s
        notes = tuple(self.store.notes)
        self.store.notes.clear()
        return Saved(save.step, path, nbytes, write_s, cpu_s, device_s, notes)

    def _why(self, error: Exception, nbytes: int = 0) -> str:
        if isinstance(error, GpuwiseError):
            return error.what.rstrip(".")
        if not isinstance(error, OSError):
            return f"{type(error).__name__}: {error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = format_bytes(self.store.files.free_bytes(self.store.folder))
            needs = f"it needs {format_bytes(nbytes)}, " if nbytes else ""
            return f"the disk is full: {needs}{free} are free in {self.store.folder}"
        return f"{error.strerror or error} ({self.store.folder})"

    def _sentence(self, step: int, why: str) -> str:
        older = True
        with suppress(OSError):  # of a disk that does not even list its names
            older = bool(self.store.all())
        return f"no checkpoint of step {step}: {why}. {'The older ones are still there' if older else 'There is no older one'}."
