"""Attempt: one start of a run's training, which keeps RUN/state.json."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuwise.errors import (
    EXIT_INTERRUPTED,
    EXIT_UNEXPECTED,
    GpuwiseError,
    InputError,
    RankLostError,
    RunEndedError,
    UnsupportedError,
    message_of,
)
from gpuwise.results.run_status import DONE, FAILED, INTERRUPTED, RUNNING, RunStatus, StopReason
from gpuwise.runs.lock import RunLock
from gpuwise.runs.state_file import read_status, write_status
from gpuwise.version import __version__

_INTERRUPTED = "interrupted"  # code of last words that tell of a signal


class Attempt:
    """One start of a run. Its methods never raise for a file that cannot be written: training goes on without.

    Arguments:
        folder: folder of the run; None, for a run without one or a rank other than 0, does nothing.
        setup_s: seconds that its preparation took so far.
        ranks: number of ranks.

    Attributes:
        number: starts of the run so far, this one included; 0 before `begin`.
        began: its start, preparation included, in UTC (ISO 8601).
        problem: why the state could not be written the last time; None where it was.
    """

    def __init__(self, folder: Path | None, *, setup_s: float = 0.0, ranks: int = 1):
        self._folder, self._ranks = folder, ranks
        self._began_s = time.perf_counter() - setup_s
        self.began = (datetime.now(UTC) - timedelta(seconds=setup_s)).isoformat(timespec="milliseconds")
        self.number = 0
        self.problem: str | None = None
        self._status: RunStatus | None = None
        self._stays_done = False  # the run has taken all of its steps, and more of them may be refused

    @property
    def elapsed_s(self) -> float:
        """Seconds since its start, preparation included."""
        return time.perf_counter() - self._began_s

    def begin(self) -> None:
        """Notes that the run is running. To be called when this process has locked the folder."""
        if self._folder is None:
            return
        try:
            before = read_status(self._folder)
        except ValueError:  # damaged: its count of attempts is lost, and nothing rests on it
            before = None
        self._stays_done = before is not None and before.state == DONE
        self.number = 1 if before is None else before.attempts + 1
        status = RunStatus(
            state=RUNNING,
            step=0 if before is None else before.step,
            steps=None if before is None else before.steps,
            checkpoint_step=None if before is None else before.checkpoint_step,
            exit_code=None,
            reason=None,
            attempts=self.number,
            attempts_without_checkpoint=1 + (0 if before is None else before.attempts_without_checkpoint),
            began=self.began,
            written=self.began,
            host=socket.gethostname(),
            pid=os.getpid(),
            ranks=self._ranks,
            gpuwise_version=__version__,
        )
        if self._stays_done:
            self._status = status  # written once the run goes on
        else:
            self._write(status)

    def ready(self, *, step: int, steps: int) -> None:
        """The run goes on after `step`, that of the checkpoint it goes on from, or from 0."""
        self._stays_done = False
        if self._status is not None:
            self._write(replace(self._status, step=step, steps=steps, checkpoint_step=step or None))

    def saved(self, checkpoint_step: int | None, *, step: int) -> None:
        """Notes the newest complete checkpoint; cheap where it is the same as before."""
        status = self._status
        if status is not None and checkpoint_step not in (None, status.checkpoint_step):
            self._write(_with_checkpoint(status, checkpoint_step, step=step))

    def end(self, state: str, *, step: int, checkpoint_step: int | None, exit_code: int, reason: StopReason | None) -> None:
        """Notes how the attempt has ended, and its newest checkpoint (None without one of its own)."""
        if self._status is not None:
            status = _with_checkpoint(self._status, checkpoint_step, step=step)
            self._write(replace(status, state=state, exit_code=exit_code, reason=reason))

    def fail(self, error: BaseException) -> None:
        """Notes the error that ends the attempt, while its lock on the folder stands."""
        if self._status is not None and not self._stays_done:
            self._write(after_error(self._status, error))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A context around the attempt and its lock on the folder: notes the error that it ends with."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._folder is not None and not self._stays_done:
                note_failure(self._folder, error, status=self._status)
            raise

    def _write(self, status: RunStatus) -> None:
        assert self._folder is not None
        self._status = status = replace(status, written=datetime.now(UTC).isoformat(timespec="seconds"))
        try:
            write_status(self._folder, status)
        except OSError as error:
            self.problem = f"the state of the run could not be written: {error.strerror or error}."
        else:
            self.problem = None


def _with_checkpoint(status: RunStatus, checkpoint_step: int | None, *, step: int) -> RunStatus:
    """The status after a step, with the newest checkpoint of the attempt, if it has any."""
    if checkpoint_step in (None, status.checkpoint_step):
        return replace(status, step=step)
    return replace(status, step=step, checkpoint_step=checkpoint_step, attempts_without_checkpoint=0)


def after_error(status: RunStatus, error: BaseException) -> RunStatus:
    """The status of an attempt that an error has ended."""
    if status.state == DONE:  # a run that has taken all of its steps stays done
        return status
    if isinstance(error, RunEndedError):
        return replace(status, state=DONE, step=error.step, exit_code=error.exit_code, reason=None)
    if isinstance(error, GpuwiseError):
        state = INTERRUPTED if error.code in (RankLostError.code, _INTERRUPTED) else FAILED
        return replace(status, state=state, exit_code=error.exit_code, reason=StopReason(error.code, error.what))
    if isinstance(error, KeyboardInterrupt | SystemExit):  # of a second signal
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else EXIT_INTERRUPTED
        return replace(status, state=INTERRUPTED, exit_code=code, reason=StopReason("signal", "at once, unsaved"))
    text = f"{type(error).__name__}: {message_of(error)}"
    return replace(status, state=FAILED, exit_code=EXIT_UNEXPECTED, reason=StopReason("unexpected", text))


def note_failure(folder: Path, error: BaseException, *, status: RunStatus | None = None, unless_noted: bool = False) -> None:
    """Notes in the state of a run that an attempt has failed outside its lock on the folder: before it, or after.

    A wrapper would else read how the attempt before has ended, and start the run for ever. Nothing happens where there is no
    state, another process has the folder, or it cannot be written to.

    Arguments:
        status: of the attempt; None, for one that has not begun, continues what the file says.
        unless_noted: whether an attempt that has noted its own end keeps it.
    """
    with suppress(InputError, UnsupportedError, OSError, ValueError):
        if status is None and read_status(folder) is None:
            return
        with RunLock(folder):
            before = status or read_status(folder)
            if before is None or (unless_noted and before.state != RUNNING):
                return
            after = after_error(before, error)
            if after != before:
                now = datetime.now(UTC).isoformat(timespec="seconds")
                write_status(folder, replace(after, written=now))


@contextmanager
def failure_noted(run: str | os.PathLike[str] | None) -> Iterator[None]:
    """A context before an attempt begins: notes the error that it ends with in the state of the run in a folder, if any."""
    folder = None if run is None else Path(run).absolute()  # the job may change the working folder
    try:
        yield
    except BaseException as error:
        if folder is not None:
            note_failure(folder, error)
        raise
