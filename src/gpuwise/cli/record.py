"""gpuwise record JOB -o job.npz, and gpuwise record [PRESET...] for those that ship"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click

from gpuwise.cli.options import complete_job, settings_options
from gpuwise.step_settings import DeviceSettings

_UPDATES = "updates"


@click.command("record", short_help="A job's step into a file; the shipped ones again.")
@click.argument("jobs", nargs=-1, metavar="[JOB]...", shell_complete=complete_job)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the step of one JOB to this .npz file.")
@click.option("--folder", type=click.Path(file_okay=False), help="Write shipped recordings here, not into the package.")
@click.option("--rank", type=int, help="Of several devices, the rank to record (0).")
@settings_options(DeviceSettings, without=("compile",))
def command(
    jobs: tuple[str, ...], output: str | None, folder: str | None, rank: int | None, **settings: Unpack[DeviceSettings]
) -> None:
    """Record the step of JOB to a file that stands for it afterwards, without its code and without PyTorch.

    With --mesh: the step of one rank, at one --micro-batch, with its collectives; no other device is needed.

    Without -o: record the traces that ship with gpuwise again, of the presets named or of all. "updates" are those of the
    optimizers, which steps with another optimizer are composed from.
    """
    from gpuwise import api
    from gpuwise.errors import InputError

    if output is None:
        if rank is not None or any(value is not None for value in settings.values()):
            raise InputError("shipped presets are recorded in every variant.", ["leave out the settings", "-o job.npz"])
        return _shipped(jobs, folder)
    if len(jobs) != 1:
        raise InputError(f"-o takes one JOB, got {len(jobs)}.", ["gpuwise record path.py:job -o job.npz"])
    api.record(jobs[0], output, rank=rank, **settings)
    _say(Path(output))


def _shipped(names: tuple[str, ...], folder: str | None) -> None:
    from gpuwise.errors import unknown_name
    from gpuwise.job.dependencies import require
    from gpuwise.trace.presets.table import PRESETS

    for name in names:
        if name not in (*PRESETS, _UPDATES):
            raise unknown_name("preset", name, [*PRESETS, _UPDATES], listing="gpuwise doctor")
    require("torch", purpose="record traces")
    from gpuwise.trace.update.template_file import DATA
    from gpuwise.tracing.presets import record_presets
    from gpuwise.tracing.update_templates import record_updates

    presets = [name for name in names if name != _UPDATES]
    if not names or _UPDATES in names:
        require("torchao", purpose="record the updates of optimizers with 8- and 4-bit state")
        path = Path(folder) / DATA.name if folder else DATA
        record_updates(path)
        _say(path)
    if presets or not names:
        record_presets(presets or None, folder=Path(folder) if folder else None, on_recorded=_say)


def _say(path: Path) -> None:
    click.echo(f"recorded {path}", err=True)
