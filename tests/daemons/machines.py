"""Machines that are reached by ssh: a real sshd, and podman with an image, in a namespace of their own."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from tests.daemons.namespace import ADDRESS, Namespace, until

IMAGE = "localhost/this-machine:1"
_SSHD = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/home/.ssh/id_ed25519.pub
PidFile {folder}/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
"""
# The image is empty: containers see the programs of this machine, PyTorch among them, read-only. Control groups are the
# machine's own and stay as they are.
_CONTAINERS = """\
[containers]
volumes = [{volumes}]
cgroups = "disabled"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "crun"
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/containers"
runroot = "/run/containers"
"""
_LINKS = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}


class Machines(Namespace):
    """Hosts node0, node1, ... with one user each, me0, me1, ..., whose homes differ. ssh needs no password.

    Arguments:
        count: number of hosts.
        seen: folders that containers see as this machine has them, read-only: of Python and its packages.
    """

    def __init__(self, count: int = 1, *, seen: tuple[Path, ...] = ()):
        temporary = tempfile.TemporaryDirectory(prefix="ssh-")
        folder = Path(temporary.name)
        self.users = {f"me{index}@node{index}": folder / f"me{index}" for index in range(count)}
        for home in (folder / "home/.ssh", *self.users.values()):
            home.mkdir(parents=True)
        for key in (folder / "host_key", folder / "home/.ssh/id_ed25519"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
        hosts = [user.partition("@")[2] for user in self.users]
        public = " ".join((folder / "host_key.pub").read_text().split()[:2])
        (folder / "home/.ssh/known_hosts").write_text(f"{','.join([*hosts, ADDRESS])} {public}\n")
        (folder / "sshd_config").write_text(_SSHD.format(folder=folder, address=ADDRESS))
        logins = {"root": folder / "home", **{user.partition("@")[0]: home for user, home in self.users.items()}}
        volumes = ", ".join(json.dumps(f"{path}:{path}:ro") for path in (Path("/usr"), Path("/etc"), *seen))
        etc = {
            "passwd": "".join(f"{name}:x:0:0::{home}:/bin/bash\n" for name, home in logins.items())
            + "sshd:x:104:65534::/run/sshd:/usr/sbin/nologin\n",
            "containers/policy.json": json.dumps({"default": [{"type": "insecureAcceptAnything"}]}),
            "containers/containers.conf": _CONTAINERS.format(volumes=volumes),
            "containers/storage.conf": _STORAGE.format(folder=folder),
        }
        super().__init__(temporary, hosts=hosts, etc=etc, environment={"HOME": f"{folder}/home"})

    def begin(self) -> None:
        self.run("mkdir", "-m", "0755", "/run/sshd")
        self.run("/usr/sbin/sshd", "-f", f"{self.folder}/sshd_config", "-E", f"{self.folder}/sshd.log")
        user = next(iter(self.users))
        answers = ["ssh", "-o", "BatchMode=yes", user, "true"]
        until(lambda: not self.run(*answers, check=False).returncode, timeout_s=30, what=f"sshd{self.logs()}")

    def make_image(self) -> None:
        """IMAGE, for podman. Control groups of the older kind are hidden from crun, which refuses a mixture."""
        self.run("umount", "--recursive", "/sys/fs/cgroup")
        self.run("mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup")
        with tempfile.TemporaryDirectory() as root:
            for name, target in _LINKS.items():
                (Path(root) / name).symlink_to(target)
            for name in ("usr", "etc", "tmp", "root", "proc", "sys", "dev", "run"):
                (Path(root) / name).mkdir()
            subprocess.run(["tar", "-cf", self.folder / "image.tar", "-C", root, "."], check=True)
        self.run("podman", "import", self.folder / "image.tar", IMAGE)
