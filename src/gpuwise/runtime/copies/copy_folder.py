"""CopyFolder: the copied checkpoints of a run, each complete by its manifest, which is written last and removed first."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import Checkpoint, CheckpointStore, Files
from gpuwise.runtime.checkpoint.checkpoint import own_names
from gpuwise.runtime.checkpoint.manifest import MANIFEST, MAX_MANIFEST_BYTES, read_ordinary
from gpuwise.runtime.copies.mount import MountFiles, Progress, check_size, copy_file, write_new


class CopyFolder:
    """FOLDER/checkpoints/step-00000100/: the files of a run's checkpoint, byte for byte.

    Arguments:
        path: FOLDER; made when something is copied.
        keep: how many of the newest complete checkpoints stay there; the newest of those saved as the best stays, too.
        files: the system calls; tests put their own in.

    Attributes:
        store: reads the checkpoints there. Nothing is written through it.
        unremovable: why an old checkpoint could not be removed; None where all could.
    """

    def __init__(self, path: Path, *, keep: int, files: Files | None = None):
        self.path, self.files = path, files or MountFiles()
        self.store = CheckpointStore(path / "checkpoints", keep=keep, files=self.files)
        self.unremovable: str | None = None
        self._concluded: set[int] = set()  # complete, even where the mount does not show other machines' files

    def complete(self) -> list[Checkpoint]:
        """The complete checkpoints, newest first: all files are there in their sizes. Raises OSError."""
        return [checkpoint for checkpoint in self.store.all() if is_complete(checkpoint)]

    def incomplete(self, *, after: int) -> list[int]:
        """Steps after this one of which there is a part of a checkpoint. Raises OSError."""
        return sorted(c.step for c in self.store.all() if c.step > after and not is_complete(c))

    def has(self, checkpoint: Checkpoint) -> bool:
        """Whether the same checkpoint is complete there. Raises OSError."""
        copy = self.target(checkpoint)
        with suppress(FileFormatError):
            if _manifest_bytes(copy.path) == _manifest_bytes(checkpoint.path):
                return is_complete(copy)
        return False

    def target(self, checkpoint: Checkpoint) -> Checkpoint:
        return Checkpoint(self.store.path_of(checkpoint.step), checkpoint.step)

    def begin(self, checkpoint: Checkpoint) -> None:
        """Makes the folder of a copy; what is left of another of the same step is removed first. Raises OSError."""
        path = self.target(checkpoint).path
        if os.path.isdir(path):
            self._remove(path)
        self._concluded.discard(checkpoint.step)
        self.make_folder(checkpoint)

    def make_folder(self, checkpoint: Checkpoint) -> None:
        """Makes the folder of a copy, also where this machine's mount does not show yet that another has made it."""
        self.files.make_folder(self.target(checkpoint).path)

    def copy(self, checkpoint: Checkpoint, names: Iterable[str], *, progress: Progress) -> None:
        """Copies these files of a checkpoint. Raises OSError, and FileFormatError where they are damaged."""
        folder = self.target(checkpoint).path
        for name in names:
            copy_file(self.files, checkpoint.path / name, folder / name, checkpoint.manifest.files[name], progress=progress)

    def conclude(self, checkpoint: Checkpoint, names: Iterable[str]) -> None:
        """Completes a copy by its manifest, once all files are there.

        Arguments:
            names: the files to look for. Those of other machines may be there before this machine's mount shows them.

        Raises OSError, and FileFormatError without a manifest.
        """
        folder = self.target(checkpoint).path
        for name in names:
            check_size(folder / name, checkpoint.manifest.files[name].nbytes)
        write_new(self.files, folder / MANIFEST, _manifest_bytes(checkpoint.path))
        self.files.sync_folder(folder)
        self._concluded.add(checkpoint.step)

    def prune(self) -> None:
        """Removes what is older than the checkpoints that stay, parts of checkpoints included. Raises OSError."""
        checkpoints = self.store.all()
        complete = [c for c in checkpoints if c.step in self._concluded or is_complete(c)]
        best = next((c.step for c in complete if c.looks_whole() and c.manifest.best), None)
        kept = {checkpoint.step for checkpoint in complete[: self.store.keep]} | {best}
        for checkpoint in checkpoints:
            if complete and checkpoint.step < complete[0].step and checkpoint.step not in kept and not checkpoint.is_newer:
                try:
                    self._remove(checkpoint.path)
                except OSError as error:
                    self.unremovable = f"{checkpoint.path}: {error.strerror or error}"

    def _remove(self, folder: Path) -> None:
        """Removes a checkpoint, its manifest first: what is left is no checkpoint at any moment."""
        names = own_names(folder)
        for name in sorted(names, key=lambda name: name != MANIFEST):
            self.files.remove(folder / name)
        self.files.remove_folder(folder)


def is_complete(checkpoint: Checkpoint) -> bool:
    """Whether its manifest is whole and its files are there in their sizes; that of a newer gpuwise counts, unread."""
    return checkpoint.is_newer or checkpoint.looks_whole()


def _manifest_bytes(folder: Path) -> bytes:
    return read_ordinary(folder / MANIFEST, max_bytes=MAX_MANIFEST_BYTES)
