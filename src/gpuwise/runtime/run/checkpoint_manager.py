"""The checkpoints of a run: when its state is saved, what became of each save, and what that took.

RunCheckpoints is what the loop of a run works with. It hands the run's state to a CheckpointManager, which decides when, and
has gpuwise.runtime.checkpoint write it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch

from gpuwise.errors import GpuwiseError
from gpuwise.json_types import finite
from gpuwise.notes import Note
from gpuwise.notes import sentences as sentences_of
from gpuwise.plan.economics.spot import DEFAULT_INTERRUPTIONS_PER_DAY
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
from gpuwise.runtime.health import DiskWatch, StallWatch
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.run_state import RunState
from gpuwise.runtime.run.save_checks import check_saveable
from gpuwise.units import format_duration

Event = tuple[dict[str, object], str]  # a record for the log, and a sentence for the user or ""


class CheckpointSummary(TypedDict):
    """What the result of a run has of its checkpoints.

    count: written by this process.
    last_step: of the newest; None without any.
    bytes: of the newest.
    held_up_s: what all of them together held the training up.
    save_s: of the newest, from its beginning to the disk.
    interval_s: between two.
    sentence: how the interval was chosen; "" after fewer than two.
    problem: why the latest save failed; None where it did not.
    """

    count: int
    last_step: int | None
    bytes: int
    held_up_s: float
    save_s: float
    interval_s: float
    sentence: str
    problem: str | None


class CheckpointManager:
    """Writes checkpoints while the run goes on, and knows when the next is due.

    Arguments:
        folder: of the checkpoints.
        keep: so many of them, beside the best.
        save_every_s: seconds between them; None chooses them from what a save takes and the interruptions to expect.
        interruptions_per_day: of the machine, expected; None: the usual.

    Attributes:
        due_s: when the next save is due, by perf_counter.
        last: step and time of the newest that is complete.
        problem: why the latest save failed.
        save_s: what a save takes from its beginning to the disk, as last measured.
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

    def latest(self) -> tuple[Checkpoint | None, list[Note]]:
        """The newest whole checkpoint, and what there is to say of others. Raises FileFormatError as CheckpointStore does."""
        checkpoint = self._store.latest()
        notes, self._store.notes = self._store.notes, []
        return checkpoint, notes

    def started(self, *, now_s: float) -> None:
        """The run has begun: its clock for saves."""
        self.due_s = now_s + self._interval_s()

    def save(self, step: int, state: Mapping[str, object], meta: Mapping[str, object], *, best: bool, wait: bool) -> None:
        """Begins a save, or (wait) makes one. `look` gives what became of it."""
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
        events = [self._event_of(outcome, now_s=now_s) for outcome in ended]
        if self._count and self._disk.due(now_s) and (warning := self._disk.look(now_s, self._nbytes)):
            events.append(({}, warning))
        return events

    def wait(self) -> None:
        """For what is being written."""
        self._ended += self._saver.finish()

    def summary(self) -> CheckpointSummary:
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

    def _event_of(self, outcome: Outcome, *, now_s: float) -> Event:
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
        record: dict[str, object] = {
            "step": outcome.step,
            "path": str(outcome.path),
            "bytes": outcome.nbytes,
            "held_up_s": outcome.held_up_s,
            "write_s": outcome.write_s,
            "interval_s": self._interval_s(),
        }
        sentences = [*([f"{self._sentence()}."] if news else []), *sentences_of(outcome.notes)]
        return record, " ".join(sentences)

    def _interval_s(self) -> float:
        if self._every_s is not None:
            return self._every_s
        return FIRST_S if self._interval is None else self._interval.seconds

    def _sentence(self) -> str:
        if self._every_s is not None:
            return f"a checkpoint every {format_duration(self._every_s)}, as asked"
        return "" if self._interval is None else self._interval.sentence


class RunCheckpoints:
    """The checkpoints of a run: none, where it has no folder.

    Arguments:
        manager: None for a run without a folder; every method does nothing then.
        state: what is saved.
        meter: told that a save is no training.
        stall: told that a save may take long.
    """

    def __init__(
        self, manager: CheckpointManager | None, state: RunState, *, reporter: Reporter, meter: Meter, stall: StallWatch
    ):
        self.manager, self.state = manager, state
        self._reporter, self._meter, self._stall = reporter, meter, stall

    @property
    def due_s(self) -> float:
        """When the next save is due, by perf_counter."""
        return math.inf if self.manager is None else self.manager.due_s

    @property
    def save_s(self) -> float:
        """What a save takes, as last measured; 0 before."""
        return 0.0 if self.manager is None else self.manager.save_s

    @property
    def begun(self) -> bool:
        """Whether there is something to save: the run has a folder, and a step of it had a finite loss."""
        return self.manager is not None and self._reporter.begun

    def check(self) -> None:
        """Raises InputError or UnsupportedError for a state that cannot be saved, as it is now."""
        if self.manager is not None:
            check_saveable(self._state(), self._meta())

    def start(self) -> None:
        """From now on the time to the next save counts."""
        if self.manager is not None:
            self.manager.started(now_s=self._meter.now_s)

    def save(self, step: int, *, best: bool = False, wait: bool = False) -> None:
        """A checkpoint of the run as it is after `step`; with `wait` it is on the disk when this returns. Weights that are no
        longer finite are not saved."""
        if self.manager is None:
            return
        self._stall.beat("save")
        if problem := self.state.not_finite():
            self.manager.problem = f"no checkpoint of step {step}: {problem}."
            self._reporter.tell(self.manager.problem, "checkpoint")
            return
        began_s = time.perf_counter()
        self.manager.save(step, self._state(), self._meta(), best=best, wait=wait)
        self._meter.pause(time.perf_counter() - began_s)
        self.look()

    def save_last(self, step: int) -> None:
        """As `save`, and waits until it is on the disk. What an evaluation has just saved is not saved again."""
        if self.manager is None:
            return
        self.wait()
        if self.manager.last is None or self.manager.last[0] != step:
            self.save(step, wait=True)

    def wait(self) -> None:
        """Until what is being written is on the disk."""
        if self.manager is not None:
            self.manager.wait()
            if self._reporter.begun:
                self.look()

    def look(self) -> None:
        """Tells which saves have ended since the last look, and of a disk that is nearly full."""
        if self.manager is None:
            return
        for record, sentence in self.manager.look(now_s=self._meter.now_s):
            if record:
                self._reporter.log.write("checkpoint", record)
            if sentence:
                self._reporter.tell(sentence, "checkpoint")

    def _state(self) -> dict[str, object]:
        return self.state.state(spent_s=self._meter.spent_s)

    def _meta(self) -> dict[str, object]:
        """What a checkpoint says of the run, for whoever looks at it."""
        evaluations = self.state.evaluations
        return finite({"metrics": evaluations.metrics, "best": evaluations.best, "run": self._reporter.identity})
