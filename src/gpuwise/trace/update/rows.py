"""UpdateRows: the operations and memory of one optimizer step, built row by row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from gpuwise.trace.tables import KINDS, OperationRow, OperationValues

# Tensors and 65,536-element chunks that one launch of a many-tensor kernel takes, for four tensor lists
# (aten/src/ATen/native/cuda/MultiTensorApply.cuh: depth_to_max_tensors, depth_to_max_blocks, kChunkSize).
_TENSORS_A_LAUNCH, _CHUNKS_A_LAUNCH, _CHUNK = 36, 320, 65536


def tensors_and_chunks(sizes: Sequence[int]) -> tuple[int, int]:
    """How many tensors, and how many chunks of them, a kernel over tensors of these element counts takes."""
    return len(sizes), sum(-(-size // _CHUNK) for size in sizes)


def launches_of(tensors: int, chunks: int) -> int:
    """Launches of a foreach or fused optimizer kernel over so many tensors and chunks."""
    return max(1, -(-tensors // _TENSORS_A_LAUNCH), -(-chunks // _CHUNKS_A_LAUNCH))


def launches_of_many(sizes: Sequence[int]) -> int:
    """Launches of a foreach or fused optimizer kernel over tensors of these element counts."""
    return launches_of(*tensors_and_chunks(sizes))


@dataclass(frozen=True)
class Parameter:
    """A trainable parameter.

    Attributes:
        shape: shape of the tensor.
        element_bytes: bytes of one element.
        hidden: whether it is a matrix of a repeated block, which muon takes. Default False.
    """

    shape: tuple[int, ...]
    element_bytes: int
    hidden: bool = False

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def dtype(self) -> str:
        return {2: "bfloat16", 4: "float32", 8: "float64"}.get(self.element_bytes, "float32")


@dataclass
class Temporary:
    """Temporary memory of an update.

    Attributes:
        size_bytes: bytes of the storage.
        born: the row of the update that allocates it.
        died: the last row at which it is alive; -1 (the default): the update has not freed it.
    """

    size_bytes: int
    born: int
    died: int = -1


class UpdateRows:
    """Rows and temporaries of an optimizer step as they are written down.

    `hold` is an assignment to a local variable: what the name held before is freed after the new value was made, and
    all names are forgotten when the function ends.
    """

    def __init__(self, *, on_host: bool = False) -> None:
        self.on_host = on_host  # step counters count as memory of the device, which is the host
        self.rows: list[OperationRow] = []
        self.temporaries: list[Temporary] = []
        self._variables: dict[str, list[Temporary]] = {}

    def run(
        self,
        name: str,
        dtype: str,
        read: float,
        written: float,
        *,
        kind: str = "elementwise",
        kernels: int = 1,
        dims: tuple[int, int, int, int] | None = None,
        new: Iterable[int] = (),
    ) -> list[Temporary]:
        """Adds one operation and returns its allocations.

        Arguments:
            name: name of the operator.
            dtype: type of the computation.
            read: bytes read.
            written: bytes written.
            kind: one of KINDS. Default "elementwise"; "gemm" if dims are set.
            kernels: number of launches. Default 1.
            dims: batch, m, n, k of a product. Default None.
            new: bytes of each tensor that it allocates. Default none.
        """
        values = OperationValues(bytes_read=int(read), bytes_written=int(written), kernels=kernels)
        if dims is not None:
            kind = "gemm"
            batch, m, n, k = dims
            values = values._replace(batch=batch, m=m, n=n, k=k, flops=2 * prod(dims))
        self.rows.append(OperationRow(name, KINDS.index(kind), dtype, values))
        temporaries = [Temporary(size, len(self.rows) - 1) for size in new]
        self.temporaries += temporaries
        return temporaries

    def many(
        self, name: str, parameters: Sequence[Parameter], read: int, written: int = 1, *, new: bool = False, more_read: int = 0
    ) -> list[Temporary]:
        """One foreach or fused kernel over all tensors; read and written in sizes of the parameters, more_read in bytes."""
        size = sum(p.size_bytes for p in parameters)
        launches = launches_of_many([p.elements for p in parameters] * written)
        return self.run(
            name,
            parameters[0].dtype,
            read * size + more_read,
            written * size,
            kind="optimizer",
            kernels=launches,
            new=[p.size_bytes for p in parameters] if new else (),
        )

    def hold(self, name: str, value: list[Temporary]) -> None:
        before, self._variables[name] = self._variables.get(name, []), value
        self._free(before)

    def drop(self, value: list[Temporary]) -> None:
        self._free(value)

    def end(self) -> None:
        before = [t for value in self._variables.values() for t in value]
        self._variables.clear()
        self._free(before)

    def _free(self, value: list[Temporary]) -> None:
        referenced = {id(t) for value in self._variables.values() for t in value}
        for temporary in value:
            if id(temporary) not in referenced:
                temporary.died = len(self.rows) - 1
