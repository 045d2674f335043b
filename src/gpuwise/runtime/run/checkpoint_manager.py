"""CheckpointManager: when a run is saved, what became of it, and what that took."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from gpuwise.errors import GpuwiseError
from gpuwise.plan.economics.terms import DEFAULT_INTERRUPTIONS_PER_DAY
from gpuwise.runtime.checkpoint import (
    FIRST_S,
    Checkpoint,
    CheckpointStore,
    Outcome,
    SaveFailure,
    SaveInterval,
    Saver,
    choose_interval,
)
from gpuwise.runtime.health import DiskWatch
from gpuwise.units import format_duration

Event = tuple[dict[str, Any], str]  # a record for the log, and a sentence for the user or ""


class CheckpointManager:
    """The checkpoints of one run, written while it goes on.

    Arguments:
        save_every_s: seconds between them; None chooses them from what a save takes and the interruptions to expect.

    due_s: when the next save is, by perf_counter. last: step and time of the newest that is complete. problem: why the
    latest save failed. save_s: what a save takes from its beginning to the disk, as last measured.
    """

    def __init__(
        self, folder: Path, device: torch.device, *, keep: int, save_every_s: float | None, interruptions_per_day: float | None
    ):
        self._store = CheckpointStore(folder, keep=keep)
        self._saver = Saver(self._store)
        self._disk = DiskWatch(folder)
        self._device, self._every_s = device, save_every_s
        self._interruptions = DEFAULT_INTERRUPTIONS_PER_DAY if interruptions_per_day is None else interruptions_per_day
        self._interval: SaveInterval | None = None  # None: as asked, or chosen after the first save
        self.due_s, self._begun_s = math.inf, -math.inf
        self._ended: list[Outcome] = []
        self._is_last = False
        self.last: tuple[int, float] | None = None
        self.problem: str | None = None
        self.save_s = 0.0
        self._count, self._nbytes, self._held_up_s = 0, 0, 0.0

    def latest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole checkpoint, and what there is to say of others. Raises FileFormatError as CheckpointStore does."""
        found = self._store.latest()
        notes, self._store.notes = self._store.notes, []
        return found, notes

    def started(self, *, now_s: float) -> None:
        """The run has begun: its clock for saves."""
        self.due_s = now_s + self._interval_s()

    def save(self, step: int, state: Mapping[str, Any], meta: Mapping[str, Any], *, best: bool, wait: bool) -> None:
        """Begins a save, or (wait) makes one. What became of it is told by `look`."""
        self._begun_s, self.due_s, self._is_last = time.perf_counter(), math.inf, wait  # no other until this one is on the disk
        try:
            if wait:
                self._ended.append(self._saver.save_now(step, state, meta=meta, best=best))
            else:
                self._saver.begin(step, state, meta=meta, best=best)
        except GpuwiseError as error:  # of a state that cannot be saved: the run is worth more than this save
            self._ended.append(SaveFailure(step, f"no checkpoint of step {step}: {error.what}"))

    def look(self, *, now_s: float) -> list[Event]:
        """What has ended since the last look, and how the disk stands."""
        ended, self._ended = [*self._saver.poll(), *self._ended], []
        events = [self._account(outcome, now_s=now_s) for outcome in ended]
        if self._count and self._disk.due(now_s) and (told := self._disk.look(now_s, self._nbytes)):
            events.append(({}, told))
        return events

    def wait(self) -> None:
        """For what is being written."""
        self._ended += self._saver.finish()

    def told(self) -> dict[str, Any]:
        """For the account of the run."""
        return {
            "count": self._count,
            "last_step": None if self.last is None else self.last[0],
            "bytes": self._nbytes,
            "held_up_s": self._held_up_s,
            "save_s": self.save_s,
            "interval_s": self._interval_s(),
            "sentence": self._sentence() if self._count > 1 else "",
            "problem": self.problem,
        }

    def _account(self, outcome: Outcome, *, now_s: float) -> Event:
        self._held_up_s += outcome.held_up_s
        if isinstance(outcome, SaveFailure):
            self.problem = outcome.error
            self.due_s = min(self.due_s, now_s + self._interval_s())
            return {"step": outcome.step, "failed": outcome.error}, outcome.error
        news = self._count == 0 and not self._is_last and self._every_s is None
        self.problem, self.last, self.save_s = None, (outcome.step, now_s), outcome.held_up_s + outcome.write_s
        self._count, self._nbytes = self._count + 1, outcome.nbytes
        if self._every_s is None:
            cpu_s = outcome.cpu_s if self._device.type == "cpu" else 0.0  # of a GPU's run the processor has time for it
            self._interval = choose_interval(
                save_s=outcome.write_s, held_up_s=outcome.held_up_s, cpu_s=cpu_s, interruptions_per_day=self._interruptions
            )
        self.due_s = self._begun_s + self._interval_s()
        record = {
            "step": outcome.step,
            "path": str(outcome.path),
            "bytes": outcome.nbytes,
            "held_up_s": outcome.held_up_s,
            "write_s": outcome.write_s,
            "interval_s": self._interval_s(),
        }
        said = [*([f"{self._sentence()}."] if news else []), *outcome.notes]
        return record, " ".join(said)

    def _interval_s(self) -> float:
        if self._every_s is not None:
            return self._every_s
        return FIRST_S if self._interval is None else self._interval.seconds

    def _sentence(self) -> str:
        if self._every_s is not None:
            return f"a checkpoint every {format_duration(self._every_s)}, as asked"
        return "" if self._interval is None else self._interval.sentence
