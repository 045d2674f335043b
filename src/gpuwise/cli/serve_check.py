"""gpuwise serve-check JOB"""

from __future__ import annotations

import sys
from typing import Unpack

import click

from gpuwise.cli.failure import EXIT_INTERRUPTED
from gpuwise.cli.options import JobCommand, job_argument, json_option, settings_options
from gpuwise.serving_settings import CheckSettings


@click.command("serve-check", cls=JobCommand, short_help="Serve a job on this machine, with the forecast beside.")
@job_argument
@settings_options(CheckSettings)
@json_option
def command(job: str, as_json: bool, **settings: Unpack[CheckSettings]) -> None:
    """Serve JOB on this machine: the very requests of a forecast, and its latencies beside those measured.

    The server is plain PyTorch, if no --engine is named.

    Leave the machine alone meanwhile. Ctrl-C ends it early and shows what was measured so far."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.serve_check import serve_check_report

    result = api.serve_check(job, progress=_show, **settings)
    emit(result, serve_check_report, as_json=as_json)
    if result.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)


def _show(words: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{words} ...", err=True)
