"""The checkpoint from which several ranks go on: the same on all, its files read by all of them together."""

from __future__ import annotations

from typing import cast

from gpuwise.errors import FileFormatError
from gpuwise.json_types import Json
from gpuwise.runtime.checkpoint.checkpoint import Checkpoint
from gpuwise.runtime.checkpoint.manifest import NewerFormatError
from gpuwise.runtime.checkpoint.store import CheckpointStore
from gpuwise.runtime.ranks import Ranks

_WITHIN_S = 3600.0  # for checksums of what may be terabytes


class RankReader:
    """Finds the checkpoint to go on from, on every rank at once.

    Each rank reads its share of a checkpoint's files to verify them, those that it wrote itself where there are as many ranks
    as before; so every file is read once, by all ranks at a time.
    """

    def __init__(self, store: CheckpointStore, ranks: Ranks):
        self._store, self._ranks = store, ranks
        self._number = 0

    def latest(self) -> Checkpoint | None:
        """As CheckpointStore.latest, from what rank 0 sees in the folder. All ranks return or raise the same."""
        self._number += 1

        def names() -> Json:
            return [[checkpoint.path.name, checkpoint.step] for checkpoint in self._store.all()]

        listed = cast(list[tuple[str, int]], self._ranks.of_first(f"checkpoints/{self._number}", names))
        checkpoints = [Checkpoint(self._store.folder / name, step) for name, step in listed]
        return self._store.newest_whole(checkpoints, verify=self._verify)

    def _verify(self, checkpoint: Checkpoint) -> None:
        """Raises FileFormatError on every rank when a file is damaged that any of them has read."""
        damaged: Json = None
        try:
            checkpoint.verify(rank=self._ranks.rank, ranks=self._ranks.size)
        except FileFormatError as error:
            damaged = [error.what, isinstance(error, NewerFormatError)]
        name = f"checkpoints/{self._number}/{checkpoint.path.name}"
        for answer in self._ranks.gathered(name, damaged, within_s=_WITHIN_S):
            if answer is not None:
                what, newer = cast(tuple[str, bool], answer)
                raise (NewerFormatError if newer else FileFormatError)(what)
