"""What tests of launches share: plans for this CPU, launches of them, and what their runs wrote down."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.launch_samples import agreeing

import gpuwise
from gpuwise.plan import save_plan

# Of the Python that runs the test, for scripts that call `python`.
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "PYTHONPATH": str(Path(gpuwise.__file__).parents[1]),
    "OMP_NUM_THREADS": "1",
    "GPUWISE_NO_CACHE": "1",
}
GLOBAL_BATCH = 128


def plan_here(folder: Path, *, steps: int, machines: int = 1) -> Path:
    """Writes a plan for this CPU, as so many machines with one rank each, and its job beside it."""
    shutil.copy(Path(__file__).with_name("small_job.py"), folder)
    job = f"{folder}/small_job.py:job"
    best = gpuwise.plan(job, samples=GLOBAL_BATCH * steps, on="here", precision="fp32", global_batch=GLOBAL_BATCH).best
    mesh = gpuwise.Mesh(dp_replicate=machines)
    parts = best.strategy.but(mesh=mesh, micro_batch=GLOBAL_BATCH // machines, accumulation=1)
    save_plan(agreeing(replace(best, strategy=parts, count=machines, machines=machines)), folder / "plan.toml")
    return folder / "plan.toml"


def launch_command(plan: Path, folder: Path, target: str, *flags: str) -> list[str | Path]:
    """`gpuwise launch --go`."""
    return [sys.executable, "-m", "gpuwise", "launch", plan, "--to", target, "-o", folder, "--go", *flags]


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """The records of one kind in a run's log, which may be growing."""
    log = run / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [record for record in map(json.loads, [line for line in lines if line.endswith("\n")]) if record["record"] == kind]


def last_step(run: Path) -> int:
    return max([record["step"] for record in records(run, "step")], default=0)


def check_nothing_was_repeated(run: Path, *, steps: int, interruptions: int) -> None:
    """Every attempt went on where the one before had saved, and no step was taken twice."""
    interrupted, resumed = ([record["step"] for record in records(run, kind)] for kind in ("interrupted", "resumed"))
    assert len(interrupted) == interruptions
    assert interrupted == resumed
    assert sum(record["steps"] for record in records(run, "step")) == steps


def weights(run: Path, step: int) -> bytes:
    """Of the checkpoint of a step."""
    return next((run / f"checkpoints/step-{step:08}").glob("model*")).read_bytes()
