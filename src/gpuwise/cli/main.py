"""The group of verbs. Help is printed from a table, so that no verb is loaded before it is used."""

from __future__ import annotations

import atexit
import gc
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from gpuwise.cli import failure
from gpuwise.cli.stdout import given_back
from gpuwise.cli.streams import flush_stdout, ready_streams
from gpuwise.errors import unknown_name
from gpuwise.version import __version__

VERBS = {
    "plan": "Which hardware, how many, which settings, inside a budget and a deadline.",
    "forecast": "Time, memory, energy and money of one training step on a device.",
    "fit": "The largest micro-batch on a device, and what each memory technique frees and costs.",
    "compare": "A job on several devices side by side, with the reason for each speed-up.",
    "scale": "A job on ever more devices: throughput, efficiency, cost, and where more stop paying.",
    "serve-plan": "What serving a model takes: instances, latencies, dollars.",
    "serve-check": "Serve a job on this machine, with the forecast beside what was measured.",
    "export": "A plan as a file of another trainer: accelerate, transformers, DeepSpeed, ...",
    "train": "Run a job on this machine, as planned.",
    "launch": "A plan as files for Slurm, torchrun, ssh and clouds, and those started.",
    "state": "Whether a run is running, interrupted, done or failed: a word and an exit code for wrappers.",
    "validate": "Forecasts held against real steps on this machine.",
    "measure": "What this machine really does, next to its datasheet.",
    "chips": "The chips of the catalog.",
    "offers": "What can be rented, with prices and their dates.",
    "doctor": "Versions, devices, catalog dates and configuration of this installation.",
    "record": "The step of a job into a file, or the shipped traces again.",
    "completion": "Print the completion script of a shell.",
}
_COLLECT_AFTER = 200_000  # new objects: a plan makes fewer, with all modules
EPILOG = "Start with `gpuwise plan llama3-8b --tokens 20B --budget 20000 --deadline 30d`."


class Verbs(click.Group):
    """Loads gpuwise.cli.<verb> when the verb is used; every failure ends in failure.py."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        return importlib.import_module(f"gpuwise.cli.{cmd_name.replace('-', '_')}").command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise unknown_name("command", args[0], list(VERBS), listing="gpuwise --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def main(self, args: Sequence[str] | None = None, *other: Any, **extra: Any) -> NoReturn:
        ready_streams()
        arguments = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        extra["obj"] = arguments  # what `train` starts its ranks with
        with given_back(), failure.handled(arguments):
            # click returns the code of ctx.exit() here, and whatever a verb returns: ours return None
            code = super().main(arguments, *other, **extra)
            flush_stdout()
        sys.exit(code if isinstance(code, int) else 0)


@click.command(
    "gpuwise", cls=Verbs, epilog=EPILOG, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="gpuwise")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Will my model fit, how long, how much, on what? And then: run it so.

    JOB is a preset (resnet50, llama3-8b), path/to/file.py:name, keras:path/to/file.py:name, hf:<hub id or folder>,
    timm:<model> or a saved trace.
    DEVICE is a chip of `gpuwise chips` with an optional count (h100-sxm:8), or `here`.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run() -> None:
    """The command `gpuwise` in a process of its own.

    `plan` answers in about a second and leaves few cycles of objects. Looking for them while modules are imported, and once
    more when Python ends, takes a tenth of that.
    """
    if sys.argv[1:2] == ["plan"]:
        gc.set_threshold(_COLLECT_AFTER)
        atexit.register(gc.freeze)
    main()
