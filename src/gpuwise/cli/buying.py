"""gpuwise plan --buy jobs.toml: what to buy for a mix of jobs."""

from __future__ import annotations

import click
from click.core import ParameterSource

from gpuwise.errors import InputError
from gpuwise.step_settings import flag_of

_WITH_BUY = ("buy", "as_json")
buy_option = click.option(
    "--buy", type=click.Path(dir_okay=False), metavar="FILE", help="Instead of JOB: what to buy for the jobs of FILE (TOML)."
)


def checked_job(job: str | None) -> str:
    """The JOB argument, which only --buy does without. Raises click's error for a missing one."""
    context = click.get_current_context()
    if job is None:
        argument = next(parameter for parameter in context.command.params if parameter.name == "job")
        raise click.MissingParameter(ctx=context, param=argument)
    return job


def show_advice(path: str, *, as_json: bool) -> None:
    """Prints the advice. Raises InputError for what does not go with --buy, and the errors of gpuwise.api.buy."""
    from gpuwise import api
    from gpuwise.cli.output import emit
    from gpuwise.plan.advice.mix import job_keys
    from gpuwise.plan.economics.costs_file import FILE_KEYS
    from gpuwise.report.advice import advice_report

    context = click.get_current_context()
    for name in context.params:
        if name not in _WITH_BUY and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            what = f"JOB ({context.params[name]})" if name == "job" else _flag_named(name, context.params[name])
            entry = "[[job]]" if name in job_keys() else f"{name} = ..." if name in FILE_KEYS else ""
            raise InputError(
                f"--buy reads its jobs and their settings from {path}, so {what} has no place beside it.",
                [f"leave out {what}", *([f"write it into the file: {entry}"] if entry else [])],
            )
    emit(api.buy(path), advice_report, as_json=as_json)


def _flag_named(name: str, value: object) -> str:
    """The flag that a value comes from: --no-spot has the name of --spot."""
    return flag_of(f"no_{name}") if value is False else flag_of(name)
