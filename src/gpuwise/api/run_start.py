"""The start of a run: the job, its strategy (from a plan or chosen for this machine), and the forecast of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from gpuwise.api.run_batch import batch_in_memory, batch_of_ranks, first_micro_batch, same_global_batch, samples_of
from gpuwise.api.shared_cpu import part_of_threads, ranks_on_cpu, shared_cpu_note
from gpuwise.api.source import StepSource
from gpuwise.api.sources import TRACE_SUFFIX, job_of, source_of
from gpuwise.api.step_price import step_price
from gpuwise.api.traced import JobSource, NamedSource
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.errors import GpuwiseError, InputError, JobError, PrecisionError, UnsupportedError
from gpuwise.hardware import Chip, detect_machine, load_catalog
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.detect.ranks import rank_environment
from gpuwise.hardware.links import link_inside
from gpuwise.notes import Note
from gpuwise.plan.space.legal import assumed_precision
from gpuwise.plan.types import Plan
from gpuwise.step_settings import RunSettings, flags_of, job_word, strategy_to_run
from gpuwise.strategy import HostSettings, Mesh, Strategy, check_layout_works, check_settings_work, check_techniques

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.runtime import TrainSettings

_CHOSEN = ("precision", "channels_last", "compile")  # chosen by the machine if the user does not set them


@dataclass(frozen=True)
class Here:
    """The chip of this machine, the memory that programs can use, and PyTorch's name of the device."""

    chip: Chip
    capacity_bytes: int | None
    torch_device: str

    def with_threads(self, threads: int | None) -> Here:
        """The part of the CPU that so many threads compute on; None: as many as OMP_NUM_THREADS says, else all."""
        return replace(self, chip=part_of_threads(self.chip, threads))

    def notes(self, mesh: Mesh) -> tuple[Note, ...]:
        """What a forecast assumes of the devices of a mesh."""
        return (shared_cpu_note(self.chip, mesh.devices),) if self.chip.kind == "cpu" and mesh.devices > 1 else ()

    def cluster(self, mesh: Mesh) -> Cluster:
        """The devices of a mesh: ranks that share the CPU, or accelerators of one machine.

        Raises UnsupportedError for a mesh over several machines, whose network is not known here.
        """
        if mesh.devices == 1:
            return Cluster(self.chip, memory_bytes=self.capacity_bytes)
        if self.chip.kind == "cpu":
            return ranks_on_cpu(self.chip, mesh.devices, memory_bytes=self.capacity_bytes)
        environment = rank_environment()
        if environment is not None and environment.local_size < mesh.devices:
            raise UnsupportedError("the network between the machines of this run is not known.")
        inside = link_inside(self.chip, mesh.devices, catalog=load_catalog())
        return Cluster(self.chip, mesh.devices, inside=inside, memory_bytes=self.capacity_bytes)


def this_device() -> Here:
    """The accelerator of this machine if PyTorch sees it, else its CPU."""
    from gpuwise.hardware.detect import detect_cpu, local_cpu_chip
    from gpuwise.runtime.devices import accelerator
    from gpuwise.runtime.devices.chips import first_chip

    catalog = load_catalog()
    machine, device = detect_machine(catalog), accelerator()
    if device is None:
        chip = machine.chip if machine.chip.kind == "cpu" else local_cpu_chip(detect_cpu(), catalog)
        return Here(chip, machine.host_memory_bytes, "cpu")
    chip = first_chip(device, catalog) if machine.chip.kind == "cpu" else machine.chip
    return Here(chip, chip.usable_memory_bytes, device.type)


def job_to_run(job: str | Job, sizes: Mapping[str, int]) -> tuple[Job, StepSource]:
    """The job, and the source of its traces. A user's file is loaded once for both."""
    if not isinstance(job, str) or job.endswith(TRACE_SUFFIX):
        resolved = job_of(job, **sizes)  # raises for a saved trace and for sizes of other batches
        return resolved, JobSource(resolved, "", {})
    source = source_of(job, **sizes).with_own_kernels()
    return source.live.job if isinstance(source, NamedSource) else job_of(job, **sizes), source


def check_same_sizes(plan: Plan, sizes: Mapping[str, int]) -> None:
    """Raises InputError if the user's sizes differ from the plan's."""
    for name, value in sizes.items():
        if plan.sizes.get(name) != value:
            raise InputError(
                f"the plan is for {name} {plan.sizes[name]}, not {value}."
                if name in plan.sizes
                else f"the plan is for a job without {name}.",
                [f"leave out --{name.replace('_', '-')}", "plan again with -o"],
            )


def planned_job(argument: str | Job, plan: Plan) -> Job:
    """The job at the plan's sizes. Raises JobError if the plan is for another job.

    The fingerprint of a recording has the job's usual sizes, so those are tried as well.
    """
    from gpuwise.job import fingerprint

    try:
        resolved = job_of(argument, **plan.sizes)
    except GpuwiseError as error:
        job_of(argument)  # raises if the fault is in the job, not in the sizes
        raise JobError(
            f"this plan is for another job: it was made for {plan.job} at "
            f"{', '.join(f'{name} {value}' for name, value in plan.sizes.items())}. {error.what}",
            [
                f"plan again: gpuwise plan {job_word(argument)} -o plan.toml",
                f"run the job it was made for: {plan.job_argument or plan.job}",
            ],
        ) from error
    ours = fingerprint(resolved)
    if plan.job_fingerprint != ours and isinstance(argument, str):
        usual = fingerprint(job_of(argument))
        ours = usual if plan.job_fingerprint == usual else ours
    plan.check_job(ours)
    return resolved


def check_device(plan: Plan, here: Chip) -> None:
    """Raises UnsupportedError if the plan is for other devices, because its batch and precision suit those."""
    planned = load_catalog().chips.get(plan.device)
    cpus = here.kind == "cpu" and (plan.device == here.id or (planned is not None and planned.kind == "cpu"))
    if plan.device == here.id or cpus:
        return
    job, flags = job_word(plan.job_argument), flags_of(plan.strategy)
    raise UnsupportedError(
        f"this plan is for {plan.count:g} x {plan.device} ({plan.offer.provider} "
        f"{plan.offer.instance}); this machine is {here.id} ({here.name}).",
        [
            f"plan for this machine: gpuwise plan {job} --on here -o plan.toml",
            f"try its settings here: gpuwise train {job} {flags}",
        ],
    )


def named_strategy(job: Job, requested: RunSettings, here: Here, settings: TrainSettings) -> Strategy:
    """The strategy of the user's settings, with defaults for the others.

    The global batch is the default of `plan` if the length of the run is known. It is one micro-batch until its memory is
    checked.
    """
    from gpuwise.job.images import has_images
    from gpuwise.runtime.devices import backend_of

    backend = backend_of(here.torch_device)
    on_cpu = backend.is_host
    micro_batch = first_micro_batch(job, requested, settings)
    precision = "fp32" if on_cpu or backend.why_no_bf16() else "amp-bf16"
    strategy = strategy_to_run(requested, micro_batch=micro_batch, precision=precision)
    check_settings_work(requested, strategy.mesh, adapter=strategy.adapter)
    check_layout_works(requested, partial(has_images, job))
    check_techniques(strategy, job.step_facts(on_cpu=on_cpu, priced=False))
    return strategy


def chosen_strategy(
    named: Strategy, requested: RunSettings, source: StepSource, here: Here, settings: TrainSettings, job: Job
) -> tuple[Strategy, tuple[Note, ...], Forecast | None]:
    """The strategy with the open settings chosen, the reasons and its forecast. A continued run keeps its settings."""
    from gpuwise.api.cpu_settings import cpu_settings
    from gpuwise.runtime.run.folder import RunFolder

    earlier = None if settings.folder is None else RunFolder(settings.folder).identity()
    if earlier is not None:
        before = Strategy.from_dict(earlier["strategy"])
        kept = {name: getattr(before, name) for name in _CHOSEN if name not in requested}
        if not {"micro_batch", "accumulate"} & set(requested):
            kept |= same_global_batch(before, named)
        named = named.but(**kept)
    elif named.mesh.devices > 1:
        named = batch_of_ranks(named, requested, job)
        return named, here.notes(named.mesh), forecast_here(source, named, here, settings.host)
    elif here.torch_device == "cpu":
        named = batch_in_memory(named, requested, source, here.chip, here.capacity_bytes, job)
        try:
            choice = cpu_settings(
                source,
                here.chip,
                named,
                fixed=set(requested) & set(_CHOSEN),
                steps=_steps(settings, job, named),
                capacity_bytes=here.capacity_bytes,
            )
            return choice.strategy, choice.reasons, choice.forecast
        except GpuwiseError as error:
            _tell_no_forecast(error)
            return named, (), None
    else:
        named = batch_in_memory(named, requested, source, here.chip, here.capacity_bytes, job)
    if earlier is None and here.torch_device != "cpu" and "precision" not in requested:
        try:
            return named, (), _forecast(source, named, here, settings.host)
        except PrecisionError as refused:
            named = named.but(precision="fp32")
            return named, (assumed_precision(named.precision, refused),), forecast_here(source, named, here, settings.host)
        except GpuwiseError as error:
            _tell_no_forecast(error)
            return named, (), None
    return named, (), forecast_here(source, named, here, settings.host)


def _steps(settings: TrainSettings, job: Job, strategy: Strategy) -> float | None:
    """Optimizer steps of the run, if known before its data is opened."""
    if settings.steps is not None:
        return settings.steps
    samples = samples_of(settings, job)
    return None if samples is None else samples / strategy.global_batch


def forecast_here(source: StepSource, strategy: Strategy, here: Here, host: HostSettings) -> Forecast | None:
    """The forecast of a step on this machine; None, with a warning, if it is not possible. It never stops a run."""
    try:
        return _forecast(source, strategy, here, host)
    except GpuwiseError as error:
        _tell_no_forecast(error)
        return None


def _forecast(source: StepSource, strategy: Strategy, here: Here, host: HostSettings) -> Forecast:
    # On a GPU the next batch is copied while a step computes.
    data = DataPipeline(prefetched=host.prefetch != 0)
    cluster = here.cluster(strategy.mesh)
    forecast = step_price(source, cluster, strategy, history=cluster.devices == 1, data=data)[0]
    return replace(forecast, assumption_notes=(*here.notes(strategy.mesh), *forecast.assumption_notes))


def _tell_no_forecast(error: GpuwiseError) -> None:
    """Warns that there is no forecast. The run itself may still succeed."""
    import warnings

    warnings.warn(f"no forecast to compare with: {error.what}", stacklevel=3)
