"""Reporter: what a run says while it goes, on its display, in its log, as curves and in run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.runtime.run.folder import RunFolder, RunIdentity
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.show import Display, Fanout, RunLog, Writer


class Reporter:
    """Reports events of a run to the user and to the files of the run.

    Arguments:
        display: the display, already open.
        log: the log; `begin` creates its file.
        writers: writers of curves; `begin` opens them.
        meter: provides the step of an event.
        folder: folder of the run; None writes no files.
        identity: content of run.json; None without a folder.
        header: header of the log and the writers.
        notes: notes from before the first step, which are shown at once and logged by `begin`.

    Attributes:
        notes: notes for the user; the result of the run contains them.
        begun: whether the files of the run are open. A run that fails in its first step leaves no files.
    """

    def __init__(
        self,
        display: Display,
        log: RunLog,
        writers: Sequence[Writer],
        *,
        meter: Meter,
        folder: RunFolder | None,
        identity: RunIdentity | None,
        header: dict[str, object],
        notes: Sequence[Note],
    ):
        self.display, self.log, self.folder, self.identity = display, log, folder, identity
        self.writers = Fanout(writers, say=self.tell)
        self.notes = list(notes)
        self.begun = False
        self._meter, self._header = meter, header
        for note in self.notes:
            display.note(note.text)

    def begin(self) -> None:
        """Opens the files of the run. Raises InputError where its folder cannot be written to."""
        self.begun = True
        if self.folder is not None and self.identity is not None:
            try:
                self.folder.write_identity(self.identity)
            except OSError as error:
                raise InputError(
                    f"cannot write to the run folder {self.folder.path}: {error.strerror or error}.",
                    ["another --run FOLDER", "--no-run keeps nothing"],
                ) from error
        self.log.open(self._header)
        if self._meter.before:
            self.log.write("resumed", {"step": self._meter.before})
        self.writers.open(self._header)

    def log_notes(self) -> None:
        for note in self.notes:
            self.log.write("event", {"kind": "note", "text": note.text})

    def tell(self, text: str, kind: str = "event", *, step: int | None = None, **fields: object) -> None:
        """Something that happened: on the display and, as an event of this kind, in the log."""
        self.display.note(text)
        self.log.write("event", {"kind": kind, "text": text, "step": self._meter.step if step is None else step, **fields})

    def note(self, note: Note, kind: str = "note") -> None:
        """The same, and the result of the run has it among its notes."""
        self.notes.append(note)
        self.tell(note.text, kind)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Points of the curves."""
        self.writers.scalars(step, values)
