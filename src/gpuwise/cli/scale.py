"""gpuwise scale JOB --on CHIP:8x64"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.cli.pictures import check_plot, scaling_plot_option, show_scaling
from gpuwise.step_settings import ClusterSettings


@click.command("scale", cls=JobCommand, short_help="A job on ever more devices.")
@job_argument
@on_option("The most devices: h100-sxm:8x64, 64 machines of 8, or h100-sxm:512.")
@click.option("--global-batch", type=int, metavar="N", help="Samples of each step, shared by all devices (strong scaling).")
@settings_options(ClusterSettings)
@scaling_plot_option
@json_option
def command(
    job: str, on: str, global_batch: int | None, as_json: bool, plot: str | None, **settings: Unpack[ClusterSettings]
) -> None:
    """JOB on 1, 2, 4 and so on up to all devices of a cluster: throughput, efficiency, cost, and where more stop paying.

    --mesh says what stays the same (tp=8,pp=4, or shards of dp_shard=8); the rest of the devices is data parallel.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.scaling import scaling_report

    if plot is not None:
        plot = check_plot(plot, flag="--plot", as_json=as_json, suffixes=(".svg",))
    curve = api.scale(job, on=on, global_batch=global_batch, **settings)
    emit(curve, scaling_report, as_json=as_json)
    if plot is not None:
        show_scaling(curve, plot)
