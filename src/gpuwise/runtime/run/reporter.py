"""Reporter: what a run says while it goes, on its display, in its log, as curves and in run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.runtime.run.folder import RunFolder, RunIdentity
from gpuwise.runtime.run.meter import Meter
from gpuwise.runtime.show import Display, Fanout, RunLog, Writer


class Reporter:
    """Tells the user, and the files of the run, what happens.

    Arguments:
        display, log: open already; the log's file is made by `begin`.
        writers: of curves; `begin` opens them.
        meter: says at which step something is told.
        folder: of the run; None keeps nothing.
        identity: what run.json says; None without a folder.
        header: what the log and the writers begin with.
        notes: from before the first step; they are shown at once, and logged by `begin`.

    Attributes:
        notes: what the user should know of the run; its result has them.
        begun: whether the files of the run are open. A run that fails in its first step leaves none behind.
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
