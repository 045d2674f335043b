"""Runs that are copied elsewhere and killed, each life on another machine, which has nothing but the copies.

As in killed_runs, whose processes and comparison these are: the folder of a run is removed after each life.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.fault import killed_runs as runs
from tests.fault.checkpoint_faults import Quick, same
from tests.fault.killed_runs import RUNS, TOLD, History, Life, LostError, Plan, Reference

from gpuwise.errors import FileFormatError, GpuwiseError
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.checkpoint import CheckpointStore, store
from gpuwise.runtime.copies import copy_folder
from gpuwise.runtime.copies.mount import MountFiles
from gpuwise.runtime.run import training

CALLS = ("make_folder", "create", "write", "sync", "close", "remove", "remove_folder")


class KilledMount(MountFiles):
    """The system kills the process before system call number `at` of its copies."""

    def __init__(self, at: int):
        self.at, self.calls = at, 0

    def sync(self, fd: int) -> None:
        """Does not wait for the disk."""

    def sync_folder(self, path: Path) -> None:
        pass


def _counted(call: str) -> Callable[..., Any]:
    def counted(self: KilledMount, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return None if call == "sync" else getattr(MountFiles, call)(self, *arguments)

    return counted


for _call in CALLS:
    setattr(KilledMount, _call, _counted(_call))


def live_copied(plan: Plan, pipe: Any) -> None:
    """Trains until the end, or until the process is killed. Each step is saved and copied."""
    os.write(pipe.fileno(), runs.HELLO)
    os.setsid()
    training.LOOK_EVERY_S = 0.0
    store.Files = Quick  # type: ignore[misc]
    copy_folder.MountFiles = lambda: KilledMount(plan.at)  # type: ignore[assignment, misc]
    job, strategy, more = RUNS[plan.run]
    settings = TrainSettings(
        steps=plan.steps,
        folder=plan.folder,
        copy_to=bucket(plan),
        save_every_s=1e-9,
        progress="silent",
        preemption="none",
        **more,
    )
    try:
        run = Training(job, strategy, settings)
        for step in run:
            os.write(pipe.fileno(), TOLD.pack(step.step, step.loss, step.learning_rate))
            runs.wait_for_the_save(run)
            run._run.copies._copier.work.wait()  # type: ignore[union-attr]
    except GpuwiseError as error:
        os.write(pipe.fileno(), TOLD.pack(0, 0.0, 0.0) + str(error).encode())
        raise SystemExit(1) from None


def bucket(plan: Plan) -> Path:
    return plan.folder.with_name("bucket")


def killed_at_calls(run: str, root: Path, expected: Reference, at: Iterable[int]) -> History:
    """For each of these numbers a run whose first life is killed at that system call of its copies, the second at half of it,
    each on a machine of its own; a third ends it. Everything is compared. Ends with the first number that nothing is killed at.
    """
    history = History()
    for number in at:
        plan = Plan(run, root / f"{number}" / "machine", len(expected.told), at=number)
        plan.folder.parent.mkdir(parents=True)
        if _life(plan, expected, history):
            return history
        over = _life(replace(plan, at=max(1, number // 2)), expected, history)
        runs._check(over or _life(replace(plan, at=0), expected, history), "ended without a fault")
        shutil.rmtree(plan.folder.parent)
    return history


def _life(plan: Plan, expected: Reference, history: History) -> bool:
    """One life on a new machine. Returns whether the run is over: it lived to its end, or its last checkpoint was there."""
    shutil.rmtree(plan.folder, ignore_errors=True)
    start = newest(plan)
    if start == plan.steps:
        _check_copy(plan, expected)
        return True
    history.lives.append(start)
    life = Life(plan, live_copied)
    try:
        runs._compare(life, start, expected, history, None)
    except LostError:
        life.kill()
        life.ended()
        raise
    code = life.ended()
    runs._check(code in (0, -signal.SIGKILL), f"the run ended with {code}: {life.error}")
    runs._check(newest(plan) >= start, f"the copy of step {start} is gone")
    if code == 0:
        runs.check_ended(plan.folder, expected)
        _check_copy(plan, expected)
        return True
    history.kills += 1
    return False


def _check_copy(plan: Plan, expected: Reference) -> None:
    """The copy of the last checkpoint has the weights, optimizer and random numbers of a run that was never ended."""
    runs._check(newest(plan) == plan.steps, "the last checkpoint is not copied")
    state = runs._state(bucket(plan))
    for part, value in expected.state.items():
        runs._check(same(value, state[part]), f"{part} is another in the copy")


def newest(plan: Plan) -> int:
    """The step of the newest copy whose files and checksums are those of its manifest; 0 without any."""
    for checkpoint in CheckpointStore(bucket(plan) / "checkpoints").all():
        with suppress(FileFormatError):
            checkpoint.verify()
            return checkpoint.step
    return 0
