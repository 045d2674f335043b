"""One forecast: the strategy the user left open is chosen, the choice named, the trace of it priced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from gpuwise.api.cpu_settings import cpu_settings
from gpuwise.api.devices import Device, device_of
from gpuwise.api.source import StepSource
from gpuwise.api.sources import usual_micro_batch
from gpuwise.api.step_price import step_price
from gpuwise.cost import Forecast
from gpuwise.cost.inputs import DataPipeline
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import PrecisionError
from gpuwise.hardware import load_catalog
from gpuwise.notes import Note, sentences
from gpuwise.notes.step import assumed_mesh, assumed_micro_batch
from gpuwise.plan.space.legal import assumed_precision, precisions_for
from gpuwise.step_settings import DeviceSettings, given, strategy_of
from gpuwise.strategy import Mesh, Strategy, check_techniques
from gpuwise.trace import Trace
from gpuwise.units import format_bytes


@dataclass(frozen=True)
class Priced:
    """A forecast with the trace of one rank and the device that it is of."""

    forecast: Forecast
    trace: Trace
    device: Device


def forecast_step(
    source: StepSource,
    on: str,
    *,
    loader_samples_per_s: float | None = None,
    history: bool = True,
    **settings: Unpack[DeviceSettings],
) -> Priced:
    """The forecast behind gpuwise.api.forecast, for a source; arguments and errors as there.

    Arguments:
        history: take the time that `validate` measured of this very step on this machine, where it has.
    """
    asked = given(settings, DeviceSettings)
    mesh = asked.get("mesh")
    mesh = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    device = device_of(on, load_catalog(), mesh=mesh)
    on_this_cpu = device.spec.machine is not None and device.target == "cpu"
    if on_this_cpu:
        source = source.with_own_kernels()
    choices = (
        [asked["precision"]]
        if asked.get("precision")
        else _precisions(source, device, on_this_cpu=on_this_cpu, mode=asked.get("mode") or "train")
    )
    refused: PrecisionError | None = None
    for precision in choices:
        try:
            return _in_precision(
                precision,
                source,
                device,
                asked,
                mesh,
                refused=refused,
                history=history,
                loader_samples_per_s=loader_samples_per_s,
            )
        except PrecisionError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _precisions(source: StepSource, device: Device, *, on_this_cpu: bool, mode: str) -> list[str]:
    """What is tried in turn where no precision is asked for."""
    able = ["fp32"] if on_this_cpu else precisions_for(device.chip, mode=mode) or ["fp32"]
    first = source.default_precision(able[0])
    return [first, *able[1:]] if first == able[0] else [first]


def _in_precision(
    chosen: str,
    source: StepSource,
    device: Device,
    asked: Mapping[str, Any],
    mesh: Mesh | None,
    *,
    refused: PrecisionError | None,
    history: bool,
    loader_samples_per_s: float | None,
) -> Priced:
    """The forecast in one precision. refused: why it is none of the faster ones."""
    precision, micro_batch = asked.get("precision"), asked.get("micro_batch")
    on_this_cpu = device.spec.machine is not None and device.target == "cpu"
    assumed = list(device.assumptions)
    if micro_batch is None:
        micro_batch = usual_micro_batch(source.tokens_per_sample)
        assumed.append(assumed_micro_batch(samples=micro_batch))
    strategy = strategy_of({**asked, "mesh": None}, precision=chosen, micro_batch=micro_batch)
    check_techniques(strategy.but(mesh=mesh or Mesh()), source.step_facts(device.target))
    check_can_run(device.chip, mode=strategy.mode, precision=chosen)  # before any tracing
    if precision is None:
        reasons: tuple[Note, ...] = ()
        if on_this_cpu and strategy.mode == "train" and chosen == "fp32":
            # As `train` would, but for compiling, which depends on how long the run is.
            choice = cpu_settings(
                source,
                device.chip,
                strategy,
                capacity_bytes=device.cluster.capacity_bytes,
                given=asked.keys() & {"channels_last"},
            )
            strategy, reasons = choice.strategy, choice.reasons
        layout = ", channels-last" if strategy.channels_last and not asked.get("channels_last") else ""
        assumed.append(assumed_precision(f"{strategy.precision}{layout}", refused, reasons="; ".join(sentences(reasons))))
    price_it = partial(_priced, source, device, assumed=assumed, loader_samples_per_s=loader_samples_per_s, history=history)
    if mesh is not None:
        return price_it(strategy.but(mesh=mesh))
    result = price_it(strategy.but(mesh=Mesh(dp_replicate=device.devices)))
    if device.devices == 1:
        return result
    memory = result.forecast.memory
    axis, why = "dp_replicate", "each device holds a copy of the model"
    if memory.fits is False and strategy.mode == "train":
        needed = format_bytes(memory.device_bytes)
        axis, why = "dp_shard", f"the model is sharded, a copy on each device would need {needed}"
        result = price_it(strategy.but(mesh=Mesh(dp_shard=device.devices)))
    note = assumed_mesh(devices=device.devices, axis=axis, why=why)
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
    history = history and loader_samples_per_s is None and device.spec.machine is not None
    result, trace = step_price(
        source,
        device.cluster,
        strategy,
        history=history,
        data=DataPipeline(loader_samples_per_s),
        usd_per_hour=device.usd_per_hour,
    )
    return Priced(replace(result, assumption_notes=(*assumed, *result.assumption_notes)), trace, device)
