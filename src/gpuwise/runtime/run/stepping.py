"""One step of a run: its data, its gradients, its update, and its loss as soon as that is known."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NamedTuple

from gpuwise.errors import JobError
from gpuwise.runtime.build.failure import job_failure
from gpuwise.runtime.health import FirstUpdate, LossEvent, write_bad_batch
from gpuwise.runtime.interruption import AT_ONCE, ReadGivenUp
from gpuwise.runtime.run.equipment import Equipment
from gpuwise.runtime.run.losses import DeviceLosses
from gpuwise.runtime.run.update_guard import Cause, UpdateGuard

NAMED = 5  # parameters that a note names


class _LogRow(NamedTuple):
    """What the log has of a step beside its loss."""

    now_s: float
    step: int
    learning_rate: float
    step_time_s: float
    data_s: float
    gradient_norm: float | None
    places: list[tuple[int, int]]  # of its data
    parts: tuple[str, ...]  # names of what its loss came with
    cause: Cause | None = None


class Stepper:
    """Takes the steps of a run, one at a time; the meter's `fetch` comes before each. loss: the latest that is known; parts:
    the named numbers that came with it.

    Raises what the job's own code comes to (see gpuwise.runtime.build.failure), and JobError for losses that are no numbers.
    """

    def __init__(self, its: Equipment):
        self.its, self.job, self.program = its, its.job, its.program
        self.loss = its.good_loss
        self.parts: dict[str, float] = {}
        self._skips = its.settings.on_nonfinite == "skip"
        self._judges = its.program.device.type == "cpu" or self._skips  # the loss is known before the update
        self._judge = UpdateGuard(its.program, skips=self._skips)
        self._first: FirstUpdate | None = FirstUpdate(its.program.optimizer, its.program.names_of_updated())
        self._waiting: DeviceLosses[_LogRow] | None = None  # made when a step shows how many numbers it has

    def take(self, step: int) -> None:
        """Data, gradients, update."""
        its, meter, program = self.its, self.its.meter, self.program
        its.stall.beat("data")
        try:
            micro_batches = next(its.batches)
        except (ReadGivenUp, *AT_ONCE):
            raise
        except BaseException as error:  # the user's own code may raise anything
            if its.checkpoints is not None and its.begun:  # what was trained up to here is sound
                self.settle()
                its.save_last(step - 1)
            raise job_failure(
                error, self.job, doing=f"reading the data of step {step}", part=self.job.data or self.job.batch
            ) from error
        its.stall.beat("step")
        meter.begin()
        try:
            its.rate.set(step - 1)
            self._judge.before()
            loss = program.accumulate_gradients(micro_batches)
            if step == its.start + 1:
                its.notes += self._untrained()
            cause: Cause | None = None
            if self._judges:
                value, cause = self._judge.update(loss.item(), micro_batches)
            else:
                loss = self._judge.update_unseen(loss)
                # Waits where the device is behind: that is the time a step takes.
                ready = [] if self._waiting is None else self._waiting.known()
        except AT_ONCE:
            raise
        except BaseException as error:  # the user's own code may raise anything
            raise job_failure(
                error,
                self.job,
                doing=f"step {step}",
                part=self.job.step or self.job.loss,
                memory=lambda: its.memory_view(micro_batches),
            ) from error
        meter.end()
        parts = program.parts
        norm = program.gradient_norm.item() if self._judges and program.gradient_norm is not None else math.nan
        row = _LogRow(
            meter.now_s,
            step,
            its.rate.value,
            meter.step_time_s,
            meter.data_s,
            norm if math.isfinite(norm) else None,
            its.loader.places,
            tuple(parts),
            cause,
        )
        if self._first is not None:
            self._look_at_first_update()
        if self._judges:
            self._know(row, [value, *(part.item() for part in parts.values())] if parts else [value])
            return
        for known, values in ready:  # before what `settle` waits for: losses become known in the order of their steps
            self._know(known, values)
        if self._waiting is None or self._waiting.numbers != 1 + len(parts):
            self.settle()
            self._waiting = DeviceLosses(1 + len(parts))
        self._waiting.put(row, [loss, *parts.values()])

    def _untrained(self) -> list[str]:
        """A sentence each when parameters are trained that the loss does not depend on, or that have no optimizer."""
        notes = []
        if names := self.program.without_gradient():
            notes.append(
                f"no gradient reaches {_listed(names)}: the loss does not depend on them, so they stay as they are; "
                "use them in the model's forward, or set requires_grad to False."
            )
        if names := self.program.left_out_of_optimizer():
            notes.append(
                f"{_listed(names)} have gradients, but the job's optimizer was not given them, so they stay as they "
                "are; give it model.parameters(), or set requires_grad to False."
            )
        return notes

    def _look_at_first_update(self) -> None:
        """What did not move in it."""
        its = self.its
        if self._first is None or (notes := self._first.notes()) is None:
            return
        self._first = None
        for note in notes:
            its.notes.append(note)
            if its.started:
                its.tell(note, "not updated")
            else:  # the log begins with all notes
                its.shown.note(note)

    def end(self) -> None:
        """The run is over: an update that was never made is news."""
        if self._first is None or self.its.meter.step == self.its.start:
            return
        self._first = None
        why = "the learning rate was 0, or all of them were skipped"
        if self.program.scaler.is_enabled():
            why = "gradients overflowed in fp16 at every scale that was tried"
        note = f"no update was made in {self.its.meter.step - self.its.start:,} steps, so nothing was trained: {why}."
        self.its.notes.append(note)
        self.its.tell(note, "not updated")

    def _know(self, row: _LogRow, values: list[float]) -> None:
        """The loss of a step has become known, and its parts."""
        its, loss = self.its, values[0]
        event = its.watch.see(row.step, loss, what=row.cause.text if row.cause else "")
        if not its.started and math.isfinite(loss):
            its.first_step_is_done(loss)
        if math.isfinite(loss):
            its.good_loss = self.loss = loss
        if row.parts:
            self.parts = dict(zip(row.parts, values[1:], strict=True))
        samples = row.step * its.strategy.global_batch
        its.log.step(
            row.now_s,
            row.step,
            samples,
            its.epoch(samples),
            loss,
            row.learning_rate,
            row.step_time_s,
            row.data_s,
            row.gradient_norm,
            its.memory_bytes,
            self.parts if row.parts else None,
        )
        if event is not None:
            self._about(event, row)

    def _about(self, event: LossEvent, row: _LogRow) -> None:
        """A loss that is no number, or that jumped."""
        its = self.its
        if event.first:
            its.tell(event.text, event.kind, step=event.step, loss=event.loss)
        if event.kind != "nonfinite":
            return
        saved = ""
        if its.folder is not None and its.begun:
            with suppress(OSError):  # a full disk must not hide what is wrong
                path = write_bad_batch(
                    its.folder.path, its.loader.where(row.places), loss=event.loss, step=event.step, seed=its.settings.seed
                )
                saved = f" Its data is named in {path}."
        # fp16 finds its scale by trying, but no scale helps against NaN in the data.
        if event.ends or (row.cause is not None and row.cause.of_data and not self._skips):
            name, half = self.job.name or "the job", its.strategy.precision in ("amp-fp16", "bf16")
            before = "the first step" if math.isnan(its.good_loss) else f"the last good one was {its.good_loss:.6g}"
            what = f"the loss of {name} is {event.loss}" if row.cause is None else f"{name}: {row.cause.text}"
            ways = [
                "a lower learning rate in the Job",
                "--precision amp-bf16 or fp32" if half else "--on-nonfinite skip leaves it out",
            ]
            raise JobError(f"{what} at step {event.step}; {before}.{saved}", row.cause.ways_out if row.cause else ways)

    def settle(self) -> None:
        """Waits for losses on their way: nothing is saved that may be no number."""
        self.its.stall.beat()
        for row, values in self._waiting.known(wait=True) if self._waiting is not None else ():
            self._know(row, values)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
