"""Kills ranks of a run at random moments, and checks that it goes on from its newest checkpoint with the same losses.

    python -m benchmarks.rank_kills --kills 200

`gpuwise train --mesh --max-restarts` starts the ranks again after each kill. They must go on from the newest checkpoint that
was whole when a rank was killed, or from a newer one. Steps that are taken again must have the same loss to the last bit.
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


def records(log: Path) -> list[dict[str, object]]:
    """The whole lines of a log."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1] if line]


def whole_checkpoints(folder: Path) -> list[int]:
    """Steps of the checkpoints that are whole now."""
    steps = []
    for path in folder.glob("step-*"):
        if path.name.removeprefix("step-").isdigit() and Checkpoint(path, step := int(path.name[5:])).looks_whole():
            steps.append(step)
    return sorted(steps)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def waited_for(what: str, seconds: float) -> Iterator[None]:
    """Yields until the time is over; then raises."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        yield
        time.sleep(0.02)
    raise SystemExit(f"{what} did not happen within {seconds:g} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--mesh", default="dp=2")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=1e9, metavar="SECONDS", help="end earlier, with the kills so far")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    ends_s = time.monotonic() + options.time_limit
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "killed.py").write_text(JOB)
        arguments = ["killed.py:job", "--mesh", options.mesh, "--micro-batch", "8", "--steps", "100000000", "--run", "run"]
        arguments += ["--save-every", "0.3s", "--max-restarts", str(options.kills + 1)]
        command = [sys.executable, "-m", "gpuwise", "train", *arguments]
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        log, checkpoints = folder / "run/log.jsonl", folder / "run/checkpoints"
        kills = within_saves = lost = 0
        newest: int | None = None
        try:
            for kills in range(options.kills + 1):
                for _ in waited_for("the first step", START_S):
                    all_records = records(log)
                    starts = [number for number, record in enumerate(all_records) if record["record"] == "header"]
                    if len(starts) > kills and any(record["record"] == "step" for record in all_records[starts[-1] :]):
                        break
                if kills:
                    resumed = [int(str(record["step"])) for record in all_records if record["record"] == "resumed"]
                    lost += newest is not None and (len(resumed) < kills or resumed[-1] < newest)
                if kills == options.kills or time.monotonic() > ends_s:
                    break
                for _ in waited_for("a checkpoint", START_S):
                    if whole_checkpoints(checkpoints):
                        break
                time.sleep(draw.uniform(0, 1.5))
                newest = max(whole_checkpoints(checkpoints), default=None)
                within_saves += any(checkpoints.glob("*.tmp*"))
                os.kill(draw.choice(children(process.pid)), signal.SIGKILL)
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        finally:
            process.kill()
        again, unequal = compared(records(log))
        print(f"{kills} ranks killed, {within_saves} of them within a save; {lost} times a whole checkpoint was lost.")
        print(f"{again} steps taken again, {unequal} of them with another loss. Exit code after SIGTERM: {process.returncode}.")


def compared(all_records: list[dict[str, object]]) -> tuple[int, int]:
    """Steps that are in the log more than once with a record of their own, and those among them whose losses differ."""
    losses: dict[object, set[object]] = {}
    counts: dict[object, int] = {}
    for record in all_records:
        if record["record"] == "step" and record["steps"] == 1:
            losses.setdefault(record["step"], set()).add(record["loss"])
            counts[record["step"]] = counts.get(record["step"], 0) + 1
    again = [step for step, count in counts.items() if count > 1]
    return len(again), sum(len(losses[step]) > 1 for step in again)


if __name__ == "__main__":
    main()
