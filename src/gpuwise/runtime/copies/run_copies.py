"""RunCopies: the copies of a run for its loop. A run without --copy-to has one, too, that does nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol, TypedDict, cast

from gpuwise.errors import FileFormatError, InputError, NotSavedError
from gpuwise.notes import Note
from gpuwise.notes.copies import copies_not_removed
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore
from gpuwise.runtime.copies.copier import Copied, Copier, CopyFailure, Follower
from gpuwise.runtime.copies.copy_folder import CopyFolder
from gpuwise.runtime.copies.machines import Machines
from gpuwise.runtime.copies.records import newest_record, same_run
from gpuwise.runtime.copies.restore import Restore, prepare
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.run.folder import RunFolder, RunIdentity
from gpuwise.runtime.run.reporter import Reporter
from gpuwise.runtime.run.settings import TrainSettings

MARGIN_S = 5.0  # of the time that is left: for the result, the report and their copies
LEFT_WITHIN_S = 600.0
SILENT_AFTER_FAILURE_S = 60.0  # for which an error waits while a mount does not move on


class StoredCheckpoints(Protocol):
    """What reads the checkpoints of a run: CheckpointManager."""

    store: CheckpointStore

    def latest(self) -> tuple[Checkpoint | None, list[Note]]: ...


class SavedSteps(Protocol):
    """What has saved a run: RunCheckpoints."""

    @property
    def last_step(self) -> int | None: ...


class CopySummary(TypedDict):
    """The copies in the result of a run, beside its checkpoints.

    Attributes:
        copied_to: the folder of copies.
        copied_step: step of the newest checkpoint that is complete there; None without one of this process.
        copy_s: seconds of the latest copy.
    """

    copied_to: str
    copied_step: int | None
    copy_s: float


class RunCopies:
    """Copies what is saved of a run to a folder elsewhere, and takes it over from there.

    Arguments:
        settings: their copy_to is the folder of copies; None copies nothing.
        folder: folder of the run; None without one.
        ranks: the ranks of the run; on each of them the same methods are called in the same order.

    Attributes:
        problem: why the copy of the last checkpoint is not complete, once the run has ended; a sentence.

    Raises InputError for a folder that is the run's own, is inside it, or has it inside.
    """

    def __init__(self, settings: TrainSettings, folder: RunFolder | None, ranks: Ranks):
        self._settings, self._folder, self._ranks = settings, folder, ranks
        self._copy = None if settings.copy_to is None else CopyFolder(settings.copy_to, keep=settings.keep)
        self._copier: Copier | None = None
        self._follower: Follower | None = None
        self._reporter: Reporter | None = None
        self._saved: SavedSteps | None = None
        self._begun: int | None = None  # step of the newest checkpoint whose copy was begun
        self._failed: str | None = None  # the latest failure, shown once
        self._ended = False
        self.problem: str | None = None
        if self._copy is not None:
            if folder is None:
                raise InputError("what is copied to a folder is the folder of a run, and this run has none.", ["--run FOLDER"])
            _check_apart(self._copy, folder)

    @property
    def seconds(self) -> float:
        """Expected seconds until a checkpoint that is made now is copied; 0 before the first copy."""
        part = self._copier or self._follower
        if part is None:
            return 0.0
        return part.copy_s * (2 if self._copier is not None and self._copier.work.busy else 1)

    def prepare(self, identity: Callable[[], RunIdentity]) -> list[Note]:
        """On rank 0, before the run looks into its folder: takes over what it lacks, see restore.prepare."""
        if self._copy is None:
            return []
        assert self._folder is not None
        return prepare(self._copy, self._folder, identity(), resume=self._settings.resume)

    def latest(self, checkpoints: StoredCheckpoints) -> tuple[Checkpoint | None, list[Note]]:
        """The newest whole checkpoint of the run's folder and the copies, from the run's folder; and notes.

        Raises FileFormatError as CheckpointStore.latest, and where no copy makes up for it.
        """
        if self._copy is None:
            return checkpoints.latest()
        assert self._folder is not None
        checkpoint: Checkpoint | None = None
        notes: list[Note] = []
        damaged: FileFormatError | None = None
        try:
            checkpoint, notes = checkpoints.latest()
        except FileFormatError as error:
            damaged = error
        restore = Restore(self._copy, checkpoints.store, self._ranks)
        fetched, more = restore.newer_than(0 if checkpoint is None else checkpoint.step)
        if fetched:
            checkpoint, notes = checkpoints.latest()
        elif damaged is not None:
            raise damaged
        machines = Machines(self._ranks.cloned())
        if self._ranks.leads:
            self._copier = Copier(checkpoints.store, self._copy, self._folder.path, machines)
            at = 0 if checkpoint is None else checkpoint.step
            self._copier.copied_step = next((c.step for c in self._copy.complete() if c.step <= at), None)
        elif machines.copies:
            self._follower = Follower(checkpoints.store, self._copy, machines)
        return checkpoint, [*more, *notes]

    def begin(self, reporter: Reporter, checkpoints: SavedSteps, *, before: int) -> None:
        """The run begins after the step `before`, whose checkpoint is copied if it is not there."""
        self._reporter, self._saved = reporter, checkpoints
        if self._copier is not None and before:
            self._begun = before
            self._copier.begin(before)

    def look(self) -> None:
        """Has a checkpoint copied that is new, and reports copies that have ended. Cheap where nothing is new."""
        if self._copier is None or self._saved is None or self._ended:
            return
        step = self._saved.last_step
        if step is not None and step != self._begun:
            self._begun = step
            self._copier.begin(step)
        self._report()

    def finish(self, left_s: float | None) -> None:
        """The end of the run, after its last save: waits until that is copied, or until there is no more time.

        Arguments:
            left_s: seconds until this process may be ended; None where that is unknown.
        """
        if self._copy is None:
            return
        self.look()
        until_s = self._until_s(left_s)
        if self._copier is not None:
            if self._begun is not None and self._copier.copied_step != self._begun and not self._copier.work.busy:
                self._copier.begin(self._begun)  # once more: the mount may be there again
            whole = self._copier.work.wait(until_s=until_s)
            self._report()
            if self._begun is not None and self._copier.copied_step != self._begun:
                self.problem = self._unsaved(None if whole else "there was no more time")
            self._copier.end()
        elif self._follower is not None:
            self._follower.work.wait(until_s=until_s)
        self._ended = self.problem is not None or self._follower is not None

    def finish_record(self, left_s: float | None) -> str | None:
        """After the result is written: copies log, report and state as they are now. Returns why they are not copied, if so."""
        if self._copier is None or self._ended or self._begun is None:
            return None
        self._ended = True
        self._copier.begin_record(self._begun)
        whole = self._copier.work.wait(until_s=None if left_s is None else time.perf_counter() + left_s)
        failures = [outcome.why for outcome in self._copier.poll() if isinstance(outcome, CopyFailure)]
        if whole and not failures:
            return None
        why = failures[0] if failures else "there was no more time"
        return f"the log and the report were not copied to {self._settings.copy_to} as they are at the end: {why}."

    def catch_up(self, step: int) -> None:
        """Of a run that has ended before, with the checkpoint of `step`: copies of it what is not there yet.

        Raises NotSavedError where that fails.
        """
        self._begun = step
        self.finish(None)
        problem = self.problem
        if problem is None and self._copier is not None and not self._has_record():
            problem = self.finish_record(None)
        if problem is not None:
            raise NotSavedError(problem, ["see that the folder of copies is mounted, then start again"])

    def _has_record(self) -> bool:
        """Whether the newest record is of the run as it is now."""
        assert self._copy is not None
        assert self._folder is not None
        try:
            record = newest_record(self._copy.files, self._copy.path)
            return record is not None and same_run(record, self._folder.path)
        except OSError:
            return False

    def close(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """The end of a run that has failed: what is being copied is waited for, but by nobody who is in a hurry.

        Of several ranks others may not answer any more.
        """
        in_a_hurry = kind is not None and not issubclass(kind, Exception)
        if self._follower is not None:
            self._follower.end()
        if self._copier is None or self._ended:
            return
        if in_a_hurry or self._ranks.several:
            self._copier.work.give_up()
        else:
            self.look()
            self._copier.work.wait(silent_s=SILENT_AFTER_FAILURE_S)
            self._report()
        self._ended = True

    def summary(self) -> CopySummary | dict[str, object]:
        if self._copier is None:
            return {}
        return {
            "copied_to": str(self._settings.copy_to),
            "copied_step": self._copier.copied_step,
            "copy_s": self._copier.copy_s,
        }

    def _until_s(self, left_s: float | None) -> float | None:
        """The earliest end that any rank has heard of, by perf_counter, less a margin."""
        of_ranks = self._ranks.gathered("copies/left", left_s, within_s=LEFT_WITHIN_S)
        least_s = min((cast(float, left) for left in of_ranks if left is not None), default=None)
        return None if least_s is None else time.perf_counter() + least_s - min(MARGIN_S, least_s / 4)

    def _report(self) -> None:
        assert self._copier is not None
        assert self._copy is not None
        for outcome in self._copier.poll():
            if self._reporter is None:
                continue
            if isinstance(outcome, Copied):
                self._failed = None if outcome.step == self._begun else self._failed
                if outcome.copy_s:
                    record = {"step": outcome.step, "folder": str(self._copy.path), "bytes": outcome.nbytes}
                    self._reporter.log.write("copy", {**record, "copy_s": outcome.copy_s})
                continue
            self._reporter.log.write("copy", {"step": outcome.step, "failed": outcome.why})
            if outcome.why != self._failed:
                self._failed = outcome.why
                self._reporter.tell(f"step {outcome.step:,} is not copied to {self._copy.path}: {outcome.why}.", "copy")
        if self._copy.unremovable and self._reporter is not None:
            note, self._copy.unremovable = copies_not_removed(problem=self._copy.unremovable), None
            if note.kind not in {earlier.kind for earlier in self._reporter.notes}:
                self._reporter.note(note, "copy")

    def _unsaved(self, why: str | None) -> str:
        assert self._copier is not None
        there = self._copier.copied_step
        stands = "there is none before it" if there is None else f"the one of step {there:,} is"
        return f"the copy of step {self._begun:,} in {self._settings.copy_to} is not complete: {why or self._failed}; {stands}."


def _check_apart(copy: CopyFolder, folder: RunFolder) -> None:
    """Raises InputError where one folder is the other, or inside it."""
    there, here = copy.path.resolve(), folder.path.resolve()
    if there == here or there in here.parents or here in there.parents:
        raise InputError(
            f"the run's folder {folder.path} and its copy {copy.path} are inside each other.",
            ["--copy-to FOLDER elsewhere, such as a mounted bucket"],
        )
