"""The folder of a launch: its files, and launch.toml, which is written last and holds their digests."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import tomli_w

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError, InputError
from gpuwise.launch.description import MANIFEST_FILE, PLAN_FILE
from gpuwise.plain_files import parse_toml, read_regular, reason_of

FORMAT, VERSION = "gpuwise-launch", 1
_LARGEST_BYTES = 2**20


@dataclass(frozen=True)
class LaunchFolder:
    """A written launch.

    Attributes:
        path: the folder.
        target: name of the target.
        submit: what `--go` runs in the folder.
        digests: SHA-256 of each file, by path in the folder.
    """

    path: Path
    target: str
    submit: tuple[str, ...]
    digests: Mapping[str, str] = field(hash=False)


def write_folder(path: str | os.PathLike[str], files: Mapping[str, bytes], record: Mapping[str, object]) -> LaunchFolder:
    """Writes a launch; one that is in the folder already is replaced, and what else is there stays.

    Arguments:
        files: contents by path in the folder.
        record: what launch.toml holds beside the digests; `target` and `submit` among it.

    Raises InputError for a folder that holds other things, or that cannot be written.
    """
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{path} is a file, and a launch is a folder.", ["-o FOLDER"])
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MANIFEST_FILE).exists():
        raise InputError(f"{path} holds files, and no launch of before.", ["-o a new folder"])
    digests = {name: sha256(content).hexdigest() for name, content in files.items()}
    plain = {"format": FORMAT, "version": VERSION, **record, "files": digests}
    header = "# A launch made by gpuwise. `gpuwise launch FOLDER --go` starts it.\n\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)  # half a launch is none
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            with written_whole(folder / name) as file:
                file.write(content)
            if name.endswith(".sh"):
                (folder / name).chmod((folder / name).stat().st_mode | stat.S_IXUSR)
        with written_whole(folder / MANIFEST_FILE) as file:
            file.write((header + tomli_w.dumps(plain)).encode())
    except OSError as error:
        raise InputError(
            f"cannot write the launch to {path}: {error.strerror or error}.", ["-o a folder that can be written"]
        ) from None
    return read_folder(folder)


def read_folder(path: str | os.PathLike[str]) -> LaunchFolder:
    """Reads launch.toml and compares every file with its digest. Raises FileFormatError naming the one that differs."""
    folder = Path(path)
    again = f"gpuwise launch {PLAN_FILE} --to TARGET -o {path} writes it again"
    try:
        data = parse_toml(read_regular(folder / MANIFEST_FILE, limit_bytes=_LARGEST_BYTES).decode())
        if data.get("format") != FORMAT or data.get("version") != VERSION:
            raise ValueError(f"format {data.get('format')}, version {data.get('version')}")
        target, submit, digests = data["target"], data["submit"], data["files"]
        if not (isinstance(target, str) and isinstance(submit, list) and isinstance(digests, dict)):
            raise ValueError("wrong types")
    except (OSError, ValueError, KeyError) as error:
        raise FileFormatError(f"{path} holds no launch that this gpuwise reads ({reason_of(error)}).", [again]) from None
    for name, digest in digests.items():
        try:
            content = (folder / str(name)).read_bytes()
        except OSError:
            raise FileFormatError(f"{path}: {name} is missing.", [again]) from None
        if sha256(content).hexdigest() != digest:
            raise FileFormatError(
                f"{path}: {name} was changed after it was written, so launch.toml no longer describes what would run.",
                [again, "or start the changed files yourself: " + " ".join(map(str, submit))],
            )
    return LaunchFolder(folder, target, tuple(map(str, submit)), dict(digests))
