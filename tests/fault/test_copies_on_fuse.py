"""Copies on a real mount of a store (rclone over FUSE) that is killed in the middle of an upload, with the machine or without.

Needs root, /dev/fuse and `apt-get install rclone fuse3`; skips with a reason where one is missing.
python -m pytest -m slow tests/fault/test_copies_on_fuse.py -q -s
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuwise.errors import FileFormatError
from gpuwise.runtime.checkpoint import CheckpointStore

JOB = """
import torch
from torch import nn
from gpuwise import Job

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 512), nn.Linear(512, 1))
    def forward(self, x):
        return self.layers(x)

data = {"x": torch.randn(512, 64, generator=torch.Generator().manual_seed(1)), "y": torch.ones(512, 1)}
job = Job(model=Net, batch=lambda n: {"x": torch.randn(n, 64), "y": torch.ones(n, 1)}, data=lambda: data, optimizer="adamw",
          loss=lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean(), learning_rate=1e-3, name="net")
"""
STEPS = 400
MODES = {
    # Files are uploaded as they are written; no write into the middle, no append.
    "uploads as it writes": (["--vfs-cache-mode", "off"], []),
    # Closed files wait in a cache and are uploaded later, several at a time: a manifest may arrive before its files, and what
    # is removed is removed at once. So more are kept than are on their way.
    "uploads later": (["--vfs-cache-mode", "writes", "--vfs-write-back", "200ms"], ["--keep", "6"]),
}
KILLS = 6


def _lack() -> str | None:
    """What is missing for these tests on this machine."""
    if not os.path.exists("/dev/fuse") or os.geteuid() != 0:
        return "needs root and /dev/fuse"
    missing = [name for name in ("rclone", "fusermount3") if shutil.which(name) is None]
    return f"apt-get install rclone fuse3: {', '.join(missing)} missing" if missing else None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_lack() is not None, reason=str(_lack())),
    pytest.mark.timeout(1800),
]


class Bucket:
    """A store (a folder of rclone's local backend) and its mount."""

    def __init__(self, root: Path, options: list[str], flags: list[str]):
        self.store, self.mount, self._options = root / "store", root / "mount", ["--bwlimit", "8M", *options]
        self.flags = ["--copy-to", self.mount / "run", *flags]
        self._cache = root / "cache"
        self._config = root / "rclone.conf"
        self._config.write_text("[store]\ntype = local\n")
        self.store.mkdir()
        self.mount.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> None:
        """Mounts the store, as a machine that has never seen it."""
        shutil.rmtree(self._cache, ignore_errors=True)
        command = ["rclone", "--config", self._config, "mount", f"store:{self.store}", self.mount, "--cache-dir", self._cache]
        self._process = subprocess.Popen([*command, *self._options], stderr=subprocess.DEVNULL)
        until(lambda: os.path.ismount(self.mount))

    def kill(self) -> None:
        """The mount's process is gone in the middle of what it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def disconnect(self) -> None:
        subprocess.run(["fusermount3", "-u", "-z", self.mount], check=False, stderr=subprocess.DEVNULL)
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def newest(self) -> int:
        """The step of the newest checkpoint that is whole in the store itself."""
        for checkpoint in CheckpointStore(self.store / "run/checkpoints").all():
            with suppress(FileFormatError):
                checkpoint.verify()
                return checkpoint.step
        return 0

    def uploads(self) -> bool:
        """Whether there is a part of a checkpoint in the store."""
        return any(not checkpoint.looks_whole() for checkpoint in CheckpointStore(self.store / "run/checkpoints").all())


@pytest.fixture(params=MODES)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    made = Bucket(tmp_path, *MODES[request.param])
    yield made
    made.disconnect()


def until(holds: Callable[[], Any], within_s: float = 120.0) -> None:
    """Waits for another process, which gives no other sign."""
    until_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def start(root: Path, machine: str, *flags: object, steps: int = STEPS) -> subprocess.Popen[str]:
    (root / "net.py").write_text(JOB)
    command = [sys.executable, "-m", "gpuwise", "train", "net.py:job", "--micro-batch", "256", "--precision", "fp32", "--json"]
    command += ["--threads", "1", "--steps", str(steps), "--save-every", "0.5s", "--run", machine, *map(str, flags)]
    variables = {**os.environ, "GPUWISE_NO_CACHE": "1", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=root, env=variables, stdout=pipe, stderr=pipe, text=True)


def kill_in_an_upload(bucket: Bucket, process: subprocess.Popen[str], *, after_s: float = 0.0) -> None:
    """Kills the mount once another checkpoint is whole in the store and one more is begun."""
    before = bucket.newest()
    until(lambda: bucket.newest() > before or process.poll() is not None)
    until(lambda: bucket.uploads() or process.poll() is not None)
    time.sleep(after_s)
    bucket.kill()


def losses(log: Path) -> dict[int, float]:
    """Of records that are of one step; a killed process may leave a part of a line."""
    answer = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        with suppress(ValueError):
            record = json.loads(line)
            if record["record"] == "step" and record["steps"] == 1:
                answer[record["step"]] = record["loss"]
    return answer


def weights(folder: Path) -> bytes:
    (checkpoint,) = [c for c in CheckpointStore(folder / "checkpoints").all() if c.step == STEPS]
    checkpoint.verify()
    return b"".join((checkpoint.path / f"{part}.safetensors").read_bytes() for part in ("model", "optimizer", "random"))


def test_mount_and_machine_are_killed_again_and_again(bucket: Bucket, tmp_path: Path):
    """Each life is on a machine that has nothing but the mount; the last ends the run with the weights of one never ended."""
    whole = start(tmp_path, "whole")
    _, errors = whole.communicate()
    assert whole.returncode == 0, errors
    expected, compared, begun, mid_upload, over = losses(tmp_path / "whole/log.jsonl"), 0, [], 0, False
    while not over:
        bucket.connect()
        before, machine = bucket.newest(), f"machine-{len(begun)}"
        begun.append(before)
        process = start(tmp_path, machine, *bucket.flags)
        if len(begun) <= KILLS:
            kill_in_an_upload(bucket, process, after_s=0.02 * (len(begun) % 4))
            process.kill()
            mid_upload += bucket.uploads()
        _, errors = process.communicate()
        over = process.returncode == 0
        if over:
            until(lambda: bucket.newest() == STEPS)  # where uploads come later
        bucket.disconnect()
        assert over or len(begun) <= KILLS, errors
        seen = losses(tmp_path / machine / "log.jsonl")
        assert all(loss == expected[step] for step, loss in seen.items() if step in expected), f"{machine}: losses differ"
        compared += len(seen.keys() & expected.keys())
        assert bucket.newest() >= before
        if not over:
            shutil.rmtree(tmp_path / machine)
    assert len(begun) > 3
    assert weights(tmp_path / machine) == weights(tmp_path / "whole") == weights(bucket.store / "run")
    print(
        f"\n{len(begun) - 1} kills, {mid_upload} amid an upload; lives began after steps {begun}; {compared} losses compared, "
        "all the same."
    )


def test_a_mount_that_is_lost_costs_copies_and_no_training(bucket: Bucket, tmp_path: Path):
    """The run ends with all its steps and names what is not copied; the next start copies it."""
    bucket.connect()
    process = start(tmp_path, "machine", *bucket.flags)
    kill_in_an_upload(bucket, process)
    output, errors = process.communicate()
    assert process.returncode == 3, errors
    (unsaved,) = json.loads(output)["unsaved"]
    assert f"the copy of step {STEPS:,} in {bucket.mount / 'run'} is not complete: " in unsaved
    bucket.disconnect()
    bucket.connect()
    again = start(tmp_path, "machine", *bucket.flags)
    _, errors = again.communicate()
    assert f"has taken all of its {STEPS} steps" in errors
    until(lambda: bucket.newest() == STEPS)  # where uploads come later
    bucket.disconnect()
    assert weights(bucket.store / "run") == weights(tmp_path / "machine")
