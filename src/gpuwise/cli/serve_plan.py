"""gpuwise serve-plan JOB --rate 5/s --budget 2k"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.cli.pictures import check_plot, serving_plot_option, show_prices
from gpuwise.serving_settings import ServingSettings


@click.command("serve-plan", cls=JobCommand, short_help="What serving a model takes, and on which devices it is cheapest.")
@job_argument
@on_option(
    "Only these devices, separated by commas. h100-sxm:2 is one instance on two devices.", required=False, metavar="A,B,C"
)
@click.option("--rate", metavar="RATE", help="Requests of all users: 5/s, 90/min, 10k/day; the mean of a day.")
@settings_options(ServingSettings)
@serving_plot_option
@json_option
def command(
    job: str, on: str | None, rate: str | None, as_json: bool, plot: str | None, **settings: Unpack[ServingSettings]
) -> None:
    """Instances, latencies and dollars of serving JOB at a rate of requests: text under an engine or, of a model that writes
    none, forward passes of plain PyTorch.

    Without --on: the cheapest of all devices that offers of the catalog sell; of forward passes this machine, too.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.serving import serving_report

    if plot is not None:
        plot = check_plot(plot, flag="--plot", as_json=as_json)
    forecast = api.serve_plan(job, on=on, rate=rate, **settings)
    emit(forecast, serving_report, as_json=as_json)
    if plot is not None:
        show_prices(forecast, plot)
