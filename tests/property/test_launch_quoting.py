"""Names, paths and values of the user reach programs as they are, and no shell: the scripts run, with programs that write
down how they were called."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from tests.launch_samples import Clients, sample_plan
from tests.odd_texts import FILE_NAMES, VALUES

import gpuwise

IMAGE = "ghcr.io/team/net:1.0"
TARGETS = {
    "torchrun": ("bash", "launch.sh"),
    "slurm": ("bash", "job.sbatch"),
    "ssh": ("bash", "launch.sh"),
    "container": ("bash", "launch.sh"),
    "dstack": ("bash", "run.sh"),
}


def extras(target: str) -> dict[str, object]:
    if target == "dstack":
        return {"set": ["instance-type=any"], "restarts": 0, "install": "none"}
    if target == "ssh":
        return {"set": ["hosts=me@node", "port=2222"]}
    return {"set": ["hosts=me@node"], "image": IMAGE} if target == "container" else {}


def words_of_training(clients: Clients) -> list[list[str]]:
    """The arguments of `gpuwise train`, however it was started."""
    return [call.argv[call.argv.index("train") :] for call in clients.calls() if "train" in call.argv]


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=12, deadline=None)
@given(stem=FILE_NAMES, run=FILE_NAMES, value=VALUES)
def test_no_shell_reads_a_users_words(target, stem, run, value):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "jobs" / f"{stem.replace('/', '')}.py"
        job.parent.mkdir()
        job.write_text("job = None\n")
        out = folder / f"out {stem.replace('/', '')}"
        plan = sample_plan(job=f"{job}:job")
        to = "ssh" if target == "container" else target
        with patch("gpuwise.api.launching._check_job"):  # the file is no job, and loading one takes a second
            gpuwise.launch(plan, to=to, output=out, run=run, name="ab", env=[f"VALUE={value}"], **extras(target))
        clients = Clients(folder / "clients", "python", "srun", "scontrol", "podman")
        done = clients.run(*TARGETS[target], cwd=out, SLURM_SUBMIT_DIR=str(out), SLURM_JOB_ID="1")
        assert done.returncode == 0, done.stderr
        home = out
        if target == "container":
            home = clients.home / "gpuwise" / "ab"
            [start] = [call.argv for call in clients.calls("podman") if call.argv[0] == "run"]
            assert start[-3:] == [IMAGE, "bash", "run.sh"]
            assert f"{home}:/launch" in start
            clients.run("bash", "run.sh", cwd=home)
        elif target == "ssh":
            home = clients.home / "gpuwise" / "ab"
            clients.wait_for("state")
        [argv] = words_of_training(clients)
        dash = "./" if stem.startswith("-") else ""
        here = "./" if run.startswith("-") else ""
        assert argv == ["train", f"{dash}{job.name}:job", "--plan", "plan.toml", "--run", f"{here}{run}"]
        assert all(call.value == value for call in clients.calls() if "train" in call.argv)
        assert not list(folder.rglob("hacked"))
        assert (home / job.name).read_text() == "job = None\n"
