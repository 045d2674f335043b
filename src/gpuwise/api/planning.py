"""plan: the cheapest ways to train a job inside a budget and a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.cpu_settings import has_compiler, own_price
from gpuwise.api.device_names import device_names, names_this_cpu, owned_machines
from gpuwise.api.devices import devices_of
from gpuwise.api.offer_choice import offer_choice
from gpuwise.api.own_costs import own_costs
from gpuwise.api.plain_arguments import plainly
from gpuwise.api.shared_cpu import part_of_threads
from gpuwise.api.source import StepSource
from gpuwise.api.sources import PresetSource, source_of
from gpuwise.errors import InputError
from gpuwise.hardware.catalog import Catalog, load_catalog
from gpuwise.hardware.device import DeviceSpec, parse_device
from gpuwise.plan.economics.length import RunLength
from gpuwise.plan_settings import CONFIDENCE, OBJECTIVES, PlanSettings
from gpuwise.step_settings import named_settings, sizes_of, strategy_of
from gpuwise.strategy import Mesh, check_layout_works, check_settings_work, check_techniques
from gpuwise.units import parse_deadline, parse_usd

if TYPE_CHECKING:
    from gpuwise.job import Job
    from gpuwise.plan.plan_result import PlanResult
    from gpuwise.plan.request import Request

# Devices that are looked at unless the user says: of one machine, and of clusters where one machine is too small or too slow.
_ONE_MACHINE, _CLUSTER = 16, 1024


@plainly
def plan(
    job: str | Job,
    *,
    on: str | Sequence[str] | None = None,
    own: str | Sequence[str] = (),
    why: str | Sequence[str] | None = None,
    limit: int | None = 12,
    **settings: Unpack[PlanSettings],
) -> PlanResult:
    """The cheapest ways to train a job inside a budget and a deadline, best first, with reasons.

    Arguments:
        job: as for `forecast`.
        on: the devices to consider, in a list or separated by commas. None considers all.
        own: the user's own machines, ["rtx-4090:2", "h100-sxm:8x4"].
        why: plans to explain beside the first: ranks of the table ("2") or devices ("h100-sxm:8"); () explains the first alone.
        limit: largest number of plans, None for all.
        settings: optional keywords, see gpuwise.plan_settings.PlanSettings. Among them:
            samples, epochs, tokens: length of the run, one of them (50_000 or "50k"), or samples an epoch together with epochs.
            budget: dollars or "20k".
            deadline: seconds, "3d", or the last day, "2027-01-31".
            objective: what the first plan is the best in, one of gpuwise.plan_settings.OBJECTIVES.
            confidence: probability to keep budget and deadline that a plan needs; plans with less follow (0.9).
            spot: True for spot only, False for no spot, None (default) for both.
            stale: whether to also rank offers whose price is over a year old.
            xla: whether to rank plans that `gpuwise train` cannot run (PyTorch/XLA, vendors' plug-ins) by price;
                by default they follow those that it can run; False leaves them out.
            where: a filter as of `chips` and `offers`, "vendor=nvidia memory>=24GB"; other offers are left out.
            region: only offers of this region.
            discounts: path of a TOML file with the share off a provider's prices, `aws = 0.25`.
            max_devices: devices of a plan at most. None looks at machines of up to 16, and at clusters of up to 1,024 devices
                where those have too little memory or take too long.
            global_batch: samples in one optimizer step.
            interruptions: interruptions of a spot machine a day.
            electricity: dollars a kWh.
            purchase: price of each machine of your own, spread over its lifetime; None: owned already, not counted.
            costs: path of a TOML file on your own machines, see gpuwise.plan.economics.costs_file.
            network: between the user's own machines, as for `forecast`; None takes that of an offer.
            allow: techniques that change what is trained and may be tried: ["8bit-optimizer", "lora"], or text with commas.
            micro_batch, accumulate, precision, recompute: pinned instead of searched; other techniques apply to every plan.

    Raises NoPlanError if nothing is inside budget and deadline, DoesNotFitError, and the errors of `forecast`.
    """
    from gpuwise.plan.search import plan as search

    source, request, catalog = job_and_request(job, settings, on=on, own=own, limit=limit)
    request = replace(request, why=None if why is None else tuple(device_names(why) if isinstance(why, str) else why))
    price = None
    here = request.here
    if here is not None and here.chip.kind == "cpu" and names_this_cpu(on):
        price = own_price(source, here.chip, here.host_memory_bytes)
    return search(
        source.traces(),
        request,
        catalog.offers,
        catalog,
        own=price,
        compiler=has_compiler(),
    )


def job_and_request(
    job: str | Job, settings: PlanSettings, *, on: str | Sequence[str] | None, own: str | Sequence[str], limit: int | None
) -> tuple[StepSource, Request, Catalog]:
    """The job's source, the parsed request and the catalog. Arguments and errors as for `plan`."""
    from gpuwise.hardware.detect import detect_machine

    requested = named_settings(settings, PlanSettings)
    request = _request(requested, on=on, own=own, limit=limit)
    strategy = strategy_of(requested)
    source = source_of(job, **sizes_of(requested))
    check_layout_works(requested, source.has_images)
    check_techniques(strategy, source.step_facts())
    if isinstance(source, PresetSource):
        source.search_recorded(request.techniques, precision=request.precision)
    catalog = load_catalog()
    here = detect_machine(catalog)
    request = replace(
        request,
        own_clusters=_owned_clusters(own, requested.get("network"), catalog),
        here=replace(here, chip=part_of_threads(here.chip, None)),
        offers=offer_choice(requested, catalog),
        samples_per_epoch=source.samples_per_epoch,
        job_argument=source.argument,
    )
    return source, request, catalog


def _owned_clusters(own: str | Sequence[str], network: str | None, catalog: Catalog) -> tuple[DeviceSpec, ...]:
    """The user's own clusters of several machines, with what joins them. Raises InputError for a network without machines to
    join, UnsupportedError where nothing is known of what joins them."""
    texts = [text for text in (device_names(own) if own else ()) if owned_machines(text)[2] > 1]
    if not texts:
        if network is not None:
            raise InputError(
                "--network says what joins machines of your own, and --own names no several.",
                ["leave out --network", "--own h100-sxm:8x4 (four machines)"],
            )
        return ()
    devices = devices_of(texts, catalog, network=network)
    return tuple(
        replace(
            device.spec,
            cluster=device.cluster,
            assumed=(*device.spec.assumed, *(device.network.notes if device.network else ())),
        )
        for device in devices
    )


def _request(
    requested: PlanSettings, *, on: str | Sequence[str] | None, own: str | Sequence[str], limit: int | None
) -> Request:
    """The user's request with parsed quantities. Raises InputError, UnknownNameError or UnsupportedError."""
    from gpuwise.plan.buying.clusters import MOST_DEVICES
    from gpuwise.plan.request import Request
    from gpuwise.plan.space.permission import parse_allowed

    most_devices = requested.get("max_devices")
    if most_devices is not None and not 1 <= most_devices <= MOST_DEVICES:
        raise InputError(f"a plan has 1 to {MOST_DEVICES:,} devices, got {most_devices!r}.", ["--max-devices 1024"])
    for text in device_names(on) if on is not None else ():
        devices = 1 if text.lower() in ("here", "cpu") else parse_device(text).cluster.devices
        if most_devices is not None and devices > most_devices:
            raise InputError(
                f"--on {text} names {devices:,} devices, --max-devices allows {most_devices:,}.",
                ["leave out --max-devices", f"--max-devices {devices}"],
            )
    techniques = strategy_of({**requested, "micro_batch": None, "accumulate": None})
    allow = parse_allowed(requested.get("allow"), named=requested)
    adapters = [name for name in ("lora", "qlora") if name in allow]
    check_settings_work(requested, Mesh(), adapter=adapters[0] if adapters else techniques.adapter)
    length = RunLength.of(requested, None)
    owned = [owned_machines(text) for text in (device_names(own) if own else ())]
    budget, deadline = requested.get("budget"), requested.get("deadline")
    costs, usd_per_kwh = own_costs(requested)
    return Request(
        samples=length.samples,
        epochs=length.epochs,
        tokens=length.tokens,
        budget_usd=None if budget is None else parse_usd(str(budget)),
        deadline_s=parse_deadline(deadline, now=datetime.now()) if isinstance(deadline, str) else deadline,
        objective=requested.get("objective") or OBJECTIVES[0],
        confidence=CONFIDENCE if (confidence := requested.get("confidence")) is None else confidence,
        on=None if on is None else tuple(device_names(on)),
        own=tuple((name, count) for name, count, _ in owned),
        spot=requested.get("spot"),
        global_batch=requested.get("global_batch"),
        interruptions_per_day=requested.get("interruptions"),
        stale=bool(requested.get("stale")),
        xla=bool(requested.get("xla")),
        limit=limit,
        usd_per_kwh=usd_per_kwh,
        costs=costs,
        max_devices=_ONE_MACHINE if most_devices is None else most_devices,
        machines_joined=most_devices is not None,
        more_devices=_CLUSTER if most_devices is None else None,
        techniques=techniques,
        allow=allow,
        named=frozenset(requested),
        precision=requested.get("precision"),
        recompute=requested.get("recompute"),
        micro_batch=requested.get("micro_batch"),
        accumulation=requested.get("accumulate"),
        loader_samples_per_s=requested.get("loader_samples_per_s"),
    )
