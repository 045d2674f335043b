"""The load that serve_check sends, and its forecast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, isfinite, sqrt
from typing import TYPE_CHECKING, Unpack

import numpy as np

from gpuwise.api.check_server import forecast_server
from gpuwise.api.check_settings import MOST_REQUESTS, arrive_s, check_used, named_rate, whole
from gpuwise.api.devices import Device, device_of
from gpuwise.api.serving_job_kinds import PYTORCH
from gpuwise.api.serving_limits import parse_limits
from gpuwise.api.serving_times import ON, ForecastTimes
from gpuwise.api.sources import job_of
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.engine_server import EngineServer
from gpuwise.serving.graph_engines import GraphEngine
from gpuwise.serving.group_server import CheckedServer, PackedServer
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.requests import Requests
from gpuwise.serving.saturation import Limits
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.serving_settings import CheckSettings
from gpuwise.step_settings import named_settings
from gpuwise.units import format_duration

if TYPE_CHECKING:
    from gpuwise.job import Job

SHARE = 0.6  # of the highest rate within the limits, where no rate is named
INPUT_TOKENS, OUTPUT_TOKENS = 64, 32
LOAD_S, FEWEST, MOST = 20.0, 20, 2000  # requests sent where no number is named: those of so many seconds, within bounds
LONGEST_S = 3600.0  # over which those may come


@dataclass(frozen=True)
class CheckPlan:
    """What is served, and its forecast.

    Attributes:
        shape: lengths and arrivals at any rate.
        load: the requests that are sent.
        rate_per_s: of the load; infinite where all come at once.
        saturates: whether to send them all at once afterwards, too.
        graphs: engine that runs the exported graph; None (default) for another server.
        profiles: whether to time passes first. False by default.
    """

    job: Job
    device: Device
    generates: bool
    forecast: ForecastTimes
    server: CheckedServer
    shape: LoadShape
    load: Requests
    rate_per_s: float
    limits: Limits
    saturates: bool
    notes: tuple[Note, ...]
    graphs: GraphEngine | None = None
    profiles: bool = False


def check_plan(
    job: str | Job, *, progress: Callable[[str], None] = lambda words: None, **settings: Unpack[CheckSettings]
) -> CheckPlan:
    """The load and the forecast of gpuwise.api.serving_check.serve_check, whose arguments and errors these are."""
    from gpuwise.job.dependencies import require

    require("torch", purpose="serve a model on this machine")
    requested = named_settings(settings, CheckSettings)
    limits = parse_limits(requested.get("slo") or "")
    sizes = {"seq_len": requested.get("seq_len"), "image_size": requested.get("image_size")}
    resolved, device = job_of(job, **sizes), device_of(ON, load_catalog())
    generates = resolved.generate is not None
    check_used(requested, generates=generates)
    lengths = _lengths(resolved, requested) if generates else Lengths(1, 1)
    shape = LoadShape(lengths, seed=whole(requested, "seed", 0, least=0))
    named, within_s = named_rate(requested), arrive_s(requested)
    progress("recording its passes")
    checked = forecast_server(job, resolved, device, requested, shape)
    server = checked.server
    rate_per_s = _usual_rate(server, shape, limits) if named is None else named
    load = _load(shape, rate_per_s, requested, within_s=within_s)
    assumed = _assumed(requested, load, checked.policy, server, lengths if generates else None)
    return CheckPlan(
        resolved,
        device,
        generates,
        checked.forecast,
        server,
        shape,
        load,
        rate_per_s,
        limits,
        bool(requested.get("saturate")),
        (*checked.forecast.notes, *assumed),
        checked.graphs,
        bool(requested.get("profile")),
    )


def _lengths(job: Job, requested: CheckSettings) -> Lengths:
    spread = requested.get("spread")
    if spread is None:
        spread = 0.0 if (requested.get("batch") or 1) > 1 and requested.get("engine") in (None, "pytorch") else 1.0
    usual_input, usual_output = INPUT_TOKENS, OUTPUT_TOKENS
    if job.context_length is not None:
        usual_input, usual_output = (min(usual, max(1, job.context_length // 2)) for usual in (usual_input, usual_output))
    return Lengths(
        whole(requested, "input", usual_input),
        whole(requested, "output", usual_output),
        input_variation=spread,
        output_variation=spread,
        longest=job.context_length,
    )


def _usual_rate(server: CheckedServer, shape: LoadShape, limits: Limits) -> float:
    rate = SHARE * server.saturation_rate(shape, limits).value
    if rate == 0:
        raise InputError(
            "no rate stays within the limits, as forecast.", ["--rate 1/s, to see by how much", "other limits (--slo)"]
        )
    return rate


def _load(shape: LoadShape, rate_per_s: float, requested: CheckSettings, *, within_s: float | None) -> Requests:
    """The requests that are sent."""
    if not isfinite(rate_per_s):
        return shape.at(1.0, count=whole(requested, "requests", 5 * FEWEST)).all_at_once()
    if within_s is None:
        usual = min(max(round(LOAD_S * rate_per_s), FEWEST), MOST)
        load = shape.at(rate_per_s, count=whole(requested, "requests", usual))
        if "requests" not in requested and load.arrival_s[-1] > LONGEST_S:
            raise InputError(
                f"at that rate, the {len(load)} requests of a check take {format_duration(float(load.arrival_s[-1]))} to come.",
                ["a higher --rate", "fewer --requests, or a --duration"],
            )
        return load
    mean = rate_per_s * within_s
    count = whole(requested, "requests", ceil(mean + 6 * sqrt(mean) + 10))  # a Poisson number hardly ever exceeds that
    if count > MOST_REQUESTS:
        raise InputError(
            f"that is {mean:,.0f} requests; at most {MOST_REQUESTS:,} are sent.",
            ["a shorter --duration", "a lower --rate"],
        )
    load = shape.at(rate_per_s, count=count)
    within = load.of(load.arrival_s <= within_s)
    if not len(within):
        raise InputError(f"no request arrives within {requested.get('duration')}.", ["a longer --duration", "a higher --rate"])
    return within


def _assumed(
    requested: CheckSettings, load: Requests, policy: WindowPolicy, server: CheckedServer, lengths: Lengths | None
) -> tuple[Note, ...]:
    """What was not named, and how the server works. lengths: of prompts and answers; None for a model without a cache."""
    queue = policy.queue or 0
    by_kind: tuple[Note, ...]
    if lengths is None:
        by_kind = (
            notes.one_sample_a_request(),
            notes.served_in_batches(
                batch=policy.batch,
                window_ms=1e3 * policy.window_s,
                queue=queue,
                engine=requested.get("engine") or PYTORCH,
            ),
        )
    else:
        by_kind = (
            *(() if "input" in requested else (notes.assumed_input_tokens(tokens=round(lengths.input_tokens)),)),
            *(() if "output" in requested else (notes.assumed_output_tokens(tokens=round(lengths.output_tokens)),)),
            notes.spread_of_lengths(variation=lengths.input_variation),
            notes.served_packed(batch=policy.batch, tokens=server.policy.batched_tokens)
            if isinstance(server, PackedServer)
            else notes.served_in_slots(slots=policy.batch, tokens=server.policy.batched_tokens, queue=queue)
            if isinstance(server, EngineServer)
            else notes.served_in_turn(batch=policy.batch, queue=queue),
        )
    return (
        *(() if "rate" in requested else (notes.assumed_rate(share=SHARE),)),
        *(
            ()
            if requested.keys() & {"requests", "duration"}
            else (notes.assumed_requests(count=len(load), seconds=float(np.max(load.arrival_s))),)
        ),
        *by_kind,
        notes.in_one_process(),
    )
