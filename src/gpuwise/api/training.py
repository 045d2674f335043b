"""Trainer: the job and strategy that a plan or flags name, their forecast, and the run on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuwise.api.devices import substrate_of
from gpuwise.api.measured import as_last_measured
from gpuwise.api.source import Source
from gpuwise.api.sources import TRACE_SUFFIX, job_of, source_of, usual_micro_batch
from gpuwise.api.traced import JobSource, NamedSource
from gpuwise.cost import Forecast, price
from gpuwise.errors import GpuwiseError, InputError, JobError, UnsupportedError
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.plan.types import Plan
from gpuwise.strategy import HOST_FIELDS, TECHNIQUES, Strategy
from gpuwise.trace.sharded import data_parallel
from gpuwise.units import parse_count, parse_duration

if TYPE_CHECKING:
    import torch

    from gpuwise.job import Job
    from gpuwise.runtime import TrainedStep, Training, TrainResult, TrainSettings

AUTO = "auto"  # a run folder of this name: runs/<job>, the first that is free or to be continued
_CHOSEN = ("precision", "channels_last", "compile")  # by the machine, where the user says nothing
_STRATEGY = ("micro_batch", "accumulate", "precision", "recompute", "optimizer", "compile", "channels_last", *TECHNIQUES,
             *HOST_FIELDS)  # fmt: skip


def train(job: str | Job, plan: str | os.PathLike[str] | Plan | None = None, **settings: Any) -> TrainResult:
    """Runs a job on this machine, with its forecast next to what is measured.

    Arguments: those of Trainer, of which this runs all steps. Raises what it raises.
    """
    return Trainer(job, plan, **settings).run()


class Trainer:
    """A job's run on this machine, under a plan or the settings given.

        trainer = gpuwise.Trainer(job, plan, epochs=3, run="runs/digits")
        result = trainer.run()                      # or step by step:
        for step in trainer: print(step.step, step.loss)

    Arguments:
        plan: a Plan or its file, run as it is; else micro_batch, accumulate, precision, recompute, optimizer, compile,
            channels_last, threads, pin_threads, loader_workers, prefetch, pinned_memory and the techniques of
            gpuwise.strategy.Strategy say how; what none of them says is chosen.
        epochs, steps, samples, tokens: how long, one of them; None: as planned, or one epoch.
        run: the folder of checkpoints, log and report; a run in it that has not ended is continued. "auto": runs/<job>.
            None keeps nothing. resume: True: there must be one to continue; False: there must be none.
        save_every: "10min" or seconds between checkpoints; None chooses them by what a save takes and how many
            `interruptions` a day are to be expected. keep: checkpoints kept, the best apart.
        evaluate_every: steps. monitor: "max:accuracy"; its best checkpoint is kept; patience: evaluations without a better.
        time_limit: "11h" or seconds: the run is saved and ends before. preemption: auto | aws | gcp | azure | none.
        on_nonfinite: "stop" or "skip" a step whose loss is no number. writers: "tensorboard", "wandb".
        log: a file for the log, where not in the run's folder. progress: auto | panel | plain | silent.

    Attributes: job, strategy, forecast (None where there can be none), reasons (of what was chosen), folder; once it has
    begun, model; at the end, result.

    Raises JobError where the plan is for another job or the job fails, InputError, and what `forecast` raises.
    """

    def __init__(
        self,
        job: str | Job,
        plan: str | os.PathLike[str] | Plan | None = None,
        *,
        epochs: float | None = None,
        steps: int | None = None,
        samples: int | str | None = None,
        tokens: int | str | None = None,
        run: str | os.PathLike[str] | None = None,
        resume: bool | None = None,
        seed: int = 0,
        save_every: float | str | None = None,
        keep: int = 2,
        interruptions: float | None = None,
        evaluate_every: int | None = None,
        monitor: str | None = None,
        patience: int | None = None,
        time_limit: float | str | None = None,
        preemption: str = "auto",
        on_nonfinite: str = "stop",
        writers: str | tuple[str, ...] = (),
        log: str | os.PathLike[str] | None = None,
        progress: str = "auto",
        seq_len: int | None = None,
        image_size: int | None = None,
        **strategy: Any,
    ):
        from gpuwise.job.dependencies import require
        from gpuwise.plan.file import load_plan

        given = {name: value for name, value in strategy.items() if value is not None}
        _check_names(given, plan)
        if plan is not None and not isinstance(plan, Plan):
            plan = load_plan(plan)
        self.plan = plan
        sizes = {name: value for name, value in (("seq_len", seq_len), ("image_size", image_size)) if value is not None}
        if plan is not None:
            _check_same_sizes(plan, sizes)
        require("torch", purpose="train")
        from gpuwise.runtime import Training, TrainSettings

        if plan is not None and not any((steps, epochs, samples, tokens)):
            steps = plan.steps
        self.settings: TrainSettings = TrainSettings(
            steps=steps, epochs=epochs, samples=_count(samples, "samples"), tokens=_count(tokens, "tokens"), seed=seed,
            resume="auto" if resume is None else "must" if resume else "never", keep=keep, save_every_s=_seconds(save_every),
            interruptions_per_day=interruptions,
            evaluate_every=evaluate_every, monitor=monitor, patience=patience, time_limit_s=_seconds(time_limit),
            preemption=preemption, on_nonfinite=on_nonfinite, progress=progress, log_path=None if log is None else Path(log),
            writers=(writers,) if isinstance(writers, str) else tuple(writers),
            usd_per_hour=None if plan is None else plan.offer.usd_per_hour,
        )  # fmt: skip
        here = _this_device()
        self.job: Job
        self.reasons: tuple[str, ...] = ()
        if plan is not None:
            self.job = _planned_job(job, plan)
            _check_device(plan, here.chip)
            self.strategy = plan.strategy
            self.settings = _in_folder(self.settings, run, self.job, self.strategy)
            self.forecast = _forecast(JobSource(self.job, "", {}), self.strategy, here)
        else:
            self.job, source = _to_run(job, sizes)
            named = _named(self.job, given, here)
            self.settings = _in_folder(self.settings, run, self.job, named)
            self.strategy, self.reasons, self.forecast = _chosen(named, given, source, here, self.settings, self.job)
        self._training: Training = Training(self.job, self.strategy, self.settings, device=here.torch_device,
                                            forecast=self.forecast, notes=self.reasons,
                                            plan=None if plan is None else plan.to_dict())  # fmt: skip

    @property
    def folder(self) -> Path | None:
        return self.settings.folder

    @property
    def model(self) -> torch.nn.Module:
        """As it is trained now. Before the first step there is none yet."""
        return self._training.model

    @property
    def result(self) -> TrainResult | None:
        return self._training.result

    def __iter__(self) -> Iterator[TrainedStep]:
        return iter(self._training)

    def run(self) -> TrainResult:
        """All steps. Returns what came of them."""
        return self._training.run()

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Writes the plain weights as they are now, averages in place of parameters where the job keeps them, as a
        safetensors file that transformers and timm load. Returns its path."""
        return self._training.export(Path(path))


@dataclass(frozen=True)
class _Here:
    """The chip that runs here, the memory its programs can use, and PyTorch's name for it."""

    chip: Chip
    capacity_bytes: int | None
    torch_device: str


def _check_names(given: Mapping[str, Any], plan: object) -> None:
    if unknown := set(given) - set(_STRATEGY):
        raise InputError(f"train does not take {', '.join(sorted(unknown))}.")
    if plan is not None and given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{flags} and --plan exclude each other: a plan is run as it is.",
                         ["leave out --plan", f"leave out {flags}"])  # fmt: skip


def _count(value: int | str | None, what: str) -> int | None:
    return None if value is None else parse_count(str(value), f"a number of {what}")


def _seconds(value: float | str | None) -> float | None:
    return parse_duration(value) if isinstance(value, str) else value


def _in_folder(settings: TrainSettings, run: str | os.PathLike[str] | None, job: Job, strategy: Strategy) -> TrainSettings:
    from gpuwise.runtime.run.folder import usual_folder

    if run is None:
        if settings.resume == "must":
            raise InputError("there is nothing to continue without a folder.", ["--run FOLDER of the run to continue"])
        return settings
    if os.fspath(run) == AUTO:
        return replace(settings, folder=usual_folder(Path("runs"), job, strategy, settings))
    return replace(settings, folder=Path(run))


def _to_run(job: str | Job, sizes: Mapping[str, int]) -> tuple[Job, Source]:
    """The job, and the source of its traces. A file of the user's is read once, not again to be traced."""
    if not isinstance(job, str) or job.endswith(TRACE_SUFFIX):
        made = job_of(job, **sizes)  # raises for a saved trace
        return made, JobSource(made, "", {})
    source = source_of(job, **sizes).with_own_kernels()
    return source.live.job if isinstance(source, NamedSource) else job_of(job, **sizes), source


def _check_same_sizes(plan: Plan, sizes: Mapping[str, int]) -> None:
    for name, value in sizes.items():
        if plan.sizes.get(name) != value:
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


def _this_device() -> _Here:
    import torch

    from gpuwise.hardware.detect import detect_cpu, local_cpu_chip

    catalog = load_catalog()
    machine = detect_machine(catalog)
    if machine.chip.kind == "cpu":
        return _Here(machine.chip, machine.host_memory_bytes, "cpu")
    if torch.cuda.is_available():
        return _Here(machine.chip, machine.chip.usable_memory_bytes, "cuda")
    return _Here(local_cpu_chip(detect_cpu(), catalog), machine.host_memory_bytes, "cpu")


def _named(job: Job, given: Mapping[str, Any], here: _Here) -> Strategy:
    """What the user named, with the usual for the rest."""
    fields = dict(given)
    if "accumulate" in fields:
        fields["accumulation"] = fields.pop("accumulate")
    defaults = {
        "micro_batch": usual_micro_batch(job.tokens_per_sample),
        "precision": "fp32" if here.torch_device == "cpu" else "amp-bf16",
    }
    return Strategy(**{**defaults, **fields})


def _chosen(named: Strategy, given: Mapping[str, Any], source: Source, here: _Here, settings: TrainSettings,
            job: Job) -> tuple[Strategy, tuple[str, ...], Forecast | None]:  # fmt: skip
    """The strategy with what the user did not name chosen, the reasons and its forecast. A run that is continued keeps what
    it had."""
    from gpuwise.api.cpu_settings import cpu_settings
    from gpuwise.runtime.run.folder import RunFolder

    found = None if settings.folder is None else RunFolder(settings.folder).identity()
    if found is not None:
        before = Strategy.from_dict(found["strategy"])
        named = named.but(**{name: getattr(before, name) for name in _CHOSEN if name not in given})
    elif here.torch_device == "cpu":
        try:
            choice = cpu_settings(source, here.chip, named, given=set(given) & set(_CHOSEN),
                                  steps=_steps(settings, job, named), capacity_bytes=here.capacity_bytes)  # fmt: skip
            return choice.strategy, choice.reasons, choice.forecast
        except GpuwiseError as error:
            _tell_no_forecast(error)
            return named, (), None
    return named, (), _forecast(source, named, here)


def _steps(settings: TrainSettings, job: Job, strategy: Strategy) -> float | None:
    """Optimizer steps of the run, as far as that is known before its data is opened."""
    if settings.steps is not None:
        return settings.steps
    tokens = None if settings.tokens is None or job.tokens_per_sample is None else settings.tokens / job.tokens_per_sample
    epochs = None if job.samples is None else (settings.epochs or 1) * job.samples
    samples = next((n for n in (settings.samples, tokens, epochs) if n is not None), None)
    return None if samples is None else samples / strategy.global_batch


def _forecast(source: Source, strategy: Strategy, here: _Here) -> Forecast | None:
    """The forecast of a step here; None, with a warning, where there can be none. Never stops a run."""
    if strategy.mesh.devices != 1:
        return None  # the runtime refuses it with its own words
    try:
        trace = source.trace(strategy, substrate=substrate_of(here.chip))
        single, communication = data_parallel(trace, strategy)
        # On a GPU the next batch is copied while a step computes.
        model = price(single, communication, here.chip, count=1, capacity_bytes=here.capacity_bytes, strategy=strategy,
                      prefetched=here.torch_device == "cuda" and strategy.prefetch != 0)  # fmt: skip
        return as_last_measured(model, single, strategy, here.chip)
    except GpuwiseError as error:
        _tell_no_forecast(error)
        return None


def _tell_no_forecast(error: GpuwiseError) -> None:
    """A run may go well where its forecast does not."""
    import warnings

    warnings.warn(f"no forecast to compare with: {error.what}", stacklevel=3)
