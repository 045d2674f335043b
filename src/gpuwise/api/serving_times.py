"""The forecast times of a plain PyTorch server's passes on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwise.api.devices import Device
from gpuwise.api.forecasting import forecast_step
from gpuwise.api.source import StepSource
from gpuwise.cost import Forecast
from gpuwise.cost.price import price
from gpuwise.errors import InputError
from gpuwise.notes import Note
from gpuwise.serving.engine_server import EngineTimes
from gpuwise.serving.graph_engines import GraphEngine
from gpuwise.serving.pass_times import ForwardTimes, GenerationTimes, PackedTimes, PassTimes, sizes_up_to
from gpuwise.strategy import Strategy
from gpuwise.trace.parallel.recorded import split_communication
from gpuwise.units import format_bytes

if TYPE_CHECKING:
    from gpuwise.job import Job

ON = "here:1"
LEAST_PROMPT = 16  # tokens: between one and so many, times of a prompt are taken as linear
LEAST_NEW, LEAST_CACHED = 4, 32
MEASURED = "measured here"
_OF_THE_JOB = ("--seq-len", "--image-size", "--precision")


@dataclass(frozen=True)
class ForecastTimes:
    """Times of passes, with the strategy they are of and what was assumed.

    Attributes:
        rests_on_measurements: whether most of a pass is priced by what `gpuwise measure` measured here.
    """

    times: PassTimes | PackedTimes | EngineTimes
    strategy: Strategy
    rests_on_measurements: bool
    notes: tuple[Note, ...] = ()


def forward_times(source: StepSource, *, batch: int, precision: str | None, engine: GraphEngine | None = None) -> ForecastTimes:
    """Times of forward passes of up to `batch` samples. Errors as for gpuwise.api.forecast, and InputError where the largest
    does not fit.

    engine: that runs the exported graph; None (default) for plain PyTorch.
    """
    forecasts = {}
    for size in sizes_up_to(batch):
        priced = forecast_step(source, ON, history=False, mode="infer", micro_batch=size, precision=precision)
        eager = priced.forecast
        forecasts[size] = eager if engine is None else engine.forecast(eager, priced.trace, priced.device.chip)
    largest = forecasts[batch]
    _check_fits(largest, f"{batch:,} requests together")
    return ForecastTimes(
        ForwardTimes({size: forecast.step_time_s for size, forecast in forecasts.items()}),
        largest.strategy,
        _is_measured(largest),
        tuple(note for note in largest.assumption_notes if note.flag in _OF_THE_JOB),
    )


def generation_times(
    job: Job, device: Device, *, batch: int, precision: str, longest_prompt: int, longest: int
) -> ForecastTimes:
    """Times of passes over prompts, and over one token each of up to `batch` sequences, as plain PyTorch runs them.

    longest_prompt, longest: most tokens of a prompt, and of a prompt and its answer.
    """
    sequences = sizes_up_to(batch)
    prompts = sizes_up_to(longest_prompt, least=LEAST_PROMPT)
    past = sizes_up_to(max(longest - 1, 1), least=LEAST_PROMPT)
    reading = [(n, tokens, 0) for n in sequences for tokens in prompts]
    writing = [(n, 1, tokens) for n in sequences for tokens in past]
    forecasts = _forecasts(job, device, [*reading, *writing], precision=precision)
    largest = forecasts[reading[-1]]
    _check_fits(largest, f"{batch:,} prompts of {prompts[-1]:,} tokens")
    return ForecastTimes(
        GenerationTimes(
            {n: {tokens: forecasts[n, tokens, 0].step_time_s for tokens in prompts} for n in sequences},
            {n: {tokens: forecasts[n, 1, tokens].step_time_s for tokens in past} for n in sequences},
        ),
        Strategy(precision=precision, micro_batch=batch, mode="infer"),
        _is_measured(forecasts[writing[-1]]),
    )


def packed_times(job: Job, device: Device, *, precision: str, batched_tokens: int, cached_tokens: int) -> ForecastTimes:
    """Times of passes over up to `batched_tokens` new tokens beside up to `cached_tokens` tokens in all caches together."""
    news = sizes_up_to(batched_tokens, least=LEAST_NEW)
    past = [0, *sizes_up_to(cached_tokens, least=LEAST_CACHED)[1::2], cached_tokens]
    points = [(1, new, tokens) for new in news for tokens in dict.fromkeys(past)]
    forecasts = _forecasts(job, device, points, precision=precision)
    largest = forecasts[points[-1]]
    _check_fits(largest, f"{batched_tokens:,} tokens beside {cached_tokens:,} in the cache")
    return ForecastTimes(
        PackedTimes({new: {tokens: forecasts[1, new, tokens].step_time_s for tokens in past} for new in news}),
        Strategy(precision=precision, micro_batch=1, mode="infer"),
        _is_measured(largest),
    )


def _forecasts(
    job: Job, device: Device, points: Sequence[tuple[int, int, int]], *, precision: str
) -> dict[tuple[int, int, int], Forecast]:
    """Forecasts of passes by sequences, new tokens of each, and tokens in the cache of each."""
    from gpuwise.tracing.generation import record_passes

    traces = record_passes(job, points, precision=precision, target=device.target)
    return {
        point: price(
            *split_communication(trace), device.cluster, strategy=trace.header.strategy.but(micro_batch=point[0]), replay=False
        )
        for point, trace in traces.items()
    }


def _is_measured(forecast: Forecast) -> bool:
    return forecast.provenance["step_time_s"] == MEASURED


def _check_fits(forecast: Forecast, what: str) -> None:
    memory = forecast.memory
    if memory.fits is False and memory.capacity_bytes is not None:
        raise InputError(
            f"{what} take {format_bytes(memory.device_bytes)}; this machine has {format_bytes(memory.capacity_bytes)}.",
            ["a smaller --batch", "shorter requests (--input, --seq-len) or smaller images (--image-size)"],
        )
