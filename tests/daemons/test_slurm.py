"""Launches on a real Slurm. Needs root and Debian's packages: python tests/daemons/packages.py, then
python -m pytest -m slow tests/daemons/test_slurm.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.launches import (
    ENVIRONMENT,
    check_nothing_was_repeated,
    last_step,
    launch_command,
    plan_here,
    records,
    weights,
)
from tests.daemons.namespace import impossible, until
from tests.daemons.slurm import Slurm

import gpuwise
from gpuwise.plan import save_plan

REASON = impossible("Slurm")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(600)]
STEPS, PREEMPTIONS, STEPS_BETWEEN = 2000, 3, 200


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm(requeue_delay_s=5, schedule_every_s=1) as slurm:
        yield slurm


def launch(slurm: Slurm, plan: Path, folder: Path) -> int:
    """The number of the job that sbatch names."""
    command = launch_command(plan, folder, "slurm", "--set", "partition=spot")
    done = slurm.run(*command, **ENVIRONMENT)
    match = re.search(r"Submitted batch job ([0-9]+)", done.stdout + done.stderr)
    assert match, done
    return int(match[1])


def preempt(slurm: Slurm, folder: Path) -> None:
    """A job of the partition `main` that needs both machines, to its end."""
    needs_all = ["--partition=main", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
    slurm.wait(slurm.submit(*needs_all, cwd=folder), "COMPLETED")


def losses(folder: Path) -> list[str]:
    """By rank, what it wrote down of each micro-batch."""
    return [(folder / f"losses-{rank}.txt").read_text() for rank in range(2)]


def test_three_preemptions_lose_no_step(slurm: Slurm, tmp_path: Path):
    plan = plan_here(tmp_path, steps=STEPS, machines=2)
    slurm.wait(launch(slurm, plan, tmp_path / "alone"), "COMPLETED")
    folder, run = tmp_path / "preempted", tmp_path / "preempted/run"
    job = launch(slurm, plan, folder)
    for number in range(PREEMPTIONS):
        goal = last_step(run) + STEPS_BETWEEN
        until(lambda goal=goal: last_step(run) >= goal, timeout_s=120, what=f"step {goal}{slurm.logs()}")
        assert slurm.job(job)["JobState"] == "RUNNING", "the run ended before it was preempted: it needs more steps"
        preempt(slurm, tmp_path)
        until(lambda number=number: len(records(run, "resumed")) > number, timeout_s=120, what=f"a restart{slurm.logs()}")
    assert slurm.wait(job, "COMPLETED")["Restarts"] == str(PREEMPTIONS)

    check_nothing_was_repeated(run, steps=STEPS, interruptions=PREEMPTIONS)
    # Both ranks met the losses of the uninterrupted run, each once, in its order, to the bit.
    assert [text.count("\n") for text in losses(folder)] == [STEPS, STEPS]
    assert losses(folder) == losses(tmp_path / "alone")
    assert weights(run, STEPS) == weights(tmp_path / "alone/run", STEPS)


def test_the_scheduler_judges_what_a_script_demands(slurm: Slurm, tmp_path: Path):
    """A plan for 2 x 8 H100s: `sbatch --test-only` of the script passes where the site has them, and is refused elsewhere."""
    table = gpuwise.plan("gpt2", tokens="10B", on="t4", own=["h100-sxm:8x2"], global_batch=512)
    plan = next(plan for plan in table.plans if (plan.machines, plan.count) == (2, 16))
    save_plan(plan, tmp_path / "plan.toml")
    verdicts = {}
    for gpu in ("h100", "a100"):
        gpuwise.launch(tmp_path / "plan.toml", to="slurm", output=tmp_path / gpu, set=[f"gpu={gpu}", "partition=spot"])
        verdicts[gpu] = slurm.run("sbatch", "--test-only", "job.sbatch", cwd=tmp_path / gpu, check=False)
    assert verdicts["h100"].returncode == 0, verdicts
    assert "nodes n[0-1] in partition spot" in verdicts["h100"].stderr
    assert verdicts["a100"].returncode != 0
    assert "Requested node configuration is not available" in verdicts["a100"].stderr
