"""Kills ranks of a run at random moments, and checks that it goes on from its newest checkpoint with the same losses.

    python -m benchmarks.rank_kills --kills 30
    python -m benchmarks.rank_kills --kills 200 --results benchmarks/results/rank_kills.json --time-limit 600

The second form adds a run to those in the file, and is given again until all of them have killed 200 ranks. Each run has the
next seed.

`gpuwise train --mesh --max-restarts` starts the ranks again after each kill: three of four while they train and save, the
fourth while they start. They must go on from the newest checkpoint that was whole when a rank was killed, or from a newer
one. Steps that are taken again must have the same loss to the last bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuwise.runtime.checkpoint.checkpoint import Checkpoint

JOB = """
import torch
from torch import nn
from gpuwise import Job

data = {"x": torch.linspace(-1, 1, 16384).view(4096, 4), "y": torch.linspace(0, 1, 4096).view(4096, 1)}
job = Job(
    model=lambda: nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)),
    batch=lambda n: {"x": torch.rand(n, 4), "y": torch.rand(n, 1)},
    loss=lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean(),
    data=lambda: data, optimizer="adamw", learning_rate=1e-4, clip_norm=1.0, ema_decay=0.99, name="killed",
)
"""
START_S = 180.0  # for ranks to start again on a busy machine
STARTING_S = 8.0  # of a start, within which every fourth kill comes


@dataclass(frozen=True)
class Kills:
    """What came of the kills in one run.

    Attributes:
        mesh: of the run.
        seed: of the moments and ranks.
        kills: ranks killed by SIGKILL.
        within_starts: of them, before the first step since the kill before.
        within_saves: of them, while a checkpoint was being written.
        lost: starts that went on from an older checkpoint than the newest that was whole at a kill before.
        taken_again: steps that are in the log more than once.
        unequal: of them, those whose losses differ in any bit.
        exit_code: after a SIGTERM at the end.
    """

    mesh: str
    seed: int
    kills: int
    within_starts: int
    within_saves: int
    lost: int
    taken_again: int
    unequal: int
    exit_code: int


class Run:
    """A run whose ranks can be killed.

    Arguments:
        folder: for the job and the run; nothing is in it.
        mesh: of the run.
        restarts: after which a further kill ends it.
    """

    def __init__(self, folder: Path, *, mesh: str, restarts: int):
        (folder / "killed.py").write_text(JOB)
        arguments = ["killed.py:job", "--mesh", mesh, "--micro-batch", "8", "--steps", "100000000", "--run", "run"]
        arguments += ["--save-every", "0.3s", "--max-restarts", str(restarts)]
        command = [sys.executable, "-m", "gpuwise", "train", *arguments]
        self._errors = folder / "errors"
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=errors)
        self._log, self._checkpoints = folder / "run/log.jsonl", folder / "run/checkpoints"

    def pids(self) -> list[int]:
        """The ranks' processes."""
        pid = self.process.pid
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(child) for child in text.split()]

    def errors(self) -> str:
        return "\n".join(line for line in self._errors.read_text().splitlines() if not line.startswith("note:"))

    def records(self) -> list[dict[str, object]]:
        """The whole lines of the log."""
        if not self._log.exists():
            return []
        return [json.loads(line) for line in self._log.read_bytes().split(b"\n")[:-1] if line]

    def whole_checkpoints(self) -> list[int]:
        """Steps of the checkpoints that are whole now."""
        steps = [int(path.name[5:]) for path in self._checkpoints.glob("step-*") if path.name[5:].isdigit()]
        return sorted(step for step in steps if Checkpoint(self._checkpoints / f"step-{step:08d}", step).looks_whole())

    def is_saving(self) -> bool:
        return any(self._checkpoints.glob(".*.tmp"))

    def wait_for_ranks(self, before: list[int]) -> None:
        """Waits until other processes than those before have been started."""
        for _ in self._waiting("a start"):
            if (pids := self.pids()) and not set(pids) & set(before):
                return

    def wait_for_step(self, starts: int) -> None:
        """Waits until a start after so many has taken a step and a checkpoint is there."""
        for _ in self._waiting("the first step"):
            records = self.records()
            headers = header_positions(records)
            if len(headers) > starts and any(record["record"] == "step" for record in records[headers[-1] :]):
                break
        for _ in self._waiting("a checkpoint"):
            if self.whole_checkpoints():
                return

    def _waiting(self, what: str) -> Iterator[None]:
        """Yields until START_S are over; then raises."""
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            if self.process.poll() is not None:
                raise SystemExit(f"the run has ended before {what}: {self.errors()}")
            yield
            time.sleep(0.02)
        raise SystemExit(f"{what} did not happen within {START_S:g} s")


def killed_run(*, mesh: str, seed: int, kills: int, ends_s: float) -> Kills:
    """Kills so many ranks of a run, or as many as there is time for.

    Arguments:
        mesh: of the run.
        seed: of the moments and ranks.
        kills: ranks to kill.
        ends_s: when no further one is killed, on the monotonic clock.
    """
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        run = Run(Path(temporary), mesh=mesh, restarts=kills + 1)
        killed = within_starts = within_saves = starts = 0
        pids: list[int] = []
        newest: dict[int, int] = {}  # starts that were in the log at a kill -> the newest whole checkpoint then
        try:
            while True:
                run.wait_for_ranks(pids)
                ends = killed == kills or time.monotonic() > ends_s
                while_starting = killed > 0 and killed % 4 == 0 and not ends
                if while_starting:
                    time.sleep(draw.uniform(0, STARTING_S))
                else:
                    run.wait_for_step(starts)
                    time.sleep(draw.uniform(0, 1.5))
                starts = len(header_positions(run.records()))
                pids = run.pids()
                if ends:
                    break
                newest[starts] = max(run.whole_checkpoints(), default=0)
                within_starts += while_starting
                within_saves += run.is_saving()
                os.kill(draw.choice(pids), signal.SIGKILL)
                killed += 1
            run.process.send_signal(signal.SIGTERM)
            if run.process.wait(60) != 130:
                print(run.errors(), file=sys.stderr)
        finally:
            run.process.kill()
        taken_again, unequal = compared(run.records())
        lost = lost_checkpoints(run.records(), newest)
        return Kills(mesh, seed, killed, within_starts, within_saves, lost, taken_again, unequal, run.process.returncode)


def header_positions(records: list[dict[str, object]]) -> list[int]:
    """Positions of the first record of each start."""
    return [number for number, record in enumerate(records) if record["record"] == "header"]


def lost_checkpoints(records: list[dict[str, object]], newest: dict[int, int]) -> int:
    """Starts that did not go on from the newest checkpoint that was whole at the kill before, or from a newer one."""
    headers = header_positions(records)
    lost = 0
    for start, (first, end) in enumerate(zip(headers, [*headers[1:], len(records)], strict=True)):
        least = max((step for starts, step in newest.items() if starts <= start), default=0)
        resumed = [int(str(record["step"])) for record in records[first:end] if record["record"] == "resumed"]
        lost += max(resumed, default=0) < least
    return lost


def compared(records: list[dict[str, object]]) -> tuple[int, int]:
    """Steps that are in the log more than once with a record of their own, and those among them whose losses differ."""
    losses: dict[object, list[object]] = {}
    for record in records:
        if record["record"] == "step" and record["steps"] == 1:
            losses.setdefault(record["step"], []).append(record["loss"])
    again = [values for values in losses.values() if len(values) > 1]
    return len(again), sum(len(set(values)) > 1 for values in again)


def report(runs: list[Kills]) -> str:
    """The sums of several runs."""

    def total(name: str) -> str:
        return f"{sum(getattr(run, name) for run in runs):,}"

    codes = ", ".join(map(str, sorted({run.exit_code for run in runs})))
    return (
        f"{len(runs)} runs: {total('kills')} ranks killed, {total('within_starts')} of them while ranks started, "
        f"{total('within_saves')} within a save; {total('lost')} times a whole checkpoint was lost.\n"
        f"{total('taken_again')} steps taken again, {total('unequal')} of them with another loss. "
        f"Exit code after SIGTERM: {codes}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="in this run; with --results, in all runs of the file")
    parser.add_argument("--mesh", default="dp=2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, metavar="FILE", help="add the run to those in this file")
    parser.add_argument("--time-limit", type=float, default=1e9, metavar="SECONDS", help="end earlier, with the kills so far")
    options = parser.parse_args()
    file: Path | None = options.results
    runs = [Kills(**row) for row in json.loads(file.read_text())] if file is not None and file.exists() else []
    left = options.kills - sum(run.kills for run in runs)
    if left > 0:
        ends_s = time.monotonic() + options.time_limit
        runs.append(killed_run(mesh=options.mesh, seed=options.seed + len(runs), kills=left, ends_s=ends_s))
        print(report(runs[-1:]))
    if file is not None:
        file.write_text(json.dumps([asdict(run) for run in runs], indent=1) + "\n")
        print(report(runs))


if __name__ == "__main__":
    main()
