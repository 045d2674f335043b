"""One run in a folder."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys

import pytest

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.runs import lock
from gpuwise.runs.lock import RunLock

# Locks the folder, says so, and waits to be killed. flock: whether the filesystem has it.
HOLDER = """
import errno, fcntl, sys, time
from gpuwise.runs.lock import RunLock
if sys.argv[2] == "False":
    def flock(*_):
        raise OSError(errno.ENOTSUP, "no locks")
    fcntl.flock = flock
RunLock(sys.argv[1]).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def no_locks(*_):
    raise OSError(errno.ENOTSUP, "no locks")


@pytest.fixture(params=[True, False], ids=["flock", "no flock"])
def flock(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(fcntl, "flock", no_locks)
    return request.param


def test_the_folder_is_free_again_afterwards(flock, tmp_path):
    for _ in range(2):
        with RunLock(tmp_path):
            assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
        assert (tmp_path / "lock").read_text() == ""
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_second_run_is_told_who_has_it(flock, tmp_path):
    with RunLock(tmp_path):
        with pytest.raises(InputError) as caught:
            RunLock(tmp_path).acquire()
        assert f"is in use by process {os.getpid()} on {socket.gethostname()} since 20" in caught.value.what
        assert len(caught.value.ways_out) == 2
        assert f"kill {os.getpid()}" in caught.value.ways_out[0]
    RunLock(tmp_path).acquire().release()


def test_another_process_holds_it_until_it_is_killed(flock, tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), str(flock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(InputError, match=f"in use by process {holder.pid} on"):
                RunLock(tmp_path).acquire()
        finally:
            holder.kill()
    with RunLock(tmp_path):
        pass


def test_a_fork_does_not_hold_it(tmp_path):
    """A data-loader worker that outlives the run."""
    (read, end), (begun, begin) = os.pipe(), os.pipe()
    held = RunLock(tmp_path).acquire()
    child = os.fork()
    if child == 0:
        os.close(end)
        os.write(begin, b"x")
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    os.read(begun, 1)
    for fd in (held._fd, held._folder_fd):  # as when the run dies; a release would take the lock from its child, too
        os.close(fd)
    held._fd = held._folder_fd = None
    RunLock(tmp_path).acquire().release()
    for fd in (end, read, begun, begin):
        os.close(fd)
    os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("holder", "gone"),
    [
        ({"pid": 999_999_999, "host": socket.gethostname()}, True),
        ({"pid": os.getpid(), "host": socket.gethostname()}, True),  # a process with our number, before us
        ({"pid": os.getppid(), "host": socket.gethostname()}, False),
        ({"pid": 999_999_999, "host": "elsewhere"}, False),
        ({"pid": "many", "host": socket.gethostname()}, False),
        ({"pid": -1, "host": socket.gethostname()}, False),
        ("nonsense", False),
    ],
)
def test_without_flock_a_dead_process_of_this_host_is_recognised(holder, gone, tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", no_locks)
    (tmp_path / "lock.held").write_text(json.dumps(holder))
    if gone:
        with RunLock(tmp_path):
            assert json.loads((tmp_path / "lock.held").read_text())["pid"] == os.getpid()
        assert not (tmp_path / "lock.held").exists()
    else:
        with pytest.raises(InputError, match="is in use by another run"):
            RunLock(tmp_path).acquire()
        assert json.loads((tmp_path / "lock.held").read_text()) == holder


def test_a_system_without_such_locks_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "fcntl", None)
    with pytest.raises(UnsupportedError, match="on Linux and macOS alone"):
        RunLock(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be locked: No such file"):
        RunLock(tmp_path / "none").acquire()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "valuable").write_text("mine")
    (tmp_path / "lock").symlink_to(tmp_path / "valuable")
    with pytest.raises(InputError, match="cannot be locked"):
        RunLock(tmp_path).acquire()
    assert (tmp_path / "valuable").read_text() == "mine"


def test_to_remove_the_file_frees_no_folder(tmp_path):
    held = RunLock(tmp_path).acquire()
    (tmp_path / "lock").unlink()
    with pytest.raises(InputError, match="is in use by another run"):
        RunLock(tmp_path).acquire()
    held.release()
    RunLock(tmp_path).acquire().release()


def test_a_filesystem_that_locks_no_folders_has_the_file(tmp_path, monkeypatch):
    real = fcntl.flock

    def files_alone(fd, how):
        if os.path.isdir(f"/dev/fd/{fd}"):
            raise OSError(errno.EBADF, "Bad file descriptor")
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", files_alone)
    with RunLock(tmp_path), pytest.raises(InputError, match=f"in use by process {os.getpid()}"):
        RunLock(tmp_path).acquire()
    RunLock(tmp_path).acquire().release()


def test_descriptors_that_the_job_has_closed_are_no_failure(tmp_path):
    held = RunLock(tmp_path).acquire()
    os.close(held._fd)
    os.close(held._folder_fd)
    held.release()
    RunLock(tmp_path).acquire().release()
