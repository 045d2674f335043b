"""A real Slurm on this machine: munge, slurmctld and two slurmd with fake GPUs, in a namespace of their own."""

from __future__ import annotations

import os
import string
import tempfile
from pathlib import Path

from tests.daemons.namespace import ADDRESS, HOST, DaemonError, Namespace, until

NODES = ["n0", "n1"]
_ACTIVE = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED", "SUSPENDED", "PREEMPTED")


class Slurm(Namespace):
    """Machines n0 and n1 with eight fake H100s each; jobs of the partition `main` preempt those of `spot`, which are requeued.

    Arguments:
        grace_s: GraceTime of spot: seconds between SIGTERM and SIGKILL of a preempted job.
        requeue_delay_s: seconds that a requeued job waits before it may start. The default is Slurm's.
        schedule_every_s: seconds between two looks of the scheduler at jobs whose time has come. The default is Slurm's.
    """

    def __init__(self, *, grace_s: int = 30, requeue_delay_s: int = 120, schedule_every_s: int = 60):
        temporary = tempfile.TemporaryDirectory(prefix="slurm-")  # short: paths of sockets have 107 characters
        folder = Path(temporary.name)
        names = {"folder": str(folder), "host": HOST, "address": ADDRESS}
        seconds = {"grace_s": grace_s, "requeue_delay_s": requeue_delay_s, "schedule_every_s": schedule_every_s}
        template = string.Template(Path(__file__).with_name("slurm.conf.in").read_text())
        (folder / "slurm.conf").write_text(template.substitute(names | seconds))
        (folder / "gres.conf").write_text(f"NodeName=n[0-1] Name=gpu Type=h100 File={folder}/gpu[0-7]\n")
        for device in range(8):
            os.mknod(folder / f"gpu{device}", 0o666 | 0o020000, os.makedev(1, 3))  # /dev/null by another name
        for name in (*NODES, "state", "home"):
            (folder / name).mkdir()
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        super().__init__(temporary, hosts=NODES, environment={"SLURM_CONF": f"{folder}/slurm.conf", "HOME": f"{folder}/home"})

    def begin(self) -> None:
        places = [f"--{name}={self.folder}/munge{suffix}" for name, suffix in _MUNGE_FILES.items()]
        self.run("munged", "--force", *places)
        self.run("slurmctld")
        for node in NODES:
            self.run("slurmd", "-N", node)
        until(self._ready, timeout_s=60, what=f"two idle machines{self.logs()}")

    def submit(self, *argv: str | Path, cwd: Path, **environment: str) -> int:
        """`sbatch` with these arguments; the number of the job."""
        return int(self.run("sbatch", "--parsable", *argv, cwd=cwd, **environment).stdout)

    def job(self, number: int) -> dict[str, str]:
        """What Slurm knows of a job: JobState, Restarts, ExitCode, StartTime and others."""
        text = self.run("scontrol", "--oneliner", "show", "job", str(number)).stdout
        return dict(item.split("=", 1) for item in text.split() if "=" in item)

    def wait(self, number: int, state: str, *, timeout_s: float = 200) -> dict[str, str]:
        """Waits for a state of a job, and returns the job. Raises DaemonError if it ends in another one, or is late."""
        job: dict[str, str] = {}

        def reached() -> bool:
            job.update(self.job(number))
            if job["JobState"] not in (state, *_ACTIVE):
                raise DaemonError(
                    f"job {number} is {job['JobState']} ({job.get('Reason')}, {job.get('ExitCode')}), not {state}"
                )
            return job["JobState"] == state

        until(reached, timeout_s=timeout_s, what=f"job {number} {state}")
        return job

    def _ready(self) -> bool:
        ping = self.run("scontrol", "ping", check=False)
        states = self.run("sinfo", "--noheader", "--Node", "--partition=spot", "--format=%t", check=False)
        return "is UP" in ping.stdout and states.stdout.split() == ["idle"] * len(NODES)


_MUNGE_FILES = {"socket": ".socket", "key-file": ".key", "pid-file": ".pid", "log-file": ".log", "seed-file": ".seed"}
