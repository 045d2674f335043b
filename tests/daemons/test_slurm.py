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


def test_torchrun_hides_how_a_run_ended_and_its_folder_tells(slurm: Slurm, tmp_path: Path):
    """One task is torchrun with two ranks. Preempted, they save and end with 130; torchrun makes that 1."""
    plan_here(tmp_path, steps=STEPS)
    train = "-m -- gpuwise train small_job.py:job --mesh dp=2 --micro-batch 64 --steps 100000 --run run"
    script = ["#!/bin/bash", "#SBATCH --nodes=1 --ntasks=1 --partition=spot --output=out.txt", "trap : TERM"]
    script += [f"srun python -m torch.distributed.run --standalone --nproc-per-node 2 --shutdown-timeout 30 {train}"]
    script += ["echo torchrun ended with $?", "echo the run is $(python -m gpuwise state run)"]
    (tmp_path / "job.sbatch").write_text("\n".join(script) + "\n")
    slurm.submit("job.sbatch", cwd=tmp_path, **ENVIRONMENT)
    until(lambda: last_step(tmp_path / "run") >= STEPS_BETWEEN, timeout_s=120, what=f"steps{slurm.logs()}")
    preempt(slurm, tmp_path)
    until(lambda: "the run is" in (tmp_path / "out.txt").read_text(), timeout_s=60, what="the end of the script")
    text = (tmp_path / "out.txt").read_text()
    assert "torchrun ended with 1\n" in text
    assert "the run is interrupted\n" in text
    assert len(records(tmp_path / "run", "interrupted")) == 1


def test_without_a_grace_time_slurm_requeues_by_itself(tmp_path: Path):
    """It leaves KillWait between SIGTERM and SIGKILL. The run goes on from its last checkpoint."""
    plan_here(tmp_path, steps=STEPS)
    train = "gpuwise train small_job.py:job --mesh dp=2 --micro-batch 64 --precision fp32 --run run --save-every 1s"
    script = ["#!/bin/bash", "#SBATCH --nodes=2 --ntasks-per-node=1", "#SBATCH --partition=spot --requeue --output=out.txt"]
    (tmp_path / "job.sbatch").write_text("\n".join([*script, f"srun python -m {train} --steps {STEPS}"]) + "\n")
    run = tmp_path / "run"
    with Slurm(grace_s=0, requeue_delay_s=5, schedule_every_s=1) as slurm:
        job = slurm.submit("job.sbatch", cwd=tmp_path, **ENVIRONMENT)
        until(lambda: bool(records(run, "checkpoint")), timeout_s=120, what=f"a checkpoint{slurm.logs()}")
        preempt(slurm, tmp_path)
        saved = max(record["step"] for record in records(run, "checkpoint"))
        assert slurm.wait(job, "COMPLETED")["Restarts"] == "1"
    assert [record["step"] for record in records(run, "resumed")] == [saved]
    assert last_step(run) == STEPS
