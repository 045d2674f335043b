"""launch: a plan as files of the destination where it runs, and those files handed to the user's own client."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from gpuwise.api.plain_arguments import plainly
from gpuwise.errors import InputError, MissingDependencyError, UnsupportedError
from gpuwise.hardware import load_catalog
from gpuwise.launch.description import PLAN_FILE, Launch
from gpuwise.launch.folder import LaunchFolder, read_folder, write_folder
from gpuwise.launch.make import Described, describe
from gpuwise.launch.target import LaunchTarget, target
from gpuwise.launch_settings import LaunchSettings
from gpuwise.plan.agreement import check_agrees
from gpuwise.plan.file import load_plan, plan_bytes
from gpuwise.plan.types import Plan
from gpuwise.results.launching import LaunchResult


@plainly
def launch(
    plan: str | os.PathLike[str] | Plan,
    *,
    to: str,
    output: str | os.PathLike[str],
    go: bool = False,
    shows: Callable[[LaunchResult], None] | None = None,
    **settings: Unpack[LaunchSettings],
) -> LaunchResult:
    """Writes a plan as the files that start it at a target: a script or YAML, the plan, the job's files, launch.toml.

    Arguments:
        plan: a Plan or the path of its file.
        to: name of the target, one of gpuwise.launch.target.TARGETS.
        output: folder to write. A launch that is there is replaced.
        go: whether to hand the files to the target's client, which is the user's own program. Nothing else is sent.
        shows: called with the result before the client runs.
        settings: optional keywords, see gpuwise.launch_settings.LaunchSettings.

    Raises FileFormatError for a plan's file that was edited by hand; InputError, UnknownNameError, UnsupportedError and
    JobError for what cannot be launched so; MissingDependencyError for a client that is not installed.
    """
    destination = target(to)
    if isinstance(plan, Plan):
        loaded, content = plan, plan_bytes(plan)
    else:
        loaded, content = load_plan(plan), Path(plan).read_bytes()
        check_agrees(loaded)
    _check_job(loaded)
    chip = load_catalog().chips.get(loaded.device)
    described = describe(loaded, destination, settings, plan_bytes=content, vendor="" if chip is None else chip.vendor)
    launched = described.launch
    texts = {name: text.encode() for name, text in destination.files(launched).items()}
    if go:
        _check_client(destination, destination.submit(launched))
    folder = write_folder(output, {**launched.files, **texts}, _record(described, destination))
    result = _result(described, folder)
    if shows is not None:
        shows(result)
    return replace(result, exit_code=_run(folder)) if go else result


def start_launch(folder: str | os.PathLike[str]) -> int:
    """Hands a launch that was written before to the target's client; the exit code of that.

    Raises FileFormatError where a file is not as it was written, MissingDependencyError for a client that is not installed.
    """
    written = read_folder(folder)
    destination = target(written.target)
    load_plan(Path(folder) / PLAN_FILE)
    _check_client(destination, written.submit)
    return _run(written)


def _check_job(plan: Plan) -> None:
    """Raises JobError where the job's file is not the one that the plan was made for. Without PyTorch it is not loaded."""
    if ".py:" not in plan.job_argument:
        return
    try:
        import torch  # noqa: F401 - only whether it is there
    except ModuleNotFoundError:
        return
    from gpuwise.api.run_start import planned_job

    planned_job(plan.job_argument, plan)


def _check_client(destination: LaunchTarget, submit: Sequence[str]) -> None:
    """Raises MissingDependencyError for a client that is not installed, UnsupportedError where a browser is the client."""
    if not submit:
        raise UnsupportedError(f"no program of yours starts this launch: {destination.client_source}.", ["leave out --go"])
    if shutil.which(destination.client) is None:
        raise MissingDependencyError(
            f"{destination.name} is started with {destination.client}, which is not installed here.",
            [f"install it: {destination.client_source}", "leave out --go, and start the folder where it is installed"],
        )


def _run(folder: LaunchFolder) -> int:
    """The client, in the folder. What it prints goes to stderr under --json, whose stdout is kept."""
    try:
        return subprocess.run(folder.submit, cwd=folder.path, check=False).returncode
    except OSError as error:
        raise InputError(f"cannot run {folder.submit[0]}: {error.strerror or error}.", ["check its installation"]) from None


def _record(described: Described, destination: LaunchTarget) -> dict[str, object]:
    """launch.toml, but for the digests."""
    launched, plan = described.launch, described.launch.plan
    return {
        "target": destination.name,
        "name": launched.name,
        "submit": list(destination.submit(launched)),
        "gpuwise_version": plan.gpuwise_version,
        "run_folder": launched.run_folder,
        "restarts": launched.restarts,
        "time_limit_s": launched.time_limit_s,
        "notes": [note.text for note in described.notes],
        "price": {
            "provider": plan.offer.provider,
            "instance": plan.offer.instance,
            "terms": plan.offer.terms,
            "usd_per_hour": plan.offer.usd_per_hour,
            "as_of": plan.price_as_of,
            "usd": plan.usd.value,
            "usd_low": plan.usd.low,
            "usd_high": plan.usd.high,
        },
        "forecast": {"hours": plan.hours, "steps": plan.steps, "step_time_s": plan.forecast.step_time_s.value},
        "grace": {"save_s": launched.save_s, "grace_s": launched.grace_s, "default_s": destination.default_grace_s or 0.0},
    }


def _result(described: Described, folder: LaunchFolder) -> LaunchResult:
    launched: Launch = described.launch
    return LaunchResult(
        folder=folder.path,
        target=folder.target,
        plan=launched.plan,
        submit=folder.submit,
        digests=folder.digests,
        grace_s=launched.grace_s,
        save_s=launched.save_s,
        time_limit_s=launched.time_limit_s,
        restarts=launched.restarts,
        run_folder=launched.run_folder,
        launch_notes=described.notes,
    )
