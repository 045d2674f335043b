"""The checkpoints of a run: the times, results and costs of saves.

The loop of a run calls RunCheckpoints. It passes the run's state to a CheckpointManager, which chooses the times of saves
and writes them with gpuwise.runtime.checkpoint.
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
    RankReader,
    RankSaver,
    SaveFailure,
    SaveInterval,
    Saver,
    choose_interval,
)
from gpuwise.runtime.health import DiskWatch, StallWatch
from gpuwise.runtime.ranks import ALONE, Ranks
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.run_state import RunState
from gpuwise.runtime.run.save_checks import check_saveable
from gpuwise.strategy import Mesh
from gpuwise.units import format_duration

_ONE_DEVICE = Mesh()
Event = tuple[dict[str, object], str]  # a record for the log, and a sentence for the user or ""


class CheckpointSummary(TypedDict):
    """The checkpoints in the result of a run.

    Attributes:
        count: checkpoints written by this process.
        last_step: step of the newest checkpoint; None without any.
        bytes: size of the newest checkpoint.
        held_up_s: seconds for which all saves together blocked the training.
        save_s: seconds of the newest save until it was on disk.
        interval_s: seconds between two saves.
        sentence: explanation of the interval; "" after fewer than two checkpoints.
        problem: error of the latest save; None if it succeeded.
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
    """Writes checkpoints while the run continues, and decides when the next is due.

    Arguments:
        folder: folder of the checkpoints.
        device: device of the run.
        keep: number of newest checkpoints kept besides the best.
        save_every_s: seconds between saves; None chooses them from the cost of a save and the expected interruptions.
        interruptions_per_day: expected interruptions of the machine per day; None: the default.
        ranks: the ranks of the run; on each of them the same methods are called at the same steps.
        mesh: their mesh.

    Attributes:
        store: the checkpoints on disk.
        mesh: the mesh of the run.
        reports: whether this rank tells the user of saves: all ranks hear the same of them.
        due_s: time of the next save, by perf_counter.
        last: step and time of the newest complete checkpoint.
        problem: error of the latest save.
        save_s: latest measured seconds of a save until it is on disk.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        *,
        keep: int,
        save_every_s: float | None,
        interruptions_per_day: float | None,
        ranks: Ranks = ALONE,
        mesh: Mesh = _ONE_DEVICE,
    ):
        self.mesh, self.reports = mesh, ranks.leads
        self.store = CheckpointStore(folder, keep=keep)
        self._saver = RankSaver(self.store, ranks, mesh=str(mesh)) if ranks.several else Saver(self.store)
        self._reader = RankReader(self.store, ranks) if ranks.several else self.store
        self._disk = DiskWatch(folder)
        self._device, self._every_s = device, save_every_s
        self._interruptions = DEFAULT_INTERRUPTIONS_PER_DAY if interruptions_per_day is None else interruptions_per_day
        self._interval: SaveInterval | None = None  # None: fixed by the settings, or not chosen before the first save
        self.due_s, self._begun_s = math.inf, -math.inf
        self._ended: list[Outcome] = []
        self._is_last = False
        self.last: tuple[int, float] | None = None
        self.problem: str | None = None
        self.save_s = 0.0
        self._count, self._nbytes, self._held_up_s = 0, 0, 0.0

    def latest(self) -> tuple[Checkpoint | None, list[Note]]:
        """The newest complete checkpoint, and notes on others. Raises FileFormatError as CheckpointStore does.

        Of several ranks all return the same.
        """
        checkpoint = self._reader.latest()
        notes, self.store.notes = self.store.notes, []
        return checkpoint, notes

    def started(self, *, now_s: float) -> None:
        """Starts the clock for saves at the beginning of the run."""
        self.due_s = now_s + self._interval_s()

    def save(self, step: int, state: Mapping[str, object], meta: Mapping[str, object], *, best: bool, wait: bool) -> None:
        """Begins a save; with `wait` returns after its end. `look` returns its result."""
        # No other save until this one is on disk.
        self._begun_s, self.due_s, self._is_last = time.perf_counter(), math.inf, wait
        try:
            if wait:
                self._ended.append(self._saver.save_now(step, state, meta=meta, best=best))
            else:
                self._saver.begin(step, state, meta=meta, best=best)
        except GpuwiseError as error:  # a state that cannot be saved must not end the run
            self._ended.append(SaveFailure(step, f"no checkpoint of step {step}: {error.what}"))

    def look(self, *, now_s: float) -> list[Event]:
        """Events of saves that have ended since the last call, and of the disk's free space."""
        ended, self._ended = [*self._saver.poll(), *self._ended], []
        events = [self._event_of(outcome, now_s=now_s) for outcome in ended]
        if self._count and self._disk.due(now_s) and (warning := self._disk.look(now_s, self._nbytes)):
            events.append(({}, warning))
        return events

    def wait(self) -> None:
        """Waits for the save in progress."""
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
            cpu_s = outcome.cpu_s if self._device.type == "cpu" else 0.0  # in a run on a GPU the CPU is free for it
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
    """The checkpoints of a run.

    Arguments:
        manager: the checkpoint manager; None for a run without a folder, in which every method does nothing.
        state: the state to save.
        reporter: shows and logs saves.
        meter: counts the time of saves as a pause.
        stall: the stall watch, which allows more time for a save.
    """

    def __init__(
        self, manager: CheckpointManager | None, state: RunState, *, reporter: Reporter, meter: Meter, stall: StallWatch
    ):
        self.manager, self.state = manager, state
        self._reporter, self._meter, self._stall = reporter, meter, stall

    @property
    def due_s(self) -> float:
        """The time of the next save, by perf_counter."""
        return math.inf if self.manager is None else self.manager.due_s

    @property
    def save_s(self) -> float:
        """Latest measured seconds of a save; 0 before the first."""
        return 0.0 if self.manager is None else self.manager.save_s

    @property
    def last_step(self) -> int | None:
        """Step of the newest checkpoint of this attempt; None before the first."""
        return None if self.manager is None or self.manager.last is None else self.manager.last[0]

    @property
    def begun(self) -> bool:
        """Whether the run can be saved: it has a folder, and a step had a finite loss."""
        return self.manager is not None and self._reporter.begun

    def check(self) -> None:
        """Raises InputError or UnsupportedError if the current state cannot be saved."""
        if self.manager is not None:
            check_saveable(self._state(), self._meta())

    def start(self) -> None:
        """Starts the time to the next save."""
        if self.manager is not None:
            self.manager.started(now_s=self._meter.now_s)

    def save(self, step: int, *, best: bool = False, wait: bool = False) -> None:
        """Saves the run after `step`, unless its weights are non-finite. With `wait` it returns after the save is on disk."""
        if self.manager is None:
            return
        self._stall.beat("save")
        if problem := self.state.not_finite():
            self.manager.problem = f"no checkpoint of step {step}: {problem}."
            if self.manager.reports:
                self._reporter.tell(self.manager.problem, "checkpoint")
            return
        began_s = time.perf_counter()
        self.manager.save(step, self._state(), self._meta(), best=best, wait=wait)
        self._meter.pause(time.perf_counter() - began_s)
        self.look()

    def save_last(self, step: int) -> None:
        """Saves and waits until the save is on disk. A step that an evaluation has just saved is not saved again."""
        if self.manager is None:
            return
        self.wait()
        if self.manager.last is None or self.manager.last[0] != step:
            self.save(step, wait=True)

    def wait(self) -> None:
        """Waits until the save in progress is on disk."""
        if self.manager is not None:
            self.manager.wait()
            if self._reporter.begun:
                self.look()

    def look(self) -> None:
        """Reports saves that have ended since the last call, and a nearly full disk; of several ranks, rank 0 does."""
        if self.manager is None:
            return
        events = self.manager.look(now_s=self._meter.now_s)
        for record, sentence in events if self.manager.reports else ():
            if record:
                self._reporter.log.write("checkpoint", record)
            if sentence:
                self._reporter.tell(sentence, "checkpoint")

    def _state(self) -> dict[str, object]:
        return self.state.state(spent_s=self._meter.spent_s)

    def _meta(self) -> dict[str, object]:
        """The description of the run in a checkpoint."""
        evaluations = self.state.evaluations
        return finite({"metrics": evaluations.metrics, "best": evaluations.best, "run": self._reporter.identity})
