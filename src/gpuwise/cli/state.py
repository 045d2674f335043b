"""gpuwise state RUN"""

from __future__ import annotations

import json

import click

from gpuwise.cli.options import json_option
from gpuwise.cli.stdout import answers


@click.command("state", short_help="Whether a run goes on, for wrappers.")
@click.argument("run", metavar="RUN", type=click.Path())
@json_option
def command(run: str, as_json: bool) -> None:
    """Print one word: where the run in the folder RUN stands.

    done: all steps are taken. interrupted: started again, it goes on; it was stopped, or killed. failed: started again, it
    would fail again. running: a process is at it.

    Exit code: 0 done, 75 interrupted, 1 failed, 3 running, 2 no run there or a damaged state.
    """
    from gpuwise.results.run_status import EXIT_CODES
    from gpuwise.runs.state_file import run_status

    status = run_status(run)
    click.echo(json.dumps(status.to_dict(), indent=2) if as_json else status.state, file=answers())
    raise click.exceptions.Exit(EXIT_CODES[status.state])
