"""Which rank writes what: each part of each tensor once, by the lowest rank that has it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gpuwise.errors import UnsupportedError
from gpuwise.json_types import Json
from gpuwise.runtime.checkpoint.state import Packed, Tensors
from gpuwise.runtime.parallel.regions import Region, Shard


@dataclass(frozen=True)
class LocalTensor:
    """What one rank has of a tensor.

    Attributes:
        name: part of the state and name of the tensor.
        offset: of the rank's part in the whole tensor.
        numel: elements of the rank's part.
        of: elements of the whole tensor.
        nbytes: bytes of the rank's part.
    """

    name: str
    offset: tuple[int, ...]
    numel: int
    of: int
    nbytes: int

    def to_json(self) -> list[Json]:
        return [self.name, list(self.offset), self.numel, self.of, self.nbytes]

    @classmethod
    def from_json(cls, values: Sequence[object]) -> LocalTensor:
        name, offset, numel, of, nbytes = values
        assert isinstance(offset, list)
        return cls(str(name), tuple(offset), int(str(numel)), int(str(of)), int(str(nbytes)))


def local_tensors(packed: Packed, own: Collection[str]) -> list[LocalTensor]:
    """What this rank has, in the order of `packed`; without the parts that each rank saves for itself."""
    return [
        LocalTensor(f"{part}/{name}", shard.region.offset, tensor.numel(), math.prod(shard.shape), tensor.nbytes)
        for part, name, tensor, shard in _all(packed, own)
    ]


def divide(ranks: Sequence[Sequence[LocalTensor]]) -> list[list[int]]:
    """For each rank the numbers of those it writes, among what it has.

    Raises UnsupportedError where the ranks together do not have all of a tensor.
    """
    written: set[tuple[str, tuple[int, ...]]] = set()
    missing: dict[str, int] = {}
    writes: list[list[int]] = []
    for tensors in ranks:
        numbers = []
        for number, tensor in enumerate(tensors):
            key = tensor.name, tensor.offset
            missing.setdefault(tensor.name, tensor.of)
            if key in written or (tensor.of and not tensor.numel):
                continue
            written.add(key)
            missing[tensor.name] -= tensor.numel
            numbers.append(number)
        writes.append(numbers)
    if broken := [name for name, elements in missing.items() if elements]:
        raise UnsupportedError(
            f"{broken[0]} is not whole: the ranks' parts of it differ from its size by {missing[broken[0]]:,} elements."
        )
    return writes


def restricted(packed: Packed, writes: Collection[int], own: Collection[str]) -> Packed:
    """Only those tensors that this rank writes, by their numbers in `local_tensors`, and what it saves for itself."""
    chosen, tensors = set(writes), {part: tensors for part, tensors in packed.tensors.items() if part in own}
    for number, (part, name, tensor, _) in enumerate(_all(packed, own)):
        if number in chosen:
            tensors.setdefault(part, {})[name] = tensor
    return replace(packed, tensors=tensors)


def merged(structures: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """One structure with what is in any: values are those of the first that has them."""
    result: dict[str, object] = {}
    for structure in structures:
        for key, value in structure.items():
            if key not in result:
                result[key] = value
            elif isinstance(mine := result[key], dict) and isinstance(value, dict) and not _is_leaf(mine):
                result[key] = merged([mine, value])
    return result


def _is_leaf(value: Mapping[str, object]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _all(packed: Packed, own: Collection[str]) -> Iterator[tuple[str, str, Tensor, Shard]]:
    parts: Tensors = packed.tensors
    for part in parts:
        if part not in own:
            shards = packed.shards.get(part, {})
            for name, tensor in parts[part].items():
                whole = tuple(tensor.shape)
                yield part, name, tensor, shards.get(name) or Shard(whole, Region.whole(whole))
