"""validate: compares forecasts with real steps on this machine, each job in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypedDict, Unpack

from gpuwise.api import history
from gpuwise.api.measured import machine_key
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.validating_checks import check_jobs, check_ranks, check_suite, check_torch, names_of
from gpuwise.cost.forecast import Interval
from gpuwise.errors import InputError
from gpuwise.hardware import detect_machine, load_catalog
from gpuwise.hardware.disturbances import disturbances
from gpuwise.hardware.load import load
from gpuwise.measure.child import ChildDiedError, answers, oom_kills
from gpuwise.measure.suite import members
from gpuwise.notes import Note
from gpuwise.notes.measuring import history_not_kept, ranks_not_kept
from gpuwise.results.validation import FAILED, MEASURED, METHOD, OUT_OF_MEMORY, MeasuredStep, Trial, Validation
from gpuwise.step_settings import DeviceSettings, mesh_of, named_settings, named_sizes
from gpuwise.version import __version__

CHILD = "gpuwise.api.trial"
SILENCE_S = 600.0  # a child that is silent for so long is killed
_MOST_STEPS = 1_000_000
_LESS = ("a smaller --micro-batch, with more --accumulate", "--recompute full")


class TrialRequest(TypedDict):
    """The request to a child process. steps: number of timed steps; None lets the child decide."""

    job: str
    sizes: Mapping[str, int]
    strategy: Mapping[str, object]
    suite: bool
    steps: int | None


@dataclass(frozen=True)
class Doing:
    """The progress of `validate`: job `number` of `total`. trial: the job's trial, once it is done."""

    number: int
    total: int
    job: str
    what: str
    trial: Trial | None = None


@plainly
def validate(
    jobs: str | Sequence[str] = (),
    *,
    suite: bool = False,
    steps: int | None = None,
    on_progress: Callable[[Doing], None] = lambda _: None,
    **settings: Unpack[DeviceSettings],
) -> Validation:
    """Forecasts a step of each job for this machine, runs real steps, and compares time, throughput, memory and bound.

    The measurements are stored, and the next forecast of the same step on this machine uses them. Those of a mesh are not: a
    forecast of several ranks is always the model's.

    Arguments:
        jobs: names as for `forecast`; no Job objects, as each job runs in a process of its own.
        suite: whether the jobs are members of the suite, at sizes for this machine; without names, all members.
        steps: number of timed steps; None: at least 7 steps and 5 s, at most 40 s.
        on_progress: called with each Doing.
        others: as for `forecast`, for every job; the suite has its own. A `mesh` of several devices runs on ranks of this
            machine: one a GPU, or all on the cores of the CPU.

    A job that runs out of memory or fails is a trial with that outcome; the others go on. Ctrl-C keeps finished trials.
    Raises InputError, UnknownNameError, JobError or MissingDependencyError before anything runs.
    """
    names = names_of(jobs)
    sizes = named_sizes(settings)
    requested = {name: value for name, value in named_settings(settings, DeviceSettings).items() if name not in sizes}
    if steps is not None and (not isinstance(steps, int) or isinstance(steps, bool) or not 1 <= steps <= _MOST_STEPS):
        raise InputError(f"--steps must be a whole number from 1 to {_MOST_STEPS:,}, got {steps!r}.")
    if suite:
        check_suite({**requested, **sizes})
        names = [member.name for member in members(tuple(names))]
    else:
        check_jobs(names, settings, sizes)
    check_torch(names)
    if not suite and (mesh := mesh_of(settings)) is not None:
        check_ranks(mesh, names)
        requested["mesh"] = str(mesh)
    requests = [TrialRequest(job=name, sizes=sizes, strategy=requested, suite=suite, steps=steps) for name in names]
    return _run(requests, suite=suite, on_progress=on_progress)


def _run(requests: Sequence[TrialRequest], *, suite: bool, on_progress: Callable[[Doing], None]) -> Validation:
    machine, key, began = detect_machine(load_catalog()), machine_key(), time.monotonic()
    taken = _now()
    trials: list[Trial] = []
    notes: list[Note] = []
    interrupted = False
    for number, request in enumerate(requests, 1):

        def tell(what: str, trial: Trial | None = None, number: int = number, job: str = request["job"]) -> None:
            on_progress(Doing(number, len(requests), job, what, trial))

        try:
            trial = _trial(request, tell)
            trials.append(trial)
            if trial.measured is not None and trial.measured.ranks:
                notes.append(ranks_not_kept())
            elif trial.measured is not None and (why := history.append(_entry(trial, key))):
                notes.append(history_not_kept(problem=why))
            tell(trial.outcome, trial)
        except KeyboardInterrupt:
            interrupted = True
            break
    kept = any(trial.outcome == MEASURED for trial in trials) and not notes
    return Validation(
        tuple(trials),
        machine.name,
        machine.chip.id,
        taken,
        time.monotonic() - began,
        suite,
        interrupted,
        str(history.path()) if kept else "",
        tuple(dict.fromkeys(notes)),
    )


def _trial(request: TrialRequest, tell: Callable[[str], None]) -> Trial:
    """Runs one job in a child process. The outcome covers every way in which the child can end."""
    began, kills, before = time.monotonic(), oom_kills(), load()
    trial = Trial(request["job"], FAILED, "the process ended without a word", sizes=request["sizes"])
    try:
        child = answers(CHILD, request, silence_s=SILENCE_S, purpose="trial")
        with closing(child):
            for answer in child:
                if "doing" in answer:
                    tell(answer["doing"])
                trial = _updated(trial, answer)
    except ChildDiedError as death:
        # Measurements from before the child died are kept.
        if trial.outcome != MEASURED:
            trial = _died(trial, death, kills)
    return replace(trial, seconds=time.monotonic() - began, disturbance_notes=tuple(disturbances(before, load())))


def _died(trial: Trial, death: ChildDiedError, kills: int | None) -> Trial:
    """The trial of a dead child: out of memory if the system's count of such kills suggests it."""
    counted = oom_kills()
    by_another = death.signal == signal.SIGKILL and counted is not None and counted == kills
    if by_another:
        return replace(
            trial, message="the trial was killed by SIGKILL, but not for want of memory: by itself or another program."
        )
    if death.likely_out_of_memory:
        return replace(trial, outcome=OUT_OF_MEMORY, message=death.what, ways_out=_LESS)
    return replace(trial, message=death.what, ways_out=death.ways_out)


def _updated(trial: Trial, answer: Mapping[str, Any]) -> Trial:
    if "forecast" in answer:
        names = ("forecast", "digest", "device", "threads", "torch_version")
        return replace(trial, **{name: answer[name] for name in names})
    if "measured" in answer:
        threads = answer.get("threads", trial.threads)
        return replace(
            trial, outcome=MEASURED, message="", measured=MeasuredStep.from_dict(answer["measured"]), threads=threads
        )
    if "out_of_memory" in answer:
        return replace(trial, outcome=OUT_OF_MEMORY, message=answer["out_of_memory"], ways_out=_LESS)
    if "failed" in answer:
        return replace(trial, message=answer["failed"]["message"], ways_out=tuple(answer["failed"]["ways_out"]))
    return trial


def _entry(trial: Trial, machine: str) -> history.HistoryEntry:
    assert trial.forecast is not None
    assert trial.measured is not None
    step, expected = trial.measured.step, Interval(**trial.forecast["step_time_s"])
    return history.HistoryEntry(
        date=_now(),
        machine=machine,
        chip=trial.forecast["device"],
        job=trial.forecast["job"],
        digest=trial.digest,
        strategy=trial.forecast["strategy"],
        median_s=step.median_s,
        low_s=step.low_s,
        high_s=step.high_s,
        steps=step.rounds,
        forecast_s=expected.value,
        forecast_low_s=expected.low,
        forecast_high_s=expected.high,
        provenance=trial.forecast["provenance"]["step_time_s"],
        method=METHOD,
        threads=trial.threads or 1,
        openmp=os.environ.get("OMP_NUM_THREADS", ""),
        torch=trial.torch_version,
        gpuwise=__version__,
        sizes=dict(trial.sizes),
        memory_bytes=trial.measured.memory_bytes,
        disturbed=bool(trial.disturbance_notes),
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
