"""Launch: what a target is to start. Targets are pure functions from it to the text of files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuwise.errors import InputError
from gpuwise.launch.shell import joined
from gpuwise.plan.types import Plan

PLAN_FILE, MANIFEST_FILE = "plan.toml", "launch.toml"
RESERVED = (PLAN_FILE, MANIFEST_FILE)
_LONGEST_NAME = 40  # of 63 characters that a Kubernetes label holds; targets add a suffix


@dataclass(frozen=True)
class Launch:
    """One training on one or more machines.

    Attributes:
        name: of the job: lower-case letters, digits and hyphens, from a letter on.
        plan: what is trained, and how.
        job: the JOB argument, relative to the folder of the launch.
        files: what the machines need beside the scripts, by path in the folder: the plan, the job's files.
        machines: number of machines.
        devices_per_machine: accelerators of each; 0 where the CPU is the device.
        vendor: their maker, as in the catalog.
        ranks_per_machine: processes of each.
        run_folder: folder of checkpoints, log and report, as the machines see it.
        image: container image; None where the target's own environment is used.
        setup: the user's shell lines, run in order before the training.
        install: what pip installs before it; empty for nothing.
        environment: variables of the training.
        save_s: seconds that a stop needs at most: the step in flight and a checkpoint.
        grace_s: whole seconds from the signal until the target kills.
        time_limit_s: whole seconds until the target ends the job.
        restarts: times that the run starts again after an interruption or a failure.
        settings: the target's own settings, by name.
        copy_to: folder that checkpoints are copied to, such as a mounted bucket, where run_folder is each machine's own.
    """

    name: str
    plan: Plan
    job: str
    files: Mapping[str, bytes] = field(hash=False)
    machines: int
    devices_per_machine: int
    ranks_per_machine: int
    run_folder: str
    save_s: float
    grace_s: int
    time_limit_s: int
    restarts: int
    vendor: str = ""
    image: str | None = None
    setup: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)
    copy_to: str = ""

    @property
    def train_argv(self) -> tuple[str, ...]:
        """The arguments of `python`, or of torchrun, that train as planned."""
        copies = ("--copy-to", self.copy_to) if self.copy_to else ()
        return ("-m", "gpuwise", "train", self.job, "--plan", PLAN_FILE, "--run", self.run_folder, *copies)

    @property
    def setup_lines(self) -> tuple[str, ...]:
        """Shell lines before the training: the user's, then pip's."""
        install = joined(["python", "-m", "pip", "install", *self.install])
        return (*self.setup, *((install,) if self.install else ()))


def job_name(text: str) -> str:
    """A name that Slurm, Kubernetes and clouds accept: "examples/digits.py:job" gives "digits-job"."""
    words = re.sub(r"[^a-z0-9]+", "-", text.rpartition("/")[2].replace(".py:", "-").lower()).strip("-")
    return (words if words[:1].isalpha() else f"job-{words}".strip("-"))[:_LONGEST_NAME].rstrip("-")


def check_name(name: str) -> str:
    """Raises InputError for a name that some target would refuse."""
    if not re.fullmatch(rf"[a-z]([a-z0-9-]{{0,{_LONGEST_NAME - 2}}}[a-z0-9])?", name):
        raise InputError(
            f"--name {name!r} is no name of a job: lower-case letters, digits and hyphens, {_LONGEST_NAME} at most.",
            [f"--name {job_name(name)}"],
        )
    return name
