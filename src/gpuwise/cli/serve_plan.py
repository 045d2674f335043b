"""gpuwise serve-plan JOB --rate 5/s --budget 2k"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.serving_settings import ServingSettings


@click.command("serve-plan", cls=JobCommand, short_help="What serving a model takes, and on which devices it is cheapest.")
@job_argument
@on_option(
    "Only these devices, separated by commas. h100-sxm:2 is one instance on two devices.", required=False, metavar="A,B,C"
)
@click.option("--rate", required=True, metavar="RATE", help="Requests of all users: 5/s, 90/min, 10k/day.")
@settings_options(ServingSettings)
@json_option
def command(job: str, on: str | None, rate: str, as_json: bool, **settings: Unpack[ServingSettings]) -> None:
    """Instances, latencies and dollars of serving JOB at a rate of requests: text under an engine or, of a model that writes
    none, forward passes of plain PyTorch.

    Without --on: the cheapest of all devices that offers of the catalog sell; of forward passes this machine, too.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.serving import serving_report

    emit(api.serve_plan(job, on=on, rate=rate, **settings), serving_report, as_json=as_json)
