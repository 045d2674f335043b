"""Regions of tensors: the part of a whole tensor that one rank has, and whether several parts make up all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from torch import Tensor

from gpuwise.errors import FileFormatError, UnsupportedError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

_MOST_CELLS = 2**24  # of the grid that `check_cover` fills: thousands of shards along two dims


@dataclass(frozen=True)
class Region:
    """A box of a tensor: its first element along each dim, and its size along each dim."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> Region:
        return cls((0,) * len(shape), tuple(shape))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def common(self, other: Region) -> Region | None:
        """The elements that are in both; None where there are none."""
        offset = tuple(max(a, b) for a, b in zip(self.offset, other.offset, strict=True))
        ends = [min(a + n, b + m) for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)]
        shape = tuple(end - start for start, end in zip(offset, ends, strict=True))
        return Region(offset, shape) if all(size > 0 for size in shape) else None

    def slices(self, within: Region) -> tuple[slice, ...]:
        """The indices of this region in a tensor that holds `within`."""
        return tuple(
            slice(start - base, start - base + size)
            for start, base, size in zip(self.offset, within.offset, self.shape, strict=True)
        )


@dataclass(frozen=True)
class Shard:
    """What one rank has of a tensor.

    Attributes:
        shape: of the whole tensor.
        region: this rank's part.
    """

    shape: tuple[int, ...]
    region: Region


def check_cover(whole: Region, parts: Sequence[Region]) -> None:
    """Raises FileFormatError unless each element of `whole` is in exactly one of `parts`, which lie inside it."""
    numel = sum(part.numel for part in parts)
    if numel != whole.numel:
        raise FileFormatError(f"its parts have {numel:,} elements instead of {whole.numel:,}")
    if len(parts) == 1 or not whole.shape:
        if len(parts) > 1:
            raise FileFormatError("its parts overlap")
        return
    # Along each dim the edges of all parts: between them lie the cells of a grid, each in all of a part or in nothing of it.
    edges = [
        sorted({part.offset[dim] for part in parts} | {part.offset[dim] + part.shape[dim] for part in parts})
        for dim in range(len(whole.shape))
    ]
    cells = [len(edge) - 1 for edge in edges]
    if math.prod(cells) > _MOST_CELLS:
        raise FileFormatError(f"its {len(parts):,} parts are cut in too many ways")
    numbers = [{edge: number for number, edge in enumerate(dim_edges)} for dim_edges in edges]
    grid = np.zeros(cells, np.bool_)
    for part in parts:
        box = tuple(
            slice(number[start], number[start + size])
            for number, start, size in zip(numbers, part.offset, part.shape, strict=True)
        )
        if grid[box].any():
            raise FileFormatError("its parts overlap")
        grid[box] = True


def region_on(
    shape: Sequence[int], mesh_shape: Sequence[int], coordinate: Sequence[int], placements: Sequence[Placement]
) -> Region:
    """The region that the rank at a coordinate of a mesh has of a tensor with these placements.

    A dim that several axes split is split by the plain shards first, from the outermost axis to the innermost, and each of
    those parts by the strided ones: FSDP2 splits what tensor parallelism has left to a rank. Each split is that of
    torch.chunk. (PyTorch's own compute_local_shape_and_global_offset agrees where the sizes divide; where they do not, it
    gives strided shards other rows than FSDP2.)
    """
    offset, size = [0] * len(shape), list(shape)
    splits = []
    for axis, placement in enumerate(placements):
        if placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if dim is None:
            raise UnsupportedError(f"a tensor with placement {placement} cannot be saved: its values are partial sums.")
        splits.append((getattr(placement, "split_factor", 0), axis, dim % len(shape)))
    for _, axis, dim in sorted(splits):
        chunk = -(-size[dim] // mesh_shape[axis])
        start = min(size[dim], chunk * coordinate[axis])
        offset[dim], size[dim] = offset[dim] + start, min(chunk, size[dim] - start)
    return Region(tuple(offset), tuple(size))


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether it is one of several ranks' parts of a tensor. Where PyTorch's DTensor was never imported, none is."""
    return type(tensor).__name__ == "DTensor" and type(tensor).__module__.startswith("torch.distributed.tensor")


def shard_of(tensor: DTensor) -> Shard:
    """What this rank has of a DTensor. Raises UnsupportedError for placements that are no regions."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None
    region = region_on(tensor.shape, tensor.device_mesh.shape, coordinate, tensor.placements)
    local = tuple(local_of(tensor).shape)
    if region.shape != local and (region.numel or math.prod(local)):
        raise UnsupportedError(
            f"a tensor of shape {list(tensor.shape)} with placements {tensor.placements} cannot be saved: this rank has "
            f"{list(local)} of it instead of {list(region.shape)}."
        )
    return Shard(tuple(tensor.shape), region)


def local_of(tensor: Tensor) -> Tensor:
    """The part of a tensor in this rank's memory."""
    return tensor.to_local() if is_dtensor(tensor) else tensor
