"""gpuwise fit JOB --on DEVICE"""

from __future__ import annotations

from typing import Any

import click

from gpuwise.cli.options import JobCommand, job_argument, json_option, on_option, strategy_options
from gpuwise.strategy import TECHNIQUES


@click.command("fit", cls=JobCommand, short_help="The largest micro-batch on a device.")
@job_argument
@on_option("A chip of `gpuwise chips` with an optional count, rtx-4090:2, or `here`.")
@strategy_options(without=("accumulate", "mesh", *TECHNIQUES))
@json_option
def command(job: str, on: str, as_json: bool, **strategy: Any) -> None:
    """The largest micro-batch of JOB on a device, and what each memory technique would free and cost."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.fit import fit_report

    emit(api.fit(job, on=on, **strategy), fit_report, as_json=as_json)
