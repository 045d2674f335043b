"""gpuwise forecast JOB --on DEVICE"""

from __future__ import annotations

from typing import Any

import click

from gpuwise.cli.memory_plot import check_plot, memory_plot_option, show
from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, strategy_options


@click.command("forecast", cls=JobCommand, short_help="One training step on a device.")
@job_argument
@on_option("A chip of `gpuwise chips` with an optional count, h100-sxm:8, or `here`.")
@strategy_options()
@click.option("--compile", is_flag=True, help="The step under torch.compile.")
@memory_plot_option
@json_option
def command(job: str, on: str, as_json: bool, memory_plot: str | None, **strategy: Any) -> None:
    """Time, memory, energy and money of one training step of JOB on a device."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.forecast import forecast_report

    if memory_plot is None:
        emit(api.forecast(job, on=on, **strategy), forecast_report, as_json=as_json)
        return
    check_plot(memory_plot, as_json=as_json)
    timeline = api.memory_timeline(job, on=on, **strategy)
    emit(timeline.forecast, forecast_report, as_json=as_json)
    show(timeline, memory_plot)
