"""gpuwise train JOB [--plan plan.toml] [--resume]"""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from gpuwise.cli.failure import tell
from gpuwise.cli.options import JobCommand, job_argument, json_option, settings_options
from gpuwise.cli.stdout import answers
from gpuwise.cli.stopping import stops_interrupt
from gpuwise.errors import GpuwiseError, InputError, NotSavedError, RunEndedError
from gpuwise.step_settings import RunSettings

if TYPE_CHECKING:
    from gpuwise.api import Trainer
    from gpuwise.api.train_keywords import TrainKeywords
    from gpuwise.runtime import TrainResult

AUTO = "auto"  # runs/<job>, the first that is free or to be continued


@click.command("train", cls=JobCommand, short_help="Run a job on this machine.")
@job_argument
@click.option("--plan", type=click.Path(dir_okay=False), help="Run exactly this plan, from `gpuwise plan -o`.")
@click.option("--epochs", type=float, metavar="N", help="Passes over the data set (default 1).")
@click.option("--steps", type=int, metavar="N", help="Optimizer steps, instead of epochs.")
@click.option("--samples", metavar="N", help="Samples in all, such as 1M, instead of epochs.")
@click.option("--tokens", metavar="N", help="Tokens in all, such as 5B, instead of epochs.")
@click.option(
    "--run",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="For checkpoints, log and report; a run in it is continued (default runs/JOB).",
)
@click.option("--no-run", is_flag=True, help="Keep nothing: no checkpoints, no log, no report.")
@click.option(
    "--copy-to",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Copy checkpoints and log there, such as to a mounted bucket; another machine goes on from it.",
)
@click.option("--resume/--no-resume", default=None, help="There must be a run to continue; or, there must be none.")
@click.option("--save-every", metavar="TIME", help="Between checkpoints, such as 10min; chosen without it.")
@click.option("--keep", type=int, default=2, show_default=True, metavar="N", help="Newest checkpoints kept, the best apart.")
@click.option("--interruptions", type=float, metavar="N", help="A day, to choose the time between checkpoints by (1).")
@click.option("--time-limit", metavar="TIME", help="Save and end before it, such as 11h.")
@click.option(
    "--preemption",
    type=click.Choice(("auto", "aws", "gcp", "azure", "none")),
    default="auto",
    show_default=True,
    help="Whose notices that the machine will be taken away to listen to.",
)
@click.option("--evaluate-every", type=int, metavar="N", help="Steps between evaluations by the job.")
@click.option("--monitor", metavar="max:METRIC", help="Keep the checkpoint with the best of a metric; or min:METRIC.")
@click.option("--patience", type=int, metavar="N", help="Stop after so many evaluations without a better one.")
@click.option(
    "--on-nonfinite",
    type=click.Choice(("stop", "skip")),
    default="stop",
    show_default=True,
    help="What to do with a step whose loss or gradients are not finite.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Start the ranks of a mesh again, from the last checkpoint, when one is lost.",
)
@settings_options(RunSettings)
@click.option("--writer", "writers", multiple=True, type=click.Choice(("tensorboard", "wandb")), help="Curves there, too.")
@click.option("--export", type=click.Path(), metavar="FILE", help="At the end, write the weights as safetensors.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False),
    help="Append the log to this file, not to one in the run's folder; a pipe or device gets a copy.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and of the order of data.")
@json_option
def command(job: str, as_json: bool, run: str | None, no_run: bool, export: str | None, **settings: Any) -> None:
    """Run JOB on this machine, with the forecast next to what is measured.

    What is in its folder is continued. Ctrl-C, SIGTERM, SIGUSR1 or a notice of the cloud ends it after the step it is in,
    saved; a second signal ends it at once.

    With --mesh of several devices it starts as many ranks on this machine; under torchrun, srun or a launcher of Kubernetes it
    is one of theirs.

    Exit code: 0 when all is done and on the disk; 3 when the last checkpoint, the log or the report could not be written; 130
    when it was stopped and can go on; 4 when a rank was lost; 2 when the job or the command line is at fault.
    """
    from gpuwise.hardware.detect.ranks import rank_environment

    if rank_environment() is None:  # the agent of ranks tells by their signals which of them failed
        click.get_current_context().with_resource(stops_interrupt())
    from gpuwise import api
    from gpuwise.api.local_ranks import ranks_to_start
    from gpuwise.api.train_keywords import step_keywords
    from gpuwise.cli.output import emit
    from gpuwise.cli.ranks import command_line, speaking_in_turn, start
    from gpuwise.plan.file import load_plan
    from gpuwise.report.train import train_report
    from gpuwise.runs.attempt import failure_noted

    if no_run and run is not None:
        raise click.UsageError("--run and --no-run exclude each other.")
    if as_json and settings["log"] in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        raise click.UsageError("--json has stdout to itself: the log cannot go there, too.")
    if export is not None:
        _check_export(Path(export))
        export = os.path.abspath(export)  # the job may change the working folder
    max_restarts = settings.pop("max_restarts")
    keywords = cast("TrainKeywords", {name: value for name, value in settings.items() if name != "plan"})
    requested = step_keywords(keywords, settings["plan"])
    plan = None if settings["plan"] is None else load_plan(settings["plan"])
    with failure_noted(None if no_run else run):
        ranks = ranks_to_start(job, plan, keywords, requested=requested, max_restarts=max_restarts)
    if no_run and max_restarts:
        raise click.UsageError("--max-restarts goes on from checkpoints, and --no-run keeps none.")
    if no_run and export is not None and (ranks is not None or rank_environment() is not None):
        raise click.UsageError("Several ranks export the weights of a checkpoint, and --no-run keeps none.")
    if ranks is not None:
        raise click.exceptions.Exit(start(command_line(), ranks.count, max_restarts=max_restarts, threads=ranks.threads))
    keywords["run"] = None if no_run else run or AUTO
    keywords["progress"] = "plain" if as_json else "auto"
    with speaking_in_turn() as shows:
        trainer = api.Trainer(job, plan, **keywords)
        try:
            result = trainer.run()
        except RunEndedError as ended:
            if export is None:
                raise
            return _tell_exported(ended, trainer.export(export), as_json=as_json) if shows else None
    if not shows:
        return None
    unwritten = [] if export is None else _export(trainer, export)
    if result.unsaved:
        unwritten.insert(0, _not_saved(result))
    emit(result, train_report, as_json=as_json)
    for error in unwritten:
        tell(error)  # beside the result, which is all that stdout has
    if code := result.exit_code or (unwritten[0].exit_code if unwritten else 0):
        raise click.exceptions.Exit(code)
    return None


def _not_saved(result: TrainResult) -> NotSavedError:
    ways, saved = ["--run FOLDER, or --log FILE, on another disk"], result.checkpoints or {}
    if result.run_folder is not None and saved.get("copied_step", result.steps) != result.steps:
        folders = f"--run {shlex.quote(result.run_folder)} --copy-to {shlex.quote(saved['copied_to'])}"
        ways.insert(0, f"go on with {folders} on this machine: it is copied first")
    if result.run_folder is not None and saved.get("last_step") != result.steps:
        ways.insert(0, f"make room, then go on with --run {shlex.quote(result.run_folder)} --resume")
    return NotSavedError(" ".join(dict.fromkeys(result.unsaved)), ways)


def _export(trainer: Trainer, path: str) -> list[GpuwiseError]:
    """Why the weights were not written; nothing where they were."""
    try:
        trainer.export(path)
    except GpuwiseError as error:
        return [error]
    return []


def _tell_exported(ended: RunEndedError, path: Path, *, as_json: bool) -> None:
    """Of a run that had ended before: that its weights were exported."""
    if as_json:
        result = {"stopped": "finished", "run_folder": ended.folder, "steps": ended.step, "exported": str(path)}
        return click.echo(json.dumps(result, indent=2), file=answers())
    click.echo(f"The run in {ended.folder} has taken all of its {ended.step:,} steps; its weights are exported to {path}.")


def _check_export(path: Path) -> None:
    """Raises InputError where the weights could not be written there, before anything is trained. Makes nothing."""
    folder = path.absolute().parent if path.suffix == ".safetensors" else path.absolute()
    while not os.path.lexists(folder):
        folder = folder.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)) or (path.suffix == ".safetensors" and path.is_dir()):
        raise InputError(f"cannot write the weights to {path}: {folder} is no folder to write to.", ["choose another path"])
