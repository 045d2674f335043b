"""A child process that works for this one: asked in JSON on its stdin, answering in JSON lines.

What may take all the memory, hang or be killed runs here, so that this process lives to tell. The child has a session of its
own: Ctrl-C reaches this process alone, which ends the child.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

from gpuwise.errors import GpuwiseError
from gpuwise.hardware.waiting import passive_waiting

_TAIL_LINES = 5
_GRACE_S = 5.0


class ChildDiedError(GpuwiseError):
    """A child process ended without an answer. signal: that ended it, None where it exited; tail: its last words."""

    code = "child-died"

    def __init__(self, what: str, ways_out: tuple[str, ...] = (), *, signal: int | None = None, tail: str = ""):
        super().__init__(what, ways_out)
        self.signal, self.tail = signal, tail

    @property
    def likely_out_of_memory(self) -> bool:
        """Killed as the kernel does where memory is used up; or it said so itself."""
        reported = any(word in self.tail for word in ("MemoryError", "can't allocate memory", "out of memory"))
        return self.signal == signal.SIGKILL or reported


def answers(
    module: str,
    request: Mapping[str, object],
    *,
    silence_s: float = 600.0,
    purpose: str = "benchmark",
    environment: Mapping[str, str] | None = None,
) -> Generator[Any]:
    """Runs `python -m module` in the folder we are in and yields its answers as they come; no file of that folder stands in for
    a library (-P).

    Arguments:
        silence_s: the longest time between two answers; then the child is ended. purpose: what errors call the child.
        environment: variables beside our own.

    Closing the iterator, or any exception in its consumer, ends the child. Raises ChildDiedError where it ends other than by
    exit code 0; the answers before were yielded.
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
    """Answers until the child closes its end. tail: gets the last lines it wrote to stderr."""
    unread = {answers_fd: b"", errors_fd: b""}
    open_fds = [answers_fd, errors_fd]
    heard_s = time.monotonic()
    while answers_fd in open_fds:
        ready, _, _ = select.select(open_fds, [], [], 0.2)
        if not ready and time.monotonic() - heard_s > silence_s:
            raise ChildDiedError(f"the {purpose} said nothing for {silence_s:.0f} s and was ended.", tail="\n".join(tail))
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
    """Ends the child and whatever it started, also where the child is gone and they are not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):  # none is left; macOS says so of ones that are dead
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


class WorkerConnection:
    """The child's side: `request` is what was asked, `say` answers. Whatever else is printed goes to stderr."""

    def __init__(self) -> None:
        self._answers = os.fdopen(int(sys.argv[1]), "w", buffering=1, encoding="utf-8")
        self.request: Any = json.loads(sys.stdin.buffer.read())
        os.dup2(2, 1)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # in the order it was printed

    def send(self, **answer: object) -> None:
        self._answers.write(json.dumps(answer) + "\n")
