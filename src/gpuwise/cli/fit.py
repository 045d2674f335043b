"""gpuwise fit JOB --on DEVICE"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.cli.pictures import check_plot, memory_plot_option, show_memory
from gpuwise.step_settings import ClusterSettings


@click.command("fit", cls=JobCommand, short_help="The largest micro-batch on a device.")
@job_argument
@on_option("A chip of `gpuwise chips` with an optional count, rtx-4090:2, or `here`.")
@settings_options(ClusterSettings)
@click.option("--every-technique", is_flag=True, help="Trace the job anew for each technique that needs it: seconds each.")
@memory_plot_option
@json_option
def command(
    job: str, on: str, as_json: bool, memory_plot: str | None, every_technique: bool, **settings: Unpack[ClusterSettings]
) -> None:
    """The largest micro-batch of JOB on a device, where memory peaks, and what each technique would free and cost."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.fit import fit_report

    if memory_plot is not None:
        memory_plot = check_plot(memory_plot, flag="--memory-plot", as_json=as_json)
    result = api.fit(job, on=on, every_technique=every_technique, **settings)
    emit(result, fit_report, as_json=as_json)
    if memory_plot is not None:
        shown = result.rows[0].strategy
        settings = {**settings, "micro_batch": shown.micro_batch, "precision": shown.precision, "mesh": shown.mesh}
        show_memory(api.memory_timeline(job, on=on, **settings), memory_plot)
