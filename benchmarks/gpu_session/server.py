"""The process that rows are forked from: it has imported what they need and never touches the device.

    python -m benchmarks.gpu_session.server PART DEVICE [--toy]

Asked in JSON lines {"id": n, "row": name, "answer": path, "limit_s": seconds}, it forks a process for the row and answers
{"id": n, "pid": ...}, then {"id": n, "code": exit code, below zero a signal's number, "timed_out": ...} when that has ended.
The row's outcome is in the file `answer`, or that is not there. When its stdin closes, it ends what still runs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_session.rows import FAILED, MEASURED, OUT_OF_MEMORY, SKIPPED, WRONG, NotHereError, Row
from gpuwise.atomic import written_whole

PARTS = {"1": "memory", "2": "times", "3": "training"}
MOST_SAID = 1500  # characters of an error that are kept
EVERY_S = 0.02


@dataclass
class _Child:
    pid: int
    id: int
    until_s: float
    timed_out: bool = False


def rows_of(part: str, device: str, *, toy: bool) -> list[Row]:
    """All rows of a part, in the order they run."""
    module = importlib.import_module(f"benchmarks.gpu_session.{PARTS[part]}")
    rows: list[Row] = module.rows(device, toy=toy)
    return rows


def serve(rows: Mapping[str, Row]) -> None:
    children: dict[int, _Child] = {}
    held = b""
    while True:
        ready, _, _ = select.select([0], [], [], EVERY_S if children else None)
        if ready:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = _fork(rows[request["row"]], Path(request["answer"]))
                children[pid] = _Child(pid, request["id"], time.monotonic() + request["limit_s"])
                _say(id=request["id"], pid=pid)
        for child in list(children.values()):
            if time.monotonic() > child.until_s:
                child.timed_out = True
                _end(child.pid)
            ended, status = os.waitpid(child.pid, os.WNOHANG)
            if ended:
                _end(child.pid)  # what it started and left
                del children[child.pid]
                _say(id=child.id, code=os.waitstatus_to_exitcode(status), timed_out=child.timed_out)
    for child in children.values():
        _end(child.pid)


def _say(**answer: Any) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


def _end(pid: int) -> None:
    """The process, its session, and what it started in sessions of their own."""
    for started in [pid, *_started_by(pid)]:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(started, signal.SIGKILL)
        with suppress(ProcessLookupError, PermissionError):
            os.kill(started, signal.SIGKILL)


def _started_by(pid: int) -> list[int]:
    """Processes whose parent that is, theirs, and so on (man 5 proc_pid_stat)."""
    parents: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    results = [pid]
    for one in results:  # grows as it goes
        results += [child for child, parent in parents.items() if parent == one]
    return results[1:]


def _fork(row: Row, answer: Path) -> int:
    if pid := os.fork():
        return pid
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what is printed is no answer
    code = 1
    try:
        _anew_where_cuda_began(row, answer)
        answer_row(row, answer)
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _anew_where_cuda_began(row: Row, answer: Path) -> None:
    """A library that asked for a device while it was imported has spoilt CUDA for forked processes: then the row is run in a
    process that imports everything again."""
    import torch

    if torch.cuda._is_in_bad_fork():
        command = ["-m", "benchmarks.gpu_session.server", *sys.argv[1:], "--row", row.name, str(answer)]
        os.execv(sys.executable, [sys.executable, *command])


def answer_row(row: Row, path: Path) -> None:
    """Runs a row and writes its outcome, what was said and its figures."""
    began_s = time.monotonic()
    outcome, text, figures = MEASURED, "", {}
    try:
        figures = dict(row.run())
    except Exception as error:
        outcome, text = outcome_of(error)
    results = {"outcome": outcome, "said": text, "figures": figures, "seconds": time.monotonic() - began_s}
    with written_whole(path) as file:
        file.write(json.dumps(results).encode())


def outcome_of(error: Exception) -> tuple[str, str]:
    """The outcome an error stands for, and its text."""
    from gpuwise.errors import MissingDependencyError
    from gpuwise.runtime.health import is_out_of_memory

    text = " ".join(f"{type(error).__name__}: {error}".split())[:MOST_SAID]
    if isinstance(error, NotHereError | MissingDependencyError | ImportError):
        return SKIPPED, text
    if isinstance(error, AssertionError):
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace is not None else ""
        return WRONG, text + where
    return (OUT_OF_MEMORY if is_out_of_memory(error) else FAILED), text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("device", choices=("cpu", "cuda"))
    parser.add_argument("--toy", action="store_true")
    parser.add_argument("--row", nargs=2, metavar=("NAME", "ANSWER"), help="run this one alone, in this process")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = {row.name: row for row in rows_of(options.part, options.device, toy=options.toy)}
    if options.row:
        answer_row(rows[options.row[0]], Path(options.row[1]))
        return
    _say(
        rows=[
            {"name": row.name, "parallel": row.parallel, "seconds": row.seconds, "limit_s": row.limit_s}
            for row in rows.values()
        ]
    )
    serve(rows)


if __name__ == "__main__":
    main()
