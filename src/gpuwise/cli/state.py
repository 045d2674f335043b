"""gpuwise state RUN"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gpuwise.cli.options import json_option
from gpuwise.cli.stdout import answers

if TYPE_CHECKING:
    from gpuwise.results.run_status import RunStatus


@click.command("state", short_help="Whether a run goes on, for wrappers.")
@click.argument("run", metavar="RUN", type=click.Path())
@click.option(
    "--tries",
    type=click.IntRange(min=1),
    metavar="N",
    help="Call an interrupted run failed once N starts in a row have saved nothing.",
)
@click.option("--costs", is_flag=True, help="Print the time and money of all attempts, beside the plan.")
@click.option("--log", type=click.Path(dir_okay=False), help="The log for --costs, if it is not in RUN.")
@json_option
def command(run: str, as_json: bool, tries: int | None, costs: bool, log: str | None) -> None:
    """Print one word: where the run in the folder RUN stands. With --costs: what it has taken, beside its plan.

    done: all steps are taken. interrupted: started again, it goes on; it was stopped, or killed. failed: started again, it
    would fail again. running: a process is at it.

    Exit code: 0 done, 75 interrupted, 1 failed, 3 running, 2 no run there or a damaged state.
    """
    from gpuwise.results.run_status import EXIT_CODES, FAILED
    from gpuwise.runs.state_file import run_status

    status = run_status(run)
    if tries is not None and status.may_continue and status.attempts_without_checkpoint >= tries:
        status = replace(status, state=FAILED)
    if costs or log is not None:
        _show_costs(run, status, as_json=as_json, log=log)
    else:
        click.echo(json.dumps(status.to_dict(), indent=2) if as_json else status.state, file=answers())
    raise click.exceptions.Exit(EXIT_CODES[status.state])


def _show_costs(run: str, status: RunStatus, *, as_json: bool, log: str | None) -> None:
    """The report; under --json the state with `costs`. Loaded where it is used: a wrapper wants the word at once."""
    from gpuwise.cli.output import emit
    from gpuwise.report.json import to_json
    from gpuwise.report.run_costs import run_costs_report
    from gpuwise.runs.costs import run_costs

    costs = run_costs(run, log=log)
    if as_json:
        click.echo(to_json({**status.to_dict(), "costs": costs.to_dict()}), file=answers())
    else:
        emit(costs, run_costs_report, as_json=False)
