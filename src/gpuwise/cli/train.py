"""gpuwise train JOB [--plan plan.toml]"""

from __future__ import annotations

from typing import Any

import click

from gpuwise.cli.failure import EXIT_INTERRUPTED
from gpuwise.cli.options import JobCommand, job_argument, json_option, strategy_options


@click.command("train", cls=JobCommand, short_help="Run a job on this machine.")
@job_argument
@click.option("--plan", type=click.Path(dir_okay=False), help="Run exactly this plan, from `gpuwise plan -o`.")
@click.option("--epochs", type=float, metavar="N", help="Passes over the data set (default 1).")
@click.option("--steps", type=int, metavar="N", help="Optimizer steps, instead of epochs.")
@strategy_options(without=("mesh", "mode"))
@click.option("--log", type=click.Path(dir_okay=False), help="Append one JSON line a step to this file.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and of the order of data.")
@json_option
def command(job: str, as_json: bool, **settings: Any) -> None:
    """Run JOB on this machine, with the forecast next to what is measured. Ctrl-C ends it after the step it is in."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.train import train_report

    result = api.train(job, progress="plain" if as_json else "auto", **settings)
    emit(result, train_report, as_json=as_json)
    if result.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
