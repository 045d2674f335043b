"""gpuwise plan JOB --runs 1000: machines for many runs."""

from __future__ import annotations

import click
from click.core import ParameterSource

from gpuwise.errors import InputError
from gpuwise.plan_settings import PlanSettings
from gpuwise.step_settings import flag_of

runs_option = click.option("--runs", type=int, metavar="N", help="So many runs of JOB, several on a device where they fit.")
_OF_ONE_RUN = ("output", "why", "plot", "network")  # what a sweep has no use for


def show_sweep(job: str, runs: int, *, on: str | None, own: tuple[str, ...], as_json: bool, settings: PlanSettings) -> None:
    """Prints the machines. Raises InputError for a flag that a sweep has no use for, and the errors of gpuwise.api.sweep."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.report.sweep import sweep_report

    context = click.get_current_context()
    for name in _OF_ONE_RUN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(
                f"--runs has no use for {flag_of(name)}: the runs are planned alike.", [f"leave out {flag_of(name)}"]
            )
    emit(api.sweep(job, runs=runs, on=on, own=own, **settings), sweep_report, as_json=as_json)
