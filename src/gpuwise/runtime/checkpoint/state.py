"""A state as a tree of plain values and tensors, taken apart into JSON and named tensors, and put together again.

A tree has dicts (with str or int keys), lists, tuples, tensors, NumPy arrays and numbers, bytes, str, int, float, bool, None.
In JSON a dict with plain keys is an object and a list an array; everything else is an object with one key that begins with "$"
(see `_KINDS`). Subclasses (OrderedDict, named tuples, parameters) come back as what they are a subclass of.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpuwise.errors import FileFormatError, InputError
from gpuwise.runtime.checkpoint.tensors import Layout, from_file, is_wrapped, pack_shard, pack_tensor, unwrapped, wrapped
from gpuwise.runtime.parallel.regions import Shard, is_dtensor, local_of, shard_of

MAX_DEPTH = 100  # of a tree: JSON is read recursively, so something must end before Python's stack does
PART_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")  # of a file, on case-insensitive filesystems too
_ARRAY_DTYPE = re.compile(r"[<>|][biufc]\d{1,2}")  # numbers only: nothing that holds objects or fields
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}

Tensors = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class Packed:
    """A state taken apart.

    Attributes:
        structure: JSON, by part.
        tensors: by part and name, on their devices and as they are laid out there, those that share memory once.
        shards: by part and name, of tensors that several ranks share; `tensors` has this rank's part of them.
    """

    structure: dict[str, object]
    tensors: Tensors
    shards: dict[str, dict[str, Shard]] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for part in self.tensors.values() for tensor in part.values())


def pack(state: Mapping[str, object]) -> Packed:
    """Takes a state apart; its keys name the parts, which become files. Copies no tensor.

    Raises InputError for what cannot be saved (an object of another kind, a sparse tensor), with its place in the tree.
    """
    packer = _Packer()
    structure = {}
    for part, tree in state.items():
        if not isinstance(part, str) or not PART_NAME.fullmatch(part):
            raise InputError(f"a part of a state cannot be named {part!r}: small letters, digits and _ only.")
        structure[part] = packer.part(part, tree)
    return Packed(structure, {part: tensors for part, tensors in packer.tensors.items() if tensors}, packer.shards)


# What a tensor in a structure becomes, from its part, its name and its layout.
Resolve = Callable[[str, str, Layout], object]


def unpack(
    structure: Mapping[str, object], tensors: Mapping[str, Mapping[str, Tensor]], resolve: Resolve | None = None
) -> dict[str, object]:
    """What `pack` was given, its tensors on the CPU. Tensors that shared memory are one tensor again.

    Arguments:
        tensors: of the files, by part and name.
        resolve: makes a tensor's value in the tree; None: the tensor itself. Of tensors made of several, always themselves.

    Raises FileFormatError for a structure that `pack` did not make.
    """
    try:
        unpacker = _Unpacker(tensors, resolve)
        return {part: unpacker.value(value, 0) for part, value in structure.items()}
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FileFormatError(f"the structure of the state makes no sense ({type(error).__name__}: {error}).") from error


@dataclass
class _Packer:
    tensors: Tensors = field(default_factory=dict)
    shards: dict[str, dict[str, Shard]] = field(default_factory=dict)
    _kept: dict[tuple[object, ...], object] = field(default_factory=dict)  # what lies where -> how it was written down
    _part: str = ""

    def part(self, name: str, tree: object) -> object:
        self._part = name
        self.tensors[name] = {}
        return self.value(tree, ())

    def value(self, value: object, path: tuple[str, ...]) -> object:
        if len(path) > MAX_DEPTH:
            raise InputError(f"the state of {self._part} is nested more than {MAX_DEPTH} deep, or contains itself.")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, np.generic):  # before float: np.float64 is one
            return {"$number": [self._dtype(value.dtype, path), value.tobytes().hex()]}
        if isinstance(value, str | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(float(value))}
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, np.ndarray):
            return self._array(value, path)
        if isinstance(value, torch.dtype):
            return {"$dtype": str(value).removeprefix("torch.")}
        if isinstance(value, Mapping):
            return self._dict(value, path)
        if isinstance(value, list | tuple):
            items = [self.value(item, (*path, str(i))) for i, item in enumerate(value)]
            return items if isinstance(value, list) else {"$tuple": items}
        raise InputError(
            f"{self._dotted(path)} is a {type(value).__name__}, which cannot be saved.",
            ["keep numbers, text, tensors, lists and dicts in the state"],
        )

    def _dict(self, value: Mapping[object, object], path: tuple[str, ...]) -> object:
        for key in value:
            if not isinstance(key, str | int):
                raise InputError(f"{self._dotted(path)} has a key of type {type(key).__name__}; only str and int can be saved.")
        items = {key: self.value(item, (*path, str(key))) for key, item in value.items()}
        if all(isinstance(key, str) and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[key, item] for key, item in items.items()]}

    def _tensor(self, tensor: Tensor, path: tuple[str, ...]) -> object:
        if is_dtensor(tensor):
            flat = pack_shard(local_of(tensor), self._dotted(path))
            return self._reference(flat, {}, path, shard_of(tensor))
        if is_wrapped(tensor):
            kind, inner, attributes = unwrapped(tensor, self._dotted(path))
            return {
                "$wrapped": [
                    kind,
                    {name: self._tensor(part, (*path, name)) for name, part in inner.items()},
                    self.value(attributes, path),
                ]
            }
        return self._reference(*pack_tensor(tensor, self._dotted(path)), path)

    def _reference(self, flat: Tensor, how: Layout, path: tuple[str, ...], shard: Shard | None = None) -> object:
        key = (flat.device, flat.data_ptr(), flat.dtype, flat.shape, flat.stride(), repr(how))
        if key in self._kept:
            return self._kept[key]
        name = self._name(path)
        self.tensors[self._part][name] = flat
        if shard is not None:
            self.shards.setdefault(self._part, {})[name] = shard
        reference = {"$tensor": [self._part, name, *([how] if how else [])]}
        if flat.numel():  # empty tensors all lie at address 0
            self._kept[key] = reference
        return reference

    def _array(self, array: NDArray[np.generic], path: tuple[str, ...]) -> object:
        data = array.tobytes()
        name = self._name(path)
        self.tensors[self._part][name] = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        )
        return {"$array": [self._part, name, self._dtype(array.dtype, path), list(array.shape)]}

    def _dtype(self, dtype: np.dtype[np.generic], path: tuple[str, ...]) -> str:
        if not _ARRAY_DTYPE.fullmatch(dtype.str):
            raise InputError(f"{self._dotted(path)} holds NumPy values of type {dtype}; only numbers can be saved.")
        return dtype.str

    def _name(self, path: tuple[str, ...]) -> str:
        """As a state dict has it, unless something else is called so."""
        plain = ".".join(path).encode("utf-8", "replace").decode() or self._part
        name, number = plain, 1
        while name in self.tensors[self._part] or name == "__metadata__":  # what safetensors keeps for itself
            number += 1
            name = f"{plain}#{number}"
        return name

    def _dotted(self, path: tuple[str, ...]) -> str:
        return ".".join((self._part, *path))


class _Unpacker:
    def __init__(self, tensors: Mapping[str, Mapping[str, Tensor]], resolve: Resolve | None):
        self._tensors, self._resolve = tensors, resolve
        self._loaded: dict[tuple[str, str], Tensor] = {}

    def value(self, value: object, depth: int) -> object:
        if depth > MAX_DEPTH + 1:
            raise FileFormatError(f"the structure of the state is nested more than {MAX_DEPTH} deep.")
        if isinstance(value, list):
            return [self.value(item, depth + 1) for item in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((kind, content),) = value.items()
            if kind.startswith("$"):
                return _KINDS[kind](self, content, depth + 1)
        return {key: self.value(item, depth + 1) for key, item in value.items()}

    def leaf(self, part: str, name: str, how: Layout | None = None) -> object:
        return self.tensor(part, name, how) if self._resolve is None else self._resolve(part, name, how or {})

    def tensor(self, part: str, name: str, how: Layout | None = None) -> Tensor:
        key = (part, name)
        if key not in self._loaded:
            self._loaded[key] = from_file(self._tensors[part][name], how or {}, DTYPES)
        return self._loaded[key]

    def _tensor(self, value: object, depth: int) -> Tensor:
        """A tensor that is a part of one made of several."""
        reference = value.get("$tensor") if isinstance(value, dict) else None
        tensor = self.value(value, depth) if reference is None else self.tensor(*reference)
        assert isinstance(tensor, Tensor)
        return tensor

    def array(self, part: str, name: str, dtype: str, shape: list[int]) -> NDArray[np.generic]:
        data = self._tensors[part][name].numpy()
        return np.frombuffer(data.tobytes(), dtype=_numbers(dtype)).reshape(shape).copy()

    def wrapped(self, content: Any, depth: int) -> Tensor:
        kind, inner, attributes = content
        return wrapped(kind, {name: self._tensor(item, depth) for name, item in inner.items()}, self.value(attributes, depth))


_KINDS: dict[str, Callable[[_Unpacker, Any, int], object]] = {
    "$tuple": lambda unpacker, items, depth: tuple(unpacker.value(item, depth) for item in items),
    "$dict": lambda unpacker, items, depth: {_key(key): unpacker.value(item, depth) for key, item in items},
    "$float": lambda unpacker, text, depth: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[text],
    "$bytes": lambda unpacker, text, depth: base64.b64decode(text, validate=True),
    "$dtype": lambda unpacker, name, depth: DTYPES[name],
    "$number": lambda unpacker, packed, depth: np.frombuffer(bytes.fromhex(packed[1]), _numbers(packed[0]), count=1)[0],
    "$tensor": lambda unpacker, packed, depth: unpacker.leaf(*packed),
    "$array": lambda unpacker, packed, depth: unpacker.array(*packed),
    "$wrapped": _Unpacker.wrapped,
}


def _numbers(dtype: str) -> np.dtype[np.generic]:
    if not _ARRAY_DTYPE.fullmatch(dtype):
        raise ValueError(f"no type of numbers: {dtype!r}")
    return np.dtype(dtype)


def _key(key: object) -> str | int:
    if not isinstance(key, str | int):
        raise TypeError(f"no key: {key!r}")
    return key
