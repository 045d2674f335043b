"""gpuwise launch plan.toml --to slurm -o FOLDER"""

from __future__ import annotations

import os
from typing import Unpack

import click

from gpuwise.cli.options import json_option, settings_options
from gpuwise.launch.target import TARGETS
from gpuwise.launch_settings import LaunchSettings


@click.command("launch", short_help="A plan for Slurm, torchrun, ssh and clouds.")
@click.argument("plan", metavar="PLAN", type=click.Path())
@click.option("--to", metavar="TARGET", help=f"Where it runs: {', '.join(TARGETS)}.")
@click.option("-o", "--output", type=click.Path(file_okay=False), metavar="FOLDER", help="Write the launch to this folder.")
@click.option("--go", is_flag=True, help="Hand the files to the target's client (sbatch, ssh, ...), your own program.")
@settings_options(LaunchSettings)
@json_option
def command(plan: str, to: str | None, output: str | None, go: bool, as_json: bool, **settings: Unpack[LaunchSettings]) -> None:
    """Write a plan as the files that start it where you run things, and start those files with --go.

    PLAN is a file of `gpuwise plan -o`, or with --go alone the folder of a launch that was written before.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.launch import launch_report
    from gpuwise.results.launching import LaunchResult

    if os.path.isdir(plan):
        if not go or to or output or any(settings.values()):
            raise click.UsageError(f"{plan} is a folder: --go alone starts the launch in it.")
        raise click.exceptions.Exit(api.start_launch(plan))
    if to is None or output is None:
        raise click.UsageError("--to TARGET and -o FOLDER are needed to write a launch.")

    def show(result: LaunchResult) -> None:
        emit(result, launch_report, as_json=as_json)

    # What the client prints and asks comes below the report; JSON holds its exit code.
    result = api.launch(plan, to=to, output=output, go=go, shows=None if as_json else show, **settings)
    if as_json:
        show(result)
    if result.exit_code:
        raise click.exceptions.Exit(result.exit_code)
