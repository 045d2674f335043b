"""Runs the load of `serve_check` on this machine, and puts its outcome beside the forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf, isfinite, isinf
from typing import TYPE_CHECKING

import numpy as np

from gpuwise.api.trial import torch_device
from gpuwise.cost.forecast import Interval
from gpuwise.hardware.disturbances import disturbances
from gpuwise.hardware.load import load as machine_load
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.check import (
    CheckedFigure,
    CheckedGroup,
    CheckTiming,
    RequestCounts,
    ServeCheck,
    checked_latencies,
    checked_share,
    checked_utilisation,
)
from gpuwise.serving.engine_server import EngineServer
from gpuwise.serving.group_server import GroupServer, PackedServer
from gpuwise.serving.requests import Requests
from gpuwise.serving.served import Served, capacity_of
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from gpuwise.api.serving_load import CheckPlan
    from gpuwise.runtime.serving.server import LoadReplay
    from gpuwise.runtime.serving.timing import TimeableModel
    from gpuwise.serving.profile import PassProfile

ENGINES = {GroupServer: "pytorch", PackedServer: "transformers", EngineServer: "llama.cpp"}
NEAR = 0.8  # of what is served at most with passes as slow as the interval reaches, from which on waiting is remarked on
LATE = 0.05  # of the median latency, by which a client may be late before the result says so


def serve_here(plan: CheckPlan, *, progress: Callable[[str], None]) -> ServeCheck:
    """Builds the model, serves the load, and compares. Errors of the job's own code become JobError."""
    from gpuwise.runtime.build.failure import job_failure

    load, profile = plan.load, None
    doing = "its first passes"
    try:
        progress(doing)
        with _replaying(plan) as (replayed, timed):
            if plan.profiles:
                doing = "timing its passes"
                progress(doing)
                profile = timed()
            span_s = plan.server.served(load).span_s
            before = machine_load()
            doing = f"serving {len(load):,} requests, about {format_duration(span_s)}"
            progress(doing)
            outcome = replayed(load, False)
            floods = isinf(plan.rate_per_s) and not (outcome.interrupted or outcome.turned_away or outcome.left)
            capacity = capacity_of(outcome.served) if floods else None
            if plan.saturates and not outcome.interrupted:
                doing = "serving them all at once"
                progress(doing)
                flood = replayed(load.all_at_once(), True)
                capacity = None if flood.interrupted else capacity_of(flood.served)
                outcome = replace(outcome, interrupted=flood.interrupted)
    except Exception as error:  # the job's own code may raise anything
        raise job_failure(error, plan.job, doing=doing, part=plan.job.generate or plan.job.loss) from error
    disturbed = tuple(disturbances(before, machine_load()))
    result = compared(plan, outcome, capacity, disturbed=disturbed)
    if profile is None:
        return result
    timed_plan = replace(plan, server=plan.server.timed(profile))
    timing = CheckTiming(profile, result.latency, result.capacity, result.saturation_rate)
    return replace(compared(timed_plan, outcome, capacity, disturbed=disturbed), timing=timing)


@contextmanager
def _replaying(plan: CheckPlan) -> Iterator[tuple[Callable[[Requests, bool], LoadReplay], Callable[[], PassProfile]]]:
    """Once the model is warm: the function that serves a load, with or (True) without a limit of the queue, and the one that
    times passes of the same server."""
    from gpuwise.runtime.serving.timing import time_engine, time_groups
    from gpuwise.runtime.serving.waiting_line import RealClock

    if isinstance(plan.server, PackedServer):
        import torch

        from gpuwise.runtime.serving.packed import PackedEngine

        device = torch.device(torch_device(plan.device.chip))
        with PackedEngine(plan.job, plan.forecast.strategy, device, plan.server.policy) as engine:
            server = plan.server
            yield (
                lambda load, unlimited: engine.replay(load),
                lambda: time_engine(engine.replay, server.served, server.policy, plan.load, RealClock()),
            )
        return
    if isinstance(plan.server, EngineServer):
        import torch

        from gpuwise.runtime.serving.llama_cpp import LlamaCppEngine

        slots, threads = plan.server, torch.get_num_threads()
        with LlamaCppEngine(
            plan.job, mix=slots.format.mix, policy=slots.policy, context=slots.context, threads=threads
        ) as llama:
            yield (
                lambda load, unlimited: llama.replay(load, queue=None if unlimited else slots.policy.queue),
                lambda: time_engine(partial(llama.replay, queue=None), slots.served, slots.policy, plan.load, RealClock()),
            )
        return
    from gpuwise.runtime.serving.server import replay

    assert isinstance(plan.server, GroupServer)
    model, policy = _model(plan), plan.server.policy
    endless = replace(policy, queue=None, patience_s=inf)
    times, idle_s = plan.server.times, 1 / plan.rate_per_s
    yield (
        lambda load, unlimited: replay(load, model, endless if unlimited else policy),
        lambda: time_groups(model, times, plan.load, partial(replay, policy=WindowPolicy(1)), RealClock(), idle_s=idle_s),
    )


def compared(plan: CheckPlan, outcome: LoadReplay, capacity: float | None, *, disturbed: tuple[Note, ...] = ()) -> ServeCheck:
    """The result. capacity: requests a second that were measured with all of them at once."""
    server = plan.server
    ended = outcome.ended
    served = outcome.served
    measured = replace(
        served, requests=plan.load.of(ended), first_token_s=served.first_token_s[ended], end_s=served.end_s[ended]
    )
    forecasts = server.outcomes(plan.load.of(ended))
    most = server.capacity(plan.shape)
    checked = checked_latencies(forecasts, measured)
    return ServeCheck(
        job=plan.job.name,
        device=plan.device.chip.id,
        precision=plan.forecast.strategy.precision,
        generates=plan.generates,
        settings={
            "engine": plan.graphs.name if plan.graphs else ENGINES[type(server)],
            **server.settings,
            "seed": plan.shape.seed,
        },
        rate_per_s=plan.rate_per_s,
        lengths=_lengths(plan),
        limits=plan.limits,
        latency=checked,
        share_within=checked_share(forecasts, measured, plan.limits),
        capacity=CheckedFigure(most, capacity),
        saturation_rate=server.saturation_rate(plan.shape, plan.limits),
        utilisation=checked_utilisation(forecasts, measured),
        groups=_groups(plan, outcome),
        counts=RequestCounts(
            sent=int(ended.sum()),
            answered=int(np.isfinite(measured.end_s).sum()),
            turned_away=len(outcome.turned_away),
            left=len(outcome.left),
            forecast_answered=int(np.isfinite(forecasts[0].end_s).sum()),
        ),
        latencies_s={"measured": _latencies_s(measured), "forecast": _latencies_s(forecasts[0])},
        late_s=outcome.late_s,
        interrupted=outcome.interrupted,
        assumption_notes=plan.notes,
        remark_notes=(*_remarks(plan, outcome, measured, most=most.value), *_nearness(plan, forecasts, most), *disturbed),
    )


def _model(plan: CheckPlan) -> TimeableModel:
    import torch

    from gpuwise.runtime.serving.models import ForwardModel, GeneratingModel

    assert isinstance(plan.server, GroupServer)
    device, batch = torch.device(torch_device(plan.device.chip)), plan.server.policy.batch
    strategy = plan.forecast.strategy
    if plan.generates:
        return GeneratingModel(plan.job, strategy, device, plan.load, batch=batch)
    if plan.graphs is not None:
        from gpuwise.runtime.serving.exported import ExportedModel

        return ExportedModel(plan.job, strategy, batch=batch, runtime=plan.graphs.name)
    return ForwardModel(plan.job, strategy, device, batch=batch)


def _lengths(plan: CheckPlan) -> dict[str, float]:
    if not plan.generates:
        return {}
    lengths = plan.shape.lengths
    return {"input_tokens": lengths.input_tokens, "output_tokens": lengths.output_tokens, "spread": lengths.input_variation}


def _groups(plan: CheckPlan, outcome: LoadReplay) -> tuple[CheckedGroup, ...]:
    """Batches by their requests. The forecast is of the same requests, so it compares passes without waiting."""
    if not isinstance(plan.server, GroupServer):
        return ()
    group_s = plan.server.times.group_s(plan.load)
    low, high = plan.server.times.spread
    by_size: dict[int, list[tuple[float, float]]] = {}
    for group, seconds in outcome.groups:
        by_size.setdefault(len(group), []).append((float(np.max(group_s(list(group))[1])), seconds))
    rows = []
    for size, pairs in sorted(by_size.items()):
        forecast_s, measured_s = (float(np.mean(column)) for column in zip(*pairs, strict=True))
        interval = Interval(forecast_s, low * forecast_s, high * forecast_s)
        rows.append(CheckedGroup(size, len(pairs), CheckedFigure(interval, measured_s)))
    return tuple(rows)


def _latencies_s(served: Served) -> tuple[float, ...]:
    return tuple(served.latency_s[np.isfinite(served.latency_s)].tolist())


def _nearness(plan: CheckPlan, forecasts: Sequence[Served], most: Interval) -> tuple[Note, ...]:
    """What waiting makes of slower passes, where the rate is near what is served at most.

    Arguments:
        forecasts: as forecast, with faster and with slower passes.
        most: requests a second that are served while others always wait.
    """
    rate_per_s, slower = plan.rate_per_s, plan.server.spread[1]
    if not NEAR * most.low < rate_per_s <= most.value:
        return ()
    as_forecast, _, slow = (np.nanpercentile(served.latency_s, 99) for served in forecasts)
    return (
        notes.waiting_multiplies_errors(
            share=rate_per_s / most.value,
            slower=slower,
            longer=float(slow / as_forecast),
            overloads=rate_per_s > most.low,
        ),
    )


def _remarks(plan: CheckPlan, outcome: LoadReplay, measured: Served, *, most: float) -> tuple[Note, ...]:
    remarks = []
    if outcome.interrupted:
        remarks.append(notes.ended_early())
    if isfinite(plan.rate_per_s) and plan.rate_per_s > most:
        remarks.append(notes.above_capacity(rate_per_s=plan.rate_per_s, capacity_per_s=most))
    if not (plan.profiles or plan.forecast.rests_on_measurements):
        remarks.append(notes.machine_not_measured())
    latencies_s = _latencies_s(measured)
    if latencies_s and outcome.late_s > LATE * float(np.median(latencies_s)):
        share = outcome.late_s / float(np.median(latencies_s))
        remarks.append(notes.clients_were_late(late_ms=1e3 * outcome.late_s, share=share))
    return tuple(remarks)
