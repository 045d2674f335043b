"""A cache of the shipped data files as JSON in the user's cache folder; JSON is read faster than TOML.

An entry is one file that names the digest of the data file and of itself. Whatever is not as it was written is read from
the data file again. GPUWISE_NO_CACHE=1 switches it off.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from gpuwise.atomic import written_whole
from gpuwise.plain_files import parse_toml, read_regular

OFF = "GPUWISE_NO_CACHE"
LARGEST_BYTES = 64 * 2**20


def cache_home() -> Path:
    """$XDG_CACHE_HOME/gpuwise, else ~/.cache/gpuwise. It need not exist."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home if os.path.isabs(home) else os.path.expanduser("~/.cache")) / "gpuwise"


def switched_off() -> bool:
    """Whether the user wants nothing kept on disk."""
    return os.environ.get(OFF, "0") not in {"", "0"}


def cached_tables(name: str, data: bytes) -> dict[str, object]:
    """The tables of a TOML file, from its entry where there is one. Raises what parse_toml raises.

    Arguments:
        name: of the entry; a file of the same name takes its place.
    """
    if switched_off():
        return parse_toml(data.decode())
    path = cache_home() / "catalog" / f"{name}.json"
    kept = _kept(path, data)
    if kept is None:
        kept = parse_toml(data.decode())
        _keep(path, data, kept)
    return kept


def _kept(path: Path, data: bytes) -> dict[str, object] | None:
    with suppress(OSError, ValueError, RecursionError):
        digest, _, body = read_regular(path, limit_bytes=LARGEST_BYTES).partition(b"\n")
        if digest == _digest(data, body) and isinstance(tables := json.loads(body), dict):
            return tables
    return None


def _keep(path: Path, data: bytes, tables: dict[str, object]) -> None:
    """Half an entry is told by its digest. A folder that cannot be written, or a date, which JSON has not, leaves none."""
    with suppress(OSError, TypeError):
        body = json.dumps(tables).encode()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with written_whole(path, synced=False) as file:
            file.write(_digest(data, body) + b"\n" + body)


def _digest(data: bytes, body: bytes) -> bytes:
    return sha256(sha256(data).digest() + body).hexdigest().encode()
