"""gpuwise at the same work."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.train_speed import peers
from benchmarks.train_speed.peers import Clock, Timed
from benchmarks.train_speed.works import LEARNING_RATE, MLP, Work
from gpuwise import Job
from gpuwise.runtime import Training, TrainSettings
from gpuwise.runtime.show import read_log
from gpuwise.strategy import HostSettings, Strategy

SAVE_EVERY_S = 0.5  # of small steps: several times within the time that is taken
WARM_STEPS, LEAST_BEFORE = 3, 10  # of a run that is saved: steps left out, and steps a save is compared with
LONG_RUN = 10_000_000  # steps: it never ends by itself
TURNS = {"steps": 100, "rounds": 60}  # of small steps; of others one step a turn


def job_of(work: Work, data: Callable[[], Any], **more: Any) -> Job:
    def batch(count: int) -> Any:
        return {name: column[:count] for name, column in work.columns().items()}

    return Job(work.model, batch, work.loss, optimizer="adamw", learning_rate=LEARNING_RATE, data=data, name=work.text, **more)


def training(
    work: Work,
    precision: str,
    *,
    steps: int,
    columns: bool = False,
    folder: str | None = None,
    more: dict[str, Any] | None = None,
    **settings: Any,
) -> Training:
    """A run with progress on; with log, checkpoints and report, too, where it has a folder."""
    return Training(
        job_of(work, work.columns if columns else work.rows, **(more or {})),
        Strategy(micro_batch=work.batch, precision=precision),
        TrainSettings(
            steps=steps,
            folder=None if folder is None else Path(folder) / "run",
            progress="plain",
            preemption="none",
            host=HostSettings(threads=work.threads),
            **settings,
        ),
        device=work.device,
    )


def columns(work: Work, precision: str) -> Timed:
    """Log, checkpoints and progress on; the data is columns, as `indexed` has it."""
    return _timed(work, precision, columns=True, save_every_s=SAVE_EVERY_S)


def no_folder(work: Work, precision: str) -> Timed:
    """Progress on, and nothing is kept."""
    return _timed(work, precision, columns=True, keeps=False)


def rows(work: Work, precision: str) -> Timed:
    """Log, checkpoints and progress on; the data is the map-style data set that the others read."""
    return _timed(work, precision, save_every_s=SAVE_EVERY_S if work is MLP else None)


def _timed(work: Work, precision: str, *, keeps: bool = True, **how: Any) -> Timed:
    clock = Clock(work)
    with tempfile.TemporaryDirectory() as folder:
        run = iter(training(work, precision, steps=LONG_RUN, folder=folder if keeps else None, **how))
        for step in run:
            if clock.stepped(step.step):
                break
        run.close()
        return clock.seconds, step.loss


def in_turns(work: Work, precision: str) -> dict[str, Any]:
    """Seconds of gpuwise's steps and of those of a loop by hand that does the same, in turns in one process.

    Same order of the data, same seeds: same_loss says whether both came to the same.
    """
    small = work is MLP
    each, rounds = (TURNS["steps"], TURNS["rounds"]) if small else (1, work.timed)
    results: dict[str, list[float]] = {"gpuwise": [], "by hand": []}
    with tempfile.TemporaryDirectory() as folder:
        run = iter(training(work, precision, steps=LONG_RUN, columns=True, folder=folder))
        ours = next(run)  # sets what both use: seeds, precision, memory
        model, optimizer = peers.made(work)
        batches = peers.ordered(work)
        loss = peers.take(work, model, optimizer, next(batches), precision)
        for turn in range(rounds + 2):
            for name in ("gpuwise", "by hand") if turn % 2 else ("by hand", "gpuwise"):
                began_s = time.perf_counter()
                if name == "gpuwise":
                    for _ in range(each):
                        ours = next(run)
                else:
                    for _ in range(each):
                        loss = peers.take(work, model, optimizer, next(batches), precision)
                results[name].append((time.perf_counter() - began_s) / each)
        run.close()
    return {
        "seconds": {name: seconds[2:] for name, seconds in results.items()},
        "same_loss": abs(ours.loss - loss) <= 1e-4 * abs(loss),
    }


def saved(work: Work, precision: str) -> list[dict[str, Any]]:
    """What checkpoints take: those of a run whose metric gets better at each of five evaluations, and their cost in steps.

    lost_s: of each save, what the steps from its beginning until it was on the disk took more than as many before it.
    """
    better = iter(range(1_000_000))
    with tempfile.TemporaryDirectory() as folder:
        run = training(
            work,
            precision,
            steps=work.warm + work.timed,
            columns=True,
            folder=folder,
            more={"evaluate": lambda model: {"better": float(next(better))}},
            monitor="max:better",
            evaluate_every=(work.warm + work.timed) // 5,
        )
        ends_s = [time.perf_counter()]
        for _ in run:
            ends_s.append(time.perf_counter())
        assert run.result is not None
        records = [r for r in read_log(Path(folder) / "run" / "log.jsonl") if r["record"] == "checkpoint" and "write_s" in r]
    return [_cost(record, ends_s) for record in records if record["step"] < len(ends_s) - 1]  # the last one is waited for


def _cost(record: dict[str, Any], ends_s: list[float]) -> dict[str, Any]:
    """What the log says of a save, and what it took from the steps after `step`, which it held up or ran beside."""
    took_s = [later - earlier for earlier, later in pairwise(ends_s)]  # of step 1, 2, ...
    first = last = record["step"]
    until_s = ends_s[first] + record["held_up_s"] + record["write_s"]
    while last < len(took_s) and ends_s[last] < until_s:
        last += 1
    usual_s = mean(took_s[max(WARM_STEPS, first - max(last - first, LEAST_BEFORE)) : first])
    kept = {name: record[name] for name in ("bytes", "held_up_s", "write_s", "interval_s")}
    return {**kept, "step_s": median(took_s), "lost_s": sum(took_s[first:last]) - usual_s * (last - first)}
