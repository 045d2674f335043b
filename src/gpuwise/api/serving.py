"""serve_plan: what serving a model takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.device_names import device_names
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.serving_arrivals import planned_load
from gpuwise.api.serving_catalog import ABOUT_THE_JOB, CatalogAnswer, CatalogInstances, answer_of_catalog
from gpuwise.api.serving_money import price_source, with_money
from gpuwise.api.serving_terms import FleetTerms, energy_of
from gpuwise.api.sources import job_of
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.api_price import parse_api_price
from gpuwise.serving.closed_loop import row_of_clients
from gpuwise.serving.engines import Engine, engine_of
from gpuwise.serving.forecast import ServingForecast, ServingRow, cheapest_first, row_of
from gpuwise.serving.instance import Instance
from gpuwise.serving.launch import launch_line, longest_request, model_of
from gpuwise.serving.saturation import Limits
from gpuwise.serving_settings import ServingSettings
from gpuwise.step_settings import named_settings
from gpuwise.units import parse_duration, parse_usd

if TYPE_CHECKING:
    from gpuwise.job import Job

LIMITS = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
ENGINE = "vllm"


def serve_plan(
    job: str | Job, *, rate: str | None = None, on: str | Sequence[str] | None = None, **settings: Unpack[ServingSettings]
) -> ServingForecast:
    """What serving a model that generates text takes: instances, latencies and dollars, on each of some devices.

    Arguments:
        job: as for `forecast`; its model must generate (Job.generate), as language presets and hf: models do.
        rate: requests of all users, such as "5/s" or "10k/day"; the mean over a day. None (default) takes that of `trace`, or
            what the users of `concurrency` reach.
        on: devices, in a list or separated by commas. "h100-sxm:2" is one instance whose layers two devices share. None
            (default) for the cheapest of all that offers of the catalog sell.
        settings: optional keywords:
            slo: limits, such as "ttft=500ms,tpot=50ms,share=0.99": time to first token, time per output token, "latency" of the
                whole answer, and the share of requests that must stay within them (0.99 by default). None by default.
            input, output: mean tokens of prompts and answers. None (default) assumes 512 and 256.
            spread: standard deviation of both over their means; 0 for equal requests. Default 1.
            prefix_hits: share of each prompt that the prefix cache holds. Default 0.
            engine: of gpuwise.serving.engines. Default "vllm".
            precision: of activations and cache, and of weights without a format. Default: the engine's, mostly "bf16".
            weights: format of weights, of gpuwise.serving.formats. Default: the engine's, mostly as precision.
            cache: format of keys and values, of gpuwise.serving.formats: "fp8" or "q8_0". Default: as precision.
            budget: most dollars a month, such as "2k". None by default.
            concurrency: users who each send the next request when the last one is answered. None by default.
            arrivals: "poisson" (default), or "bursty=2" with the standard deviation of gaps over their mean.
            trace: a file of requests, whose times and lengths are replayed. See gpuwise.serving.request_log. None by default.
            day: relative rates from hours on, "0:0.2,8:1,12:1.5,20:0.8", or a name of gpuwise.serving.days. None by default.
            autoscale: whether the number of instances follows the hours of the day. Default False.
            scale_to_zero: whether to look at stopping idle instances; `idle` is how long they are idle before ("10min").
            spot: whether to take spot offers, with instances to spare. Default False.
            api_price: dollars for a million tokens read and written of an API to compare with, "0.5,1.5". None by default.

    A device that cannot serve the model has a row with the reason. Raises InputError, UnknownNameError, JobError,
    NoPlanError (nothing serves the rate inside the budget), UnsupportedError or MissingDependencyError.
    """
    requested = named_settings(settings, ServingSettings)
    named = engine_of(requested.get("engine") or ENGINE)
    precision = requested.get("precision") or named.precision
    limits, resolved = parse_limits(requested.get("slo") or ""), job_of(job)
    planned = planned_load(requested, rate=rate, longest=resolved.context_length)
    rate_per_s, load = planned.rate_per_s, planned.shape
    format, cache = named.format_of(requested.get("weights")), named.cache_of(requested.get("cache"))
    model = EngineModel(resolved, named, precision, format, cache)
    catalog = load_catalog()
    terms = FleetTerms.of(requested, catalog=catalog, load=planned)
    budget, api = requested.get("budget"), requested.get("api_price")
    budget_usd, api_price = None if budget is None else parse_usd(budget), None if api is None else parse_api_price(api)

    def row_of_device(text: str, solved: tuple[Instance, float] | None = None) -> ServingRow:
        return _row(text, catalog, model, limits, terms, solved=solved)

    answer: CatalogAnswer | None = None
    if on is None and planned.clients:
        raise InputError("--concurrency is planned on devices that are named.", ["--on h100-sxm,rtx-4090", "--rate 5/s"])
    if on is None:
        instances = CatalogInstances(
            catalog,
            named,
            precision,
            load,
            limits,
            recorded=model.of,
            instance=lambda device, generation: model.instance(device, generation, load),
            terms=terms.terms,
            schedule=lambda offer, generation: terms.schedule(offer, model.weight_bytes(generation)),
        )
        answer = answer_of_catalog(instances, row_of_device, rate_per_s=rate_per_s)
    rows = answer.rows if answer else tuple(row_of_device(text) for text in device_names(on or ()))
    if all(row.replicas == 0 for row in rows):
        raise UnsupportedError(
            f"none of these devices serves {resolved.name}: " + "; ".join(f"{row.device}: {row.reason}" for row in rows[:3]),
            [
                "other limits (--slo), or shorter requests (--input, --output)",
                "devices with more memory, or several (h100-sxm:4)",
            ],
        )
    rows = cheapest_first(rows)
    forecast = ServingForecast(
        job=resolved.name,
        engine=named.name,
        precision=precision,
        weights=format.name if format else precision,
        rate_per_s=rows[0].reached_per_s or rate_per_s,
        lengths=planned.lengths,
        limits=limits,
        rows=rows,
        assumption_notes=(
            *planned.notes,
            *_assumed(named, requested),
            *terms.notes,
            *model.notes,
            *(answer.notes if answer else ()),
        ),
        model=model_of(resolved.name),
        arrivals=planned.arrivals,
    )
    priced = () if planned.clients else tuple(row.fleet for row in rows if row.fleet is not None)
    fleets = answer.fleets if answer else priced
    return with_money(forecast, load, fleets, budget_usd=budget_usd, api=api_price)


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
    limits: Limits,
    terms: FleetTerms,
    *,
    solved: tuple[Instance, float] | None = None,
) -> ServingRow:
    """The row of a device. solved: an instance there with its saturation rate; None (default) searches for it."""
    device = device_of(text, catalog)
    name, load, rate_per_s = device.cluster.name, terms.load.shape, terms.load.rate_per_s
    try:
        model.check(device)
        generation = model.of(device)
        offer, weight_bytes = terms.offer(device), model.weight_bytes(generation)
        instance, saturation = solved or (model.instance(device, generation, load), None)
        usd_per_hour = None if offer is None else offer.usd_per_hour
        if terms.load.clients:
            row = row_of_clients(
                name,
                instance,
                load,
                limits,
                clients=terms.load.clients,
                weight_bytes=weight_bytes,
                usd_per_hour=usd_per_hour,
            )
        else:
            row = row_of(
                name,
                instance,
                load,
                limits,
                rate_per_s=rate_per_s,
                weight_bytes=weight_bytes,
                usd_per_hour=usd_per_hour,
                saturation=saturation,
                schedule=terms.schedule(offer, weight_bytes * device.devices),
            )
        launch = launch_line(
            model.engine.name,
            model_of(model.job.name),
            instance.policy,
            devices=device.devices,
            precision=model.precision,
            memory_share=model.engine.memory_share,
            longest=longest_request(load.at(1.0), instance.policy, model.job.context_length),
            weights=model.format.name if model.format else "",
            cache=model.cache.name if model.cache else "",
            on_cpu=device.chip.kind == "cpu",
        )
        row = replace(row, launch=launch, offer=price_source(offer))
        return terms.with_running(row, device, offer, instance=instance, energy=energy_of(device, model, generation))
    except GpuwiseError as error:
        if error.code in ABOUT_THE_JOB:
            raise
        return ServingRow(name, reason=error.what)


def _assumed(engine: Engine, requested: ServingSettings) -> tuple[Note, ...]:
    costs = engine.costs
    return (
        *(() if requested.get("prefix_hits") else (notes.no_prefix_cache(),)),
        notes.engine_figures(
            engine=engine.name,
            versions=engine.versions,
            iteration_ms=1e3 * costs.iteration_s,
            sequence_ms=1e3 * costs.sequence_s,
        ),
        *((notes.kernels_one_by_one(microseconds=1e6 * costs.kernel_s),) if costs.kernel_s else ()),
    )
