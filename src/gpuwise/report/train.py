"""A TrainResult as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from gpuwise.report.parts import grid, notes, percent, rate, strategy_words
from gpuwise.step_settings import job_word
from gpuwise.units import format_bytes, format_duration, format_usd

if TYPE_CHECKING:
    from gpuwise.results.training import TrainResult

_STOPPED = {"finished": "trained", "early stop": "stopped early", "time limit": "stopped at its time limit"}


def train_report(result: TrainResult) -> Group:
    """The state of a run: loss, pace, the forecast beside the measurement, saved files, and how to continue."""
    how = _STOPPED.get(result.stopped, result.stopped)
    parts: list[RenderableType] = [
        Text(
            f"{result.job} {how} on {result.device}: {strategy_words(result.strategy)}, {result.samples:,} samples",
            style="bold",
        ),
        Text(""),
        grid([*_course(result), *_measured(result), *_kept(result)]),
    ]
    return Group(*parts, *notes("notes", result.notes))


def _course(result: TrainResult) -> Iterator[tuple[str, str]]:
    if result.stop_reason is not None:
        yield "stopped", result.stop_reason
    if not result.steps:
        yield "loss", "no step was taken"
        return
    yield "loss", f"{result.first_loss:.4g} at first, {result.last_loss:.4g} at the end"
    if result.loss_parts:
        yield "its parts", ", ".join(f"{name} {value:.4g}" for name, value in result.loss_parts.items())
    if result.skipped_steps or result.spikes:
        counts = ((result.skipped_steps, "skipped step"), (result.spikes, "loss spike"))
        yield "trouble", ", ".join(f"{count:,} {name}{'s' * (count > 1)}" for count, name in counts if count)
    for name, value in result.metrics.items():
        yield name, f"{value:.4g}"
    if result.best is not None:
        yield "best", f"{result.best['metric']} {result.best['value']:.4g} at step {result.best['step']:,}"


def _measured(result: TrainResult) -> Iterator[tuple[str, str]]:
    step, check, memory = result.step_time, result.forecast, result.memory_check
    mfu = "" if result.mfu is None else f", MFU {percent(result.mfu)}"
    went_on = "" if result.resumed_from is None else f", resumed from step {result.resumed_from:,}"
    yield (
        "pace",
        (f"{rate(result.samples_per_s, 'samples')}{mfu}, {result.steps:,} steps in {format_duration(result.wall_s)}{went_on}"),
    )
    yield (
        "step",
        (f"{format_duration(step.median_s)} measured ({format_duration(step.low_s)} to {format_duration(step.high_s)})"),
    )
    if check is not None:
        verdict = f"{'inside' if check.inside else 'outside'} its interval"
        if check.available < 1:
            left = f"the {percent(check.available)} of the processors that others left it"
            slower = not check.inside and check.measured_s > check.forecast_s  # waiting for a core is no fault of the forecast
            verdict = f"not comparable: it had {left}" if slower else f"{verdict} for {left}"
        yield (
            "forecast",
            (
                f"{format_duration(check.forecast_s)} ({format_duration(check.low_s)} to "
                f"{format_duration(check.high_s)}): {check.error:+.0%}, {verdict}"
            ),
        )
    if result.peak_memory_bytes is not None:
        forecast = "; so little is not compared with a forecast, which counts tensors alone" if check is not None else ""
        if memory is not None:
            forecast = f"; forecast {format_bytes(memory.forecast_bytes)}: {memory.error:+.0%}"
        yield "memory", f"{format_bytes(result.peak_memory_bytes)} at most, above what the process had before{forecast}"
    if result.data_share >= 0.005:
        yield "data", f"{percent(result.data_share)} of the time went into waiting for it"
    if result.usd is not None:
        yield "cost", format_usd(result.usd)


def _kept(result: TrainResult) -> Iterator[tuple[str, str]]:
    saved = result.checkpoints
    if saved is not None:
        words = f"{saved['count']:,} saved"
        if saved["count"]:
            words += (
                f", the last of step {saved['last_step']:,} ({format_bytes(saved['bytes'])}); they held the run up for "
                f"{format_duration(saved['held_up_s'])}"
            )
        if saved.get("problem"):
            words += f"; the latest could not be saved: {saved['problem']}"
        yield "checkpoints", words
        if saved["sentence"]:
            yield "", saved["sentence"]
        if "copied_to" in saved:
            copied = saved["copied_step"]
            yield "copied", "nothing yet" if copied is None else f"the one of step {copied:,} to {saved['copied_to']}"
    if result.run_folder is not None:
        yield "run", result.run_folder
        if result.interrupted:
            folders = f"--run {shlex.quote(result.run_folder)}"
            if saved is not None and "copied_to" in saved:
                folders += f" --copy-to {shlex.quote(saved['copied_to'])}"
            yield "go on with", f"gpuwise train {job_word(result.job_argument)} {folders} --resume"
    if result.log_path is not None:
        yield "log", result.log_path
    if result.run_folder is not None and result.usd is not None:
        yield "beside the plan", f"gpuwise state {shlex.quote(result.run_folder)} --costs"
