"""Plans to launch, and programs in the place of clients that write down how they were called."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import gpuwise
from gpuwise.plan import Plan
from gpuwise.strategy import Mesh

ROOT = Path(__file__).parent.parent
DIGITS = str(ROOT / "examples" / "digits.py") + ":job"
# A program that appends its name, folder, $VALUE and arguments to a file, then prints and returns what its variables say.
_RECORDER = r"""#!/bin/bash
printf '%s\0' "${0##*/}" "$PWD" "${VALUE-}" "$#" "$@" >>"$CALLS"
case "$*" in
  "-m gpuwise state"*) echo "${STATE-done}" ;;
  "-m torch.distributed.run --help") echo "${HELP---shutdown-timeout}" ;;
  *) exit "${CODE-0}" ;;
esac
"""
_SSH = """#!/bin/bash
# What sshd does: the words after the host are one command for the login shell, in the home folder.
while [ "$1" = -o ] || [ "$1" = -p ]; do shift 2; done
shift
cd "$HOME" && exec /bin/sh -c "$*"
"""


@cache
def _base() -> Plan:
    best: Plan = gpuwise.plan("gpt2", tokens="2B", on="h100-sxm", budget=1000, spot=False).best
    return best


def agreeing(plan: Plan) -> Plan:
    """The plan with a forecast, an offer and a length that are of its own strategy and devices, as the planner makes them."""
    forecast = replace(plan.forecast, strategy=plan.strategy, device=plan.device, count=round(plan.count))
    samples = plan.steps * plan.strategy.global_batch
    return replace(plan, forecast=forecast, offer=replace(plan.offer, chip_id=plan.device), samples=samples)


def sample_plan(
    *,
    devices: int = 1,
    machines: int = 1,
    terms: str = "on-demand",
    provider: str = "lab",
    job: str = "gpt2",
    cpu: bool = False,
) -> Plan:
    """GPT-2 on H100, data-parallel; with `cpu` on as many processes of CPUs."""
    base = _base()
    offer = replace(base.offer, provider=provider, instance="node", terms=terms, count=0 if cpu else devices // machines)
    strategy = base.strategy.but(mesh=Mesh(dp_replicate=devices))
    device = "cpu-xeon-8380" if cpu else base.device
    return agreeing(
        replace(base, offer=offer, strategy=strategy, device=device, count=devices, machines=machines, job_argument=job)
    )


@dataclass(frozen=True)
class Call:
    """How a program was called: its working folder, $VALUE and arguments."""

    program: str
    folder: str
    value: str
    argv: list[str]


class Clients:
    """Programs that stand in for `python` and clients, first on PATH.

    Attributes:
        folder: of the programs.
        home: $HOME of what they run.
    """

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder, self.home, self._calls = folder / "bin", folder / "home", folder / "calls"
        self.folder.mkdir(parents=True)
        self.home.mkdir()
        for name in names:
            self._program(name, _RECORDER)
        self._program("ssh", _SSH)

    def _program(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)
        (self.folder / name).chmod(0o755)

    def run(self, *argv: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Runs a program with these in the place of its own."""
        environment = {"PATH": f"{self.folder}:{os.environ['PATH']}", "HOME": str(self.home), "CALLS": str(self._calls)}
        return subprocess.run(argv, cwd=cwd, env={**environment, **variables}, capture_output=True, text=True, check=False)

    def calls(self, name: str = "") -> list[Call]:
        """Each call so far, of one program or of all."""
        if not self._calls.exists():
            return []
        words = iter(self._calls.read_bytes().decode().split("\0")[:-1])
        rows = [Call(program, next(words), next(words), [next(words) for _ in range(int(next(words)))]) for program in words]
        return [row for row in rows if name in ("", row.program)]

    def wait_for(self, word: str) -> None:
        """Waits until a program that was started in the background is called with a word."""
        until_s = time.monotonic() + 30
        while not any(word in call.argv for call in self.calls()):
            assert time.monotonic() < until_s, f"no call with {word}"
            time.sleep(0.005)
