"""The manifest of a checkpoint: its files with sizes and checksums, and a checksum of the manifest itself."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuwise.errors import FileFormatError, InputError
from gpuwise.plain_files import parse_json
from gpuwise.runtime.checkpoint.tensors_file import Digest, open_ordinary
from gpuwise.strategy import Mesh
from gpuwise.version import __version__

MANIFEST, STATE = "manifest.json", "state.json"
FORMAT, VERSION = "gpuwise-checkpoint", 2
ALONE = str(Mesh())
MAX_MANIFEST_BYTES = 16 * 2**20
MAX_STATE_BYTES = 256 * 2**20  # of plain values; large data belongs into tensors

_FILE_NAME = re.compile(r"(state|[a-z][a-z0-9_]{0,63})(?:\.rank-(\d{5,7}))?\.(json|safetensors)")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class NewerFormatError(FileFormatError):
    """A checkpoint that a newer gpuwise wrote: whole, and not readable by this one."""


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        step: optimizer steps done.
        files: size and checksum by name.
        best: whether it was the best of its run when it was saved.
        meta: what the caller wanted to find again (JSON).
        gpuwise: the version that wrote it.
        ranks: number of ranks that wrote it.
        mesh: their mesh, as Mesh prints it.
    """

    step: int
    files: Mapping[str, Digest]
    best: bool
    meta: Mapping[str, object]
    gpuwise: str = __version__
    ranks: int = 1
    mesh: str = ALONE

    @property
    def nbytes(self) -> int:
        return sum(digest.nbytes for digest in self.files.values())

    def to_json(self) -> bytes:
        """Raises InputError for a meta that is not JSON."""
        check_meta(self.meta)
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return dump_json({"checksum": _checksum(content), "content": content})

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """Raises FileFormatError when it is damaged, NewerFormatError when it is whole and of a newer version."""
        try:
            outer: Any = load_json(data, name=MANIFEST, parse=parse_json)
            content = outer["content"]
            if outer["checksum"] != _checksum(content) or content["format"] != FORMAT or data != dump_json(outer):
                raise FileFormatError(f"the checksum of {MANIFEST} is wrong")
            if content["version"] > VERSION:
                raise NewerFormatError(
                    f"it was written by gpuwise {content['gpuwise']} in version {content['version']} of the "
                    f"format, and this one reads up to version {VERSION}"
                )
            files = {_name(name): _digest(digest) for name, digest in content["files"].items()}
            ranks, mesh = content.get("ranks", 1), str(content.get("mesh", ALONE))  # version 1 knows one process only
            if type(ranks) is not int or ranks < 1:
                raise ValueError(f"no number of ranks: {ranks!r}")
            best, meta = content["best"] is True, dict(content["meta"])
            return cls(content["step"], files, best, meta, str(content["gpuwise"]), ranks, mesh)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise FileFormatError(f"{MANIFEST} makes no sense ({type(error).__name__}: {error})") from error


def dump_json(value: object) -> bytes:
    """ASCII, so that any text survives. Raises TypeError or ValueError for what JSON cannot hold."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def state_json(structure: Mapping[str, object]) -> bytes:
    """The plain values of a state. Raises InputError where they are too many, or a number is too long for JSON."""
    try:
        encoded = dump_json(structure)
    except ValueError as error:
        raise InputError(f"the plain values of the state cannot be saved: {error}.") from error
    if len(encoded) > MAX_STATE_BYTES:
        raise InputError(
            f"the plain values of the state take {len(encoded):,} bytes; {MAX_STATE_BYTES:,} are allowed.",
            ["keep large lists as tensors or arrays"],
        )
    return encoded


def check_meta(meta: Mapping[str, object]) -> None:
    """Raises InputError for a meta that is not JSON."""
    try:
        dump_json(meta)
    except (TypeError, ValueError) as error:
        raise InputError(f"the meta of a checkpoint must be JSON: {error}.") from error


def load_json(data: bytes, *, name: str, parse: Callable[[bytes], object] = json.loads) -> object:
    """The value in a file's contents, read by `parse`. Raises FileFormatError."""
    try:
        return parse(data)
    except RecursionError as error:
        raise FileFormatError(f"the JSON of {name} is nested too deep") from error
    except ValueError as error:  # of JSON, of UTF-8, of numbers too long
        raise FileFormatError(f"the JSON of {name} is damaged ({error})") from error


def read_ordinary(path: Path, *, max_bytes: int) -> bytes:
    """The contents of an ordinary file. Raises FileFormatError, also for one that is too large."""
    with open_ordinary(path) as file:
        try:
            data = file.read(max_bytes + 1)
        except OSError as error:
            raise FileFormatError(f"{path.name} cannot be read ({error.strerror})") from error
    if len(data) > max_bytes:
        raise FileFormatError(f"{path.name} is larger than {max_bytes:,} bytes")
    return data


def _checksum(content: object) -> str:
    return hashlib.sha256(json.dumps(content, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class FileName:
    """A file of a checkpoint, by what is in it.

    Attributes:
        part: part of the state; "state" for plain values.
        rank: the rank that wrote it; None: it is of the whole run.
        kind: "safetensors" | "json".
    """

    part: str
    rank: int | None = None
    kind: str = "safetensors"

    def __str__(self) -> str:
        rank = "" if self.rank is None else f".rank-{self.rank:05d}"
        return f"{self.part}{rank}.{self.kind}"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """None for what is no file of a checkpoint, or its manifest."""
        match = _FILE_NAME.fullmatch(name)
        if match is None or (match[3] == "json" and match[1] != "state"):
            return None
        parsed = cls(match[1], None if match[2] is None else int(match[2]), match[3])
        return parsed if str(parsed) == name else None


def is_file_name(name: str) -> bool:
    """Whether a file of a checkpoint, other than its manifest, could be called so."""
    return FileName.parse(name) is not None


def _name(name: str) -> str:
    if not is_file_name(name):
        raise ValueError(f"no file of a checkpoint: {name!r}")
    return name


def _digest(value: Mapping[str, object]) -> Digest:
    nbytes, sha256 = value["nbytes"], value["sha256"]
    if type(nbytes) is not int or nbytes < 0 or not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise ValueError("no size and checksum")
    return Digest(nbytes, sha256)
