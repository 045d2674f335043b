"""StorageTable: the storages of a step, when each is born and when it dies."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace

import torch

from gpuwise.trace import BEFORE, Loading, LoadingLog


@dataclass(slots=True)
class StorageRow:
    """One storage of the recorded step.

    Attributes:
        size_bytes: of the storage.
        module: index of the module that made it.
        phase: index of the phase it was made in.
        from_host: whether it holds data that came from outside the step.
        born: the position that made it; BEFORE: it was alive before the step.
        died: the last position at which it was alive; None (the default): it is alive.
        category: one of gpuwise.trace.CATEGORIES where its purpose is known; None by default.
        gradient_shape: of a gradient, the shape of its parameter; empty by default.
        gradient_order: of a gradient, its parameter's position in the model's order; 0 by default.
        stream: number of the stream that allocates it; 0 by default.
    """

    size_bytes: int
    module: int
    phase: int
    from_host: bool
    born: int
    died: int | None = None
    category: str | None = None
    gradient_shape: tuple[int, ...] = ()
    gradient_order: int = 0
    stream: int = 0


class StorageTable:
    """The storages of a step, in the order they are born.

    Attributes:
        rows: all of them.
        live: those that are alive, by the address of the storage.
        loading: what was allocated and freed until `end_loading`, in its order.
    """

    def __init__(self) -> None:
        self.rows: list[StorageRow] = []
        self.live: dict[int, StorageRow] = {}
        self.position = 0  # at which a storage dies now
        self.loading = Loading()
        self._log: LoadingLog | None = LoadingLog()
        self._logged: dict[int, int] = {}  # by the address of a storage: its number in the log

    def holds(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self.live

    def row(self, tensor: torch.Tensor) -> StorageRow | None:
        """The row of a tensor's storage; None where that is not recorded."""
        return self.live.get(tensor.untyped_storage()._cdata)

    def end_loading(self) -> None:
        """Keeps what was allocated and freed so far as `loading`. To be called when the model is made."""
        if self._log is not None:
            self.loading, self._log = self._log.loading(), None
            self._logged.clear()

    def start(self) -> None:
        """Forgets the storages that have died; those alive now were there before the step."""
        self.rows = list(self.live.values())
        self.position = 0
        for row in self.rows:
            row.born = BEFORE

    def add(self, storage: torch.UntypedStorage, row: StorageRow) -> None:
        """A storage that is born; one that is alive already stays as it is."""
        if storage._cdata in self.live:
            return
        self.live[storage._cdata] = row
        self.rows.append(row)
        self._note_allocation(storage._cdata, row.size_bytes)
        weakref.finalize(storage, self._free, storage._cdata)

    def resize(self, storage: torch.UntypedStorage, *, position: int, phase: int, module: int, stream: int) -> None:
        """A live storage that is freed or filled in place (FSDP does so): one row ends, another begins at the position."""
        row = self.live[storage._cdata]
        row.died = self.position
        resized = replace(row, size_bytes=storage.nbytes(), born=position, died=None, phase=phase, module=module, stream=stream)
        self.live[storage._cdata] = resized
        self.rows.append(resized)
        self._note_free(storage._cdata)
        self._note_allocation(storage._cdata, resized.size_bytes)

    def sizes(self) -> list[int]:
        """Bytes of each storage that is alive, in ascending order."""
        return sorted(row.size_bytes for row in self.live.values() if row.size_bytes)

    def _free(self, key: int) -> None:
        row = self.live.pop(key, None)
        if row is not None:
            row.died = self.position
            self._note_free(key)

    def _note_allocation(self, key: int, size_bytes: int) -> None:
        if self._log is not None and size_bytes:
            self._logged[key] = self._log.allocate(size_bytes)

    def _note_free(self, key: int) -> None:
        number = self._logged.pop(key, None)
        if self._log is not None and number is not None:
            self._log.free(number)
