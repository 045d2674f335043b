"""The checkpoints of a run: each complete or absent, the last few and the best kept, damaged ones passed over."""

from __future__ import annotations

import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpuwise.errors import FileFormatError, InputError
from gpuwise.notes import Note
from gpuwise.notes.training import checkpoint_not_removed, damaged_checkpoints, files_of_others_kept
from gpuwise.runtime.checkpoint.checkpoint import Checkpoint, own_names, remove_folder, write_checkpoint
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.manifest import NewerFormatError
from gpuwise.runtime.checkpoint.room import needed_bytes
from gpuwise.runtime.checkpoint.state import Packed
from gpuwise.units import format_bytes

# `.old` is a checkpoint that another of the same step replaces; it counts until it is removed.
_CHECKPOINT = re.compile(r"step-(\d{8,18})(\.old)?")
_LEFTOVER = re.compile(r"\.(step-\d{8,18})\.\d{1,10}\.(?:tmp|gone)")


class CheckpointStore:
    """A folder of checkpoints, `step-00000100` and so on.

    Arguments:
        folder: made when the first is written.
        keep: how many of the newest are kept, at least two; the newest of those saved as the best is kept, too.
        files: the system calls; tests put their own in.

    notes: for the user, about damaged checkpoints and what could not be removed.
    in_use: steps whose checkpoints are not removed now, because they are being copied elsewhere.
    Raises InputError for keep below two.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2, files: Files | None = None):
        if keep < 2:
            raise InputError(f"at least two checkpoints are kept, in case the newest is damaged; got {keep}.")
        self.folder, self.keep = Path(folder), keep
        self.files = files or Files()
        self.notes: list[Note] = []
        self.in_use: set[int] = set()

    def all(self) -> list[Checkpoint]:
        """Every checkpoint, newest first, not verified."""
        steps = []
        for name in self._names():
            match = _CHECKPOINT.fullmatch(name)
            if match and _is_checkpoint(self.folder / name):
                steps.append(((int(match[1]), match[2] is None), Checkpoint(self.folder / name, int(match[1]))))
        return [checkpoint for _, checkpoint in sorted(steps, key=lambda item: item[0], reverse=True)]

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint, verified; None where there is none at all. Damaged ones leave a note.

        Raises FileFormatError when the newest was written by a newer gpuwise, or when all are damaged.
        """
        return self.newest_whole(self.all())

    def best(self) -> Checkpoint | None:
        """The newest whole one of those saved as the best, verified, or None. Raises FileFormatError as `latest`."""
        return self.newest_whole([checkpoint for checkpoint in self.all() if _is_best(checkpoint)])

    def write(self, packed: Packed, *, step: int, meta: Mapping[str, object] | None = None, best: bool = False) -> Checkpoint:
        """Writes a checkpoint, then removes those that are no longer kept. It is there, whole and to stay, when this returns.

        Raises OSError, leaving what was there before and nothing of this one.
        """
        aside = self.new_folder(step)
        try:
            write_checkpoint(self.files, aside, packed, step=step, meta=meta or {}, best=best)
            return self.publish(aside, step)
        except BaseException:
            self.discard(aside)
            raise

    def path_of(self, step: int) -> Path:
        """The folder of the checkpoint of a step."""
        return self.folder / f"step-{step:08d}"

    def new_folder(self, step: int) -> Path:
        """Where a checkpoint is written, aside; it is not there yet. Raises OSError."""
        aside = self._aside(self.path_of(step), "tmp")
        self._make_folders()
        return aside

    def publish(self, aside: Path, step: int) -> Checkpoint:
        """Gives a checkpoint that is whole and on the disk its name, then removes those that are no longer kept.

        Raises OSError, leaving what was there before.
        """
        path = self.path_of(step)
        old = path.with_suffix(".old")
        if os.path.lexists(path):  # a run that began again before this step
            if os.path.lexists(old):
                self._remove(old)
            if _is_checkpoint(path):
                self.files.rename(path, old)
            else:
                self._set_aside(path, path, ["what was there"])
        self.files.rename(aside, path)
        self.files.sync_folder(self.folder)
        self.prune(written=step)
        return Checkpoint(path, step)

    def discard(self, aside: Path) -> None:
        """Removes what was written of a checkpoint; what cannot be removed now goes when the next run starts."""
        with suppress(OSError):
            remove_folder(self.files, aside)

    def prune(self, *, written: int | None = None, keep: int | None = None) -> None:
        """Removes all but the newest `keep` whole checkpoints (the store's where None), the best, and the one just written.

        Damaged ones do not count, and go when they are older than those; what a newer gpuwise wrote stays.
        """
        keep = self.keep if keep is None else keep
        whole: set[int] = set()
        best: int | None = None
        for checkpoint in self.all():
            step, good = checkpoint.step, checkpoint.looks_whole()
            if good and best is None and checkpoint.manifest.best:
                best = step
            kept = step not in whole and (len(whole) < keep or (good and step in (best, written)))
            if good:
                whole.add(step)
            if not kept and step not in self.in_use and not checkpoint.is_newer:
                try:
                    self._remove(checkpoint.path)
                except OSError as error:
                    self.notes.append(checkpoint_not_removed(checkpoint=str(checkpoint.path), problem=str(error.strerror)))

    def remove_leftovers(self) -> None:
        """Removes what others did not finish. For the run that has the folder to itself."""
        for name in self._names():
            if match := _LEFTOVER.fullmatch(name):
                with suppress(OSError):
                    self._clear(self.folder / name, self.folder / match[1])

    def room_for(self, nbytes: int, *, last: bool = False) -> str | None:
        """None where so many bytes can be written; else, after removing what need not be kept, a sentence.

        Beside older checkpoints a margin is kept free. last: of the run's last checkpoint, which goes without the margin and,
        where there is no room otherwise, takes that of all others but the newest.
        """
        folder = next(folder for folder in (self.folder, *self.folder.absolute().parents) if folder.is_dir())
        needed = needed_bytes(nbytes)
        if self.files.free_bytes(folder) < needed:
            self.prune()
            if last or not any(checkpoint.looks_whole() for checkpoint in self.all()):
                needed = needed_bytes(nbytes, margin_bytes=0)
        if last and self.files.free_bytes(folder) < needed and self._newest_is_whole():
            self.prune(keep=1)
        free = self.files.free_bytes(folder)
        if free >= needed:
            return None
        return f"the disk is nearly full: a checkpoint needs {format_bytes(needed)}, {format_bytes(free)} are free in {folder}"

    def _newest_is_whole(self) -> bool:
        """Whether the newest of those that look whole is, read to its end."""
        newest = next((checkpoint for checkpoint in self.all() if checkpoint.looks_whole()), None)
        with suppress(FileFormatError):
            if newest is not None:
                newest.verify()
                return True
        return False

    def _names(self) -> list[str]:
        try:
            return self.files.names(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def newest_whole(
        self, checkpoints: Sequence[Checkpoint], verify: Callable[[Checkpoint], None] = Checkpoint.verify
    ) -> Checkpoint | None:
        """The first of these that `verify` raises no FileFormatError for; otherwise as `latest`."""
        damaged: list[str] = []
        for checkpoint in checkpoints:
            try:
                verify(checkpoint)
            except NewerFormatError as error:
                raise FileFormatError(
                    f"the checkpoint {checkpoint.path} cannot be read: {error.what}.", ["update gpuwise", "another run folder"]
                ) from error
            except FileFormatError as error:
                damaged.append(f"{checkpoint.path.name} ({error.what})")
                continue
            if damaged:
                self._note(damaged_checkpoints(step=checkpoint.step, damaged="; ".join(damaged)))
            return checkpoint
        if damaged:
            raise FileFormatError(
                f"all checkpoints in {self.folder} are damaged: {'; '.join(damaged)}.",
                ["copy them back from elsewhere", "remove them to start anew"],
            )
        return None

    def _note(self, note: Note) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _aside(self, path: Path, suffix: str) -> Path:
        """Where a checkpoint is while it is written (tmp) or removed (gone)."""
        aside = self.folder / f".{path.stem}.{os.getpid()}.{suffix}"
        if os.path.lexists(aside):  # of an attempt that failed, or of a dead process with the same number
            self._clear(aside, path)
        return aside

    def _make_folders(self) -> None:
        for folder in reversed(list(_missing(self.folder))):
            with suppress(FileExistsError):
                self.files.make_folder(folder)
                self.files.sync_folder(folder.parent)

    def _remove(self, path: Path) -> None:
        """Takes a checkpoint's name away first: one that is half removed is none."""
        aside = self._aside(path, "gone")
        self.files.rename(path, aside)
        self._clear(aside, path)

    def _clear(self, aside: Path, path: Path) -> None:
        """Removes what is left of the checkpoint that was, or was to be, at `path`; what is somebody else's stays."""
        if others := remove_folder(self.files, aside):
            self._set_aside(aside, path, others)

    def _set_aside(self, folder: Path, path: Path, names: list[str]) -> None:
        """Somebody's own files, in the way of a checkpoint that is removed or written: they get a folder beside it."""
        suffixes = itertools.chain([".kept"], (f".kept-{number}" for number in itertools.count(2)))
        kept = next(free for suffix in suffixes if not os.path.lexists(free := path.with_suffix(suffix)))
        self.files.rename(folder, kept)
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        files = f"{', '.join(names[:3])}{more}"
        self._note(files_of_others_kept(files=files, checkpoint=path.name, folder=str(kept)))


def _is_checkpoint(path: Path) -> bool:
    """Whether it is a folder (a link to one may lead anywhere) with a file of a checkpoint in it, be it a damaged one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode) and bool(own_names(path))
    except FileNotFoundError:  # removed meanwhile
        return False
    except OSError:  # nobody can look; what reads it will say so
        return True


def _missing(folder: Path) -> Iterator[Path]:
    while not folder.is_dir():
        yield folder
        folder = folder.absolute().parent


def _is_best(checkpoint: Checkpoint) -> bool:
    try:
        return checkpoint.manifest.best
    except FileFormatError:
        return False
