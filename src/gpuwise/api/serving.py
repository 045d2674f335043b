"""serve_plan: what serving a model takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.device_names import device_names
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving_apart import ApartPlan
from gpuwise.api.serving_catalog import CatalogAnswer, CatalogInstances, answer_of_catalog
from gpuwise.api.serving_modes import engine_model, without_answer
from gpuwise.api.serving_money import offer_of, with_money
from gpuwise.api.sources import job_of
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.api_price import parse_api_price
from gpuwise.serving.engines import Engine, engine_of
from gpuwise.serving.forecast import ServingForecast, ServingRow, cheapest_first, row_of
from gpuwise.serving.instance import Instance, LoadShape
from gpuwise.serving.launch import launch_line, longest_request, model_of
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.saturation import Limits
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import named_settings
from gpuwise.units import parse_duration, parse_rate, parse_usd

if TYPE_CHECKING:
    from gpuwise.job import Job

INPUT_TOKENS, OUTPUT_TOKENS = 512, 256
LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
ENGINE = "vllm"


def serve_plan(
    job: str | Job, *, rate: str, on: str | Sequence[str] | None = None, **settings: Unpack[ServingSettings]
) -> ServingForecast:
    """What serving a model that generates text takes: instances, latencies and dollars, on each of some devices.

    Arguments:
        job: as for `forecast`; its model must generate (Job.generate), as language presets and hf: models do.
        rate: requests of all users, such as "5/s" or "10k/day".
        on: devices, in a list or separated by commas. "h100-sxm:2" is one instance whose layers two devices share. None
            (default) for the cheapest of all that offers of the catalog sell.
        settings: optional keywords:
            slo: limits, such as "ttft=500ms,tpot=50ms,share=0.99": time to first token, time per output token, "latency" of the
                whole answer, and the share of requests that must stay within them (0.99 by default). None by default.
            input, output: mean tokens of prompts and answers. None (default) assumes INPUT_TOKENS and OUTPUT_TOKENS.
            spread: standard deviation of both over their means; 0 for equal requests. Default 1.
            prefix_hits: share of each prompt that the prefix cache holds. Default 0.
            engine: of gpuwise.serving.engines. Default "vllm".
            precision: of activations and cache, and of weights without a format. Default: the engine's, mostly "bf16".
            weights: format of weights, of gpuwise.serving.formats. Default: the engine's, mostly as precision.
            cache: format of keys and values, of gpuwise.serving.formats: "fp8" or "q8_0". Default: as precision.
            gpu_layers: layers on the card, the head included, the others on the host (llama.cpp); "auto" for as many as fit.
                All by default.
            host: processor of the host, of the catalog, or "here". Default: this machine's for "here", else "ryzen-7950x".
            host_memory: memory of the host, such as "128GiB". Default: this machine's for "here", else 64 GiB.
            draft: a smaller job that writes tokens ahead, or "ngram" for a look-up in the text so far. None by default.
            draft_tokens: tokens that the draft writes ahead. Default 3.
            acceptance: probability that the model accepts one of them. Default 0.7; a look-up has none.
            prefill_on: devices of instances that read prompts alone, such as "h100-sxm:2": rows in which the devices of `on`
                write answers after them stand beside those in which they do both. None by default.
            network: what joins both, such as "100 Gbit Ethernet", or "inside" for one machine. Default: that of an offer.
            budget: most dollars a month, such as "2k". None by default.
            api_price: dollars for a million tokens read and written of an API to compare with, "0.5,1.5". None by default.

    A device that cannot serve the model has a row with the reason. Raises InputError, UnknownNameError, JobError,
    NoPlanError (nothing serves the rate inside the budget), UnsupportedError or MissingDependencyError.
    """
    requested = named_settings(settings, ServingSettings)
    spread, named = _number(requested.get("spread"), 1.0), engine_of(requested.get("engine") or ENGINE)
    precision = requested.get("precision") or named.precision
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
    catalog = load_catalog()
    model = engine_model(
        resolved, named, precision=precision, requested=requested, catalog=catalog, named_devices=on is not None
    )
    budget, api = requested.get("budget"), requested.get("api_price")
    budget_usd, api_price = None if budget is None else parse_usd(budget), None if api is None else parse_api_price(api)

    def row_of_device(text: str, solved: tuple[Instance, float] | None = None) -> ServingRow:
        return _row(text, catalog, model, load, limits, rate_per_s=rate_per_s, solved=solved)

    answer: CatalogAnswer | None = None
    if on is None:
        instances = CatalogInstances(
            catalog,
            named,
            precision,
            load,
            limits,
            recorded=model.of,
            instance=lambda device, generation: model.instance(device, generation, load),
        )
        answer = answer_of_catalog(instances, row_of_device, rate_per_s=rate_per_s)
    rows = answer.rows if answer else tuple(row_of_device(text) for text in device_names(on or ()))
    prefill_on, apart_notes = requested.get("prefill_on"), tuple[Note, ...]()
    if prefill_on is not None:
        reads = device_of(prefill_on, catalog)
        apart = ApartPlan(reads, requested.get("network"), catalog, model, load, limits, rate_per_s)
        rows, apart_notes = (*rows, *map(apart.row, device_names(on or ()))), apart.notes
    if all(row.replicas == 0 for row in rows):
        raise UnsupportedError(
            f"none of these devices serves {resolved.name}: " + "; ".join(f"{row.device}: {row.reason}" for row in rows[:3]),
            [
                "other limits (--slo), or shorter requests (--input, --output)",
                "devices with more memory, or several (h100-sxm:4)",
            ],
        )
    forecast = ServingForecast(
        job=resolved.name,
        engine=named.name,
        precision=precision,
        weights=model.format.name if model.format else precision,
        rate_per_s=rate_per_s,
        lengths={"input_tokens": lengths.input_tokens, "output_tokens": lengths.output_tokens, "spread": spread},
        limits=limits,
        rows=cheapest_first(rows),
        assumption_notes=(
            *_assumed(named, requested, spread=spread),
            *model.notes,
            *apart_notes,
            *(answer.notes if answer else ()),
        ),
        model=model_of(resolved.name),
    )
    fleets = answer.fleets if answer else tuple(row.fleet for row in rows if row.fleet is not None)
    return with_money(forecast, load, fleets, budget_usd=budget_usd, api=api_price)


def _number(value: float | None, default: float) -> float:
    return float(default if value is None else value)


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


def _row(
    text: str,
    catalog: Catalog,
    model: EngineModel,
    load: LoadShape,
    limits: Limits,
    *,
    rate_per_s: float,
    solved: tuple[Instance, float] | None = None,
) -> ServingRow:
    """The row of a device. solved: an instance there with its saturation rate; None (default) searches for it."""
    device = device_of(text, catalog)
    name = device.cluster.name
    try:
        model.check(device)
        generation = model.of(device)
        instance, saturation = solved or (model.instance(device, generation, load), None)
        row = row_of(
            name,
            instance,
            load,
            limits,
            rate_per_s=rate_per_s,
            weight_bytes=model.weight_bytes(device, generation),
            usd_per_hour=device.usd_per_hour,
            saturation=saturation,
        )
        launch = launch_line(
            model.engine.name,
            model_of(model.job.name),
            instance.policy,
            devices=device.count,
            precision=model.precision,
            memory_share=model.engine.memory_share,
            longest=longest_request(load.at(rate_per_s), instance.policy, model.job.context_length),
            weights=model.format.name if model.format else "",
            cache=model.cache.name if model.cache else "",
            on_cpu=device.chip.kind == "cpu",
        )
        return replace(row, launch=model.launched(launch, device), offer=offer_of(device), mode=model.mode(device))
    except GpuwiseError as error:
        return without_answer(name, error)


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
