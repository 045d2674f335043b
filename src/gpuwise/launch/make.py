"""A Launch from a plan and the user's settings, checked before anything is written."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.launch.bundle import job_files
from gpuwise.launch.description import PLAN_FILE, Launch, check_name, job_name
from gpuwise.launch.grace import grace_of, save_s
from gpuwise.launch.shell import parse_variables
from gpuwise.launch.target import LaunchTarget
from gpuwise.launch_settings import LaunchSettings
from gpuwise.notes import Note
from gpuwise.notes import launch as notes
from gpuwise.plan.types import Plan
from gpuwise.units import parse_duration
from gpuwise.version import __version__

# A reference without spaces or signs of a shell: github.com/distribution/reference, grammar of `reference`.
_IMAGE = r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,400}"
_RUN = "run"  # folder of the run, in the folder of the launch
_RESTARTS, _SPOT_RESTARTS = 3, 100  # a spot machine may be taken away many times, a failure that comes back three times stays
_MARGIN = (
    1.25  # of the time limit over the plan's longest time: queues bill what is used, and a limit too short costs a restart
)


@dataclass(frozen=True)
class Described:
    """A launch, and what its user should know."""

    launch: Launch
    notes: tuple[Note, ...]


def describe(plan: Plan, target: LaunchTarget, settings: LaunchSettings, *, plan_bytes: bytes, vendor: str) -> Described:
    """The launch of a plan at a target.

    Arguments:
        plan_bytes: content of the plan's file.
        vendor: maker of the plan's chip.

    Raises InputError, UnsupportedError and JobError, each for what cannot be launched so.
    """
    machines, devices = _machines(plan)
    job, files = job_files(plan, settings.get("include") or ())
    run = settings.get("run")
    run = _RUN if run is None else run
    if not run.strip() or "\0" in run:
        raise InputError(f"--run {run!r} is no folder.", ["--run /mnt/runs/digits"])
    image = settings.get("image")
    if target.needs_image and not image:
        raise InputError(
            f"{target.name} runs containers, and no image is named.", ["--image IMAGE, one with PyTorch and Python 3.11"]
        )
    if image and not re.fullmatch(_IMAGE, image):
        raise InputError(f"--image {image!r} is no name of an image.", ["--image registry.example/team/name:tag"])
    grace_text = settings.get("grace")
    grace_s, grace_notes = grace_of(plan, target, None if grace_text is None else _seconds("--grace", grace_text))
    install, install_files = _installed(settings.get("install"), plan, target)
    launch = Launch(
        name=check_name(settings.get("name") or job_name(plan.job_argument)),
        plan=plan,
        job=job,
        files={PLAN_FILE: plan_bytes, **files, **install_files},
        machines=machines,
        devices_per_machine=0 if plan.on_cpu else devices,
        vendor=vendor,
        ranks_per_machine=plan.strategy.mesh.devices // machines,
        run_folder=f"./{run}" if run.startswith("-") else run,
        save_s=save_s(plan),
        grace_s=grace_s,
        time_limit_s=_time_limit(plan, settings),
        restarts=_restarts(plan, target, settings),
        image=image,
        setup=tuple(_line(line) for line in settings.get("setup") or ()),
        install=install,
        environment=parse_variables(settings.get("env") or ()),
        settings=target.parse_settings(settings.get("set") or ()),
    )
    launch, target_notes = target.adapts(launch)
    remarks = [*grace_notes, *target_notes, notes.assumed_installed(package=" ".join(install))]
    if not target.mounts and (machines > 1 or (launch.restarts and not target.keeps_machines)):
        remarks.append(notes.assumed_shared_folder(folder=launch.run_folder))
    return Described(launch, tuple(remarks))


def _machines(plan: Plan) -> tuple[int, int]:
    """Machines, and devices of each. Raises UnsupportedError for what `gpuwise train` cannot run there."""
    if plan.train_obstacle:
        raise UnsupportedError(f"gpuwise train cannot run this plan: {plan.train_obstacle}.", ["gpuwise plan --no-xla"])
    if plan.count < 1:
        raise UnsupportedError(
            f"the plan uses {plan.count:g} of a device, a slice that launchers name in ways of their own.",
            [f"plan for whole devices: gpuwise plan --on {plan.device}:1"],
        )
    return plan.machines, round(plan.count) // plan.machines


def _seconds(flag: str, text: float | str) -> float:
    seconds = float(text) if isinstance(text, int | float) else parse_duration(text)
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{flag} {text} is no time.", [f"{flag} 10min"])
    return seconds


def _time_limit(plan: Plan, settings: LaunchSettings) -> int:
    """The stated limit, that of a free tier's session, or the plan's longest time and a quarter, in whole hours."""
    if (stated := settings.get("time_limit")) is not None:
        return math.ceil(_seconds("--time-limit", stated))
    session = plan.offer.max_session_hours
    hours = (plan.hours_interval.high if plan.hours_interval else plan.hours) * _MARGIN
    return round(3600 * (math.ceil(hours) if session is None else min(math.ceil(hours), session)))


def _restarts(plan: Plan, target: LaunchTarget, settings: LaunchSettings) -> int:
    stated = settings.get("restarts")
    if stated is None:
        return _SPOT_RESTARTS if plan.offer.terms == "spot" or not target.restarts_failures else _RESTARTS
    if not 0 <= stated <= 10_000:
        raise InputError(f"--restarts {stated} is out of range.", ["a number from 0 to 10,000"])
    return stated


def _line(line: str) -> str:
    if "\0" in line or "\n" in line:
        raise InputError(f"--setup {line!r} has several lines.", ["one --setup for each line"])
    return line


def _installed(stated: str | None, plan: Plan, target: LaunchTarget) -> tuple[tuple[str, ...], Mapping[str, bytes]]:
    """What pip installs, and the wheel that travels for it."""
    if stated in ("none", "") or (stated is None and not target.installs):
        return (), {}
    extras = _extras(plan)
    if stated is None:
        return (f"gpuwise[{extras}]=={__version__}",), {}
    if not stated.endswith(".whl"):
        if stated.startswith("-") or "\0" in stated or "\n" in stated:
            raise InputError(f"--install {stated!r} is no package.", ["--install gpuwise-0.1.0-py3-none-any.whl"])
        return (stated,), {}
    wheel = Path(stated)
    if not wheel.is_file():
        raise InputError(f"--install {stated}: there is no such file.", ["python -m pip wheel --no-deps . makes one"])
    return (f"./{wheel.name}[{extras}]",), {wheel.name: wheel.read_bytes()}


def _extras(plan: Plan) -> str:
    """The extras of gpuwise that the plan's job and strategy need."""
    extras = ["torch"]
    if plan.job_argument.startswith("hf:"):
        extras.append("hf")
    if plan.job_argument.startswith("timm:"):
        extras.append("timm")
    optimizer = plan.strategy.optimizer or ""
    if plan.strategy.adapter != "none" or plan.strategy.precision == "fp8" or optimizer.endswith("bit"):
        extras.append("lowbit")
    return ",".join(extras)
