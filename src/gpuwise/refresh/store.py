"""The kept lists: written aside and renamed under a lock. A reader meets the old list or the new one, never half of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuwise.atomic import written_whole
from gpuwise.errors import FileFormatError, InputError, PriceListError
from gpuwise.hardware.refreshed import RefreshedList, folder, path_of, read_list
from gpuwise.hardware.toml_cache import OFF, switched_off

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_WAIT_S = 10.0  # another refresh has the lock for milliseconds, while it compares and writes
_LOOK_S = 0.02


@contextmanager
def locked() -> Iterator[None]:
    """One refresh at a time compares with the last good lists and writes. Raises PriceListError where that is impossible.

    The system's lock ends with the process, however that ends. Where there is none (Windows), the rename protects readers.
    """
    if switched_off():
        raise InputError(f"{OFF} is set: nothing is kept on disk, and a fetched list would be lost.", [f"unset {OFF}"])
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder() / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritable(folder(), error) from None
    try:
        if fcntl is not None:
            _acquire(descriptor)
        yield
    finally:
        os.close(descriptor)


def _acquire(descriptor: int) -> None:
    until = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= until:
                raise PriceListError(
                    f"another refresh has had the lock of {folder()} for {LOCK_WAIT_S:g} s ({error.strerror}).",
                    ["wait until it has ended, or end it"],
                ) from None
            time.sleep(_LOOK_S)
        else:
            return


def last_good(provider: str) -> RefreshedList | None:
    """The kept list of a provider; None where there is none, or it is damaged."""
    with suppress(FileFormatError):
        return read_list(path_of(provider))
    return None


def keep(new: RefreshedList) -> Path:
    """Writes a list in place of the one that was there, under the lock. Raises PriceListError; the old list then stays."""
    path = path_of(new.provider)
    try:
        for left in path.parent.glob(f".{path.name}.*.tmp"):  # by a refresh that was killed while it wrote
            left.unlink(missing_ok=True)
        with written_whole(path) as file:
            file.write(new.to_bytes())
    except OSError as error:
        raise _unwritable(path, error) from None
    return path


def _unwritable(path: Path, error: OSError) -> PriceListError:
    return PriceListError(
        f"{path} cannot be written ({error.strerror or error}). The prices that were there stay.",
        ["make room, or make the folder writable", "name another cache folder by XDG_CACHE_HOME"],
    )
