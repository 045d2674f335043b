"""text_plan: what serving a model that writes text takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.api.device_names import distinct_devices
from gpuwise.api.devices import device_of
from gpuwise.api.engine_model import EngineModel
from gpuwise.api.plan_timing import HERE, check_profiles_here, text_profile
from gpuwise.api.served_job import ServedJob
from gpuwise.api.serving_apart import ApartPlan
from gpuwise.api.serving_arrivals import planned_load
from gpuwise.api.serving_catalog import CatalogAnswer, CatalogInstances, answer_of_catalog
from gpuwise.api.serving_job_kinds import check_writes_text
from gpuwise.api.serving_modes import engine_model, without_answer
from gpuwise.api.serving_money import price_source, with_money
from gpuwise.api.serving_terms import FleetTerms, energy_of
from gpuwise.errors import GpuwiseError
from gpuwise.hardware.catalog import Catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as notes
from gpuwise.serving.api_price import parse_api_price
from gpuwise.serving.closed_loop import row_of_clients
from gpuwise.serving.engines import Engine, engine_of
from gpuwise.serving.forecast import PlanTiming, ServingForecast
from gpuwise.serving.instance import Instance
from gpuwise.serving.launch import launch_line, launched_model, longest_request, model_of
from gpuwise.serving.platforms import runs_on
from gpuwise.serving.profile import PassProfile, corrected_iterations
from gpuwise.serving.reasons import nobody_serves
from gpuwise.serving.rows import ServingRow, cheapest_first, row_of
from gpuwise.serving.saturation import Limits
from gpuwise.serving_settings import ServingSettings
from gpuwise.units import parse_usd

ENGINE = "vllm"


def text_plan(
    job: ServedJob,
    catalog: Catalog,
    requested: ServingSettings,
    *,
    limits: Limits,
    rate: str | None,
    on: str | Sequence[str] | None,
) -> ServingForecast:
    """The result of gpuwise.api.serving.serve_plan for such a job, whose arguments and errors these are."""
    check_writes_text(requested, job=job.name)
    named = engine_of(requested.get("engine") or ENGINE)
    planned = planned_load(requested, rate=rate, longest=job.context_length)
    rate_per_s, load = planned.rate_per_s, planned.shape
    precision = requested.get("precision")
    model = engine_model(job, named, precision=precision, requested=requested, catalog=catalog, named_devices=on is not None)
    terms = FleetTerms.of(requested, catalog=catalog, load=planned)
    budget, api = requested.get("budget"), requested.get("api_price")
    budget_usd, api_price = None if budget is None else parse_usd(budget), None if api is None else parse_api_price(api)

    names = [] if on is None else distinct_devices(on, catalog)
    profile: PassProfile | None = None
    timing: PlanTiming | None = None
    if requested.get("profile"):
        check_profiles_here(names, catalog)
        profile = text_profile(job.live(), named, requested, load, catalog)
        timing = PlanTiming(profile, _row(HERE, catalog, model, limits, terms))

    def row_of_device(text: str, solved: tuple[Instance, float] | None = None) -> ServingRow:
        return _row(text, catalog, model, limits, terms, solved=solved, profile=profile)

    answer: CatalogAnswer | None = None
    if on is None:
        instances = CatalogInstances(
            catalog,
            named,
            model.precision_on,
            load,
            limits,
            recorded=model.of,
            instance=lambda device, generation: model.instance(device, generation, load),
            terms=terms.terms,
            schedule=lambda device, offer: terms.schedule(offer, model.weight_bytes(device, model.of(device)) * device.devices),
            weights=model.format.name if model.format else "",
            clients=planned.clients,
        )
        answer = answer_of_catalog(instances, row_of_device, rate_per_s=rate_per_s)
    rows = answer.rows if answer else tuple(row_of_device(text) for text in names)
    prefill_on, apart_notes = requested.get("prefill_on"), tuple[Note, ...]()
    if prefill_on is not None:
        reads = device_of(prefill_on, catalog)
        apart = ApartPlan(reads, requested.get("network"), catalog, model, load, limits, rate_per_s)
        rows, apart_notes = (*rows, *map(apart.row, names)), apart.notes
    if all(row.replicas == 0 for row in rows):
        ways = ["shorter requests (--input, --output)", "devices with more memory, or more of them (--on CHIP:COUNT)"]
        raise nobody_serves(job.name, {row.device: row.reason for row in rows}, (row.way_out for row in rows), limits, ways)
    precisions = {model.precision_on(device_of(name, catalog).chip) for name in names}
    precision = precisions.pop() if len(precisions) == 1 else model.precision
    rows = cheapest_first(rows)
    forecast = ServingForecast(
        job=job.name,
        engine=named.name,
        precision=precision,
        weights=model.format.name if model.format else precision,
        rate_per_s=rows[0].reached_per_s or rate_per_s,
        lengths=planned.lengths,
        limits=limits,
        rows=rows,
        assumption_notes=(
            *planned.notes,
            *_assumed(named, requested),
            *terms.notes,
            *model.notes,
            *apart_notes,
            *(answer.notes if answer else ()),
        ),
        model=model_of(job.name),
        arrivals=planned.arrivals,
        timing=timing,
    )
    priced = () if planned.clients else tuple(row.fleet for row in rows if row.fleet is not None)
    fleets = answer.fleets if answer else priced
    priced_forecast = with_money(forecast, load, fleets, budget_usd=budget_usd, api=api_price)
    # How two kinds of instance grow with the rate is not searched: the cheapest by rate would leave them out.
    return priced_forecast if prefill_on is None else replace(priced_forecast, by_rate=())


def _row(
    text: str,
    catalog: Catalog,
    model: EngineModel,
    limits: Limits,
    terms: FleetTerms,
    *,
    solved: tuple[Instance, float] | None = None,
    profile: PassProfile | None = None,
) -> ServingRow:
    """The row of a device.

    Arguments:
        solved: an instance there with its saturation rate, or the most users; None (default) searches.
        profile: of iterations on this machine, if it is the device; None (default) for those as forecast.
    """
    device = device_of(text, catalog)
    name, load, rate_per_s = device.cluster.name, terms.load.shape, terms.load.rate_per_s
    try:
        model.check(device)
        generation = model.of(device)
        offer, weight_bytes = terms.offer(device), model.weight_bytes(device, generation)
        instance, saturation = solved or (model.instance(device, generation, load), None)
        if profile is not None and device.spec.machine is not None:
            iterations = corrected_iterations(instance.iteration_s, profile)
            instance = Instance(iterations, instance.policy, profile.spread)
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
                most=None if saturation is None else int(saturation),
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
            launched_model(model.job.name, engine=model.engine.name, weights=model.format.name if model.format else ""),
            instance.policy,
            devices=device.count,
            precision=model.precision_on(device.chip),
            memory_share=model.engine.memory_share,
            longest=longest_request(load.at(1.0), instance.policy, model.job.context_length),
            weights=model.format.name if model.format else "",
            cache=model.cache.name if model.cache else "",
            on_cpu=device.chip.kind == "cpu",
        )
        launch = model.launched(launch, device) if runs_on(model.engine.name, device.chip) else ""
        mode = model.mode(device)
        row = replace(row, launch=launch, offer=price_source(offer), mode=mode)
        energy = None if mode else energy_of(device, model, generation)
        return terms.with_running(row, device, offer, instance=instance, energy=energy)
    except GpuwiseError as error:
        return without_answer(name, error)


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
        *(
            (notes.kernels_one_by_one(microseconds=1e6 * costs.kernel_s, by_graphs=not costs.decoding_launch_s),)
            if costs.kernel_s
            else ()
        ),
    )
