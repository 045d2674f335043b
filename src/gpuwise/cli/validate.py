"""gpuwise validate JOB... | gpuwise validate --suite"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Unpack

import click

from gpuwise.cli.failure import EXIT_INTERRUPTED, EXIT_UNEXPECTED
from gpuwise.cli.options import JobCommand, complete_job, json_option, settings_options
from gpuwise.step_settings import DeviceSettings

if TYPE_CHECKING:
    from gpuwise.api.validating import Doing
    from gpuwise.results.validation import Trial


class _ValidateCommand(JobCommand):
    """Its help ends with the presets and the members of the suite."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from gpuwise.measure.suite import SUITE

        super().format_epilog(ctx, formatter)
        with formatter.section("Suite"):
            formatter.write_dl([(member.name, member.words) for member in SUITE.values()])


@click.command("validate", cls=_ValidateCommand, short_help="Forecasts held against real steps on this machine.")
@click.argument("jobs", metavar="JOB...", nargs=-1, shell_complete=complete_job)
@click.option("--suite", is_flag=True, help="A dozen kinds of networks at sizes that suit this machine; JOB... picks of them.")
@click.option("--steps", type=int, metavar="N", help="Steps timed (at least 7 and 5 s, 40 s at most).")
@settings_options(DeviceSettings)
@click.option("--report", "page", metavar="FILE", help="Write the result as a page, too: FILE.md or FILE.html.")
@json_option
def command(
    jobs: tuple[str, ...], as_json: bool, page: str | None, suite: bool, steps: int | None, **settings: Unpack[DeviceSettings]
) -> None:
    """Forecast a step of each JOB for this machine, run real ones, and hold both side by side. What was measured is kept, and
    `gpuwise forecast JOB --on here` gives it from then on. Ctrl-C keeps what is done.

    With --mesh of several devices the steps run on as many ranks of this machine; what they took is not kept."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.validate import validate_report

    if page is not None:
        from gpuwise.report.validate_page import check_page

        page = str(check_page(page).absolute())  # a job may change the working folder
    result = api.validate(jobs, suite=suite, steps=steps, on_progress=_show, **settings)
    emit(result, validate_report, as_json=as_json)
    if page is not None:
        from gpuwise.report.validate_page import save_page

        click.echo(f"report written to {save_page(result, page)}", err=True)
    for note in result.notes:
        click.echo(f"note: {note}", err=True)
    if result.interrupted:
        raise click.exceptions.Exit(EXIT_INTERRUPTED)
    if result.failed:
        raise click.exceptions.Exit(EXIT_UNEXPECTED)


def _show(doing: Doing) -> None:
    """On a terminal one line a job, written over as it goes; elsewhere a line a job when it is done."""
    job = f"{doing.number}/{doing.total} {doing.job}"
    live = sys.stderr.isatty()
    if doing.trial is not None:
        click.echo(f"{_CLEAR if live else ''}{job}: {_outcome(doing.trial)}", err=True)
    elif live:
        click.echo(f"{_CLEAR}{job}: {doing.what} ...", err=True, nl=False)


_CLEAR = "\r\x1b[2K"


def _outcome(trial: Trial) -> str:
    from gpuwise.units import format_duration

    if trial.measured is None or trial.expected is None or trial.error is None:
        return trial.outcome
    return (
        f"{format_duration(trial.measured.step.median_s)} a step, forecast {format_duration(trial.expected.value)} "
        f"({trial.error:+.0%})"
    )
