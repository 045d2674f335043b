"""Collectives between the devices of this machine: by NCCL or its like between GPUs, gloo between two processes on the CPU."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

import torch

from gpuwise.hardware.detect import detect_cpu
from gpuwise.notes import Note
from gpuwise.notes import measuring as measuring_notes
from gpuwise.results.measurement import MeasuredRow, Timing
from gpuwise.runtime.devices import backend_of

if TYPE_CHECKING:  # a process of its own runs that module
    from gpuwise.measure.probes.collectives_worker import CollectivesAnswer

CPU_PROCESSES = 2
# gloo would ask the system which address the host name has; the loopback is there whatever that is.
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
START_S = 60.0  # to import PyTorch and find each other, on a slow disk
END_S = 30.0  # to end after the last figure, on a busy machine
SILENCE_S = 60.0  # the longest time between two figures: the largest collective on the slowest machine takes a second


def rows(
    budget_s: float, device: torch.device, say: Callable[[Note], None], *, processes: int | None = None
) -> Iterator[MeasuredRow]:
    """Rows of group "collective". bytes: of the whole tensor (what each process holds before or after), so that
    bytes_per_s is the algorithm bandwidth; sizes: "bytes" again, and "processes".

    Arguments:
        processes: how many take part; by default all GPUs, or CPU_PROCESSES.

    Starting the processes takes 2 to 10 s of the budget; the smallest part of the sweep is made even so.
    """
    backend = backend_of(device)
    world = processes or (CPU_PROCESSES if backend.is_host else backend.count())
    if world < 2:
        return  # a single GPU has nobody to exchange with
    if not torch.distributed.is_available():
        say(measuring_notes.collectives_left_out(problem="this PyTorch is built without torch.distributed"))
        return
    if backend.collectives is None:
        say(measuring_notes.collectives_left_out(problem=f"PyTorch has none between devices of type {device.type}"))
        return
    try:
        with tempfile.TemporaryDirectory(prefix="gpuwise-collectives-") as folder:
            yield from _rows_of(_Workers(Path(folder), world, device.type, budget_s), say)
    except OSError as error:
        problem = f"no processes can be started ({error.strerror or error})"
        say(measuring_notes.collectives_left_out(problem=problem))


def _rows_of(workers: _Workers, say: Callable[[Note], None]) -> Iterator[MeasuredRow]:
    try:
        for answer in workers.answers():
            if "missing" in answer:
                say(measuring_notes.collective_problem(problem=answer["missing"]))
            else:
                yield MeasuredRow(
                    "collective",
                    answer["name"],
                    Timing(**answer["timing"]),
                    "fp32",
                    {"bytes": answer["bytes"], "processes": workers.world},
                    bytes=answer["bytes"],
                    verified=answer["verified"],
                )
    except _WorkerError as error:
        say(measuring_notes.collectives_ended_early(problem=str(error)))
    finally:
        workers.end()


class _WorkerError(Exception):
    """A process died or fell silent."""


class _Workers:
    """Processes that run collectives with each other; the first one tells what they took.

    They end when the pipe to them closes: none outlives this process, however it ends.
    """

    def __init__(self, folder: Path, world: int, kind: str, budget_s: float):
        self.world, self.folder = world, folder
        self._errors = [open(folder / f"errors-{rank}", "w+b") for rank in range(world)]  # noqa: SIM115
        self._processes: list[subprocess.Popen[bytes]] = []
        threads = str(max(1, detect_cpu().cores // world))
        environment = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": LOOPBACK, **os.environ}
        request = {"world": world, "kind": kind, "meeting": str(folder / "meeting"), "budget_s": budget_s}
        try:
            for rank in range(world):
                self._processes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            "gpuwise.measure.probes.collectives_worker",
                            json.dumps({**request, "rank": rank}),
                        ],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stderr=self._errors[rank],
                        env=environment,
                    )
                )
        except BaseException:
            self.end()
            raise

    def answers(self) -> Iterator[CollectivesAnswer]:
        """What the first process tells. Raises _WorkerError where one dies or nothing is told for too long."""
        output = self._processes[0].stdout
        assert output is not None
        unread, patience_s, heard_s = b"", START_S, time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while True:
                if not selector.select(timeout=0.2):
                    self._check(time.monotonic() - heard_s > patience_s)
                    continue
                chunk = os.read(output.fileno(), 65536)
                if not chunk:
                    break
                *lines, unread = (unread + chunk).split(b"\n")
                patience_s, heard_s = SILENCE_S, time.monotonic()
                for line in lines:
                    yield json.loads(line)
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_S)
        self._check(any(process.poll() is None for process in self._processes))

    def end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        for file in self._errors:
            file.close()

    def _check(self, silent: bool) -> None:
        dead = [(code, rank) for rank, process in enumerate(self._processes) if (code := process.poll())]
        if dead:
            code, rank = min(dead)  # one that was killed takes the others with it: it is the cause
            how = f"was killed by signal {-code}" if code < 0 else f"failed with exit code {code}"
            raise _WorkerError(f"process {rank} of {self.world} {how}{_last_line(self._errors[rank])}")
        if silent:
            raise _WorkerError(f"{self.world} processes did not answer each other.")


def _last_line(errors: IO[bytes]) -> str:
    """What a process wrote last, after a colon."""
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else "."
