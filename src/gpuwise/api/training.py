"""train on this machine: the job and strategy a plan or flags name, its forecast, and the run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuwise.api.devices import substrate_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.sources import job_of, usual_micro_batch
from gpuwise.api.traced import JobSource
from gpuwise.cost import Forecast, price
from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.plan.types import Plan
from gpuwise.strategy import TECHNIQUES, Strategy
from gpuwise.trace.sharded import data_parallel

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.runtime import TrainResult


def train_here(job: str | Job, plan: Plan | None, settings: Mapping[str, Any], *, sizes: Mapping[str, int | None],
               epochs: float | None, steps: int | None, seed: int, log: str | os.PathLike[str] | None,
               progress: str) -> TrainResult:  # fmt: skip
    """See gpuwise.api.train. settings: fields of a Strategy, `accumulate` for its accumulation."""
    from gpuwise.job.dependencies import require

    if plan is not None:
        _check_same_sizes(plan, sizes)
        sizes = plan.sizes
    sizes = {name: value for name, value in sizes.items() if value is not None}
    require("torch", purpose="train")
    from gpuwise.runtime import train

    resolved = job_of(job, **sizes) if plan is None else _planned_job(job, plan)
    chip, capacity_bytes, device = _this_device()
    if plan is not None:
        _check_device(plan, chip)
    strategy = plan.strategy if plan is not None else _strategy(resolved, settings, device)
    expected = _forecast(resolved, strategy, chip, capacity_bytes)
    if plan is not None and steps is None and epochs is None:
        steps = plan.steps
    return train(resolved, strategy, steps=steps, epochs=epochs, device=device, seed=seed, log_path=log,
                 forecast=expected, progress=progress)  # fmt: skip


def _check_same_sizes(plan: Plan, sizes: Mapping[str, int | None]) -> None:
    for name, value in sizes.items():
        if value is not None and plan.sizes.get(name) != value:
            raise InputError(f"the plan is for {name} {plan.sizes.get(name)}, not {value}.",
                             [f"leave out --{name.replace('_', '-')}", "plan again"])  # fmt: skip


def _planned_job(argument: str | Job, plan: Plan) -> Job:
    """The job at the plan's sizes. Raises JobError where the plan is for another job.

    A recording's fingerprint is of the job's usual sizes, so those are tried as well.
    """
    from gpuwise.job import fingerprint

    try:
        resolved = job_of(argument, **plan.sizes)
    except GpuwiseError as error:
        job_of(argument)  # raises where the job is at fault, not the sizes
        raise JobError(f"this plan is for another job: it was made for {plan.job} at "
                       f"{', '.join(f'{name} {value}' for name, value in plan.sizes.items())}. {error.what}",
                       ["plan again: gpuwise plan JOB -o plan.toml",
                        f"run the job it was made for: {plan.job_argument or plan.job}"]) from error  # fmt: skip
    ours = fingerprint(resolved)
    if plan.job_fingerprint != ours and isinstance(argument, str):
        usual = fingerprint(job_of(argument))
        ours = usual if plan.job_fingerprint == usual else ours
    plan.check_job(ours)
    return resolved


def _check_device(plan: Plan, here: Chip) -> None:
    """Raises UnsupportedError where the plan is for other devices: its batch and precision were chosen for those."""
    planned = load_catalog().chips.get(plan.device)
    cpus = here.kind == "cpu" and (plan.device == here.id or (planned is not None and planned.kind == "cpu"))
    if plan.device == here.id or cpus:
        return
    strategy, job = plan.strategy, plan.job_argument or "JOB"
    flags = f"--micro-batch {strategy.micro_batch} --accumulate {strategy.accumulation} --precision {strategy.precision}"
    raise UnsupportedError(f"this plan is for {plan.count:g} x {plan.device} ({plan.offer.provider} "
                           f"{plan.offer.instance}); this machine is {here.id} ({here.name}).",
                           [f"plan for this machine: gpuwise plan {job} --on here -o plan.toml",
                            f"try its settings here: gpuwise train {job} {flags}"])  # fmt: skip


def _this_device() -> tuple[Chip, int | None, str]:
    """The chip that runs here, the memory its programs can use, and PyTorch's name for it."""
    import torch

    from gpuwise.hardware.detect import detect_cpu, local_cpu_chip

    catalog = load_catalog()
    machine = detect_machine(catalog)
    if machine.chip.kind == "cpu":
        return machine.chip, machine.host_memory_bytes, "cpu"
    if torch.cuda.is_available():
        return machine.chip, machine.chip.usable_memory_bytes, "cuda"
    return local_cpu_chip(detect_cpu(), catalog), machine.host_memory_bytes, "cpu"


def _strategy(job: Job, settings: Mapping[str, Any], device: str) -> Strategy:
    """What the user named; else full precision on a CPU, whose short formats are seldom faster, and the usual batch."""
    fields = dict(settings)
    if "accumulate" in fields:
        fields["accumulation"] = fields.pop("accumulate")
    defaults = {
        "micro_batch": usual_micro_batch(job.tokens_per_sample),
        "precision": "fp32" if device == "cpu" else "amp-bf16",
    }
    unknown = set(fields) - {"micro_batch", "accumulation", "precision", "recompute", "optimizer", "channels_last", *TECHNIQUES}
    if unknown:
        raise InputError(f"train does not take {', '.join(sorted(unknown))}.")
    return Strategy(**{**defaults, **fields})


def _forecast(job: Job, strategy: Strategy, chip: Chip, capacity_bytes: int | None) -> Forecast | None:
    """The forecast of a step here; None, with a warning, where there can be none. Never stops a run."""
    if strategy.mesh.devices != 1:
        return None  # the runtime refuses it with its own words
    source = JobSource(job, "", {})
    try:
        trace = source.trace(strategy, substrate=substrate_of(chip))
        single, communication = data_parallel(trace, strategy)
        # The loop copies a batch when it needs it.
        model = price(single, communication, chip, count=1, capacity_bytes=capacity_bytes, strategy=strategy, prefetched=False)
        return as_last_measured(model, single, strategy, chip)
    except GpuwiseError as error:
        import warnings

        warnings.warn(f"no forecast to compare with: {error.what}", stacklevel=2)
        return None
