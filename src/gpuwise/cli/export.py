"""gpuwise export plan.toml --to TRAINER"""

from __future__ import annotations

from functools import partial

import click

from gpuwise.cli.options import JobCommand, json_option
from gpuwise.export.targets import SCRIPTS, TARGETS


@click.command("export", cls=JobCommand, short_help="A plan as a file of the trainer you already use.")
@click.argument("plan", metavar="PLAN", type=click.Path())
@click.option("--to", required=True, metavar="TRAINER", help=f"One of {', '.join((*TARGETS, *SCRIPTS))}.")
@click.option("-o", "--output", type=click.Path(), help="Write this file; without it, the file is shown.")
@click.option("--job", metavar="JOB", help="The plan's job, to price what the trainer does otherwise.")
@json_option
def command(plan: str, to: str, output: str | None, job: str | None, as_json: bool) -> None:
    """A plan file as a file of another trainer: each setting exactly, approximately or for your script, or refused.

    PLAN is what `gpuwise plan JOB -o plan.toml` writes.
    """
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.export import export_report

    result = api.export(plan, to=to, output=output, job=job)
    emit(result, partial(export_report, with_text=output is None), as_json=as_json)
    if output is not None:
        click.echo(f"wrote {output}", err=True)
