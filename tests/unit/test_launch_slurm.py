"""The batch script of a launch for Slurm. tests/daemons runs it on a real one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.launch_samples import sample_plan

import gpuwise


def script(folder: Path, **settings: object) -> list[str]:
    """The lines of job.sbatch, for two machines of eight devices."""
    gpuwise.launch(sample_plan(devices=16, machines=2), to="slurm", output=folder, **settings)  # type: ignore[arg-type]
    return (folder / "job.sbatch").read_text().splitlines()


def test_srun_is_sent_no_signal(tmp_path: Path):
    """A SIGTERM to srun itself kills the ranks before they save. One to the script must not end it while they do."""
    lines = script(tmp_path)
    assert "trap : TERM INT HUP USR1" in lines
    assert not [line for line in lines if line.startswith(("kill", "trap 'kill"))]
    assert lines.index("trap : TERM INT HUP USR1") < next(at for at, line in enumerate(lines) if line.startswith("srun"))


def test_srun_demands_the_cores_of_a_task_as_well(tmp_path: Path):
    lines = script(tmp_path, set=["cpus-per-task=12"])
    assert "#SBATCH --cpus-per-task=12" in lines
    assert any(line.startswith("srun --cpus-per-task=12 python ") for line in lines)


@pytest.mark.parametrize(("stated", "stopped", "killed"), [(None, 100, 3), (7, 7, 3), (0, 0, 0)])
def test_preemptions_do_not_use_up_the_restarts_that_kills_have(stated: int | None, stopped: int, killed: int, tmp_path: Path):
    """A cluster may preempt a job many times. Ranks that have no memory are killed every time."""
    lines = script(tmp_path, **({} if stated is None else {"restarts": stated}))
    at = lines.index(f"restarts={stopped}")
    assert lines[at + 2] == f'if [ "$code" -ne 130 ]; then restarts={killed}; fi'
    assert lines[at + 3] == 'if [ "$state" = interrupted ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "$restarts" ]; then'
    other = gpuwise.launch(sample_plan(devices=8), to="torchrun", output=tmp_path / "other")
    assert other.restarts == 3
