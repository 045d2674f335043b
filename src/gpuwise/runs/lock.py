"""A lock on a run's folder that ends with its process."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
import weakref
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from gpuwise.errors import InputError, UnsupportedError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"
LOOKS, BETWEEN_LOOKS_S = 5, 0.01  # at a lock that somebody has, before it counts as taken
_NO_FLOCK = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EINVAL)
_locks: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Holds a run's folder for this process; a context manager.

    The file `lock` in it says who: pid, host and start. The system's lock on it (flock) ends with the process, however that
    ends; one on the folder itself, where the filesystem has such, stands when somebody removes the file. On filesystems
    without such locks a second file, `lock.held`, stands for it: it is taken over when its process, on this host, is gone.

    Raises InputError where another run has the folder, or it cannot be written to; UnsupportedError on Windows.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.path = Path(folder) / LOCK
        self._fd: int | None = None
        self._folder_fd: int | None = None
        self._marker: Path | None = None

    def acquire(self) -> RunLock:
        if fcntl is None:
            raise UnsupportedError(
                "a run is kept in a folder on Linux and macOS alone: this system has no such locks (flock).",
                ["train without a folder: --no-run", "the Linux subsystem of Windows (WSL)"],
            )
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            _locks.add(self)
            self._take()
            self._take_folder()
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, _about_this_process(), 0)
        except OSError as error:
            self._close()  # what the file says of its holder stays
            raise InputError(
                f"the run folder {self.path.parent} cannot be locked: {error.strerror}.", ["a folder that can be written to"]
            ) from error
        except BaseException:
            self._close()
            raise
        return self

    def release(self) -> None:
        """Releases the folder; does nothing if it is not locked."""
        if self._fd is not None:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)  # nobody has it any more
                fcntl.flock(self._fd, fcntl.LOCK_UN)
        if self._marker is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._marker)
            self._marker = None
        self._close()

    def __enter__(self) -> RunLock:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def _take(self) -> None:
        assert self._fd is not None
        try:
            _flock(self._fd)
        except BlockingIOError:
            raise self._taken(_read(self.path)) from None
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            self._marker = self._mark()

    def _take_folder(self) -> None:
        self._folder_fd = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _flock(self._folder_fd)
        except BlockingIOError:
            raise self._taken(_read(self.path)) from None
        except OSError:  # NFS locks files that are open for writing, and no folders
            os.close(self._folder_fd)
            self._folder_fd = None

    def _mark(self) -> Path:
        """The lock as a file that only one process can create."""
        marker = self.path.with_suffix(".held")
        for _ in range(2):
            with suppress(FileExistsError):
                fd = os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                os.write(fd, _about_this_process())
                os.close(fd)
                return marker
            holder = _read(marker)
            if not _is_gone(holder):
                raise self._taken(holder)
            # Renamed, not removed: of several that come upon a dead run's file only one can.
            aside = marker.with_suffix(f".{os.getpid()}")
            with suppress(FileNotFoundError):
                os.rename(marker, aside)
                if _read(aside) != holder:  # another was faster, and this is its lock
                    os.rename(aside, marker)
                    raise self._taken(_read(marker))
                os.unlink(aside)
        raise self._taken(_read(marker))

    def _taken(self, holder: dict[str, object]) -> InputError:
        who, stop = "another run", "wait until that run ends, or stop it"
        if {"pid", "host", "started"} <= holder.keys():
            pid, host = holder["pid"], holder["host"]
            who = f"process {pid} on {host} since {holder['started']}"
            stop += f": kill {pid}" if host == socket.gethostname() else f" on {host}"
        marker = self.path.with_suffix(".held")
        if marker.exists():
            stop += f"; if it is gone, remove {marker}"
        return InputError(f"the run folder {self.path.parent} is in use by {who}.", [stop, "give this run a folder of its own"])

    def _close(self) -> None:
        for fd in (self._fd, self._folder_fd):
            if fd is not None:
                with suppress(OSError):  # the job may have closed every descriptor there is
                    os.close(fd)
        self._fd = self._folder_fd = None
        _locks.discard(self)


def is_locked(folder: str | os.PathLike[str]) -> bool:
    """Whether a run has a folder, by the same rule as RunLock takes it. Writes nothing."""
    marker = Path(folder) / f"{LOCK}.held"
    if marker.exists():  # on a filesystem without locks
        return not _is_gone(_read(marker))
    return any(_is_flocked(path) for path in (Path(folder) / LOCK, Path(folder)))


def _is_flocked(path: Path) -> bool:
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # NFS has none for folders
        return False
    finally:
        os.close(descriptor)  # the lock of this look ends with it
    return False


def _flock(descriptor: int) -> None:
    """Takes the lock of an open file. Raises BlockingIOError where another process keeps it, OSError without such locks.

    `is_locked` has it for some microseconds, and is no other run.
    """
    for look in range(LOOKS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if look == LOOKS - 1:
                raise
            time.sleep(BETWEEN_LOOKS_S)


def _in_child() -> None:
    """A forked process (a data-loader worker) must not hold the lock: it may outlive the run."""
    for lock in list(_locks):
        lock._marker = None
        lock._close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _about_this_process() -> bytes:
    about = {"pid": os.getpid(), "host": socket.gethostname(), "started": datetime.now(UTC).isoformat(timespec="seconds")}
    return json.dumps(about).encode()


def _read(path: Path) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            holder = json.loads(file.read(10_000))
    except (OSError, ValueError, RecursionError):  # empty: the holder has only just taken it
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_gone(holder: dict[str, object]) -> bool:
    """Whether the holder was a process of this host that has ended."""
    pid = holder.get("pid")
    if holder.get("host") != socket.gethostname() or not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    if pid == os.getpid():
        return not any(lock._marker for lock in _locks)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's: alive
        return False
    return False
