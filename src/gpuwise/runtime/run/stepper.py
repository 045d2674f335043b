"""Stepper: one optimizer step of a run, its data, its gradients, its update, and its loss as soon as that is known."""

from __future__ import annotations

import math

from torch import Tensor

from gpuwise.job.job import Batch
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.data import MicroBatchLoader
from gpuwise.runtime.devices import backend_of
from gpuwise.runtime.interruption import AT_ONCE, ReadGivenUp
from gpuwise.runtime.ranks.word import word_of
from gpuwise.runtime.run.checkpoint_manager import RunCheckpoints
from gpuwise.runtime.run.device_losses import DeviceLosses, losses_of
from gpuwise.runtime.run.first_update import FirstUpdateCheck
from gpuwise.runtime.run.health import RunHealth
from gpuwise.runtime.run.loss_tracker import LossTracker, StepRow
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.schedule import LearningRate
from gpuwise.runtime.run.together import NO_WORD, StepTogether
from gpuwise.runtime.run.update_guard import NonFiniteCause, UpdateGuard


def sees_losses(program: Program, *, skips: bool) -> bool:
    """Whether the loss of a step is known before its update, for which an accelerator is waited for."""
    return skips or backend_of(program.device).is_host


class Stepper:
    """Takes the steps of a run, one at a time; the meter's `fetch` comes before each.

    Arguments:
        guard: makes the updates.
        together: what ranks tell each other in each step; None for a single process.
        losses: told of each loss as soon as it is known: on a CPU at once, on a GPU up to four steps later.

    Raises what the job's own code comes to (see gpuwise.runtime.build.failure), and JobError for losses that are not finite.
    """

    def __init__(
        self,
        program: Program,
        loader: MicroBatchLoader,
        rate: LearningRate,
        guard: UpdateGuard,
        *,
        together: StepTogether | None = None,
        losses: LossTracker,
        checkpoints: RunCheckpoints,
        health: RunHealth,
        reporter: Reporter,
        meter: Meter,
    ):
        self.rate = rate
        self._program, self._job, self._loader, self._batches = program, program.job, loader, loader.steps()
        self._guard, self._losses, self._checkpoints, self._together = guard, losses, checkpoints, together
        self._health, self._stall, self._meter = health, health.stall, meter
        self._first_step = meter.before + 1
        self._first_update = FirstUpdateCheck(program, losses=losses, reporter=reporter, meter=meter)
        self._sees_losses = sees_losses(program, skips=guard.skips)
        self._unknown: DeviceLosses[StepRow] | None = None  # made when a step shows how many numbers it has

    def take(self, step: int) -> None:
        """Data, gradients, update."""
        meter, program, rate = self._meter, self._program, self.rate
        self._stall.beat("data")
        micro_batches = self._read(step)
        self._stall.beat("step")
        meter.begin()
        try:
            rate.set(step - 1)
            self._guard.before()
            if self._together is not None:
                self._together.begin(step)
            loss = program.accumulate_gradients(micro_batches)
            if step == self._first_step:
                self._first_update.gradients()
            cause: NonFiniteCause | None = None
            parts, word = program.parts, NO_WORD
            if self._sees_losses:
                value, named, cause = self._update_seen(step, loss, micro_batches)
            else:
                if self._together is not None:
                    loss, word, parts = self._together.read(loss, parts)
                loss = self._guard.update_unseen(loss)
                # Waits where the device is behind: that is the time a step takes.
                ready = [] if self._unknown is None else self._unknown.ready()
        except AT_ONCE:
            raise
        except BaseException as error:  # the user's own code may raise anything
            raise job_failure(
                error,
                self._job,
                doing=f"step {step}",
                part=self._job.step or self._job.loss,
                memory=lambda: self._health.memory_view(micro_batches),
            ) from error
        meter.end()
        norm = program.gradient_norm.item() if self._sees_losses and program.gradient_norm is not None else math.nan
        row = StepRow(
            meter.now_s,
            step,
            rate.value,
            meter.step_time_s,
            meter.data_s,
            norm if math.isfinite(norm) else None,
            self._loader.positions,
            tuple(named if self._sees_losses else parts),
            cause,
        )
        if self._first_update.waiting:
            self._first_update.look()
        if self._sees_losses:
            self._losses.add(row, [value, *named.values()])
            return
        for earlier, values in ready:  # before what `settle` waits for: losses become known in the order of their steps
            self._add(earlier, values)
        numbers = [loss, *parts.values(), *word.unbind()]
        if self._unknown is None or self._unknown.numbers != len(numbers):
            self.settle()
            self._unknown = losses_of(program.device, len(numbers))
        self._unknown.put(row, numbers)

    def _update_seen(
        self, step: int, loss: Tensor, micro_batches: list[Batch]
    ) -> tuple[float, dict[str, float], NonFiniteCause | None]:
        """The update of a step whose loss is waited for. Returns the loss, its parts, and the cause if it is not finite."""
        if self._together is None:
            value, cause = self._guard.update(loss.item(), micro_batches)
            return value, {name: part.item() for name, part in self._program.parts.items()}, cause
        value, word, parts = self._together.as_numbers(loss, self._program.parts)
        value, cause = self._guard.update(value, micro_batches)
        self._together.decisions.heard(step, word)
        return value, parts, cause if math.isfinite(value) else self._together.first_cause(step, cause)

    def settle(self) -> None:
        """Waits for losses that are not known yet: nothing is saved that may not be finite."""
        self._stall.beat()
        for row, values in self._unknown.ready(wait=True) if self._unknown is not None else ():
            self._add(row, values)

    def _add(self, row: StepRow, values: list[float]) -> None:
        """A step whose numbers are known now: its loss, the parts of it, and the word of all ranks."""
        of_loss = 1 + len(row.parts)
        if self._together is not None:
            self._together.decisions.heard(row.step, word_of(values[of_loss:]))
        self._losses.add(row, values[:of_loss])

    def end(self) -> None:
        """The run is over."""
        self.settle()
        self._first_update.end()

    def _read(self, step: int) -> list[Batch]:
        """The micro-batches of a step. Where they cannot be read, the steps before are saved."""
        try:
            return next(self._batches)
        except (ReadGivenUp, *AT_ONCE):
            raise
        except BaseException as error:  # the user's own code may raise anything
            if self._checkpoints.begun and self._together is None:  # other ranks are within the step already
                self.settle()
                self._checkpoints.save_last(step - 1)
            raise job_failure(
                error, self._job, doing=f"reading the data of step {step}", part=self._job.data or self._job.batch
            ) from error
