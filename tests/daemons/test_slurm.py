"""Launches on a real Slurm. Needs root and Debian's packages: python tests/daemons/packages.py, then
python -m pytest -m slow tests/daemons/test_slurm.py
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.daemons.namespace import impossible, until
from tests.daemons.slurm import Slurm

import gpuwise
from gpuwise.plan import save_plan

REASON = impossible("Slurm")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(600)]
STEPS, PREEMPTIONS, STEPS_BETWEEN = 2000, 3, 200
# Of the python that runs the test, for the batch script's `python`.
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    with Slurm(requeue_delay_s=5, schedule_every_s=1) as slurm:
        yield slurm


@pytest.fixture(scope="module")
def plan_of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for this CPU, as two machines with one rank each."""
    folder = tmp_path_factory.mktemp("plan")
    shutil.copy(Path(__file__).with_name("small_job.py"), folder)
    best = gpuwise.plan(f"{folder}/small_job.py:job", samples=128 * STEPS, on="here", precision="fp32", global_batch=128).best
    halves = best.strategy.but(mesh=gpuwise.Mesh(dp_replicate=2), micro_batch=64, accumulation=1)
    save_plan(replace(best, strategy=halves, count=2, machines=2), folder / "plan.toml")
    return folder / "plan.toml"


def launch(slurm: Slurm, plan: Path, folder: Path, *flags: str) -> int:
    """`gpuwise launch --to slurm --go`; the number of the job that sbatch names."""
    command = [sys.executable, "-m", "gpuwise", "launch", plan, "--to", "slurm", "-o", folder, "--go", *flags]
    done = slurm.run(*command, "--set", "partition=spot", **ENVIRONMENT)
    match = re.search(r"Submitted batch job ([0-9]+)", done.stdout + done.stderr)
    assert match, done
    return int(match[1])


def records(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a run's log, which may be growing."""
    log = folder / "run/log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [record for record in map(json.loads, [line for line in lines if line.endswith("\n")]) if record["record"] == kind]


def losses(folder: Path) -> list[str]:
    """By rank, what it wrote down of each micro-batch."""
    return [(folder / f"losses-{rank}.txt").read_text() for rank in range(2)]


def test_three_preemptions_lose_no_step(slurm: Slurm, plan_of_two: Path, tmp_path: Path):
    slurm.wait(launch(slurm, plan_of_two, tmp_path / "alone"), "COMPLETED")
    folder = tmp_path / "preempted"
    job = launch(slurm, plan_of_two, folder)
    for preemptions in range(PREEMPTIONS):
        before = max([record["step"] for record in records(folder, "resumed")], default=0)
        trained = lambda: any(record["step"] >= before + STEPS_BETWEEN for record in records(folder, "step"))  # noqa: B023,E731
        until(trained, timeout_s=120, what=f"{STEPS_BETWEEN} steps after step {before}{slurm.logs()}")
        assert slurm.job(job)["JobState"] == "RUNNING"
        short = ["--partition=main", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"]
        slurm.wait(slurm.submit(*short, cwd=tmp_path), "COMPLETED")
        resumed = lambda: len(records(folder, "resumed")) > preemptions  # noqa: B023,E731
        until(resumed, timeout_s=120, what=f"attempt {preemptions + 2}{slurm.logs()}")
    assert slurm.wait(job, "COMPLETED")["Restarts"] == str(PREEMPTIONS)

    # Every attempt went on where the one before had saved, and no step was taken twice.
    interrupted, resumed_at = ([record["step"] for record in records(folder, kind)] for kind in ("interrupted", "resumed"))
    assert len(interrupted) == PREEMPTIONS
    assert interrupted == resumed_at
    assert sum(record["steps"] for record in records(folder, "step")) == STEPS
    # Both ranks met the losses of the uninterrupted run, each once, in its order, to the bit.
    assert [text.count("\n") for text in losses(folder)] == [STEPS, STEPS]
    assert losses(folder) == losses(tmp_path / "alone")
    weights = [next((path / f"run/checkpoints/step-{STEPS:08}").glob("model*")) for path in (folder, tmp_path / "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()


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
