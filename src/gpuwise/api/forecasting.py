"""forecast and memory_timeline: open settings are chosen, the choices noted, and the trace priced."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.cpu_settings import cpu_settings
from gpuwise.api.devices import Device, device_of, is_this_cpu, with_threads_of_environment
from gpuwise.api.fitting import fitting_change_of
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.shared_cpu import memory_notes
from gpuwise.api.source import StepSource
from gpuwise.api.sources import source_of, usual_micro_batch
from gpuwise.api.step_price import step_price
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import PrecisionError
from gpuwise.hardware import load_catalog
from gpuwise.notes import Note, sentences
from gpuwise.notes.job import reading_alone
from gpuwise.notes.parallel import assumed_micro_batches
from gpuwise.notes.run import run_of_assumed_batch
from gpuwise.notes.step import assumed_micro_batch, of_a_step
from gpuwise.plan.cpu.requests import requests_note
from gpuwise.plan.economics.length import RunLength, with_whole_run
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.pricing.data_parallel import copies_or_shards
from gpuwise.plan.space.legal import assumed_precision, in_each_precision, precisions_for
from gpuwise.step_settings import (
    ClusterSettings,
    DeviceSettings,
    ForecastSettings,
    job_word,
    mesh_of,
    named_settings,
    part_of,
    sizes_of,
    strategy_of,
    usual_micro_batches,
)
from gpuwise.strategy import Mesh, Strategy, check_layout_works, check_settings_work, check_techniques
from gpuwise.trace import Trace

if TYPE_CHECKING:
    from gpuwise.cost.memory.timeline import Timeline
    from gpuwise.job import Job


@dataclass(frozen=True)
class Priced:
    """A forecast with its device, the trace of one rank, and where traces come from."""

    forecast: Forecast
    trace: Trace
    device: Device
    source: StepSource


@plainly
def forecast(job: str | Job, *, on: str, **settings: Unpack[ForecastSettings]) -> Forecast:
    """Forecasts one optimizer step of a job on a device (a forward pass in mode "infer"): time, memory, energy, money.

    Arguments:
        job: a preset, `path/to/file.py:name`, `keras:...`, `hf:...`, `timm:...`, a saved trace, or a Job.
        on: a chip with an optional count, "h100-sxm:8", "h100-80gb-sxm:8x4"; "cpu", or "here".
        settings: optional keywords, see gpuwise.step_settings.ForecastSettings. Among them:
            micro_batch: samples in one forward pass of one device.
            accumulate: micro-batches in one optimizer step.
            mesh: "dp=8", "dp_shard=8". None replicates over all devices, or shards if only that fits.
            network: between machines, "100 Gbit Ethernet" or a link of the catalog. None takes that of an offer.
            compile: whether the step runs under torch.compile. A warning tells if its interval is that of eager steps.
            channels_last: whether images and convolutions have their channels innermost in memory.
            samples, epochs, tokens: length of a run; `run` of the result then has its steps, hours and dollars.
            loader_samples_per_s: samples a second from the data pipeline of one machine. The step waits for a slower one.

    Settings left at None are chosen; `assumptions` names each choice with the flag that changes it.

    Raises InputError, UnknownNameError, JobError, FileFormatError, UnsupportedError or MissingDependencyError.
    """
    return forecast_with_trace(job, on, settings)[0]


@plainly
def memory_timeline(job: str | Job, *, on: str, **settings: Unpack[ForecastSettings]) -> Timeline:
    """The memory timeline of one step by category, with its peak and the tensors behind it.

    Its `forecast` is the result of `forecast`. gpuwise.report.memory_picture draws it. Arguments and errors are those of
    `forecast`.
    """
    from gpuwise.cost.memory.timeline import timeline

    forecast, priced = forecast_with_trace(job, on, settings)
    memory = timeline(priced.trace, priced.device.cluster, memory=priced.forecast.memory)
    return replace(memory, forecast=forecast, strategy=forecast.strategy)


def forecast_with_trace(
    job: str | Job, on: str, settings: ForecastSettings, *, named: Collection[str] | None = None
) -> tuple[Forecast, Priced]:
    """The result of `forecast`, with its trace and device. named: as of forecast_step."""
    requested = named_settings(settings, ForecastSettings)
    source = source_of(job, **sizes_of(requested))
    length = RunLength.of(requested, source.samples_per_epoch)
    step = part_of(requested, ClusterSettings)
    priced = forecast_step(source, on, loader_samples_per_s=requested.get("loader_samples_per_s"), named=named, **step)
    forecast = priced.forecast
    if forecast.memory.fits is False:
        change = fitting_change_of(source, priced.device, forecast.strategy)
        forecast = replace(forecast, fits_with=change.to_dict() if isinstance(change, FittingChange) else None)
    if forecast.strategy.mode == "infer" and is_this_cpu(priced.device):
        forecast = replace(forecast, assumption_notes=(*forecast.assumption_notes, requests_note(forecast)))
    if forecast.strategy.mode == "infer" and forecast.throughput_unit == "tokens/s":
        reading = reading_alone(job=job_word(source.argument or "JOB"))
        forecast = replace(forecast, assumption_notes=(*forecast.assumption_notes, reading))
    if not length.named:
        return replace(forecast, assumption_notes=of_a_step(forecast.assumption_notes)), priced
    forecast = with_whole_run(forecast, length, priced.trace.header)
    forecast = replace(forecast, assumption_notes=length.relevant(forecast.assumption_notes))
    if requested.get("micro_batch") is None:
        note = run_of_assumed_batch(samples=forecast.strategy.global_batch)
        forecast = replace(forecast, assumption_notes=(*forecast.assumption_notes, note))
    return forecast, priced


def forecast_step(
    source: StepSource,
    on: str,
    *,
    loader_samples_per_s: float | None = None,
    history: bool = True,
    named: Collection[str] | None = None,
    **settings: Unpack[ClusterSettings],
) -> Priced:
    """The forecast of gpuwise.api.forecast for a source. Arguments and errors as there.

    Arguments:
        named: the settings that the user names, which are refused where they change nothing. None: all of them.
        history: whether to take the step time that `validate` measured on this machine, if there is one.
    """
    requested = named_settings(settings, ClusterSettings)
    mesh = mesh_of(requested)
    device = with_threads_of_environment(device_of(on, load_catalog(), mesh=mesh, network=requested.get("network")))
    if mesh is None and device.devices > 1 and requested.get("shard") is not None:
        mesh = Mesh(dp_shard=device.devices)  # what is split has been named
    by_user = {name: value for name, value in requested.items() if named is None or name in named}
    check_settings_work(by_user, mesh or Mesh(dp_replicate=device.devices), adapter=requested.get("adapter"))
    on_this_cpu = is_this_cpu(device)
    if on_this_cpu:
        source = source.with_own_kernels()
    precision = requested.get("precision")
    mode = requested.get("mode") or "train"
    choices = [precision] if precision else step_precisions(source, device, mode=mode)

    def priced(precision: str, refused: PrecisionError | None) -> Priced:
        return _in_precision(
            precision,
            source,
            device,
            requested,
            mesh,
            by_user=by_user,
            refused=refused,
            history=history,
            loader_samples_per_s=loader_samples_per_s,
        )

    return next(in_each_precision(choices, priced, refusals=(PrecisionError,)))


def step_precisions(source: StepSource, device: Device, *, mode: str) -> list[str]:
    """The precisions to try in turn if the user sets none, fastest first."""
    able = ["fp32"] if is_this_cpu(device) else precisions_for(device.chip, mode=mode) or ["fp32"]
    first = source.default_precision(able[0])
    return [first, *able[1:]] if first == able[0] else [first]


def _in_precision(
    chosen: str,
    source: StepSource,
    device: Device,
    requested: DeviceSettings,
    mesh: Mesh | None,
    *,
    by_user: Mapping[str, object],
    refused: PrecisionError | None,
    history: bool,
    loader_samples_per_s: float | None,
) -> Priced:
    """The forecast in one precision.

    Arguments:
        by_user: the settings that are refused where they change nothing.
        refused: why the job does not run in the faster precisions.
    """
    precision, micro_batch = requested.get("precision"), requested.get("micro_batch")
    on_this_cpu = is_this_cpu(device)
    assumed = list(device.assumptions)
    if micro_batch is None:
        micro_batch = usual_micro_batch(source.tokens_per_sample)
        assumed.append(assumed_micro_batch(samples=micro_batch))
    strategy = strategy_of({**requested, "mesh": None}, precision=chosen, micro_batch=micro_batch)
    if (micro_batches := usual_micro_batches(requested)) is not None:
        strategy = strategy.but(accumulation=micro_batches)
        assumed.append(assumed_micro_batches(micro_batches=micro_batches))
    check_techniques(strategy.but(mesh=mesh or Mesh()), source.step_facts(device.target))
    check_can_run(device.chip, mode=strategy.mode, precision=chosen)  # before any tracing
    check_layout_works(by_user, source.has_images)
    if precision is None:
        reasons: tuple[Note, ...] = ()
        if on_this_cpu and strategy.mode == "train" and chosen == "fp32":
            # The choices of `train`, except compiling, which depends on the length of the run.
            choice = cpu_settings(
                source,
                device.chip,
                strategy,
                capacity_bytes=device.cluster.capacity_bytes,
                fixed=requested.keys() & {"channels_last"},
            )
            strategy, reasons = choice.strategy, choice.reasons
        layout = ", channels-last" if strategy.channels_last and not requested.get("channels_last") else ""
        assumed.append(assumed_precision(f"{strategy.precision}{layout}", refused, reasons="; ".join(sentences(reasons))))
    price_it = partial(_priced, source, device, assumed=assumed, loader_samples_per_s=loader_samples_per_s, history=history)
    if mesh is not None:
        return price_it(strategy.but(mesh=mesh))
    result = price_it(strategy.but(mesh=Mesh(dp_replicate=device.devices)))
    if device.devices == 1:
        return result
    memory, note = result.forecast.memory, copies_or_shards(devices=device.devices, axis="dp_replicate")
    if memory.fits is False and strategy.mode == "train":
        result = price_it(strategy.but(mesh=Mesh(dp_shard=device.devices)))
        note = copies_or_shards(devices=device.devices, axis="dp_shard", needed_bytes=memory.device_bytes)
    return replace(result, forecast=replace(result.forecast, assumption_notes=(note, *result.forecast.assumption_notes)))


def _priced(
    source: StepSource,
    device: Device,
    strategy: Strategy,
    *,
    assumed: Sequence[Note],
    loader_samples_per_s: float | None,
    history: bool,
) -> Priced:
    history = history and loader_samples_per_s is None and device.spec.machine is not None and strategy.mesh.devices == 1
    result, trace = step_price(
        source,
        device.cluster,
        strategy,
        history=history,
        data=DataPipeline(loader_samples_per_s),
        usd_per_hour=device.usd_per_hour,
    )
    short = memory_notes(result.memory.device_bytes) if is_this_cpu(device) and result.memory.fits else ()
    return Priced(replace(result, assumption_notes=(*assumed, *result.assumption_notes, *short)), trace, device, source)
