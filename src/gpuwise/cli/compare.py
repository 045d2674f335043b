"""gpuwise compare JOB --on A,B,C"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.step_settings import ClusterSettings


@click.command("compare", cls=JobCommand, short_help="A job on several devices.")
@job_argument
@on_option("Devices or clusters separated by commas, h100-sxm:8x4.", metavar="A,B,C")
@settings_options(ClusterSettings)
@json_option
def command(job: str, on: str, as_json: bool, **settings: Unpack[ClusterSettings]) -> None:
    """JOB on several devices or clusters side by side, with the reason for each speed-up."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.compare import compare_report

    emit(api.compare(job, on=on, **settings), compare_report, as_json=as_json)
