"""The Debian packages of the daemons, downloaded and unpacked into a folder of their own; nothing is installed.

    python tests/daemons/packages.py                    # 25 MB, once; tests have no network afterwards
    python -m pytest -m slow tests/daemons

The folder is ~/.cache/gpuwise-daemons, or the one that the environment variable GPUWISE_DAEMONS names.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SLURM = ["slurmctld", "slurmd", "slurm-client", "munge"]
SSH = ["openssh-server"]
PODMAN = ["podman", "crun"]
PROGRAMS = {"Slurm": "usr/sbin/slurmctld", "sshd": "usr/sbin/sshd", "podman": "usr/bin/podman"}
# Debian's maintainer scripts make these links; packages are only unpacked here.
_ALTERNATIVES = {"slurmctld": "slurmctld-wlm", "slurmd": "slurmd-wlm", "slurmstepd": "slurmstepd-wlm"}


def folder() -> Path:
    return Path(os.environ.get("GPUWISE_DAEMONS") or Path.home() / ".cache/gpuwise-daemons")


def missing(daemon: str) -> str | None:
    """The reason why tests of a daemon cannot run; None where its packages are unpacked."""
    if (folder() / PROGRAMS[daemon]).exists():
        return None
    return f"{daemon} is not unpacked in {folder()}: python tests/daemons/packages.py"


def unpack(names: list[str], root: Path) -> None:
    """Downloads these packages with what they depend on, and unpacks them below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as archives:
        (Path(archives) / "partial").mkdir()
        options = ["-o", f"Dir::Cache::archives={archives}", "-o", "APT::Sandbox::User=root", "-y", "--reinstall"]
        subprocess.run(["apt-get", "install", "--download-only", "--no-install-recommends", *options, *names], check=True)
        for archive in sorted(Path(archives).glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", archive, root], check=True)
    for link, program in _ALTERNATIVES.items():
        path = root / "usr/sbin" / link
        if (root / "usr/sbin" / program).exists() and not path.is_symlink():
            path.symlink_to(program)


if __name__ == "__main__":
    unpack(SLURM + SSH + PODMAN, folder())
    problems = [problem for problem in map(missing, PROGRAMS) if problem]
    sys.exit("\n".join(problems) or None)
