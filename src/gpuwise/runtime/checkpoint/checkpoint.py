"""One checkpoint: a folder with a file of tensors for each part of the state, its plain values, and the manifest."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Mapping
from functools import cached_property, partial
from pathlib import Path

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint.files import Files
from gpuwise.runtime.checkpoint.manifest import (
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_STATE_BYTES,
    STATE,
    FileName,
    Manifest,
    NewerFormatError,
    is_file_name,
    load_json,
    read_ordinary,
    state_json,
)
from gpuwise.runtime.checkpoint.pieces import SHARDS, PieceFiles, SavedTensor, shards_json
from gpuwise.runtime.checkpoint.state import DTYPES, Packed, unpack
from gpuwise.runtime.checkpoint.tensors import Layout, from_file
from gpuwise.runtime.checkpoint.tensors_file import Digest, check, write_bytes, write_tensors

SHARED_PARTS = ("model", "optimizer", "average")  # parts of which a rank may have parts of tensors, or some of the names
Leaf = Callable[[Mapping[str, PieceFiles], str, str, Layout], object]


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

    @property
    def is_newer(self) -> bool:
        """Whether a newer gpuwise wrote it, in a format that this one cannot read."""
        try:
            self.manifest  # noqa: B018  (reads it)
        except FileFormatError as error:
            return isinstance(error, NewerFormatError)
        return False

    def looks_whole(self) -> bool:
        """Whether the manifest is whole and every file is there in its size; a fraction of what `verify` reads."""
        try:
            files = self.manifest.files
            return all(os.lstat(self.path / name).st_size == digest.nbytes for name, digest in files.items())
        except (FileFormatError, OSError):
            return False

    def verify(self, *, rank: int = 0, ranks: int = 1) -> None:
        """Reads every file once; of several ranks each reads a share, its own files first of all.

        Raises FileFormatError that names the damaged file. Only where no rank raises it, the checkpoint is whole.
        """
        for number, name in enumerate(sorted(self.manifest.files)):
            file = FileName.parse(name)
            assert file is not None
            if (number if file.rank is None else file.rank) % ranks == rank:
                check(self.path / name, self.manifest.files[name])
        if STATE not in self.manifest.files:
            raise FileFormatError(f"{MANIFEST} does not list {STATE}")
        self._verified = True

    def load(self) -> dict[str, object]:
        """The state, whole, its tensors on the CPU. Verifies it first, unless that was done. Raises FileFormatError.

        Of what each rank saved for itself (random numbers) it has that of rank 0.
        """
        return self._unpacked(0, None)

    def open(self, *, rank: int) -> dict[str, object]:
        """The state with a SavedTensor in place of each tensor of SHARED_PARTS, from which a rank reads what it needs.

        What each rank saved for itself is absent where there was no such rank. Raises as `load`.
        """

        return self._unpacked(rank, _unread)

    def _unpacked(self, rank: int, leaf: Leaf | None) -> dict[str, object]:
        try:
            if not self._verified:
                self.verify()
            structure = self._json(FileName("state", None, "json"))
            own = self._json(FileName("state", rank, "json"))
            files = {part: PieceFiles(self._tensor_files(part, rank, own=part in own)) for part in {*structure, *own}}
            resolve = None if leaf is None else partial(leaf, files)
            return unpack({**structure, **own}, files, resolve)  # which checks it
        except FileFormatError as error:
            what = error.what.rstrip(".")
            raise FileFormatError(f"the checkpoint {self.path} is damaged: {what}.", error.ways_out) from error

    def _json(self, name: FileName) -> Mapping[str, object]:
        if str(name) not in self.manifest.files and name.rank is not None:
            return {}
        value = load_json(read_ordinary(self.path / str(name), max_bytes=MAX_STATE_BYTES), name=str(name))
        if not isinstance(value, dict):
            raise FileFormatError(f"{name} holds no state")
        return value

    def _tensor_files(self, part: str, rank: int, *, own: bool) -> list[Path]:
        """The files of a part, first those that this rank is likely to need: its own, and rank 0's with what all have."""
        names = [name for text in self.manifest.files if (name := FileName.parse(text)) and name.kind == "safetensors"]
        chosen = [name for name in names if name.part == part and (not own or name.rank == rank)]
        steps_away = {name: abs((name.rank or 0) - rank) for name in chosen}
        return [
            self.path / str(name)
            for name in sorted(chosen, key=lambda name: (steps_away[name] > 0, bool(name.rank), steps_away[name]))
        ]


def _unread(files: Mapping[str, PieceFiles], part: str, name: str, how: Layout) -> object:
    """Tensors that ranks share are read when a rank knows which part of them it needs; all others, and what files hold as
    bytes, are read now."""
    if part in SHARED_PARTS and "dtype" not in how:
        return SavedTensor(files[part], name)
    return from_file(files[part][name], how, DTYPES)


def write_checkpoint(
    files: Files, folder: Path, packed: Packed, *, step: int, meta: Mapping[str, object], best: bool
) -> Manifest:
    """Fills a new folder, all of it on the disk when this returns; the manifest comes last.

    Raises OSError, leaving what was written, and InputError for a meta that is not JSON or plain values that are too large.
    """
    files.make_folder(folder)
    digests = {
        (name := str(FileName(part))): write_tensors(files, folder / name, tensors) for part, tensors in packed.tensors.items()
    }
    digests[STATE] = write_bytes(files, folder / STATE, state_json(packed.structure))
    manifest = Manifest(step, digests, best, meta)
    write_bytes(files, folder / MANIFEST, manifest.to_json())
    files.sync_folder(folder)
    return manifest


def write_rank(files: Files, folder: Path, packed: Packed, *, rank: int, own: Collection[str]) -> dict[str, Digest]:
    """One rank's files of a checkpoint of several, all of them on the disk when this returns.

    Arguments:
        packed: what the rank writes.
        own: parts of which each rank has its own tensors and values.

    Returns their sizes and checksums by name. Raises OSError, and InputError for plain values that are too large.
    """
    digests: dict[str, Digest] = {}
    for part, tensors in packed.tensors.items():
        shards = {name: shard for name, shard in packed.shards.get(part, {}).items() if name in tensors}
        name = str(FileName(part, rank))
        digests[name] = write_tensors(files, folder / name, tensors, {SHARDS: shards_json(shards)} if shards else None)
    if values := {part: packed.structure[part] for part in own if part in packed.structure}:
        name = str(FileName("state", rank, "json"))
        digests[name] = write_bytes(files, folder / name, state_json(values))
    return digests


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
