"""Runs that are killed and continued, each life in a process of its own, and the check that nothing is lost.

A life is forked from a server that has imported everything once, so that it begins within milliseconds. It tells of each step
through a pipe, which outlives it: the loss and the learning rate to the bit. What an uninterrupted run tells is the reference.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import shutil
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fault.checkpoint_faults import Killed, PowerCut, Quick, RemovesFirst, WritesInPlace, same
from tests.training_samples import Convolving, Drawing, layers, loss, pictures
from torch import nn
from torch.utils.data import IterableDataset

from gpuwise.errors import GpuwiseError
from gpuwise.job import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.checkpoint import CheckpointStore, Files, program_state, store
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.interruption.signals import STOP_SIGNALS
from gpuwise.runtime.run import checkpoint_manager, training
from gpuwise.runtime.show import read_log
from gpuwise.strategy import HostSettings, Strategy

TOLD = struct.Struct("<qdd")  # step, loss, learning rate; step 0: text follows, of what ended the life
HELLO = b"\n"  # told before all steps
MOST_STEPS = 7  # of a life that is killed at a random moment
KEPT = {"run.json", "state.json", "log.jsonl", "report.html", "lock", "checkpoints", "stalls"}  # what a run's folder may hold


# --- what is trained


class Stream(IterableDataset):
    """An endless-looking source that can say where it stands."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        while self.at < 70:
            self.at += 1
            yield {"x": torch.randn(4) + self.at, "y": torch.tensor(self.at % 2)}
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def example(n: int) -> dict[str, torch.Tensor]:
    return {"x": torch.zeros(n, 4), "y": torch.zeros(n, dtype=torch.long)}


def accuracy(model: nn.Module) -> dict[str, float]:
    held_out = torch.randn(50, 4)
    return {"accuracy": (model(held_out).argmax(1) == (held_out.sum(1) > 0)).float().mean().item()}


def job(**changes: Any) -> Job:
    fields = {
        "model": layers,
        "batch": example,
        "loss": loss,
        "data": lambda: Drawing(90),
        "learning_rate": 0.05,
        "name": "killed",
        "schedule": "cosine",
        "warmup_steps": 5,
        "clip_norm": 0.5,
        "ema_decay": 0.9,
    }
    return Job(**(fields | changes))


ONE_THREAD = HostSettings(threads=1)
RUNS: dict[str, tuple[Job, Strategy, dict[str, Any]]] = {
    "rows": (job(), Strategy(micro_batch=4, accumulation=2), {"host": ONE_THREAD}),
    "loader workers": (
        job(schedule="linear"),
        Strategy(micro_batch=8, optimizer="momentum"),
        {"host": HostSettings(loader_workers=2, threads=1)},
    ),
    "a stream": (job(data=Stream, samples=70, schedule="wsd"), Strategy(micro_batch=8, optimizer="adam"), {"host": ONE_THREAD}),
    "pictures": (
        job(model=Convolving, batch=pictures, data=lambda: pictures(60)),
        Strategy(micro_batch=8, channels_last=True, precision="amp-bf16"),
        {"host": ONE_THREAD},
    ),
    "monitored": (
        job(evaluate=accuracy),
        Strategy(micro_batch=8),
        {"host": ONE_THREAD, "evaluate_every": 3, "monitor": "max:accuracy"},
    ),
}


# --- what goes wrong: each is called in the process that is to meet it, with a number


def killed_at_call(at: int, folder: Path) -> None:
    """The system kills the process before system call `at` of its saves."""
    store.Files = lambda: Killed(at)  # type: ignore[assignment, misc]


class _PowerCut(PowerCut):
    """The power goes for good: what was not synced is lost, and the process with it."""

    def before(self, number: int, call: str, *arguments: Any) -> None:
        if number == self.at:
            self.lose()
            os.kill(os.getpid(), signal.SIGKILL)


class _ForgetsContents(_PowerCut):
    def sync(self, fd: int) -> None:
        pass


def power_cut_at_call(at: int, folder: Path) -> None:
    """The machine loses power there; the names of files reach the disk before their contents."""
    store.Files = lambda: _PowerCut(at, keeps_names=True)  # type: ignore[assignment, misc]


def power_cut_and_names_lost(at: int, folder: Path) -> None:
    """The machine loses power there; names that were not synced are lost as well."""
    store.Files = lambda: _PowerCut(at, keeps_names=False)  # type: ignore[assignment, misc]


def killed_at_file(at: int, folder: Path) -> None:
    """The system kills the process before it opens, makes, renames, cuts or removes something in the run's folder for the
    `at`th time, in whatever part of the run: log, report and lock as well."""
    place, met = str(folder), 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal met
        if event != "open" and (event == "os.kill" or not event.startswith("os.")):
            return
        with suppress(TypeError, ValueError):  # a descriptor instead of a path
            if arguments and os.fspath(arguments[0]).startswith(place):
                met += 1
        if met == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def waits_for_the_disk(at: int, folder: Path) -> None:
    """No fault: saves that take as long as they do outside of tests."""
    store.Files = Files  # type: ignore[misc]


def forgets_random_numbers(at: int, folder: Path) -> None:
    program_state.set_random_state = lambda state, device: None  # type: ignore[assignment]


def forgets_the_position(at: int, folder: Path) -> None:
    MicroBatchLoader.load = lambda self, state: None  # type: ignore[assignment, method-assign]


def forgets_the_optimizer(at: int, folder: Path) -> None:
    program_state.restore_optimizer = lambda optimizer, saved: None  # type: ignore[assignment]


def writes_in_place(at: int, folder: Path) -> None:
    checkpoint_manager.CheckpointStore = WritesInPlace  # type: ignore[misc]
    store.Files = lambda: Killed(at)  # type: ignore[assignment, misc]


def removes_first(at: int, folder: Path) -> None:
    checkpoint_manager.CheckpointStore = RemovesFirst  # type: ignore[misc]
    store.Files = lambda: Killed(at)  # type: ignore[assignment, misc]


def syncs_nothing(at: int, folder: Path) -> None:
    store.Files = lambda: _ForgetsContents(at, keeps_names=True)  # type: ignore[assignment, misc]


Fault = Callable[[int, Path], None]


# --- one life


@dataclass(frozen=True)
class Plan:
    """run: a name in RUNS; fault: what the process meets, and the number it is given; waits: after each step for what is being
    saved, so that each is saved."""

    run: str
    folder: Path
    steps: int
    fault: Fault | None = None
    at: int = 0
    waits: bool = False


def live(plan: Plan, told: Any) -> None:
    """Trains until the end, or until something ends the process. Saves all the time: it looks around after each step."""
    os.write(told.fileno(), HELLO)
    os.setsid()  # signals to its group are for it and its loader workers alone
    for number in STOP_SIGNALS:  # whatever the process that started the tests was told to ignore
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    torch.set_num_threads(1)
    training.LOOK_EVERY_S = 0.0
    store.Files = Quick  # type: ignore[misc]
    if plan.fault is not None:
        plan.fault(plan.at, plan.folder)
    job, strategy, more = RUNS[plan.run]
    settings = TrainSettings(
        steps=plan.steps, folder=plan.folder, save_every_s=1e-9, progress="silent", preemption="none", **more
    )
    try:
        run = Training(job, strategy, settings)
        for step in run:
            os.write(told.fileno(), TOLD.pack(step.step, step.loss, step.learning_rate))
            if plan.waits:
                wait_for_the_save(run)
    except GpuwiseError as error:
        os.write(told.fileno(), TOLD.pack(0, math.nan, math.nan) + str(error).encode())
        raise SystemExit(1) from None


def wait_for_the_save(run: Training) -> None:
    """Until nothing is being written."""
    checkpoints = run._run.checkpoints.manager
    assert checkpoints is not None
    checkpoints._saver._join()


def _context() -> Any:
    """Processes forked from a server that has imported this module, and starts no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", __name__, "torch._dynamo"])
    with pytest.MonkeyPatch.context() as environment:  # of the server alone: this process runs other tests
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            environment.setenv(name, os.environ.get(name, "1"))
        forkserver.ensure_running()
    return context


class Life:
    """A process that trains, as `trains` has it. Iterating gives the steps it tells of until it ends; `ended` then says how."""

    def __init__(self, plan: Plan, trains: Callable[[Plan, Any], None] = live):
        context = _context()
        self._pipe, answer = context.Pipe(duplex=False)
        self.process = context.Process(target=trains, args=(plan, answer), daemon=False)
        self.process.start()
        answer.close()
        os.read(self._pipe.fileno(), len(HELLO))  # it is there: what comes before is Python's own
        self.error = ""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Steps, with what was told of each."""
        while data := os.read(self._pipe.fileno(), TOLD.size):
            step = TOLD.unpack(data)[0]
            if not step:
                self.error = os.read(self._pipe.fileno(), 10_000).decode()
                return
            yield step, data

    def kill(self) -> None:
        self.process.kill()

    def ended(self) -> int:
        """The exit code; minus the number of the signal that ended it."""
        self.process.join()
        self._pipe.close()
        return int(self.process.exitcode)


# --- the comparison


class LostError(AssertionError):
    """Something of a run is not what it would have been without the interruption."""


@dataclass
class Reference:
    """An uninterrupted run: what it told of each step, and its last checkpoint."""

    told: dict[int, bytes]
    state: dict[str, Any]
    first_s: float  # until its first step
    step_s: float


@dataclass
class History:
    """What became of a run that was ended again and again.

    kills: lives that were ended; mid_save: of them, those that left half a save behind; compared: steps that were held against
    the reference, those that were trained again included.
    """

    kills: int = 0
    mid_save: int = 0
    compared: int = 0
    lives: list[int] = field(default_factory=list)  # the step after which each began


def reference(run: str, folder: Path, steps: int, fault: Fault | None = None) -> Reference:
    life, answer, first_s = Life(Plan(run, folder, steps, fault)), {}, 0.0
    began_s = time.perf_counter()
    for step, data in life:
        first_s = first_s or time.perf_counter() - began_s
        answer[step] = data
    _check(life.ended() == 0, f"the reference run failed: {life.error}")
    _check(list(answer) == list(range(1, steps + 1)), "the reference run is not whole")
    return Reference(answer, _state(folder), first_s, (time.perf_counter() - began_s - first_s) / steps)


def killed_at_random(
    run: str, root: Path, expected: Reference, *, kills: int, seed: int, fault: Fault | None = None
) -> History:
    """Kills a run at random moments, continues it each time in the same folder, and compares everything; another run follows
    where one is over, until there were so many kills.

    A moment is a number of steps and a part of one, or one before the first step. Raises LostError.
    """
    draw, history = random.Random(f"{run} {seed}"), History()
    while history.kills < kills:
        plan = Plan(run, root / f"{history.kills}", len(expected.told), fault)
        over = False
        while not over:
            after_steps = draw.randrange(MOST_STEPS + 1)
            wait_s = draw.random() * (2 * expected.step_s if after_steps else 1.5 * expected.first_s)
            over = live_once(plan, expected, history, kill=(after_steps, wait_s) if history.kills < kills else None)
        check_ended(plan.folder, expected)
    return history


def ended_everywhere(
    run: str, root: Path, expected: Reference, fault: Fault, at: Iterable[int], *, begun: Path | None = None
) -> History:
    """Ends a run by a fault at each of these places in turn, until it lives through one; continues it, and compares everything.

    Arguments:
        begun: folder of a run to continue, which is copied; None: the run that is ended is a new one.
    """
    history = History()
    for number in at:
        folder = root / f"{number}"
        if begun is not None:
            shutil.copytree(begun, folder)
        plan = Plan(run, folder, len(expected.told), waits=True)
        lived = live_once(replace(plan, fault=fault, at=number), expected, history)
        if not lived:
            _check(live_once(plan, expected, history), "ended without a fault")
        check_ended(folder, expected)
        shutil.rmtree(folder)
        if lived:
            return history
    return history


def live_once(plan: Plan, expected: Reference, history: History, *, kill: tuple[int, float] | None = None) -> bool:
    """One life, killed after so many of its steps and seconds, or left alone with what its plan has for it; then the checks of
    what it told and of what it left. Returns whether the run is over: it lived to its end, or its last checkpoint was there."""
    start = newest(plan.folder)
    if start == plan.steps:
        return True
    history.lives.append(start)
    life = Life(plan)
    try:
        _compare(life, start, expected, history, kill)
    except LostError:
        life.kill()
        life.ended()
        raise
    code = life.ended()
    if code == 0:
        return True
    _check(code == -signal.SIGKILL, f"the run ended with {code}: {life.error}")
    history.kills += 1
    check_left(plan.folder, history)
    return False


def _compare(life: Life, start: int, expected: Reference, history: History, kill: tuple[int, float] | None) -> None:
    if kill and not kill[0]:
        _kill_after(life, kill[1])
    for seen, (step, data) in enumerate(life, 1):
        _check(step == start + seen, f"the run should have gone on with step {start + seen}, and did with {step}")
        _check(
            data == expected.told.get(step),
            f"step {step} after a resume from {start} is {TOLD.unpack(data)}, "
            f"it was {TOLD.unpack(expected.told.get(step, bytes(TOLD.size)))}",
        )
        history.compared += 1
        if kill and seen == kill[0]:
            _kill_after(life, kill[1])


def newest(folder: Path) -> int:
    """The step of the newest checkpoint; 0 without any."""
    result = CheckpointStore(folder / "checkpoints").latest()
    return result.step if result else 0


def check_left(folder: Path, history: History) -> None:
    """What a killed process leaves: every checkpoint whole, those that it said were there still there."""
    checkpoints = CheckpointStore(folder / "checkpoints")
    latest = checkpoints.latest()
    _check(not checkpoints.notes, f"a kill has left something damaged: {checkpoints.notes}")
    log = folder / "log.jsonl"
    records = read_log(log) if log.exists() and log.stat().st_size else []
    promised = max((record["step"] for record in records if record["record"] == "checkpoint" and "path" in record), default=0)
    _check((latest.step if latest else 0) >= promised, f"the checkpoint of step {promised} is gone")
    if checkpoints.folder.exists():
        history.mid_save += any(path.name.startswith(".") for path in checkpoints.folder.iterdir())


def check_ended(folder: Path, expected: Reference) -> None:
    """A run that has ended, with whatever in between: weights, optimizer, averages, random numbers, position in the data, all
    of it; and nothing half done is left in its folder, unless it was killed in its very end, with its last checkpoint made."""
    result = _state(folder)
    for part, value in expected.state.items():
        _check(same(value, result[part]), f"{part} is another in the end")
    if "ended" not in json.loads((folder / "run.json").read_text()):
        return
    left = {path.name for path in folder.iterdir()} - KEPT
    _check(not left, f"left behind: {sorted(left)}")
    odd = [path.name for path in (folder / "checkpoints").iterdir() if not path.name.startswith("step-")]
    _check(not odd, f"left behind: {odd}")


def _state(folder: Path) -> dict[str, Any]:
    latest = CheckpointStore(folder / "checkpoints").latest()
    _check(latest is not None, "no checkpoint is left")
    state = latest.load()  # type: ignore[union-attr]
    del state["run"]["spent_s"]
    return state


def _kill_after(life: Life, seconds: float) -> None:
    """Not asleep: a process that sleeps wakes when the system likes."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s:
        pass
    life.kill()


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise LostError(otherwise)
