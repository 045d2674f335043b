"""export: a plan as a file of another trainer, with what the forecast of its nearest strategy differs by."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from typing import cast

from gpuwise.api.forecasting import forecast_step
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.sources import source_of
from gpuwise.atomic import written_whole
from gpuwise.cost import Forecast
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.export.settle import settings_of_strategy
from gpuwise.export.targets import target_of
from gpuwise.export.types import Exported, StepDifference
from gpuwise.export.values import values_of_strategy
from gpuwise.export.writing import exported
from gpuwise.plain_files import read_regular
from gpuwise.plan.file import LARGEST_BYTES, load_plan, plan_bytes
from gpuwise.plan.types import Plan
from gpuwise.step_settings import ClusterSettings, JobSizes
from gpuwise.strategy import Strategy
from gpuwise.trace.presets.table import PRESETS


@plainly
def export(
    plan: Plan | str | os.PathLike[str], *, to: str, output: str | os.PathLike[str] | None = None, job: str | None = None
) -> Exported:
    """A plan as a file of another trainer; each field exactly, approximately or in the user's script, or refused.

    Arguments:
        plan: a Plan, or a plan file.
        to: one of gpuwise.export.TARGETS, or keras or tensorflow for a script of a Keras model.
        output: the file to write. None writes none; the text is in the result.
        job: as for `forecast`, to price what the trainer does otherwise. A plan of a preset needs none. Code that a plan file
            names is not run.

    Raises FileFormatError for a damaged plan, UnsupportedError for a field that the trainer cannot have, UnknownNameError for
    an unknown target, JobError for a job that the plan was not made for, and InputError for a file that cannot be written.
    """
    target = target_of(to)
    if isinstance(plan, Plan):
        loaded, content = plan, plan_bytes(plan)
    else:
        loaded = load_plan(plan)
        content = read_regular(plan, limit_bytes=LARGEST_BYTES)
    name = os.path.basename(os.fspath(output)) if output is not None else _usual_name(to, target.suffix)
    if name == f"{to}.py":
        raise InputError(
            f"{name} would hide {to} itself from programs in its folder: Python imports the file.",
            [f"-o {_usual_name(to, target.suffix)}"],
        )
    result = exported(loaded, target, file=name, plan_sha256=sha256(content).hexdigest(), on_cpu=loaded.on_cpu)
    result = replace(result, difference=_difference(loaded, result.strategy, job))
    if output is not None:
        _write(result.text, output)
    return result


def _usual_name(to: str, suffix: str) -> str:
    """Of a file that nobody named. A module of the trainer's own name would be imported in place of the trainer."""
    return f"planned_{to}.{suffix}" if suffix == "py" else f"{to}.{suffix}"


def _difference(plan: Plan, nearest: Strategy, job: str | None) -> StepDifference | None:
    """The forecasts of both strategies. None where they are one, and where the job's code would have to run unasked."""
    before, after = values_of_strategy(plan.strategy), values_of_strategy(nearest)
    changed = tuple(name for name, value in before.items() if value != after[name])
    argument = job or (plan.job_argument if plan.job_argument in PRESETS else None)
    if not changed or argument is None:
        return None
    source = source_of(argument, **cast(JobSizes, dict(plan.sizes)))
    on = f"{plan.device}:{round(plan.count) // plan.machines}" + (f"x{plan.machines}" if plan.machines > 1 else "")
    try:
        mine, theirs = (
            forecast_step(source, on, history=False, named=(), **cast(ClusterSettings, settings_of_strategy(strategy)))
            for strategy in (plan.strategy, nearest)
        )
    except UnsupportedError:
        return None
    plan.check_job(mine.trace.header.fingerprint)
    return _beside(changed, mine.forecast, theirs.forecast)


def _beside(changed: tuple[str, ...], mine: Forecast, theirs: Forecast) -> StepDifference:
    return StepDifference(
        changed,
        (mine.step_time_s.value, theirs.step_time_s.value),
        (mine.memory.device_bytes, theirs.memory.device_bytes),
        theirs.memory.fits,
    )


def _write(text: str, output: str | os.PathLike[str]) -> None:
    try:
        with written_whole(output) as file:
            file.write(text.encode(errors="replace"))
    except OSError as error:
        raise InputError(
            f"cannot write {os.fspath(output)}: {error.strerror or error}.",
            ["name a file in a folder that exists and can be written"],
        ) from None
