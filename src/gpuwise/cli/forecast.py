"""gpuwise forecast JOB --on DEVICE"""

from __future__ import annotations

from typing import Unpack

import click

from gpuwise.cli.config_files import config_option, forecast_file
from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.cli.pictures import (
    check_plot,
    memory_plot_option,
    roofline_plot_option,
    show_memory,
    show_roofline,
    show_timeline,
    timeline_option,
)
from gpuwise.step_settings import ForecastSettings


@click.command("forecast", cls=JobCommand, short_help="One training step on a device.")
@job_argument
@on_option("A chip of `gpuwise chips` with an optional count, h100-sxm:8, or `here`.")
@settings_options(ForecastSettings)
@config_option
@memory_plot_option
@roofline_plot_option
@timeline_option
@json_option
def command(
    job: str,
    on: str,
    as_json: bool,
    memory_plot: str | None,
    roofline_plot: str | None,
    timeline: str | None,
    config: str | None,
    config_kind: str | None,
    **settings: Unpack[ForecastSettings],
) -> None:
    """Time, memory, energy and money of one training step of JOB on a device, and of the whole run where --tokens, --samples or
    --epochs say how long it is."""
    from gpuwise import api
    from gpuwise.cli.classical import forecast_classical
    from gpuwise.cli.output import emit
    from gpuwise.report.forecast import forecast_report

    if config is not None:
        forecast_file(job, on, config, config_kind, settings, as_json=as_json)
        return
    pictures = {"memory_plot": memory_plot, "roofline_plot": roofline_plot, "timeline": timeline}
    if forecast_classical(job, on, {**settings, **pictures}, as_json=as_json):
        return
    if memory_plot is not None:
        memory_plot = check_plot(memory_plot, flag="--memory-plot", as_json=as_json)
    if roofline_plot is not None:
        roofline_plot = check_plot(roofline_plot, flag="--roofline-plot", as_json=as_json)
    if timeline is not None:
        timeline = check_plot(timeline, flag="--timeline", as_json=as_json, suffixes=(".svg", ".json"))
    memory = None if memory_plot is None else api.memory_timeline(job, on=on, **settings)
    roofline = None if roofline_plot is None else api.roofline(job, on=on, **settings)
    over_time = None if timeline is None else api.step_timeline(job, on=on, **settings)
    drawn = memory or roofline or over_time
    result = (drawn.forecast if drawn else None) or api.forecast(job, on=on, **settings)
    emit(result, forecast_report, as_json=as_json)
    if memory is not None and memory_plot is not None:
        show_memory(memory, memory_plot)
    if roofline is not None and roofline_plot is not None:
        show_roofline(roofline, roofline_plot)
    if over_time is not None and timeline is not None:
        show_timeline(over_time, timeline)
