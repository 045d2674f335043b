"""Tensors of a checkpoint, read from files of whole tensors and of ranks' parts: any region of them, and no more than that."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gpuwise.errors import FileFormatError
from gpuwise.plain_files import parse_json
from gpuwise.runtime.checkpoint.tensors import NATIVE
from gpuwise.runtime.parallel.regions import Region, Shard, check_cover

SHARDS = "shards"  # in a file's metadata: name -> [shape of the whole tensor, offset of the part that is in the file]
_MOST = 2**62  # of a size or an offset
_DTYPES = {name: dtype for dtype, name in NATIVE.items()}


def shards_json(shards: Mapping[str, Shard]) -> str:
    """The metadata of a file with these tensors, of which it has a part."""
    return json.dumps({name: [shard.shape, shard.region.offset] for name, shard in shards.items()}, separators=(",", ":"))


@dataclass(frozen=True)
class _Piece:
    """One file's part of a tensor."""

    path: Path
    file: safe_open
    name: str
    shard: Shard
    dtype: torch.dtype

    def read(self, region: Region) -> Tensor:
        """A region of the whole tensor that lies in this part."""
        try:
            if region == self.shard.region:
                return self.file.get_tensor(self.name)
            part: Tensor = self.file.get_slice(self.name)[region.slices(self.shard.region)]
            return part
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise FileFormatError(f"{self.path.name} cannot be read as safetensors: {error}") from error


class PieceFiles(Mapping[str, Tensor]):
    """The tensors of one part of a state, whole ones by name. Files are opened one after the other, as they are needed.

    Arguments:
        paths: the part's files; those that are most likely to have what is read come first.

    Raises FileFormatError for files that do not make sense.
    """

    def __init__(self, paths: Iterable[Path]):
        self._unopened = list(reversed(list(paths)))
        self._pieces: dict[str, list[_Piece]] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, Region.whole(self.shape(name)))

    def __iter__(self) -> Iterator[str]:
        while self._unopened:
            self._open()
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor. Raises KeyError where no file has a part of it."""
        while name not in self._pieces and self._unopened:
            self._open()
        return self._pieces[name][0].shard.shape

    def dtype(self, name: str) -> torch.dtype:
        """Raises KeyError as `shape`."""
        self.shape(name)
        return self._pieces[name][0].dtype

    def read(self, name: str, region: Region) -> Tensor:
        """A region of a tensor, mapped from a file or in memory of its own. Raises KeyError as `shape`."""
        whole = Region.whole(self.shape(name))
        if not region.numel:
            return torch.empty(region.shape, dtype=self.dtype(name))
        if whole.common(region) != region:
            raise FileFormatError(f"{name} has the shape {list(whole.shape)}; {region} is not inside it")
        while True:
            parts = [(piece, part) for piece in self._pieces[name] if (part := piece.shard.region.common(region))]
            if not self._unopened or sum(part.numel for _, part in parts) >= region.numel:
                break
            self._open()
        try:
            check_cover(region, [part for _, part in parts])
        except FileFormatError as error:
            raise FileFormatError(f"{name} cannot be put together: {error.what}") from error
        if len(parts) == 1:
            return parts[0][0].read(region)
        result = torch.empty(region.shape, dtype=self.dtype(name))
        for piece, part in parts:
            result[part.slices(region)] = piece.read(part)
        return result

    def _open(self) -> None:
        path = self._unopened.pop()
        try:
            file = safe_open(path, framework="pt")
            shards = parse_json((file.metadata() or {}).get(SHARDS, "{}").encode())
            if not isinstance(shards, dict):
                raise ValueError("its shards are no mapping")
            for name in file.keys():  # noqa: SIM118  (no mapping)
                saved = file.get_slice(name)
                shard = _shard(tuple(saved.get_shape()), shards.get(name))
                piece = _Piece(path, file, name, shard, _DTYPES[saved.get_dtype()])
                others = self._pieces.setdefault(name, [])
                if others and (others[0].shard.shape, others[0].dtype) != (shard.shape, piece.dtype):
                    raise ValueError(f"{name} is another tensor than in {others[0].path.name}")
                others.append(piece)
        except (SafetensorError, KeyError, OSError, RecursionError, RuntimeError, TypeError, ValueError) as error:
            raise FileFormatError(f"{path} cannot be read as safetensors: {error}.") from error


class SavedTensor:
    """A tensor of a checkpoint that has not been read yet.

    Attributes:
        shape: of the whole tensor.
        dtype: of its elements.
    """

    def __init__(self, files: PieceFiles, name: str):
        self._files, self._name = files, name
        self.shape, self.dtype = files.shape(name), files.dtype(name)

    def whole(self) -> Tensor:
        return self._files[self._name]

    def region(self, region: Region) -> Tensor:
        """The elements of a region. Raises FileFormatError where the files do not have each of them once."""
        return self._files.read(self._name, region)


def _shard(local: tuple[int, ...], entry: object) -> Shard:
    """Raises ValueError for an entry that is no shape and offset of a part of this shape."""
    if entry is None:
        return Shard(local, Region.whole(local))
    if not (isinstance(entry, list) and len(entry) == 2 and all(isinstance(numbers, list) for numbers in entry)):
        raise ValueError("a shard is no shape and offset")
    shape, offset = entry
    if not len(shape) == len(offset) == len(local) or any(type(number) is not int for number in (*shape, *offset)):
        raise ValueError("a shard has another number of dims than its tensor")
    for size, start, part in zip(shape, offset, local, strict=True):
        if not (0 <= start <= _MOST and 0 <= size <= _MOST and start + part <= size):
            raise ValueError("a shard lies outside of its tensor")
    return Shard(tuple(shape), Region(tuple(offset), local))
