"""forward_plan: what serving a model that answers in one forward pass takes on each of some devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.api.device_names import distinct_devices
from gpuwise.api.devices import Device, device_of, with_threads_of_environment
from gpuwise.api.forward_catalog import ForwardCatalog, Solved
from gpuwise.api.forward_passes import MOST, JobPasses, PassSettings
from gpuwise.api.padded_passes import NamedPasses, PaddedPasses, SampleLengths, sample_lengths
from gpuwise.api.plan_timing import HERE, check_profiles_here, forward_profile
from gpuwise.api.served_job import ServedJob
from gpuwise.api.server_parts import check_servers_share, server_part, servers_of, threads_of
from gpuwise.api.serving_catalog import ABOUT_THE_JOB, SHOWN
from gpuwise.api.serving_job_kinds import PYTORCH, batch_of, check_answers_in_one_pass, window_s_of
from gpuwise.api.serving_money import price_source, with_money
from gpuwise.api.serving_times import MEASURED
from gpuwise.api.source import StepSource
from gpuwise.cost.rates import family
from gpuwise.errors import GpuwiseError, InputError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.notes import Note
from gpuwise.notes import serving as serving_notes
from gpuwise.notes import serving_forward as notes
from gpuwise.plan.cpu.enough import ENOUGH, NOT_ENOUGH, UNCERTAIN
from gpuwise.serving.fleets import Fleet
from gpuwise.serving.forecast import PlanTiming, ServingForecast
from gpuwise.serving.forward_instance import best_batches
from gpuwise.serving.graph_engines import graph_engine_of
from gpuwise.serving.instance import LoadShape
from gpuwise.serving.launch_graph import graph_line
from gpuwise.serving.lengths import Lengths
from gpuwise.serving.reasons import nobody_serves
from gpuwise.serving.rows import MOST_SHARE, ServingRow, cheapest_first, row_of
from gpuwise.serving.saturation import Limits
from gpuwise.serving.windowed import WindowPolicy
from gpuwise.serving_settings import ServingSettings
from gpuwise.strategy import Strategy
from gpuwise.units import format_duration, parse_rate, parse_usd


def forward_plan(
    source: StepSource,
    catalog: Catalog,
    requested: ServingSettings,
    *,
    named: NamedPasses,
    limits: Limits,
    rate: str | None,
    on: str | Sequence[str] | None,
) -> ServingForecast:
    """The result of gpuwise.api.serving.serve_plan for such a model, whose arguments and errors these are."""
    check_answers_in_one_pass(requested, job=source.name)
    engine = graph_engine_of(requested.get("engine"))
    if rate is None:
        raise InputError("serving needs a rate of requests.", ["--rate 5/s"])
    rate_per_s = parse_rate(rate)
    techniques = Strategy(
        mode="infer",
        compile=bool(requested.get("compile")),
        channels_last=bool(requested.get("channels_last")),
    )
    settings = PassSettings(
        batch_of(requested),
        window_s_of(requested),
        requested.get("precision"),
        techniques,
        limits,
        engine,
        servers_of(requested),
    )
    longest = None if named.job is None else named.job.context_length
    lengths = sample_lengths(requested, source=source, longest=longest)
    model = JobPasses(source, settings)
    if lengths is not None:
        model = PaddedPasses({at: JobPasses(named.source_at(at), settings) for at in lengths.priced}, lengths)
    if on is None and engine is not None:
        on = HERE  # offers of the catalog sell no processors alone
    shape = LoadShape(Lengths(1, 1)) if lengths is None else lengths.shape
    plan = _Plan(catalog, model, shape, limits, rate_per_s, lengths)
    names = [HERE] if on is None else distinct_devices(on, catalog)
    check_servers_share([plan.device(name) for name in names], model.settings.servers)
    timing = _timed(plan, named.job, names) if requested.get("profile") else None
    if on is None:
        rows, fleets, about = plan.of_catalog()
    else:
        rows, about = [plan.row(name) for name in names], ()
        fleets = tuple(row.fleet for row in rows if row.fleet is not None)
    if all(row.replicas == 0 for row in rows):
        ways = ["smaller samples, or a smaller --batch", "other devices: --on"]
        reasons = {row.device: row.reason for row in rows}
        raise nobody_serves(source.name, reasons, (row.way_out for row in rows), limits, ways)
    precisions = {row.forward.precision for row in rows if row.forward is not None}
    precision = precisions.pop() if len(precisions) == 1 else ""
    budget = requested.get("budget")
    forecast = ServingForecast(
        job=source.name,
        engine=f"{engine.name} {engine.versions}" if engine else PYTORCH,
        precision=precision,
        weights=precision,
        rate_per_s=rate_per_s,
        lengths={} if lengths is None else lengths.document(),
        limits=limits,
        rows=cheapest_first(rows),
        assumption_notes=(
            *plan.assumed(requested),
            *_of_rows(rows, named=engine.precision if engine else model.settings.precision),
            *model.notes,
            *about,
        ),
        generates=False,
        remark_notes=tuple(plan.remarks),
        timing=timing,
    )
    return with_money(forecast, plan.load, fleets, budget_usd=None if budget is None else parse_usd(budget), api=None)


def _timed(plan: _Plan, job: ServedJob | None, names: Sequence[str]) -> PlanTiming | None:
    """Times the passes of this machine, from which its rows are planned afterwards; None where it runs none."""
    if job is None:
        raise InputError(
            f"--profile runs the model, and {plan.model.source.argument} is a recorded trace.",
            ["name the job it is of", "leave out --profile"],
        )
    check_profiles_here(names, plan.catalog)
    if plan.model.settings.servers != 1:
        raise InputError("--profile times one server, and --servers are several.", ["leave out --servers", "no --profile"])
    device, untimed = plan.device(HERE), plan.row(HERE)
    plan.remarks.clear()
    if untimed.forward is None:
        return None
    load = plan.load.at(plan.rate_per_s)
    profile = plan.model.time(
        device,
        lambda passes: forward_profile(
            job.live(), passes, device, engine=plan.model.settings.engine, load=load, rate_per_s=plan.rate_per_s
        ),
    )
    return PlanTiming(profile, untimed)


class _Plan:
    """The rows of devices.

    Attributes:
        remarks: whether this machine is enough, once it has a row.
        compiled: devices with a row that run no eager passes.
        is_measured: False once this machine has a row that rests on figures of other machines.
    """

    def __init__(
        self,
        catalog: Catalog,
        model: JobPasses,
        load: LoadShape,
        limits: Limits,
        rate_per_s: float,
        lengths: SampleLengths | None = None,
    ) -> None:
        self.lengths = lengths
        self.catalog, self.model, self.load, self.limits, self.rate_per_s = catalog, model, load, limits, rate_per_s
        self.remarks: list[Note] = []
        self.compiled: list[str] = []
        self.is_measured = True

    def of_catalog(self) -> tuple[list[ServingRow], tuple[Fleet, ...], tuple[Note, ...]]:
        """The rows of the cheapest machines of the catalog and of this one; the fleets by rate; what was considered."""
        kinds = ForwardCatalog(self.catalog, self.model, self.load, self.limits)
        choice = kinds.choose(self.rate_per_s)
        rows = [self.row(each.device, kinds.solution(each)) for each in choice.exact[:SHOWN]]
        return [self.row(HERE), *rows], kinds.fleets(choice), kinds.notes(choice)

    def device(self, text: str) -> Device:
        """A device of the plan; of this machine's CPU what OMP_NUM_THREADS leaves a server."""
        return with_threads_of_environment(device_of(text, self.catalog))

    def row(self, text: str, solved: Solved | None = None) -> ServingRow:
        """The row of a device. solved: its best batches with their rate; None (default) searches for them."""
        device = self.device(text)
        name = device.cluster.name
        try:
            instance, saturation = solved or best_batches(self.model.instances(device), self.load, self.limits)
            passes = self.model.passes(server_part(device, instance.servers))
            row = row_of(
                name,
                instance,
                self.load,
                self.limits,
                rate_per_s=self.rate_per_s,
                weight_bytes=passes.forecasts[1].memory.by_category.get("parameter", 0),
                usd_per_hour=device.usd_per_hour,
                saturation=saturation,
            )
            _check_window(row, instance.policy, self.limits)
        except GpuwiseError as error:
            if error.code in ABOUT_THE_JOB:
                raise
            return ServingRow(name, reason=error.what)
        threads = threads_of(device, instance.servers)
        row = replace(
            row,
            offer=price_source(device.offer),
            latency={name: latency for name, latency in row.latency.items() if name == "latency_s"},
            usd_per_million_output=None,
            usd_per_million_tokens=None,
            forward=passes.of(instance.policy, servers=instance.servers, threads=threads),
            owned=device.spec.machine is not None,
            launch=graph_line(self.model.settings.engine, batch=instance.policy.batch, threads=threads or device.chip.sm_count),
        )
        if family(device.chip) == "systolic":
            self.compiled.append(name)
        if device.spec.machine is not None:
            measured = passes.forecasts[1].provenance["step_time_s"] == MEASURED
            self.is_measured = measured or passes.profile is not None
            self.remarks.append(self._remark(device, row, (instance, saturation)))
        return row

    def _remark(self, device: Device, row: ServingRow, solved: Solved) -> Note:
        """Whether this machine is enough."""
        kind = "CPU" if device.chip.kind == "cpu" else "GPU"
        if not row.replicas:
            return notes.machine_serves_no_request(kind=kind, reason=row.reason)
        instance, highest = solved
        at_rate = self.load.at(self.rate_per_s)
        _, _, slow = instance.outcomes(at_rate)
        latency = row.latency["latency_s"].p99
        slower = instance.times.spread[1]
        holds_slow = self.limits.hold(slow) and self.rate_per_s <= MOST_SHARE * instance.capacity / slower
        verdict = NOT_ENOUGH if row.replicas > 1 else ENOUGH if holds_slow else UNCERTAIN
        return notes.machine_for_requests(
            verdict=verdict,
            kind=kind,
            rate_per_s=self.rate_per_s,
            highest_per_s=highest,
            p99_s=latency.value,
            low_s=latency.low,
            high_s=latency.high,
            servers=instance.servers,
        )

    def assumed(self, requested: ServingSettings) -> tuple[Note, ...]:
        """What a request is, and what was chosen for the user."""
        tokens = self.model.source.tokens_per_sample
        compiled = ", ".join(dict.fromkeys(self.compiled))
        return (
            notes.one_pass_a_request(),
            *((notes.tokens_are_read_alone(tokens=tokens),) if tokens > 1 and self.lengths is None else ()),
            *(() if self.lengths is None else self.lengths.notes),
            _engine_note(requested),
            *((notes.passes_are_compiled(chips=compiled),) if compiled else ()),
            *(() if self.model.settings.batch else (notes.batches_that_serve_most(most=MOST),)),
            *(() if "window" in requested else (notes.no_window(),)),
            serving_notes.poisson_arrivals(),
            *(() if self.is_measured else (serving_notes.machine_not_measured(),)),
        )


def _check_window(row: ServingRow, policy: WindowPolicy, limits: Limits) -> None:
    """Raises UnsupportedError where a window that fills batches at higher rates is too long for the limits at this one."""
    if policy.window_s and row.replicas and row.share_within < limits.share:
        raise UnsupportedError(
            f"a window of {format_duration(policy.window_s)} leaves {100 * row.share_within:.3g} % of requests within the "
            f"limits at this rate, which seldom fills a batch of {policy.batch}; a shorter --window or a smaller --batch helps"
        )


def _engine_note(requested: ServingSettings) -> Note:
    """What runs the passes."""
    if engine := graph_engine_of(requested.get("engine")):
        return notes.graph_engine(engine=engine.name, versions=engine.versions)
    return notes.plain_pytorch(passes="compiled" if requested.get("compile") else "eager")


def _of_rows(rows: Sequence[ServingRow], *, named: str | None) -> tuple[Note, ...]:
    """The precision of each device, unless one is named, and what several devices of a machine do."""
    devices: dict[str, list[str]] = {}
    for row in rows:
        if row.forward is not None:
            devices.setdefault(row.forward.precision, []).append(row.device)
    shared = [(row.device, row.forward.servers, row.forward.threads) for row in rows if row.forward is not None]
    servers = "; ".join(f"{name}: {count} of {threads} threads" for name, count, threads in shared if count > 1)
    precisions = "; ".join(f"{name}: {', '.join(of)}" for name, of in devices.items())
    return (
        *(() if named else (notes.fastest_precisions(precisions=precisions),)),
        *((notes.servers_share_a_processor(servers=servers),) if servers else ()),
        *((notes.a_copy_on_each_device(),) if any(":" in row.device for row in rows) else ()),
    )
