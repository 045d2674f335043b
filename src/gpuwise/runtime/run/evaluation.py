"""Evaluations on held-out data during a run: the job's own metrics, their best value, and early stopping."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from typing import TypedDict, cast

import torch

from gpuwise.errors import InputError, JobError, RankLostError
from gpuwise.job import Job
from gpuwise.json_types import Json
from gpuwise.notes.training import evaluation_failed
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.devices.random_state import random_state, set_random_state
from gpuwise.runtime.interruption import AT_ONCE
from gpuwise.runtime.ranks import ALONE, Ranks
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.settings import TrainSettings
from gpuwise.strategy import Strategy

FAILED_ALONE_S = 30.0  # after a failure on this rank, for those of the others


class BestMetric(TypedDict):
    """The best value of the monitored metric, and its step."""

    step: int
    metric: str
    value: float


class EvaluationsState(TypedDict):
    """The saved state of the evaluations of a run."""

    done_at: int
    metrics: dict[str, float]
    best: BestMetric | None
    since_best: int


def evaluate(job: Job, program: Program) -> tuple[dict[str, float], str | None]:
    """The job's metrics of the current model, with averaged parameters if there are any, and the error of a failed metric.

    An evaluation does not change the random numbers of training or the mode of the model. A failed metric never ends a run.
    """
    if job.evaluate is None:
        return {}, None
    before, training = random_state(program.device), program.model.training
    averaged = nullcontext() if program.average is None else program.average.in_place()
    program.model.eval()
    try:
        with torch.no_grad(), averaged:
            return {name: float(value) for name, value in program.evaluated(job.evaluate).items()}, None
    except KeyboardInterrupt:
        return {}, "an evaluation was interrupted; nothing of the training is lost."
    except AT_ONCE:
        raise
    except BaseException as error:  # the user's own code may raise anything
        return {}, job_failure(error, job, doing="evaluation", part=job.evaluate).what
    finally:
        program.model.train(training)
        set_random_state(before, program.device)


class Evaluations:
    """The schedule and the results of a run's evaluations.

    Arguments:
        micro_batches_per_epoch: micro-batches in an epoch; None if unknown.

    Attributes:
        due_at: step after which the next evaluation is due; infinite without evaluations.
        done_at: step of the last evaluation; -1 before the first.
        metrics: metrics of the last successful evaluation.
        best: best value of the monitored metric; None before the first, or without such a metric.
        took_s: duration of the last evaluation in seconds.

    Raises InputError when the settings require metrics that the job does not have.
    """

    def __init__(self, job: Job, strategy: Strategy, settings: TrainSettings, micro_batches_per_epoch: int | None):
        self._every = _interval(job, strategy, settings, micro_batches_per_epoch)
        self._monitored, self._patience = settings.monitored, settings.patience
        self._since_best = 0
        self.due_at: float = math.inf if self._every is None else self._every
        self.done_at = -1
        self.metrics: dict[str, float] = {}
        self.best: BestMetric | None = None
        self.took_s = 0.0

    def run(self, step: int, program: Program, *, reporter: Reporter, meter: Meter, ranks: Ranks = ALONE) -> dict[str, float]:
        """Computes, shows and logs the job's metrics after `step`; {} on failure. Pass the result to `seen`.

        Every rank evaluates, because a model in shards or stages needs all of them; the metrics are those of rank 0.
        """
        began_s = time.perf_counter()
        metrics, problem = evaluate(program.job, program)
        if ranks.several and program.job.evaluate is not None:
            metrics, problem = _agreed(ranks, step, metrics, problem)
        self.took_s = time.perf_counter() - began_s
        meter.pause(self.took_s)
        if problem:
            reporter.note(evaluation_failed(problem=problem), "evaluation failed")
        if metrics:
            reporter.log.write("evaluation", {"step": step, "metrics": metrics})
            reporter.scalars(step, {f"metrics/{name}": value for name, value in metrics.items()})
        return metrics

    def seen(self, step: int, metrics: dict[str, float]) -> bool:
        """Records the metrics of an evaluation ({} on failure). Returns whether it is the best so far.

        Raises InputError when the monitored metric is missing.
        """
        self.done_at = step
        if self._every is not None:
            self.due_at = step - step % self._every + self._every
        if not metrics:
            return False
        self.metrics = metrics
        if self._monitored is None:
            return False
        metric, larger = self._monitored
        if metric not in metrics:
            raise InputError(
                f"the job's evaluate gives no {metric!r}; it gives {', '.join(metrics)}.",
                [f"--monitor {'max' if larger else 'min'}:{next(iter(metrics))}"],
            )
        value = metrics[metric]
        better = not math.isnan(value) and (
            self.best is None or (value > self.best["value"] if larger else value < self.best["value"])
        )
        if better:
            self.best = {"step": step, "metric": metric, "value": value}
        self._since_best = 0 if better else self._since_best + 1
        return better

    @property
    def over(self) -> bool:
        """Whether the run's patience is exhausted."""
        return self._patience is not None and self._since_best >= self._patience

    def state(self) -> EvaluationsState:
        return {"done_at": self.done_at, "metrics": self.metrics, "best": self.best, "since_best": self._since_best}

    def load(self, state: EvaluationsState, step: int) -> None:
        """Continues after `step`. An evaluation that was due at this step but not made is due at once."""
        self.done_at, self.metrics = state["done_at"], dict(state["metrics"])
        self.best, self._since_best = state["best"], state["since_best"]
        if self._every is not None:
            owed = step % self._every == 0 and self.done_at != step
            self.due_at = step if owed else step - step % self._every + self._every


def _agreed(ranks: Ranks, step: int, metrics: dict[str, float], problem: str | None) -> tuple[dict[str, float], str | None]:
    """The metrics of rank 0, and its problem. Raises JobError where the job's evaluate has failed on some ranks alone.

    The others may then wait in a collective of a model in shards, which the failed rank will never take part in.
    """
    name = f"evaluation/{step}"
    if problem is not None:
        try:
            problems = ranks.gathered(f"{name}/done", problem, within_s=FAILED_ALONE_S)
        except RankLostError:
            problems = [problem, None]
        if None in problems:
            raise JobError(
                f"{problem.rstrip('.')}; it did so on some ranks only.", ["an evaluate that is the same on all ranks"]
            )
    else:
        ranks.post(f"{name}/done", None)
    answer = cast(dict[str, Json], ranks.of_first(name, lambda: {"metrics": {**metrics}, "problem": problem}))
    return cast(dict[str, float], answer["metrics"]), cast("str | None", answer["problem"])


def _interval(job: Job, strategy: Strategy, settings: TrainSettings, micro_batches_per_epoch: int | None) -> int | None:
    """Steps between evaluations; None for a single one at the end."""
    if job.evaluate is None:
        if settings.monitor or settings.evaluate_every:
            raise InputError(
                f"{job.name or 'the job'} has no metrics to evaluate.", ["evaluate=lambda model: {...} in the Job"]
            )
        return None
    if settings.evaluate_every is not None or settings.monitor is None:
        return settings.evaluate_every
    if micro_batches_per_epoch is None:
        raise InputError("nothing says how long an epoch is, and so when to evaluate.", ["--evaluate-every N"])
    return max(1, micro_batches_per_epoch // (strategy.accumulation * strategy.mesh.data_parallel))
