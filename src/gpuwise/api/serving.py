"""serve_plan: what serving a model takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.device_names import device_names
from gpuwise.api.devices import Device, device_of
from gpuwise.api.sources import job_of
from gpuwise.cost.memory.device import outside_bytes
from gpuwise.cost.parameters import parameters
from gpuwise.cost.rates import precisions_of
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.engines import Engine, engine_of
from gpuwise.serving.forecast import ServingForecast, ServingRow, cheapest_first, row_of
from gpuwise.serving.formats import Format, format_of, formats, stored
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.saturation import Limits
from gpuwise.serving.step_time import EngineStep
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import named_settings
from gpuwise.units import parse_duration, parse_rate

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.serving.generation import Generation

INPUT_TOKENS, OUTPUT_TOKENS = 512, 256
LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
ENGINE = "vllm"
EXPERTS = "experts"  # the name that models of Hugging Face and ours give the list of experts


def serve_plan(job: str | Job, *, on: str | Sequence[str], rate: str, **settings: Unpack[ServingSettings]) -> ServingForecast:
    """What serving a model that generates text takes: instances, latencies and dollars, on each of some devices.

    Arguments:
        job: as for `forecast`; its model must generate (Job.generate), as language presets and hf: models do.
        on: devices, in a list or separated by commas. "h100-sxm:2" is one instance whose layers two devices share.
        rate: requests of all users, such as "5/s" or "10k/day".
        settings: optional keywords:
            slo: limits, such as "ttft=500ms,tpot=50ms,share=0.99": time to first token, time per output token, "latency" of the
                whole answer, and the share of requests that must stay within them (0.99 by default). None by default.
            input, output: mean tokens of prompts and answers. None (default) assumes INPUT_TOKENS and OUTPUT_TOKENS.
            spread: standard deviation of both over their means; 0 for equal requests. Default 1.
            prefix_hits: share of each prompt that the prefix cache holds. Default 0.
            engine: of gpuwise.serving.engines. Default "vllm".
            precision: of activations and cache, and of weights without a format. Default: the engine's, mostly "bf16".
            weights: format of weights, of gpuwise.serving.formats. Default: the engine's, mostly as precision.

    A device that cannot serve the model has a row with the reason. Raises InputError, UnknownNameError, JobError or
    MissingDependencyError.
    """
    requested = named_settings(settings, ServingSettings)
    spread, named = _number(requested.get("spread"), 1.0), engine_of(requested.get("engine") or ENGINE)
    precision, format = requested.get("precision") or named.precision, _format(requested.get("weights"), named)
    rate_per_s, limits = parse_rate(rate), parse_limits(requested.get("slo") or "")
    resolved = job_of(job)
    lengths = Lengths(
        _number(requested.get("input"), INPUT_TOKENS),
        _number(requested.get("output"), OUTPUT_TOKENS),
        input_variation=spread,
        output_variation=spread,
        longest=resolved.context_length,
    )
    load = LoadShape(lengths, cached_share=_number(requested.get("prefix_hits"), 0.0))
    recordings = _Recordings(resolved, precision)
    catalog = load_catalog()
    rows = [_row(text, catalog, recordings, named, format, load, limits, rate_per_s=rate_per_s) for text in device_names(on)]
    if all(row.replicas == 0 for row in rows):
        raise UnsupportedError(
            f"none of these devices serves {recordings.job.name}: "
            + "; ".join(f"{row.device}: {row.reason}" for row in rows[:3]),
            [
                "other limits (--slo), or shorter requests (--input, --output)",
                "devices with more memory, or several (h100-sxm:4)",
            ],
        )
    return ServingForecast(
        job=recordings.job.name,
        engine=named.name,
        precision=precision,
        weights=format.name if format else precision,
        rate_per_s=rate_per_s,
        lengths={"input_tokens": lengths.input_tokens, "output_tokens": lengths.output_tokens, "spread": spread},
        limits=limits,
        rows=cheapest_first(rows),
        assumption_notes=(
            *_assumed(named, requested, spread=spread),
            *((notes.format_of_weights(format=format.name, quality=format.quality),) if format else ()),
            *((notes.all_experts_run(),) if recordings.has_experts else ()),
        ),
    )


def _number(value: float | None, default: float) -> float:
    return float(default if value is None else value)


def _format(name: str | None, engine: Engine) -> Format | None:
    """The format of that name, or the engine's own; None for the type of the activations.

    Raises InputError where the engine does not read it.
    """
    name = name or engine.format
    if not name:
        return None
    format = format_of(name)
    if engine.name not in format.engines:
        usable = [other.name for other in formats().values() if engine.name in other.engines]
        raise InputError(
            f"{engine.name} has no figures for weights in {name}.",
            [
                f"--weights {', '.join(usable)}" if usable else "no --weights: they have the type of --precision",
                f"--engine {format.engines[0]}",
            ],
        )
    return format


def parse_limits(text: str) -> Limits:
    """The limits of "ttft=500ms,tpot=50ms,share=0.95"; InputError for anything else."""
    values: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if name not in (*LIMITS, "share") or not equals:
            raise InputError(
                f"{part!r} is not a limit.", ["write ttft=500ms,tpot=50ms,latency=10s,share=0.99, or some of them"]
            )
        values[LIMITS.get(name, name)] = _share(value) if name == "share" else parse_duration(value)
    return Limits(**values)


def _share(text: str) -> float:
    try:
        return float(text.rstrip("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise InputError(f"{text!r} is not a share.", ["write share=0.99 or share=99%"]) from None


class _Recordings:
    """How the job's model generates, recorded once for each kind of device and number of devices that share its layers."""

    def __init__(self, job: Job, precision: str) -> None:
        self.job, self.precision = job, precision
        self._kept: dict[tuple[str, int], Generation] = {}

    @property
    def has_experts(self) -> bool:
        """Whether a recorded model is a mixture of experts, by the names of its modules."""
        return any(EXPERTS in path.split(".") for kept in self._kept.values() for path in kept.tokens.modules)

    def of(self, device: Device) -> Generation:
        from gpuwise.tracing.generation import record_generation

        key = device.target, device.devices
        if key not in self._kept:
            self._kept[key] = record_generation(
                self.job, precision=self.precision, tp=device.devices, target=device.target, longest=self.job.context_length
            )
        return self._kept[key]


def _row(
    text: str,
    catalog: Catalog,
    recordings: _Recordings,
    engine: Engine,
    format: Format | None,
    load: LoadShape,
    limits: Limits,
    *,
    rate_per_s: float,
) -> ServingRow:
    device = device_of(text, catalog)
    name = device.cluster.name
    try:
        _check(device, recordings.precision)
        generation = recordings.of(device)
        capacity = device.cluster.capacity_bytes
        assert capacity is not None
        weights = stored(generation, format)
        longest = round(load.lengths.input_tokens + load.lengths.output_tokens)
        policy = engine.policy(
            generation,
            capacity_bytes=capacity,
            outside_bytes=outside_bytes(device.cluster, parameters()),
            longest=longest,
            weight_bytes=weights.bytes,
        )
        most = policy.batched_tokens + policy.sequences
        step = EngineStep(generation, device.cluster, costs=engine.costs, weights=weights, most_tokens=most)
        return row_of(
            name,
            Instance(step, policy, engine.spread),
            load,
            limits,
            rate_per_s=rate_per_s,
            weight_bytes=weights.bytes,
            usd_per_hour=device.usd_per_hour,
        )
    except GpuwiseError as error:
        if error.code in ("bad-job", "missing-dependency"):
            raise
        return ServingRow(name, reason=error.what)


def _check(device: Device, precision: str) -> None:
    if device.chip.kind == "cpu":
        raise UnsupportedError("iterations of an engine on a CPU have no figures yet")
    if device.machines > 1:
        raise UnsupportedError("an instance across machines has no figures yet")
    if precision not in precisions_of(device.chip):
        raise UnsupportedError(f"{device.chip.id} does not compute in {precision}")
    if device.cluster.capacity_bytes is None:
        raise UnsupportedError(f"the memory of {device.chip.id} is unknown")


def _assumed(engine: Engine, requested: ServingSettings, *, spread: float) -> tuple[Note, ...]:
    costs = engine.costs
    return (
        *(() if "input" in requested else (notes.assumed_input_tokens(tokens=INPUT_TOKENS),)),
        *(() if "output" in requested else (notes.assumed_output_tokens(tokens=OUTPUT_TOKENS),)),
        notes.spread_of_lengths(variation=spread),
        notes.poisson_arrivals(),
        *(() if requested.get("prefix_hits") else (notes.no_prefix_cache(),)),
        notes.engine_figures(
            engine=engine.name,
            versions=engine.versions,
            iteration_ms=1e3 * costs.iteration_s,
            sequence_ms=1e3 * costs.sequence_s,
        ),
        *((notes.kernels_one_by_one(microseconds=1e6 * costs.kernel_s),) if costs.kernel_s else ()),
    )
