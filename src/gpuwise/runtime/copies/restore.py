"""A run that goes on from its copy: what the folder of the run lacks, or has older, is copied back before the first step."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gpuwise.errors import FileFormatError, GpuwiseError, InputError
from gpuwise.json_types import Json
from gpuwise.notes import Note
from gpuwise.notes.copies import copied_back, copies_on_the_same_disk, incomplete_copies
from gpuwise.notes.training import damaged_checkpoints
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore
from gpuwise.runtime.checkpoint.manifest import MANIFEST, NewerFormatError
from gpuwise.runtime.copies.copier import reason_of
from gpuwise.runtime.copies.copy_folder import CopyFolder
from gpuwise.runtime.copies.machines import Machines
from gpuwise.runtime.copies.mount import copy_file
from gpuwise.runtime.copies.records import RUN, newest_record, take_over
from gpuwise.runtime.ranks import Ranks
from gpuwise.runtime.run.continuing import check_continues
from gpuwise.runtime.run.folder import RunFolder, RunIdentity, makes_sense

WITHIN_S = 86_400.0  # for the part of another machine, which may download terabytes


def prepare(copy: CopyFolder, run: RunFolder, identity: RunIdentity, *, resume: str) -> list[Note]:
    """Before the run looks into its own folder: what the copy says of the run is compared with `identity`, and run.json and
    the log are taken over from it.

    Arguments:
        resume: as in TrainSettings.

    Returns notes. Raises InputError for a folder of copies that cannot be used, or has a run that is not to be continued;
    JobError for the copy of another job's run.
    """
    if (own := run.identity()) is not None:
        check_continues(own, identity, run.path)
    try:
        os.makedirs(copy.path, exist_ok=True)
        if not os.access(copy.path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        newest = next((c for c in copy.complete() if not c.is_newer), None)
        same_disk = os.stat(copy.path).st_dev == os.stat(run.path).st_dev
        if newest is not None:
            if resume == "never":
                ways = ["--resume continues it", "another --copy-to FOLDER"]
                raise InputError(f"{copy.path} has copies of a run already.", ways)
            saved = newest.meta.get("run")
            if not isinstance(saved, dict) or not makes_sense(saved):
                raise InputError(f"{newest.path} does not say of what run it is.", ["another --copy-to FOLDER"])
            _check_same_run(cast(RunIdentity, saved), identity, copy)
            if (record := newest_record(copy.files, copy.path)) is not None:
                take_over(record, run.path)
            if own is None and not (run.path / RUN).exists():
                run.write_identity(cast(RunIdentity, saved))
    except (OSError, FileFormatError) as error:
        raise _unusable(copy, error) from error
    return [copies_on_the_same_disk(folder=str(copy.path))] if same_disk else []


def _check_same_run(saved: RunIdentity, identity: RunIdentity, copy: CopyFolder) -> None:
    """Raises JobError or InputError as check_continues."""
    try:
        check_continues(saved, identity, copy.path)
    except GpuwiseError as error:
        raise type(error)(error.what, [*error.ways_out[:-1], "another --copy-to FOLDER"]) from error


def _unusable(copy: CopyFolder, error: Exception) -> InputError:
    ways = ["mount it, if it is a mount", "leave out --copy-to"]
    return InputError(f"the folder of copies {copy.path} cannot be used: {reason_of(error)}.", ways)


class Restore:
    """Copies the newest complete checkpoint back, on all ranks at once: each machine copies a part of its files.

    Arguments:
        store: the run's own checkpoints, in a folder that all ranks share.
    """

    def __init__(self, copy: CopyFolder, store: CheckpointStore, ranks: Ranks):
        self._copy, self._store, self._ranks, self._machines = copy, store, ranks, Machines(ranks)

    def newer_than(self, step: int) -> tuple[bool, list[Note]]:
        """Copies back the newest checkpoint that is newer and whole, if there is one. All ranks return or raise the same.

        Returns whether there was one, and notes. Raises FileFormatError where all are damaged and `step` is 0, or where a newer
        gpuwise wrote one; InputError where a disk does not take it.
        """

        def listed() -> Json:
            try:
                complete: list[Json] = [[c.path.name, c.step] for c in self._copy.complete() if c.step > step]
                return {"complete": complete, "incomplete": list(self._copy.incomplete(after=step))}
            except OSError as error:
                raise _unusable(self._copy, error) from error

        answer = cast("dict[str, list[list[str | int]] | list[int]]", self._ranks.of_first("copies", listed))
        names = cast("list[tuple[str, int]]", answer["complete"])
        checkpoints = [Checkpoint(self._copy.store.folder / name, number) for name, number in names]
        notes: list[Note] = []
        try:
            chosen = self._copy.store.newest_whole(checkpoints, verify=self._fetch)
        except FileFormatError as error:
            if not step or isinstance(error.__cause__, NewerFormatError):
                raise
            chosen, notes = None, [damaged_checkpoints(step=step, damaged=error.what.rstrip("."))]
        after = step if chosen is None else chosen.step
        notes += self._copy.store.notes
        self._copy.store.notes.clear()
        if cut_short := [number for number in cast("list[int]", answer["incomplete"]) if number > after]:
            notes.append(incomplete_copies(folder=str(self._copy.path), steps=", ".join(f"{n:,}" for n in cut_short)))
        if chosen is not None:
            notes.append(copied_back(folder=str(self._copy.path), step=chosen.step))
        return chosen is not None, notes

    def _fetch(self, checkpoint: Checkpoint) -> None:
        """Copies a checkpoint into the run's own folder. Raises FileFormatError on every rank where a file is damaged."""
        name = f"copies/{checkpoint.step}"
        aside = Path(str(self._ranks.of_first(f"{name}/aside", lambda: str(self._make_aside(checkpoint)))))
        try:
            answers = self._ranks.gathered(f"{name}/files", self._fetch_share(checkpoint, aside), within_s=WITHIN_S)
            for answer in answers:
                _raise(cast("dict[str, str] | None", answer))
            _raise(
                cast("dict[str, str] | None", self._ranks.of_first(f"{name}/whole", lambda: self._publish(checkpoint, aside)))
            )
        except BaseException:
            if self._ranks.leads:
                self._store.discard(aside)
            raise

    def _make_aside(self, checkpoint: Checkpoint) -> Path:
        try:
            aside = self._store.new_folder(checkpoint.step)
            self._store.files.make_folder(aside)
        except OSError as error:
            raise InputError(_cannot_copy_back(self._store.folder, error)) from error
        return aside

    def _fetch_share(self, checkpoint: Checkpoint, aside: Path) -> Json:
        """This rank's part of the files. Returns what went wrong."""
        try:
            if self._machines.copies:
                files: Mapping[str, object] = checkpoint.manifest.files
                for name in self._machines.share(files):
                    expected = checkpoint.manifest.files[name]
                    copy_file(self._store.files, checkpoint.path / name, aside / name, expected, progress=lambda: None)
        except FileFormatError as error:
            return {"damaged": error.what}
        except OSError as error:
            return {"disk": _cannot_copy_back(self._store.folder, error)}
        return None

    def _publish(self, checkpoint: Checkpoint, aside: Path) -> Json:
        """On rank 0: the checkpoint takes its name, its manifest copied last."""
        try:
            copy_file(self._store.files, checkpoint.path / MANIFEST, aside / MANIFEST, None, progress=lambda: None)
            self._store.files.sync_folder(aside)
            self._store.publish(aside, checkpoint.step)
        except FileFormatError as error:
            return {"damaged": error.what}
        except OSError as error:
            return {"disk": _cannot_copy_back(self._store.folder, error)}
        return None


def _raise(answer: Mapping[str, str] | None) -> None:
    if answer is None:
        return
    if "damaged" in answer:
        raise FileFormatError(answer["damaged"])
    raise InputError(answer["disk"], ["make room, then start again", "another --run FOLDER"])


def _cannot_copy_back(folder: Path, error: OSError) -> str:
    return f"a checkpoint cannot be copied back to {folder}: {error.strerror or error}."
