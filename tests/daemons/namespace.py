"""Daemons in namespaces of their own: with their packages in /usr and /etc, and one network address. They end together."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.daemons import packages

ADDRESS, HOST = "10.9.0.1", "login"
# The first process of the namespace. It takes in orphans, and ends, and all others with it, when its standard input does:
# at the latest when the process of the test has ended.
_FIRST = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$PACKAGES/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$FOLDER/etc:$PACKAGES/etc:/etc" /etc
mount -t tmpfs tmpfs /run
hostname "$HOST"
ip link set lo up
ip link add v0 type veth peer name v1
ip address add "$ADDRESS/24" dev v0
ip link set v0 up
ip link set v1 up
echo ready
read -r _ || true
"""
_SPACES = ["--mount", "--uts", "--net", "--pid"]


class DaemonError(AssertionError):
    """A daemon, or a command to one, did not do what it should; the message ends with the logs."""


def impossible(daemon: str) -> str | None:
    """The reason why this machine cannot run a daemon in a namespace: rights or packages. None where it can."""
    if os.geteuid() != 0:
        return "namespaces with a network and /usr of their own need root"
    try:
        subprocess.run(["unshare", *_SPACES, "--fork", "ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no namespaces here: {error}"
    return packages.missing(daemon)


def until(condition: Callable[[], bool], *, timeout_s: float, what: str) -> None:
    """Asks other processes, which give no sign of themselves, ten times a second. Raises DaemonError when the time is over."""
    ends_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > ends_s:
            raise DaemonError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)


class Namespace:
    """Namespaces for mounts, processes, network and host name, as a context manager.

    Arguments:
        temporary: folder for the files of the daemons, the same inside. It is removed at the end.
        hosts: further names of the one address inside.
        etc: files that lie over those of /etc inside, by their path below it.
        environment: variables of what runs inside.
    """

    def __init__(
        self,
        temporary: tempfile.TemporaryDirectory[str],
        *,
        hosts: Sequence[str] = (),
        etc: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._temporary, self._environment = temporary, environment or {}
        self.folder = folder = Path(temporary.name)
        names = " ".join([HOST, *hosts])
        for name, text in {"hosts": f"127.0.0.1 localhost\n{ADDRESS} {names}\n", **(etc or {})}.items():
            path = folder / "etc" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._unshare: subprocess.Popen[str] | None = None
        self._first = 0

    def __enter__(self) -> Self:
        command = ["unshare", *_SPACES, "--fork", "--mount-proc", "--kill-child", "bash", "-c", _FIRST]
        names = {"HOST": HOST, "ADDRESS": ADDRESS, "PACKAGES": str(packages.folder()), "FOLDER": str(self.folder)}
        pipe = subprocess.PIPE
        self._unshare = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **names})
        assert self._unshare.stdout is not None
        if self._unshare.stdout.readline() != "ready\n":
            raise DaemonError(f"no namespace: {self._unshare.communicate()[1]}")
        pid = self._unshare.pid
        self._first = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
        try:
            self.begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def begin(self) -> None:
        """Starts the daemons inside, and waits until they answer."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._unshare is not None:
            self._unshare.communicate()  # closes its standard input
        self._temporary.cleanup()

    def command(self, *argv: str | Path) -> list[str]:
        """The command that runs this one inside."""
        return ["nsenter", "--target", str(self._first), *_SPACES, "--", *map(str, argv)]

    def run(
        self, *argv: str | Path, cwd: Path | None = None, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command inside, to its end. Raises DaemonError if it fails, unless not `check`."""
        command = [*self.command("env", f"--chdir={cwd or self.folder}", *argv)]
        variables = {**os.environ, **self._environment, **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=250)
        if check and done.returncode:
            raise DaemonError(
                f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stdout}{done.stderr}{self.logs()}"
            )
        return done

    def logs(self, lines: int = 15) -> str:
        """The last lines of each log in the folder."""
        tails = {path.name: path.read_text(errors="replace").splitlines()[-lines:] for path in self.folder.glob("*.log")}
        return "".join(f"\n--- {name}\n" + "\n".join(tail) for name, tail in tails.items())
