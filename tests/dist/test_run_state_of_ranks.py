"""RUN/state.json of several ranks: under torchrun, which loses exit codes, and where `gpuwise train` has started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import launched
import pytest
from launched import JOB, errors_of, free_port, ranks_of, start

from gpuwise.results.run_status import DONE, FAILED, INTERRUPTED, RUNNING, RunStatus
from gpuwise.runs.state_file import run_status

pytestmark = pytest.mark.slow


def torchrun(folder: Path, *, steps: int, **environment: str) -> subprocess.Popen[str]:
    """Two ranks of `gpuwise train` under the real torchrun. Without --, that reads --run as its own --run-path."""
    (folder / "small.py").write_text(JOB)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    command += ["-m", "--", "gpuwise", "train", "small.py:job", "--mesh", "dp=2", "--micro-batch", "8"]
    command += ["--steps", str(steps), "--run", "run", "--save-every", "1s"]
    variables = {**os.environ, "GPUWISE_NO_CACHE": "1", "OMP_NUM_THREADS": "1", **environment}
    pipe = subprocess.PIPE
    launched.STARTED.append(subprocess.Popen(command, cwd=folder, env=variables, stdout=pipe, stderr=pipe, text=True))
    return launched.STARTED[-1]


def ended(process: subprocess.Popen[str], folder: Path, state: str, exit_code: int | None, kind: str | None) -> RunStatus:
    """The state after the launcher has ended."""
    process.communicate(timeout=250)
    status = run_status(folder / "run")
    assert (status.state, status.exit_code, status.reason and status.reason.kind) == (state, exit_code, kind)
    return status


def test_torchrun_makes_1_of_130_and_the_state_says_interrupted(tmp_path: Path):
    process = torchrun(tmp_path, steps=1_000_000)
    pids = ranks_of(process, tmp_path)
    assert run_status(tmp_path / "run").state == RUNNING
    process.send_signal(signal.SIGTERM)
    status = ended(process, tmp_path, INTERRUPTED, 130, "signal")
    assert process.returncode != 130
    assert (status.ranks, status.attempts, status.checkpoint_step) == (2, 1, status.step)
    assert status.pid in pids
    again = torchrun(tmp_path, steps=status.step + 5)
    status = ended(again, tmp_path, DONE, 0, None)
    assert (again.returncode, status.attempts) == (0, 2)


def test_under_torchrun_an_error_of_any_rank_has_failed(tmp_path: Path):
    """It fails in its fifth step, long before the first checkpoint."""
    process = torchrun(tmp_path, steps=1_000_000, FAULT="raise 1")
    status = ended(process, tmp_path, FAILED, 2, "bad-job")
    assert "rank 1 on " in str(status.reason)
    assert "ValueError: a bad day" in str(status.reason)
    assert process.returncode == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_under_torchrun_may_go_on(rank: int, tmp_path: Path):
    """Of rank 0 nobody writes; of another, rank 0 does unless torchrun ends it first. Started again, the run goes on."""
    process = torchrun(tmp_path, steps=1_000_000)
    os.kill(ranks_of(process, tmp_path)[rank], signal.SIGKILL)
    process.communicate(timeout=250)
    assert process.returncode == 1
    status = run_status(tmp_path / "run")
    assert status.may_continue
    assert status.reason is not None
    assert status.reason.kind in ("killed", "rank-lost", "signal")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_of_ours_that_is_killed_is_named(rank: int, tmp_path: Path):
    """Rank 0 cannot write any more: the agent does."""
    process = start(tmp_path)
    pids = ranks_of(process, tmp_path)
    os.kill(pids[rank], signal.SIGKILL)
    status = ended(process, tmp_path, INTERRUPTED, 4, "rank-lost")
    assert process.returncode == 4
    assert status.reason is not None
    assert f"rank {rank} on " in status.reason.text
    assert "was killed by SIGKILL" in status.reason.text


def test_ranks_that_start_again_are_attempts(tmp_path: Path):
    process = start(tmp_path, "--max-restarts", "1", "--time-limit", "20s")
    os.kill(ranks_of(process, tmp_path)[1], signal.SIGKILL)
    assert errors_of(process) == []
    assert process.returncode == 130
    assert run_status(tmp_path / "run").attempts == 2


def test_a_launcher_that_is_killed_leaves_a_run_that_may_go_on(tmp_path: Path):
    process = start(tmp_path)
    ranks_of(process, tmp_path)
    process.kill()
    status = ended(process, tmp_path, INTERRUPTED, 4, "rank-lost")
    assert status.may_continue
