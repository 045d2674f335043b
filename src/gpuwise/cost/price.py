"""price: a Trace on a Chip -> Forecast."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from gpuwise.cost.bound import bound_shares, why
from gpuwise.cost.calibration import PROVENANCE, Calibration, step_spread
from gpuwise.cost.calibration import calibration as known_calibration
from gpuwise.cost.forecast import Forecast
from gpuwise.cost.inputs import READY, DataPipeline, Input, input_s
from gpuwise.cost.interval import Launches, level_shares, provenance, rests_on, step_interval, unmodelled
from gpuwise.cost.kernels import KernelTimes
from gpuwise.cost.memory.device import memory_forecast
from gpuwise.cost.network.advice import costliest_axis, warnings_across_machines
from gpuwise.cost.network.collectives import CommunicationTime
from gpuwise.cost.network.provenance import least_sure, links_used
from gpuwise.cost.network.stragglers import notes as slow_machine_notes
from gpuwise.cost.network.stragglers import with_slow_machines
from gpuwise.cost.parameters import Parameters
from gpuwise.cost.parameters import parameters as shipped_parameters
from gpuwise.cost.power import ENERGY_SPREAD, step_energy_j
from gpuwise.cost.rank_time import RankTime, rank_times, slowest, with_sends
from gpuwise.cost.rates import family
from gpuwise.cost.timeline.stages import PipelineWait, pipeline_wait
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes.parallel import pipeline_bubble
from gpuwise.notes.step import energy_from_tdp, interval_of_eager_steps, recorded_with_cpu_kernels, unverified_figures
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.communication import Communication
from gpuwise.trace.parallel.ranks import RankStep
from gpuwise.trace.trace import Trace

UNITS = {"image": "images/s", "token": "tokens/s", "sample": "samples/s"}


def price(
    trace: Trace,
    communication: Communication,
    cluster: Cluster,
    *,
    strategy: Strategy,
    data: DataPipeline = READY,
    usd_per_hour: float | None = None,
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
    replay: bool = True,
) -> Forecast:
    """Forecasts one optimizer step on a cluster whose devices each run `trace`.

    Arguments:
        communication: collectives of the trace's rank in one step.

    Further arguments and errors as for price_ranks.
    """
    step = RankStep("", trace, communication)
    calibration = calibration or known_calibration(cluster.chip)  # once: a damaged file is reported once a call
    return price_ranks(
        rank_times([step], cluster, strategy=strategy, parameters=parameters, calibration=calibration),
        cluster,
        strategy=strategy,
        data=data,
        usd_per_hour=usd_per_hour,
        parameters=parameters,
        calibration=calibration,
        replay=replay,
    )


def price_ranks(
    ranks: Sequence[RankTime],
    cluster: Cluster,
    *,
    strategy: Strategy,
    data: DataPipeline = READY,
    usd_per_hour: float | None = None,
    parameters: Parameters | None = None,
    calibration: Calibration | None = None,
    replay: bool = True,
) -> Forecast:
    """Forecasts one optimizer step of ranks that share a model; time and memory are those of the slowest.

    Arguments:
        ranks: those that differ, timed on the cluster with the same figures (see rank_times).
        cluster: the devices; its links are needed only for communication.
        strategy: the reported strategy; its precision and mode must be those of the traces.
        data: the data pipeline; by default batches are ready when a step needs them.
        usd_per_hour: price of the whole cluster; None (default) where unknown.
        parameters, calibration: figures of the cost model; None takes the shipped ones.
        replay: replay the allocator over the step; if False, memory is counted (see cost.memory.memory_forecast).

    Raises UnsupportedError if the chip cannot run the traces, or if a required figure is unknown. The time of a call grows with
    the number of distinct operations, hardly with that of layers, and not with that of devices.
    """
    parameters = parameters or shipped_parameters()
    chip, devices = cluster.chip, cluster.devices
    calibration = calibration or known_calibration(chip)
    rank = slowest(ranks)
    trace = rank.step.trace
    in_pipeline = strategy.mesh.pp > 1 and strategy.mode == "train"
    wait = pipeline_wait(ranks, strategy, cluster) if in_pipeline else PipelineWait()
    rank = rank.busy_for(wait.busy_share)
    times, alone_s, exchange = rank.times, rank.alone_s, with_sends(rank.exchange, rank.send, exposed_s=wait.send_s)
    readers = _readers(strategy, devices)
    batches = input_s(
        trace,
        chip,
        data,
        samples=max(1, round(trace.samples * cluster.devices_per_machine * readers / devices)),
        parameters=parameters,
    )
    waited_s = batches.exposed_s(alone_s + exchange.exposed_s + wait.idle_s)
    step_s = alone_s + exchange.exposed_s + wait.idle_s + waited_s
    bound = bound_shares(
        trace, times, alone_s=alone_s, communication_s=exchange.exposed_s, input_s=waited_s, pipeline_s=wait.idle_s
    )
    levels = level_shares(trace, times)
    top_modules = _top_modules(trace, times)
    ideal_s = float(np.sum((trace.counts("forward") + trace.counts("backward")) * times.ideal_s))
    model_flops = rank.step.model_flops
    flops = trace.model_flops * devices if model_flops is None else model_flops * readers
    if model_flops is not None and trace.model_flops:
        ideal_s *= flops / (trace.model_flops * devices)  # of the mean rank
    device_j = step_energy_j(chip, trace, times, busy_s=alone_s, step_s=step_s, figures=parameters.power)
    energy_j = None if device_j is None else device_j * devices
    links = links_used(rank.step.communication, cluster, parameters.network)
    return Forecast(
        job=trace.header.job,
        device=chip.id,
        count=devices,
        strategy=strategy,
        step_time_s=with_slow_machines(
            step_interval(
                step_s,
                levels,
                chip,
                strategy,
                communication=bound["communication"],
                exchange_spread=exchange.spread,
                launches=Launches.of(
                    kernels_s=float(trace.counts() @ times.device_s), host_s=rank.host_s, parameters=parameters
                ),
                devices=devices,
                measured=calibration.spreads,
            ),
            machines=cluster.machines,
            computes=1 - bound["communication"],
        ),
        throughput=trace.samples * trace.header.units_per_sample * readers / step_s,
        throughput_unit=UNITS.get(trace.header.sample_unit, f"{trace.header.sample_unit}s/s"),
        memory=memory_forecast(trace, cluster, parameters=parameters, replay=replay),
        flops_per_step=flops,
        mfu=ideal_s / step_s if ideal_s else None,
        bound=bound,
        energy_j=energy_j,
        provenance=provenance(levels)
        | ({} if energy_j is None else {"energy_j": PROVENANCE["family"]})
        | ({"communication": least_sure(links)} if links else {}),
        rests_on=rests_on(levels),
        why=why(bound, strategy, chip, top_modules, axis=costliest_axis(exchange.by_axis, strategy, cluster, step_s=step_s)),
        usd_per_hour=usd_per_hour,
        assumption_notes=(
            *trace.header.assumption_notes,
            *_assumptions(times, exchange, batches, energy_j),
            *(
                [
                    pipeline_bubble(
                        schedule=strategy.parallelism.pipeline_schedule,
                        idle=wait.idle_s / rank.micro_batches_s * trace.accumulation,
                        micro_batches=trace.accumulation,
                    )
                ]
                if wait.idle_s
                else []
            ),
            *slow_machine_notes(cluster.machines),
            *_unverified(chip, times, exchange),
        ),
        warning_notes=(
            *warnings_across_machines(exchange.by_axis, strategy, cluster, step_s=step_s),
            *_warnings(trace, chip, strategy, next(iter(levels), "family")),
            *unmodelled(trace, times),
        ),
        top_modules=top_modules,
        network=links,
        step_shares=_step_shares(rank.phase_s, exchange, bubble_s=wait.idle_s, waited_s=waited_s),
    )


def _step_shares(
    phase_s: Mapping[str, float], exchange: CommunicationTime, *, bubble_s: float, waited_s: float
) -> dict[str, float]:
    """Shares of the step as Forecast.step_shares has them."""
    by_axis = {f"communication_{axis}": seconds for axis, seconds in exchange.by_axis.items()}
    seconds = {**phase_s, **by_axis, "bubble": bubble_s, "input": waited_s}
    total = sum(seconds.values())
    return {name: value / total if total else 0.0 for name, value in seconds.items()}


def _warnings(trace: Trace, chip: Chip, strategy: Strategy, level: str) -> list[Note]:
    """The warnings of a forecast. level: calibration level of most of the step."""
    warnings = []
    if strategy.compile and not step_spread(level, family=family(chip), mode=strategy.mode, compiled=True).compiled:
        warnings.append(interval_of_eager_steps())
    if trace.header.target == "cpu" and family(chip) != "cpu":
        warnings.append(recorded_with_cpu_kernels())
    return warnings


def _readers(strategy: Strategy, devices: int) -> int:
    """The number of ranks with samples of their own: the mesh's if it is set, else all devices."""
    return strategy.mesh.data_parallel if strategy.mesh.devices == devices else devices


def _assumptions(times: KernelTimes, exchange: CommunicationTime, batches: Input, energy_j: float | None) -> list[Note]:
    notes = [*times.notes, *batches.notes, *exchange.notes]
    if energy_j is not None:
        notes.append(energy_from_tdp(low=ENERGY_SPREAD[0], high=ENERGY_SPREAD[1]))
    return notes


def _unverified(chip: Chip, times: KernelTimes, exchange: CommunicationTime) -> list[Note]:
    """A note that names the figures of chip and link behind the forecast that have no verified source."""
    used = (*times.peaks, "memory_bandwidth_bytes_per_s", "memory_bytes", "tdp_w")
    figures = [name for name in used if name in chip.unverified]
    figures += exchange.unverified
    where = f"unverified ({chip.source.text})" if chip.id == "here-cpu" else "unverified in the catalog"
    return [unverified_figures(where=where, figures=", ".join(figures))] if figures else []


def _top_modules(trace: Trace, times: KernelTimes) -> tuple[tuple[str, float], ...]:
    """The ten groups of modules that take most of the device's time, with their share; layers of a stack are one group."""
    busy_s = float(np.sum(trace.counts() * times.device_s))
    if not busy_s:
        return ()
    sequence = trace.sequence
    per_module = np.bincount(
        sequence.module, weights=times.device_s[sequence.operation] * trace.device_repeats, minlength=len(trace.modules)
    )
    totals: dict[str, float] = {}
    for name, seconds in zip(_group_names(trace.modules), per_module.tolist(), strict=True):
        totals[name] = totals.get(name, 0.0) + seconds
    ranked = sorted(totals.items(), key=lambda item: -item[1])[:10]
    return tuple((name, seconds / busy_s) for name, seconds in ranked if seconds > 0)


@lru_cache(maxsize=32)
def _group_names(modules: tuple[str, ...]) -> tuple[str, ...]:
    """Replaces the numbers in module paths by stars: model.layers.7.mlp.up_proj -> model.layers.*.mlp.up_proj."""
    return tuple(re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name) or "(root)" for name in modules)
