"""train: the loop. Builds the job's program, feeds it micro-batches, and writes down what happens."""

from __future__ import annotations

import math
import os
import platform
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import gpuwise
from gpuwise.cost.forecast import Forecast
from gpuwise.errors import InputError, JobError, UnsupportedError
from gpuwise.job import Job
from gpuwise.runtime.data import MicroBatches
from gpuwise.runtime.failure import job_failure
from gpuwise.runtime.host_memory import keep_freed_memory
from gpuwise.runtime.log import RunLog
from gpuwise.runtime.memory import PeakMemory
from gpuwise.runtime.meter import Meter
from gpuwise.runtime.program import Program, build
from gpuwise.runtime.progress import Update, display
from gpuwise.runtime.result import ForecastCheck, TrainResult
from gpuwise.runtime.stop import StopSignals
from gpuwise.strategy import Strategy

SLOW_DATA_SHARE = 0.2  # of the wall time: above it the user is told that data loading holds the run up


def train(
    job: Job,
    plan_or_strategy: Any,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    samples: int | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    log_path: str | os.PathLike[str] | None = None,
    forecast: Forecast | None = None,
    progress: str = "auto",
    on_progress: Callable[[Update], None] | None = None,
) -> TrainResult:
    """Trains a job on one device of this machine.

    Arguments:
        plan_or_strategy: a Strategy, or a Plan, whose strategy is taken.
        steps, epochs, samples: how long, one of them at most; samples are rounded up to whole optimizer steps. Without
            any, one epoch.
        seed: of the initial weights, the order of the data and everything random in between.
        log_path: where the JSON-lines log goes; none is written without it, or when the first step fails.
        forecast: of this strategy on this device, to be shown next to what is measured.
        progress: what stderr shows: auto | bar | plain | silent.
        on_progress: called after each step, in the loop's own thread.

    The first Ctrl-C or SIGTERM ends the run after the step it is in (`interrupted` is set), the second at once.

    Raises JobError when the job's own code fails, its data is too short or its loss is no longer a finite number;
    InputError for lengths that make no sense or a log that cannot be written; UnsupportedError for several devices.
    """
    strategy: Strategy = getattr(plan_or_strategy, "strategy", plan_or_strategy)
    _check_strategy(strategy)
    expected = forecast.step_time_s if forecast else None
    _seed(seed)
    if torch.device(device).type == "cpu":
        keep_freed_memory()

    with RunLog(log_path) as log, display(progress) as shown:
        memory = PeakMemory(torch.device(device))
        with _blaming(job, "opening its data", job.data):
            batches = MicroBatches(job, strategy, seed=seed)
        total = _count_steps(batches, strategy, steps=steps, epochs=epochs, samples=samples)
        with _blaming(job, "building its model", job.model):
            program = build(job, strategy, device)
        for note in batches.notes:
            shown.note(note)

        meter = Meter(steps=total, global_batch=strategy.global_batch, forecast=expected)
        feed = batches.steps()
        with StopSignals() as stop:
            for step in range(1, total + 1):
                with _blaming(job, f"reading the data of step {step}", job.data or job.batch):
                    meter.fetch()
                    micro_batches = next(feed)
                with _blaming(job, f"step {step}", job.loss):
                    meter.begin()
                    good_loss, loss = meter.last_loss, float(program.step(micro_batches))  # waits for the device
                    meter.end(loss)

                if step == 1 and math.isfinite(loss):
                    log.open(_header(job, program, seed=seed, steps=total, forecast=forecast))
                log.write("step", meter.record())
                if not math.isfinite(loss):
                    raise _not_finite(job, strategy, step, loss, good_loss)

                if shown.due(meter.now_s) or step == total or stop.received:
                    shown.show(meter.update())
                if on_progress:
                    on_progress(meter.update())
                if stop.received:
                    log.write("interrupted", {"step": step, "signal": stop.received.name})
                    break

        peak_memory_bytes = memory.bytes()
        metrics, notes = ({}, []) if stop.received else _evaluate(job, program)
        if meter.data_share > SLOW_DATA_SHARE:
            delivered = meter.steps_per_s * strategy.global_batch / meter.data_share
            notes.append(f"{meter.data_share:.0%} of the time went into waiting for data, which came at {delivered:.3g} "
                         "samples a second; a forecast leaves that out unless --loader-samples-per-s says so.")  # fmt: skip
        if log.problem:
            notes.append(log.problem)
        for note in notes:
            shown.note(note)

        result = TrainResult(
            job=job.name, device=str(program.device), strategy=strategy, steps=meter.step, samples=meter.samples,
            first_loss=meter.first_loss, last_loss=meter.last_loss, step_time=meter.step_time,
            samples_per_s=meter.steps_per_s * strategy.global_batch, data_share=meter.data_share, wall_s=meter.wall_s,
            peak_memory_bytes=peak_memory_bytes, metrics=metrics, interrupted=stop.received is not None,
            synthetic=batches.synthetic, notes=(*batches.notes, *notes),
            forecast=None if expected is None else ForecastCheck(expected.value, expected.low, expected.high,
                                                                 meter.step_time.median_s),
            log_path=None if log_path is None else str(log_path), model=program.model,
        )  # fmt: skip
        log.write("summary", result.to_dict())
        return result


def _check_strategy(strategy: Strategy) -> None:
    if not isinstance(strategy, Strategy):
        raise InputError(f"train needs a Strategy or a Plan, got a {type(strategy).__name__}.")
    if strategy.mode != "train":
        raise InputError("a strategy of mode infer cannot be trained.", ["--mode train"])
    if strategy.mesh.devices != 1:
        accumulation = strategy.accumulation * strategy.mesh.data_parallel
        raise UnsupportedError(f"this strategy is for {strategy.mesh.devices} devices; train runs on one.",
                               [f"the same global batch on one device: --accumulate {accumulation}",
                                "make a plan for this machine: gpuwise plan JOB --on here"])  # fmt: skip


def _count_steps(
    batches: MicroBatches, strategy: Strategy, *, steps: int | None, epochs: float | None, samples: int | None
) -> int:
    """Optimizer steps of a run; at least one."""
    lengths = {"steps": steps, "epochs": epochs, "samples": samples}
    given = {name: value for name, value in lengths.items() if value is not None}
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} say how long to train; give one of them.")
    for name, value in given.items():
        if not 0 < value < 1e15:  # also refuses NaN
            raise InputError(f"{name} must be above zero and sensible, got {value!r}.")
    if steps is not None:
        return int(steps)
    if samples is not None:
        return math.ceil(samples / strategy.global_batch)
    per_epoch = batches.micro_batches_per_epoch
    if per_epoch is None:
        raise JobError("nothing says how many samples an epoch of this job has.",
                       ["samples=... in the Job", "--steps N"])  # fmt: skip
    if epochs is None:
        batches.notes.append("trained for one epoch; --epochs or --steps changes it.")
    return max(1, int((1 if epochs is None else epochs) * per_epoch) // strategy.accumulation)


def _evaluate(job: Job, program: Program) -> tuple[dict[str, float], list[str]]:
    """The job's own metrics and what to say about them. Training is done by now: nothing here may lose its result."""
    program.model.eval()
    if job.evaluate is None:
        return {}, []
    try:
        with torch.no_grad():
            return {name: float(value) for name, value in job.evaluate(program.model).items()}, []
    except KeyboardInterrupt:
        return {}, ["evaluation was interrupted; training had ended before."]
    except Exception as error:  # the user's own code may raise anything
        return {}, [job_failure(error, job, doing="evaluation", part=job.evaluate).what]


def _header(job: Job, program: Program, *, seed: int, steps: int, forecast: Forecast | None) -> dict[str, Any]:
    versions = {"gpuwise": gpuwise.__version__, "torch": torch.__version__, "python": platform.python_version()}
    parameters = sum(p.numel() for p in program.model.parameters())
    return {"job": job.name, "parameters": parameters, "strategy": program.strategy.to_dict(),
            "device": str(program.device), "threads": torch.get_num_threads(), "seed": seed, "steps": steps,
            "versions": versions, "forecast": forecast and forecast.to_dict()}  # fmt: skip


def _not_finite(job: Job, strategy: Strategy, step: int, loss: float, good_loss: float) -> JobError:
    before = f"; the last good one was {good_loss:.6g} at step {step - 1}" if step > 1 else ", the first step"
    ways = ["a lower learning rate in the Job"]
    if strategy.precision in ("amp-fp16", "bf16"):
        ways.append("--precision amp-bf16 or fp32")
    return JobError(f"the loss of {job.name or 'the job'} is {loss} at step {step}{before}.", ways)


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # what data transforms commonly draw from


@contextmanager
def _blaming(job: Job, doing: str, part: object) -> Iterator[None]:
    """Turns whatever the job's code raises into a JobError that names its line."""
    try:
        yield
    except Exception as error:
        raise job_failure(error, job, doing=doing, part=part) from error
