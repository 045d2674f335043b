"""Launches over a real sshd, in a real container and without one. Needs root and Debian's packages:
python tests/daemons/packages.py, then python -m pytest -m slow tests/daemons/test_ssh.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemons.launches import ENVIRONMENT, check_nothing_was_repeated, last_step, launch_command, plan_here, weights
from tests.daemons.machines import IMAGE, Machines
from tests.daemons.namespace import impossible, until

REASON = impossible("sshd") or impossible("podman")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(600)]
STEPS, STEPS_BEFORE = 1000, 200
# What a user's machine has by itself: Python, PyTorch and gpuwise.
SETUP = ["--setup", f"export PATH={Path(sys.executable).parent}:$PATH"]
SETUP += [word for name, value in ENVIRONMENT.items() if name != "PATH" for word in ("--env", f"{name}={value}")]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    seen = (Path(sys.prefix), Path(sys.base_prefix), Path(ENVIRONMENT["PYTHONPATH"]))
    with Machines(2, seen=tuple(dict.fromkeys(path for path in seen if not path.is_relative_to("/usr")))) as machines:
        machines.make_image()
        yield machines


def state(machines: Machines, run: Path) -> str:
    """The word of the run's state.json."""
    return machines.run(sys.executable, "-m", "gpuwise", "state", run, check=False, **ENVIRONMENT).stdout.strip()


def test_a_container_is_stopped_and_goes_on(machines: Machines, tmp_path: Path):
    plan = plan_here(tmp_path, steps=STEPS)
    exit_codes = {}
    for name in ("alone", "stopped"):
        flags = ["--set", "hosts=me0@node0", "--image", IMAGE, "--name", name, *SETUP]
        command = launch_command(plan, tmp_path / name, "ssh", *flags)
        run = machines.users["me0@node0"] / f"gpuwise/{name}/run"
        machines.run(*command)
        if name == "stopped":
            until(lambda run=run: last_step(run) >= STEPS_BEFORE, timeout_s=120, what="steps")
            machines.run("bash", tmp_path / name / "launch.sh", "stop")
            exit_codes["at the stop"] = machines.run("podman", "wait", name).stdout.strip()
            assert state(machines, run) == "interrupted"
            machines.run(*command)
        exit_codes[name] = machines.run("podman", "wait", name).stdout.strip()
        assert state(machines, run) == "done"
    assert exit_codes == {"alone": "0", "at the stop": "130", "stopped": "0"}
    folders = [machines.users["me0@node0"] / f"gpuwise/{name}" for name in exit_codes if name != "at the stop"]
    check_nothing_was_repeated(run, steps=STEPS, interruptions=1)
    alone, stopped = ((folder / "losses-0.txt").read_text() for folder in folders)
    assert stopped == alone
    assert alone.count("\n") == STEPS
    assert weights(folders[0] / "run", STEPS) == weights(folders[1] / "run", STEPS)


def test_two_machines_are_stopped_and_go_on(machines: Machines, tmp_path: Path):
    """Without a container, with a folder that both see."""
    plan = plan_here(tmp_path, steps=STEPS, machines=2)
    run = tmp_path / "shared/run"
    flags = ["--set", f"hosts={','.join(machines.users)}", "--name", "both", "--run", str(run), *SETUP]
    command = launch_command(plan, tmp_path / "both", "ssh", *flags)
    machines.run(*command)
    until(lambda: last_step(run) >= STEPS_BEFORE, timeout_s=120, what="steps")
    machines.run("bash", tmp_path / "both/launch.sh", "stop")
    until(lambda: state(machines, run) == "interrupted", timeout_s=60, what="the end of the run")
    machines.run(*command)
    until(lambda: state(machines, run) == "done", timeout_s=120, what="the end of the run")
    check_nothing_was_repeated(run, steps=STEPS, interruptions=1)
    counts = [
        (home / f"gpuwise/both/losses-{rank}.txt").read_text().count("\n") for rank, home in enumerate(machines.users.values())
    ]
    assert counts == [STEPS, STEPS]
