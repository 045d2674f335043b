"""gpuwise plan JOB --tokens 20B --budget 20000 --deadline 30d"""

from __future__ import annotations

import os
import shlex
from typing import Unpack

import click

from gpuwise.cli.buying import buy_option, checked_job, show_advice
from gpuwise.cli.options import JobCommand, json_option, on_option, optional_job_argument, settings_options
from gpuwise.cli.pictures import check_plot, front_plot_option, show_front
from gpuwise.cli.sweeping import runs_option, show_sweep
from gpuwise.plan_settings import LimitSettings, OfferSettings, PlanSettings, SearchSettings
from gpuwise.step_settings import NetworkSettings, job_word, settings_of

_SHOWN_FIRST = [
    name for group in (LimitSettings, NetworkSettings, OfferSettings, SearchSettings) for name in settings_of(group)
]


@click.command("plan", cls=JobCommand, short_help="Hardware and settings inside a budget.")
@optional_job_argument
@buy_option
@runs_option
@settings_options(LimitSettings)
@on_option("Only these devices, separated by commas.", required=False, metavar="A,B")
@click.option("--own", multiple=True, metavar="DEVICE:N", help="Machines you have: rtx-4090:2, h100-sxm:8x4. Repeatable.")
@settings_options(NetworkSettings)
@settings_options(OfferSettings)
@settings_options(SearchSettings)
@settings_options(PlanSettings, without=_SHOWN_FIRST)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the best plan to this file (TOML).")
@click.option("--why", multiple=True, metavar="PLAN", help="Explain the first plan and this: 2, h100-sxm:8. Repeatable.")
@front_plot_option
@json_option
def command(
    job: str | None,
    buy: str | None,
    runs: int | None,
    on: str | None,
    own: tuple[str, ...],
    output: str | None,
    why: tuple[str, ...],
    plot: str | None,
    as_json: bool,
    **settings: Unpack[PlanSettings],
) -> None:
    """Which hardware to train JOB on, how many, with which settings and bought how, best first."""
    from gpuwise import api
    from gpuwise.cli.classical import forecast_classical
    from gpuwise.cli.output import emit
    from gpuwise.plan.file import save_plan
    from gpuwise.report.plan import plan_report

    if buy is not None:
        return show_advice(buy, as_json=as_json)
    job = checked_job(job)
    if runs is not None:
        return show_sweep(job, runs, on=on, own=own, as_json=as_json, settings=settings)
    if forecast_classical(job, on, {**settings, "own": own, "output": output}, as_json=as_json):
        return
    target = None if output is None else os.path.abspath(output)  # the job may change the working folder
    if plot is not None:
        plot = check_plot(plot, flag="--plot", as_json=as_json)
    result = api.plan(job, on=on, own=own, why=why or None, **settings)
    if output is not None and target is not None:
        save_plan(result.best, target)
        click.echo(f"wrote {output}; run it with `gpuwise train {job_word(job)} --plan {shlex.quote(output)}`", err=True)
    emit(result, plan_report, as_json=as_json)
    if plot is not None and result.front is not None:
        show_front(result.front, plot)
