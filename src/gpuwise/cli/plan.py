"""gpuwise plan JOB --tokens 20B --budget 20000 --deadline 30d"""

from __future__ import annotations

import os
import shlex
from typing import Any

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, settings_options
from gpuwise.step_settings import PlanSettings, job_word


@click.command("plan", cls=JobCommand, short_help="Hardware and settings inside a budget.")
@job_argument
@click.option("--budget", metavar="USD", help="Spend at most this, e.g. 20000 or $20k.")
@click.option("--deadline", metavar="TIME", help="Be done within this, e.g. 3d or 12h.")
@on_option("Only these devices, separated by commas.", required=False, metavar="A,B")
@click.option("--own", multiple=True, metavar="DEVICE:N", help="A machine you have, e.g. rtx-4090:2. Repeatable.")
@click.option("--spot/--no-spot", default=None, help="Only spot prices, or none; both by default.")
@click.option("--stale", is_flag=True, help="Rank offers whose price is over a year older than the newest, too.")
@click.option("--xla", is_flag=True, help="Rank what `gpuwise train` cannot run (PyTorch/XLA, several devices) by price, too.")
@click.option("--global-batch", type=int, metavar="N", help="Samples an optimizer step, over all devices.")
@click.option("--interruptions", type=float, metavar="N", help="Interruptions of a spot machine, a day.")
@click.option("--electricity", type=float, metavar="USD", help="Dollars a kWh, for your own machines.")
@settings_options(PlanSettings)
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the best plan to this file (TOML).")
@json_option
def command(job: str, output: str | None, as_json: bool, **request: Any) -> None:
    """Which hardware to train JOB on, how many, with which settings and bought how, best first."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.plan.file import save_plan
    from gpuwise.report.plan import plan_report

    target = None if output is None else os.path.abspath(output)  # the job may change the working folder
    result = api.plan(job, **request)
    if output is not None and target is not None:
        save_plan(result.best, target)
        click.echo(f"wrote {output}; run it with `gpuwise train {job_word(job)} --plan {shlex.quote(output)}`", err=True)
    emit(result, plan_report, as_json=as_json)
