"""Runs work in a child process: a JSON request on its stdin, answers as JSON lines.

Work that may exhaust the memory, hang or be killed runs in the child, so that this process survives and can report it. The
child has its own session: Ctrl-C reaches only this process, which then ends the child.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.hardware.waiting import passive_waiting

_TAIL_LINES = 5
_GRACE_S = 5.0


class ChildDiedError(GpuwiseError):
    """A child process ended without an answer.

    Attributes:
        signal: signal that ended it; None if it exited.
        tail: end of its stderr.
        silent: whether it was ended because it said nothing for too long.
    """

    code = "child-died"

    def __init__(
        self, what: str, ways_out: tuple[str, ...] = (), *, signal: int | None = None, tail: str = "", silent: bool = False
    ):
        super().__init__(what, ways_out)
        self.signal, self.tail, self.silent = signal, tail, silent

    @property
    def likely_out_of_memory(self) -> bool:
        """Whether the kernel's OOM killer probably ended the child, or its own output mentions a lack of memory."""
        reported = any(word in self.tail for word in ("MemoryError", "bad_alloc", "can't allocate memory", "out of memory"))
        return self.signal == signal.SIGKILL or reported


def answers(
    module: str,
    request: Mapping[str, object],
    *,
    silence_s: float = 600.0,
    purpose: str = "benchmark",
    environment: Mapping[str, str] | None = None,
) -> Generator[Any]:
    """Runs `python -m module` in the current folder and yields its answers as they arrive.

    No file of that folder can shadow a library (-P). Closing the iterator, or an exception in its consumer, ends the child.

    Arguments:
        module: module to run.
        request: request for the child.
        silence_s: longest time in seconds between two answers, after which the child is ended.
        purpose: name of the child in errors.
        environment: additional environment variables.

    Raises ChildDiedError, after all answers, when the child ends with anything but exit code 0.
    """
    reading, writing = os.pipe()
    tail: list[str] = []
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(writing)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=(writing,),
        start_new_session=True,
        env={**passive_waiting(), **os.environ, **(environment or {})},
    )
    os.close(writing)
    assert child.stdin is not None
    assert child.stderr is not None
    try:
        with suppress(BrokenPipeError):
            child.stdin.write(json.dumps(request).encode())
            child.stdin.close()
        yield from _lines(reading, child.stderr.fileno(), tail, silence_s, purpose)
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end(child)
        os.close(reading)
        child.stderr.close()
    if child.returncode != 0:
        raise _death(child.returncode, tail, purpose)


def _lines(answers_fd: int, errors_fd: int, tail: list[str], silence_s: float, purpose: str) -> Iterator[Any]:
    """Yields answers until the child closes its pipe. `tail` receives the last lines of the child's stderr."""
    unread = {answers_fd: b"", errors_fd: b""}
    open_fds = [answers_fd, errors_fd]
    heard_s = time.monotonic()
    while answers_fd in open_fds:
        ready, _, _ = select.select(open_fds, [], [], 0.2)
        if not ready and time.monotonic() - heard_s > silence_s:
            raise ChildDiedError(
                f"the {purpose} said nothing for {silence_s:.0f} s and was ended.", tail="\n".join(tail), silent=True
            )
        for fd in ready:
            chunk = os.read(fd, 65536)
            if not chunk:
                open_fds.remove(fd)
                continue
            *lines, unread[fd] = (unread[fd] + chunk).split(b"\n")
            if fd == errors_fd:
                tail[:] = [*tail, *(line.decode(errors="replace") for line in lines)][-_TAIL_LINES:]
                continue
            heard_s = time.monotonic()
            for line in lines:
                yield json.loads(line)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and all processes that it started, even if the child itself is already gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):  # no process is left; macOS raises PermissionError for dead ones
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_GRACE_S)
            break


def _death(code: int, tail: list[str], purpose: str) -> ChildDiedError:
    last = next((line.strip() for line in reversed(tail) if line.strip()), "")
    if code >= 0:
        reason = f": {last}" if last else ""
        return ChildDiedError(f"the {purpose} failed with exit code {code}{reason}", tail="\n".join(tail))
    name = signal.Signals(-code).name
    why = ", as the system does where memory is used up" if -code == signal.SIGKILL else ""
    return ChildDiedError(f"the {purpose} was killed by {name}{why}.", signal=-code, tail="\n".join(tail))


def oom_kills() -> int | None:
    """Number of processes that Linux killed for lack of memory since boot, in any container; None where unknown."""
    try:
        kills = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(kills[1]) if kills else None


class WorkerConnection:
    """The child's side of the connection: `request` is the request, `send` answers. Other output goes to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")
        self.request: Any = json.loads(sys.stdin.buffer.read())
        os.dup2(2, 1)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # keeps the order of the output

    def send(self, **answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")

    def hand_over(self) -> None:
        """Processes that are started from here on may answer in place of this one: see DelegateConnection."""
        os.dup2(self._answers.fileno(), 1)


class DelegateConnection(WorkerConnection):
    """The connection of a process that a child has started with its request, in JSON, as the only argument.

    To be made before anything is printed: the answers go where its stdout went, and other output goes to stderr.
    """

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
        self.request = json.loads(sys.argv[1])
        os.dup2(2, 1)
