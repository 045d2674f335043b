"""gpuwise record [PRESET...]"""

from __future__ import annotations

from pathlib import Path

import click

from gpuwise.cli.options import complete_job


@click.command("record", short_help="Record the shipped traces again.")
@click.argument("presets", nargs=-1, metavar="[PRESET]...", shell_complete=complete_job)
@click.option("--folder", type=click.Path(file_okay=False), help="Write here instead of into the package.")
def command(presets: tuple[str, ...], folder: str | None) -> None:
    """Record the shipped traces of the presets named, or of all, with the PyTorch installed here."""
    from gpuwise.errors import unknown_name
    from gpuwise.job.dependencies import require
    from gpuwise.trace.presets.table import PRESETS

    for name in presets:
        if name not in PRESETS:
            raise unknown_name("preset", name, list(PRESETS), listing="gpuwise doctor")
    require("torch", purpose="record traces")
    from gpuwise.tracing.presets import record_presets

    record_presets(presets or None, folder=Path(folder) if folder else None, on_recorded=_say)


def _say(path: Path) -> None:
    click.echo(f"recorded {path}", err=True)
