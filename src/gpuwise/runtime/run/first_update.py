"""Reports parameters that the first steps of a run did not train."""

from __future__ import annotations

from gpuwise.notes import training as training_notes
from gpuwise.runtime.build.program import Program
from gpuwise.runtime.health import FirstUpdate
from gpuwise.runtime.run.loss_tracker import LossTracker
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.run.reporter import Reporter

NAMED = 5  # parameters that a note names


class FirstUpdateCheck:
    """Finds parameters without a gradient, without an optimizer, or unchanged by the first update.

    Attributes:
        waiting: true until the first update has been checked; until then `look` must be called after each step.
    """

    def __init__(self, program: Program, *, losses: LossTracker, reporter: Reporter, meter: Meter):
        self.waiting = True
        self._program, self._losses, self._reporter, self._meter = program, losses, reporter, meter
        self._first = FirstUpdate(program.optimizer, program.names_of_updated())

    def gradients(self) -> None:
        """Checks the first gradients; call it before the first update."""
        if names := self._program.without_gradient():
            self._reporter.notes.append(training_notes.no_gradient(parameters=_listed(names)))
        if names := self._program.left_out_of_optimizer():
            self._reporter.notes.append(training_notes.not_given_to_the_optimizer(parameters=_listed(names)))

    def look(self) -> None:
        """Reports parameters that the first update did not change."""
        if (notes := self._first.notes()) is None:
            return
        self.waiting = False
        for note in notes:
            if self._losses.started:
                self._reporter.note(note, "not updated")
            else:  # the log begins with all notes
                self._reporter.notes.append(note)
                self._reporter.display.note(note.text)

    def end(self) -> None:
        """Reports at the end of the run if no update was ever made."""
        if not self.waiting or not self._meter.done:
            return
        self.waiting = False
        why = "the learning rate was 0, or all of them were skipped"
        if self._program.scaler.is_enabled():
            why = "gradients overflowed in fp16 at every scale that was tried"
        self._reporter.note(training_notes.no_update(steps=self._meter.done, why=why), "not updated")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
