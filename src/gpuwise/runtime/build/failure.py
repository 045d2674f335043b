"""Errors of the user's own code, with the line at fault."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from gpuwise.errors import GpuwiseError, JobError, MissingDependencyError, message_of
from gpuwise.job import Job
from gpuwise.runtime.health.out_of_memory import MemoryView, explain, is_out_of_memory

_PACKAGE = str(Path(__file__).resolve().parents[2])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def job_failure(
    error: BaseException, job: Job, *, doing: str, part: object, memory: Callable[[], MemoryView] | None = None
) -> GpuwiseError:
    """The error to raise when the job's code raised `error`, with the line at fault. Errors of gpuwise keep their type.

    Arguments:
        error: the error of the job's code.
        job: the job.
        doing: the failed operation, e.g. "step 1".
        part: the called function of the job; its line is named if no line of the user's code raised.
        memory: returns the state of memory; called only for an out-of-memory error.
    """
    of_machine = isinstance(error, MissingDependencyError)  # no function of the job is at fault for what is not installed
    line = job_line(error, None if of_machine else part)
    at = f" ({line})" if line else ""
    if isinstance(error, GpuwiseError):
        if not line or error.position:
            return error
        located = type(error)(f"{error.what.rstrip('.')}{at}.", error.ways_out)
        located.position = line
        return located
    where = f"{job.name or 'the job'} failed in {doing}{at}"
    if is_out_of_memory(error):
        return explain(error, memory and memory(), where=f"{job.name or 'the job'} in {doing}{at}")
    if isinstance(error, SystemExit):
        return JobError(
            f"{where}: it ended the program with sys.exit({message_of(error) or 0}).",
            ["raise an error where something is wrong", "--steps or --time-limit end a run early"],
        )
    text = message_of(error)
    return JobError(f"{where}: {type(error).__name__}: {text[:400]}." if text else f"{where}: {type(error).__name__}.")


def job_line(error: BaseException, part: object) -> str | None:
    """'file.py:12': the innermost line of the user's code in the traceback, otherwise the definition of `part`."""
    while isinstance(error, GpuwiseError) and error.__cause__ is not None:
        error = error.__cause__
    lines = _users_lines(error.__traceback__)
    if lines:
        return lines[-1]
    code = getattr(part, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code and _is_users(code.co_filename) else None


def _users_lines(trace: TracebackType | None) -> list[str]:
    lines = []
    while trace is not None:
        if _is_users(trace.tb_frame.f_code.co_filename):
            lines.append(f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}")
        trace = trace.tb_next
    return lines


def _is_users(filename: str) -> bool:
    return not filename.startswith("<") and not filename.startswith((_PACKAGE, *_LIBRARIES))
