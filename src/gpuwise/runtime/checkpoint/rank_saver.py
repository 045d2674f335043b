"""Saves of several ranks: each writes its part of the state, and rank 0 makes a checkpoint of what all have written.

A save has two turns, both through the store of the ranks and neither by a collective, so that a thread can take them while the
training goes on. Ranks say what they have, and rank 0 says who writes what, and where. They write, and say so with checksums;
rank 0 writes the manifest and gives the folder its name. A rank that fails says so in its turn, and nothing is left.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, TypeVar, cast

from gpuwise.errors import GpuwiseError, InputError, OtherRankError, RankLostError
from gpuwise.json_types import Json
from gpuwise.runtime.checkpoint.checkpoint import SHARED_PARTS, write_rank
from gpuwise.runtime.checkpoint.division import LocalTensor, divide, local_tensors, merged, restricted
from gpuwise.runtime.checkpoint.manifest import MANIFEST, STATE, Manifest, dump_json, state_json
from gpuwise.runtime.checkpoint.saver import Save, Saver
from gpuwise.runtime.checkpoint.state import Packed, pack
from gpuwise.runtime.checkpoint.store import CheckpointStore
from gpuwise.runtime.checkpoint.tensors_file import Digest, write_bytes
from gpuwise.runtime.ranks import Ranks

OWN_PARTS = ("random",)  # parts that each rank saves for itself, and gets back where the mesh is the same
WITHIN_S = 3600.0  # for ranks that live and are slow; of one that fails all hear at once


T = TypeVar("T")


class Begin(TypedDict):
    """What a rank says at the beginning of a save.

    Attributes:
        problem: why it cannot save its state; None: it can.
        tensors: what it has, as LocalTensor.to_json; None: the same as in the save before.
        own_bytes: bytes of what it saves for itself.
        structure: checksum of the names of its tensors.
    """

    problem: str | None
    tensors: list[list[object]] | None
    own_bytes: int
    structure: str


class End(TypedDict):
    """What a rank says when it has written its files.

    Attributes:
        problem: why it has not; None: it has.
        files: their sizes and checksums, by name.
        structure: of its part of the state, where no lower rank has the same.
    """

    problem: str | None
    files: dict[str, tuple[int, str]]
    structure: dict[str, object] | None


class RankSaver(Saver):
    """Writes the checkpoints of a run of several ranks. Every rank calls the same methods for the same steps.

    Arguments:
        store: the checkpoints, in a folder that all ranks share.
        ranks: this rank among them.
        mesh: their mesh, as Mesh prints it.
    """

    def __init__(self, store: CheckpointStore, ranks: Ranks, *, mesh: str):
        self._ranks, self._mesh = ranks.cloned(), mesh  # with a connection of its own, for the thread
        self._number = 0
        self._problem: str | None = None  # why the state of the save in progress cannot be saved
        self._tensors: list[LocalTensor] = []  # what this rank had in the latest save
        self._writes: list[int] | None = None  # and which of it it wrote; None: before the first, or after a failure
        self._tensors_of: list[list[LocalTensor]] = [[] for _ in range(ranks.size)]  # rank 0: what every rank had
        self._writes_of: list[list[int]] = [[] for _ in range(ranks.size)]
        super().__init__(store)

    def _remove_leftovers(self) -> None:
        if self._ranks.leads:
            super()._remove_leftovers()

    def _pack(self, state: Mapping[str, object]) -> Packed:
        """A state that cannot be saved takes its turn, too: the other ranks wait for it."""
        try:
            packed = pack(state)
        except GpuwiseError as error:
            self._problem = error.what
            return Packed({}, {})
        tensors = local_tensors(packed, OWN_PARTS)
        if tensors != self._tensors:
            self._tensors, self._writes = tensors, None
        # What others write need not be copied.
        return packed if self._writes is None else restricted(packed, self._writes, OWN_PARTS)

    def _lack_of_room(self, packed: Packed, save: Save) -> None:
        """Rank 0 looks for all when it knows how much they write."""

    def _put(self, packed: Packed, save: Save) -> tuple[Path, int]:
        self._number += 1
        name = f"checkpoint/{self._number}"
        try:
            order = self._turn(f"{name}/begin", self._begin(packed), lambda begins: self._order(name, begins, save))
            folder = self.store.folder / str(order["folder"])
            if order["changed"]:
                packed = self._as_ordered(name, packed)
            end = self._write_files(folder, packed, sends=self._ranks.rank in cast(list[int], order["senders"]))
            outcome = self._turn(f"{name}/end", end, lambda ends: self._commit(ends, folder, packed, save))
        except BaseException:
            self._writes = None
            raise
        finally:
            self._problem = None
            self._forget()
        return self.store.path_of(save.step), cast(int, outcome["nbytes"])

    def _turn(self, name: str, value: T, decide: Callable[[Sequence[T]], dict[str, Json]]) -> dict[str, Json]:
        """What rank 0 decides from the values of all ranks. Raises InputError on all of them where it cannot."""

        def decided() -> Json:
            try:
                return decide(cast(list[T], self._ranks.collected(name, within_s=WITHIN_S)))
            except (OtherRankError, RankLostError):  # which the others hear of, too
                raise
            except Exception as error:
                return {"problem": self._why(error)}

        self._ranks.post(name, cast(Json, value))
        answer = cast(dict[str, Json], self._ranks.of_first(name, decided))
        if "problem" in answer:
            raise InputError(str(answer["problem"]))
        return answer

    def _begin(self, packed: Packed) -> Begin:
        """What this rank has to save."""
        return {
            "problem": self._problem,
            "tensors": None if self._writes is not None else [list(tensor.to_json()) for tensor in self._tensors],
            "own_bytes": sum(tensor.nbytes for part in OWN_PARTS for tensor in packed.tensors.get(part, {}).values()),
            "structure": hashlib.sha256(dump_json(_shared_structure(packed))).hexdigest(),
        }

    def _order(self, name: str, begins: Sequence[Begin], save: Save) -> dict[str, Json]:
        """On rank 0: who writes what, into a new folder."""
        changed = False
        for rank, begin in enumerate(begins):
            if begin["problem"] is not None:
                raise InputError(f"{self._name(rank)}: {begin['problem']}")
            if begin["tensors"] is not None:
                self._tensors_of[rank], changed = [LocalTensor.from_json(values) for values in begin["tensors"]], True
        if changed:
            self._writes_of = divide(self._tensors_of)
            for rank, writes in enumerate(self._writes_of):
                self._ranks.tell_others(f"{name}/writes/{rank}", cast(Json, writes))
        nbytes = sum(
            begin["own_bytes"] + sum(tensors[number].nbytes for number in writes)
            for begin, tensors, writes in zip(begins, self._tensors_of, self._writes_of, strict=True)
        )
        if lack := self.store.room_for(nbytes, last=save.last):
            raise InputError(lack)
        folder = self.store.new_folder(save.step)
        self.store.files.make_folder(folder)
        first_with: dict[str, int] = {}  # ranks with the same names send their structure once
        for rank, begin in enumerate(begins):
            first_with.setdefault(begin["structure"], rank)
        senders: list[Json] = list(first_with.values())
        return {"folder": folder.name, "changed": changed, "senders": senders}

    def _as_ordered(self, name: str, packed: Packed) -> Packed:
        """What of the state this rank is to write now; also where it is more than what was copied (see `_write_files`)."""
        before = self._writes
        self._writes = cast(list[int], self._ranks.of_first(f"{name}/writes/{self._ranks.rank}", lambda: self._writes_of[0]))
        if before is None:
            return restricted(packed, self._writes, OWN_PARTS)
        if before != self._writes:
            self._problem = "the division of the state among ranks has changed; the next save has all of it"
        return packed

    def _write_files(self, folder: Path, packed: Packed, *, sends: bool) -> End:
        """Writes this rank's files. What went wrong is for rank 0 to tell."""
        if self._problem is not None:
            return {"problem": self._problem, "files": {}, "structure": None}
        try:
            digests = write_rank(self.store.files, folder, packed, rank=self._ranks.rank, own=OWN_PARTS)
        except Exception as error:
            return {"problem": self._why(error, packed.nbytes), "files": {}, "structure": None}
        files = {file: (digest.nbytes, digest.sha256) for file, digest in digests.items()}
        return {"problem": None, "files": files, "structure": _shared_structure(packed) if sends else None}

    def _commit(self, ends: Sequence[End], folder: Path, packed: Packed, save: Save) -> dict[str, Json]:
        """On rank 0: the checkpoint of what all have written. It is there, whole and to stay, when this returns."""
        try:
            digests: dict[str, Digest] = {}
            for rank, end in enumerate(ends):
                if end["problem"] is not None:
                    raise InputError(f"{self._name(rank)}: {end['problem']}")
                digests |= {file: Digest(nbytes, sha256) for file, (nbytes, sha256) in end["files"].items()}
            self._check_shared(folder, digests)
            shared = {part: value for part, value in packed.structure.items() if part not in OWN_PARTS}
            structures = [end["structure"] for end in ends if end["structure"] is not None]
            digests[STATE] = write_bytes(self.store.files, folder / STATE, state_json(merged([shared, *structures])))
            manifest = Manifest(save.step, digests, save.best, save.meta or {}, ranks=len(ends), mesh=self._mesh)
            write_bytes(self.store.files, folder / MANIFEST, manifest.to_json())
            self.store.files.sync_folder(folder)
            self.store.publish(folder, save.step)
        except BaseException:
            self.store.discard(folder)
            raise
        return {"nbytes": manifest.nbytes}

    def _name(self, rank: int) -> str:
        return f"rank {rank} on {self._ranks.hosts[rank]}"

    def _check_shared(self, folder: Path, digests: Mapping[str, Digest]) -> None:
        """Raises InputError where the files of another machine are not on this one's filesystem."""
        for file, digest in digests.items():
            if not os.path.lexists(folder / file) or os.lstat(folder / file).st_size != digest.nbytes:
                raise InputError(f"{file} is not in {folder}: the run's folder must be on a filesystem that all ranks share")

    def _forget(self) -> None:
        """Takes what was said in the save before out of the store: every rank has read it."""
        if self._ranks.leads and self._number > 1:
            name = f"checkpoint/{self._number - 1}"
            for key in ("begin", "end", *(f"writes/{rank}" for rank in range(self._ranks.size))):
                self._ranks.forget(f"{name}/{key}")


def _shared_structure(packed: Packed) -> dict[str, object]:
    return {part: packed.structure[part] for part in SHARED_PARTS if part in packed.structure}
