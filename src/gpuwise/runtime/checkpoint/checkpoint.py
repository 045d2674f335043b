"""One checkpoint: a folder with a file of tensors for each part of the state, its plain values, and the manifest."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import cast

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    STATE,
    Manifest,
    is_file_name,
    load_json,
    read_ordinary,
    state_json,
)
from gpuwise.runtime.checkpoint.state import Packed, unpack
from gpuwise.runtime.checkpoint.tensors_file import check, read_tensors, write_bytes, write_tensors

_SUFFIX = ".safetensors"


class Checkpoint:
    """A checkpoint on disk, complete or damaged.

    Attributes:
        path: folder of the checkpoint.
        step: optimizer steps so far.
        manifest: its manifest; raises FileFormatError if that is damaged.
    """

    def __init__(self, path: Path, step: int):
        self.path, self.step = path, step
        self._verified = False

    @cached_property
    def manifest(self) -> Manifest:
        manifest = Manifest.from_json(read_ordinary(self.path / MANIFEST, max_bytes=MAX_MANIFEST_BYTES))
        if manifest.step != self.step:
            raise FileFormatError(f"{MANIFEST} is of step {manifest.step}")
        return manifest

    @property
    def meta(self) -> Mapping[str, object]:
        """The metadata that the caller stored with the state."""
        return self.manifest.meta

    @property
    def of_run(self) -> str | None:
        """The fingerprint of its job; None if its metadata does not contain one."""
        run = self.meta.get("run")
        return run.get("fingerprint") if isinstance(run, dict) else None

    def looks_whole(self) -> bool:
        """Whether the manifest is whole and every file is there in its size; a fraction of what `verify` reads."""
        try:
            files = self.manifest.files
            return all(os.lstat(self.path / name).st_size == digest.nbytes for name, digest in files.items())
        except (FileFormatError, OSError):
            return False

    def verify(self) -> None:
        """Reads every file once. Raises FileFormatError that names the damaged file."""
        for name, digest in self.manifest.files.items():
            check(self.path / name, digest)
        if STATE not in self.manifest.files:
            raise FileFormatError(f"{MANIFEST} does not list {STATE}")
        self._verified = True

    def load(self) -> dict[str, object]:
        """The state, its tensors on the CPU. Verifies it first, unless that was done. Raises FileFormatError."""
        try:
            if not self._verified:
                self.verify()
            structure = load_json(read_ordinary(self.path / STATE, max_bytes=MAX_STATE_BYTES), name=STATE)
            tensors = {
                name.removesuffix(_SUFFIX): read_tensors(self.path / name)
                for name in self.manifest.files
                if name.endswith(_SUFFIX)
            }
            return unpack(cast(Mapping[str, object], structure), tensors)  # which checks it
        except FileFormatError as error:
            what = error.what.rstrip(".")
            raise FileFormatError(f"the checkpoint {self.path} is damaged: {what}.", error.ways_out) from error


def write_checkpoint(
    files: Files, folder: Path, packed: Packed, *, step: int, meta: Mapping[str, object], best: bool
) -> Manifest:
    """Fills a new folder, all of it on the disk when this returns; the manifest comes last.

    Raises OSError, leaving what was written, and InputError for a meta that is not JSON or plain values that are too large.
    """
    files.make_folder(folder)
    digests = {
        part + _SUFFIX: write_tensors(files, folder / (part + _SUFFIX), tensors) for part, tensors in packed.tensors.items()
    }
    digests[STATE] = write_bytes(files, folder / STATE, state_json(packed.structure))
    manifest = Manifest(step, digests, best, meta)
    write_bytes(files, folder / MANIFEST, manifest.to_json())
    files.sync_folder(folder)
    return manifest


def remove_folder(files: Files, folder: Path) -> list[str]:
    """Removes a checkpoint's files, and its folder if nothing else is in it. Of a link only the link is removed.

    Returns the names of other files, which are kept. Raises OSError.
    """
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        files.remove(folder)
        return []
    own, others = own_names(folder), []
    for name in files.names(folder):
        if name in own:
            files.remove(folder / name)
        else:
            others.append(name)
    if not others:
        files.remove_folder(folder)
    return others


def own_names(folder: Path) -> set[str]:
    """Names of the checkpoint's own files in its folder: those of its manifest, or all possible ones if it is unreadable.

    Raises OSError.
    """
    names = {name for name in os.listdir(folder) if stat.S_ISREG(os.lstat(folder / name).st_mode) or name == MANIFEST}
    try:
        listed = Manifest.from_json(read_ordinary(folder / MANIFEST, max_bytes=MAX_MANIFEST_BYTES)).files
        return {name for name in names if name == MANIFEST or name in listed}
    except FileFormatError:
        return {name for name in names if name == MANIFEST or is_file_name(name)}
