"""Notebooks: one for each session of Google Colab or Kaggle, which trains until the session's limit and goes on in the next."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import PurePosixPath

from gpuwise.errors import InputError, UnsupportedError
from gpuwise.json_types import Json
from gpuwise.launch.description import PLAN_FILE, Launch
from gpuwise.launch.notebook_calendar import calendar, code, escaped, parse_start
from gpuwise.launch.notebook_sites import SITES, NotebookSite, accelerator, site_of, site_time
from gpuwise.launch.target import LaunchTarget, TargetSetting
from gpuwise.notes import Note
from gpuwise.notes import launch as notes
from gpuwise.units import format_duration

NOTEBOOK, KAGGLE_METADATA = "train.ipynb", "kernel-metadata.json"
_LEAST_TITLE = 5  # characters that Kaggle's title has at least
_SLUG = r"[A-Za-z0-9][A-Za-z0-9-]*"


def adapts(launch: Launch) -> tuple[Launch, tuple[Note, ...]]:
    """The launch as one session: its limit, and the folder that outlives it.

    Raises UnsupportedError for devices that no site has, InputError for a run folder that ends with the session.
    """
    site = site_of(launch.plan, launch.settings.get("site", ""))
    if launch.image:
        raise UnsupportedError(f"{site.title} runs its own image.", ["leave out --image"])
    kept = PurePosixPath(site.kept)
    run = kept / launch.name / launch.run_folder  # an absolute --run is taken as it is
    root = kept if site.name == "kaggle" else kept.parents[1]
    if not run.is_relative_to(root) or ".." in run.parts:
        raise InputError(
            f"--run {launch.run_folder} is lost with the session: {site.title} keeps {root} alone.",
            ["leave out --run", f"--run {kept / launch.name}"],
        )
    session_s = min(launch.time_limit_s, math.floor(site_time(launch.plan, site).session_s))
    if session_s <= launch.grace_s:
        raise UnsupportedError(
            f"a save takes up to {format_duration(launch.save_s)}, and a session ends after {format_duration(session_s)}: "
            "no time is left to train.",
            ["--time-limit 12h"],
        )
    begins = "" if submit(launch) else site.begins
    session = notes.session_of_notebook(session_s=float(session_s), begins=begins)
    return replace(launch, run_folder=str(run), time_limit_s=session_s, restarts=0), (session,)


def files(launch: Launch) -> Mapping[str, str]:
    """train.ipynb, and for Kaggle's client kernel-metadata.json."""
    site = site_of(launch.plan, launch.settings.get("site", ""))
    texts = {NOTEBOOK: json.dumps(_notebook(launch, site), indent=1) + "\n"}
    if submit(launch):
        texts[KAGGLE_METADATA] = json.dumps(_kaggle(launch, site), indent=2) + "\n"
    return texts


def _notebook(launch: Launch, site: NotebookSite) -> Json:
    """A notebook of format 4.5: https://nbformat.readthedocs.io/en/latest/format_description.html."""
    code = [
        _settings(launch, site),
        package_files("gpuwise.launch").joinpath("notebook_cells.py").read_text(encoding="utf-8").strip(),
        "write_files(FILES, FOLDER)\ninstall(INSTALL, FOLDER)",
        _continues(site),
        "train(ARGV, FOLDER, environment=ENVIRONMENT, setup=SETUP, until_s=STARTED + SESSION_S - RESERVE_S)",
    ]
    cells: list[Json] = [{"cell_type": "markdown", "id": "calendar", "metadata": {}, "source": _lines(_heading(launch, site))}]
    for number, source in enumerate(code, 1):
        cells.append(
            {
                "cell_type": "code",
                "id": f"cell-{number}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": _lines(source),
            }
        )
    kernel: Json = {"name": "python3", "display_name": "Python 3"}
    metadata: dict[str, Json] = {"kernelspec": kernel, "language_info": {"name": "python"}}
    device = accelerator(launch.plan, site)
    if site.name == "colab":
        metadata["colab"] = {"name": NOTEBOOK, "provenance": [], **({"gpuType": device} if device else {})}
        if device:
            metadata["accelerator"] = "GPU"
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": cells}


def _heading(launch: Launch, site: NotebookSite) -> str:
    """Markdown: what this is, how to begin a session, and the calendar."""
    plan, device = launch.plan, accelerator(launch.plan, site)
    chosen = f"Choose the accelerator {device} first. " if device else ""
    internet = "Turn on Internet in the settings: pip needs it. " if site.name == "kaggle" and launch.install else ""
    goes_on = (
        f"The run is kept in {code(launch.run_folder)} of your drive."
        if site.name == "colab"
        else "For the next session add the output of this notebook's last version as an input (Add Input, Notebook Output)."
    )
    return "\n".join(
        [
            f"# {escaped(plan.job)} on {site.title}",
            "",
            f"Trains {plan.steps:,} steps on {plan.count:g} x {escaped(plan.device)}, as gpuwise "
            f"{escaped(plan.gpuwise_version)} has planned. {chosen}{internet}Run all cells: training ends by itself, saved, "
            f"before a session of {format_duration(launch.time_limit_s)} does. {goes_on}",
            "",
            *calendar(
                plan,
                site_time(plan, site),
                session_s=launch.time_limit_s,
                start=parse_start(launch.settings.get("start", "")),
            ),
        ]
    )


def _settings(launch: Launch, site: NotebookSite) -> str:
    """The first cell of code. Every value is a literal of Python in ASCII."""
    kept = PurePosixPath(launch.run_folder)
    run = PurePosixPath(site.work, "run", launch.name) if site.name == "colab" else kept
    argv = ["-m", "gpuwise", "train", launch.job, "--plan", PLAN_FILE]
    copies = f' + ["--copy-to", str(ROOT / {_relative(kept)})]' if site.name == "colab" else ""
    contents = {name: base64.b64encode(content).decode() for name, content in launch.files.items()}
    return "\n".join(
        [
            "import time",
            "from pathlib import Path",
            "",
            'STARTED = globals().get("STARTED") or time.monotonic()  # a session began with its first cell',
            f"SESSION_S, RESERVE_S = {launch.time_limit_s}, {launch.grace_s}  # of them the last save has RESERVE_S",
            'ROOT = Path("/")',
            f"FOLDER = ROOT / {_relative(PurePosixPath(site.work, 'gpuwise', launch.name))}",
            f"RUN = ROOT / {_relative(run)}",
            f'ARGV = {argv!a} + ["--run", str(RUN)]{copies}',
            f"INSTALL = {list(launch.install)!a}",
            f"SETUP = {list(launch.setup)!a}",
            f"ENVIRONMENT = {dict(launch.environment)!a}",
            "FILES = {",
            *(f"    {name!a}: {content!a}," for name, content in contents.items()),
            "}",
        ]
    )


def _continues(site: NotebookSite) -> str:
    if site.name == "colab":
        return 'from google.colab import drive\n\ndrive.mount(str(ROOT / "content/drive"))'
    return f'continue_from(ROOT / "kaggle/input", RUN, working=ROOT / {_relative(PurePosixPath(site.kept))})'


def _relative(path: PurePosixPath) -> str:
    return ascii(str(path).lstrip("/"))


def _lines(text: str) -> Json:
    return list(text.splitlines(keepends=True))


def _kaggle(launch: Launch, site: NotebookSite) -> dict[str, Json]:
    """kernel-metadata.json: https://github.com/Kaggle/kaggle-cli/blob/main/docs/kernels_metadata.md."""
    if len(launch.name) < _LEAST_TITLE:
        raise InputError(f"Kaggle's names have {_LEAST_TITLE} characters or more, and {launch.name} has less.", ["--name NAME"])
    device, after = accelerator(launch.plan, site), launch.settings.get("after", "")
    return {
        "id": f"{launch.settings['user']}/{launch.name}",
        "title": launch.name,
        "code_file": NOTEBOOK,
        "language": "python",
        "kernel_type": "notebook",
        "is_private": True,
        "enable_gpu": bool(device),
        "enable_tpu": False,
        "enable_internet": True,
        **({"machine_shape": device} if device else {}),
        "dataset_sources": [],
        "competition_sources": [],
        "kernel_sources": [after] if after else [],
        "model_sources": [],
    }


def submit(launch: Launch) -> tuple[str, ...]:
    """Kaggle's client, where a user is named; else notebooks are begun in a browser."""
    return ("kaggle", "kernels", "push", "-p", ".") if "user" in launch.settings and _at_kaggle(launch) else ()


def _at_kaggle(launch: Launch) -> bool:
    return site_of(launch.plan, launch.settings.get("site", "")).name == "kaggle"


def _names(names: Sequence[str]) -> str:
    return "|".join(names)


TARGET = LaunchTarget(
    name="notebook",
    client="kaggle",
    client_source="a browser begins it; for Kaggle's client `pip install kaggle`, and --set user=NAME",
    files=files,
    submit=submit,
    default_grace_s=0.0,
    installs=True,
    adapts=adapts,
    settings={
        "site": TargetSetting(
            "The site: colab or kaggle (the plan's, or the first that has its device).", _names([*SITES]), "colab"
        ),
        "start": TargetSetting("The day of the first session, for the calendar.", r"\d{4}-\d\d-\d\d", "2026-12-01"),
        "user": TargetSetting("Your name at Kaggle, for its client.", _SLUG, "me"),
        "after": TargetSetting(
            "The Kaggle notebook whose output the session continues, for its client.", rf"{_SLUG}/{_SLUG}", "me/digits-job"
        ),
    },
)
