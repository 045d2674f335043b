"""The verbs as functions. Each imports its own engine, and PyTorch only where a job must be traced or run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from gpuwise.api.cpu_settings import has_compiler, own_price
from gpuwise.api.devices import device_of, spec_with_links, target_of
from gpuwise.api.fitting import at_other_lengths, fitting_change_of
from gpuwise.api.forecasting import Priced, forecast_step
from gpuwise.api.sources import PresetSource, SavedSource, StepSource, source_of
from gpuwise.errors import InputError, UnsupportedError
from gpuwise.hardware.catalog import load_catalog
from gpuwise.hardware.device import parse_device
from gpuwise.hardware.names import split_device
from gpuwise.notes import Note
from gpuwise.plan.economics.length import RunLength, with_whole_run
from gpuwise.plan.fit.change import FittingChange
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.pricing.traces import StepTraces
from gpuwise.step_settings import (
    DeviceSettings,
    ForecastSettings,
    PlanSettings,
    StepSettings,
    given,
    settings_of,
    sizes_of,
    strategy_of,
)
from gpuwise.strategy import Mesh, Strategy, check_techniques
from gpuwise.units import parse_duration, parse_usd

if TYPE_CHECKING:
    from gpuwise.cost.forecast import Forecast
    from gpuwise.cost.memory.timeline import Timeline
    from gpuwise.hardware.catalog import Catalog
    from gpuwise.job import Job
    from gpuwise.plan.compare import CompareRow, Comparison
    from gpuwise.plan.fit.types import FitResult
    from gpuwise.plan.types import PlanResult
    from gpuwise.results.installation import Installation

# Operations of a step (two micro-batches) up to which a job is traced a second time unasked. Counted, not timed, so that
# every machine gives the same answer: see benchmarks/record_speed.py for how many a second are recorded.
_TRACED_AGAIN = 4_000


def forecast(job: str | Job, *, on: str, **settings: Unpack[ForecastSettings]) -> Forecast:
    """One optimizer step of a job on a device (of a forward pass in mode "infer"): time, memory, energy, money.

    Arguments:
        job: a preset, `path/to/file.py:name`, `hf:...`, `timm:...`, a saved trace, or a Job.
        on: a chip with an optional count, "h100-sxm:8", "h100-80gb-sxm:8x4"; "cpu", or "here".
        micro_batch: samples a forward pass of one device. accumulate: micro-batches before an optimizer step.
        mesh: "dp=8", "dp_shard=8"; None replicates over all devices, or shards where that alone fits.
        compile: the step under torch.compile; a warning says where its interval is that of eager steps.
        channels_last: images and convolutions with their channels innermost in memory.
        samples, epochs, tokens: how long a run is; `run` of the result then has its steps, hours and dollars.
        loader_samples_per_s: what the data pipeline of one machine delivers; the step waits for it where it is slower.
        settings: those and the others, all optional: gpuwise.step_settings.ForecastSettings.

    What is left None is chosen, and named in `assumptions` with the flag that changes it.
    Raises InputError, UnknownNameError, JobError, FileFormatError, UnsupportedError or MissingDependencyError.
    """
    return forecast_with_trace(job, on, settings)[0]


def forecast_with_trace(job: str | Job, on: str, settings: ForecastSettings) -> tuple[Forecast, Priced]:
    """What `forecast` returns, and the trace and device it rests on."""
    asked = given(settings, ForecastSettings)
    source = source_of(job, **sizes_of(asked))
    length = RunLength.of(asked, source.samples_per_epoch)
    loader = asked.pop("loader_samples_per_s", None)
    step = {name: value for name, value in asked.items() if name in settings_of(DeviceSettings)}
    priced = forecast_step(source, on, loader_samples_per_s=loader, **step)
    forecast = priced.forecast
    if forecast.memory.fits is False:
        found = fitting_change_of(source, priced.device, forecast.strategy)
        forecast = replace(forecast, fits_with=found.to_dict() if isinstance(found, FittingChange) else None)
    if not length.named:
        return replace(forecast, assumption_notes=of_a_step(forecast.assumption_notes)), priced
    return with_whole_run(forecast, length, priced.trace.header), priced


def memory_timeline(job: str | Job, *, on: str, **settings: Unpack[ForecastSettings]) -> Timeline:
    """Memory over that step by category, its peak and the tensors that make it; its `forecast` is that of `forecast`.

    Arguments: as for `forecast`. gpuwise.report.memory_picture draws it. Raises what `forecast` raises.
    """
    from gpuwise.cost.memory.timeline import timeline

    forecast, priced = forecast_with_trace(job, on, settings)
    found = timeline(priced.trace, priced.device.cluster, memory=priced.forecast.memory)
    return replace(found, forecast=forecast, strategy=forecast.strategy)


def fit(job: str | Job, *, on: str, every_technique: bool = False, **settings: Unpack[DeviceSettings]) -> FitResult:
    """The largest micro-batch of a job on a device, where its memory peaks, and what each memory technique would free and
    cost, in order of best trade.

    Arguments: as for `forecast`; micro_batch is the one techniques are compared at, None for the largest that fits.
        every_technique: trace the job anew for each technique that needs it (other precisions, recomputation, adapters,
            compile), which takes seconds each; without, only full recomputation of a small job is. Presets need none.
    Raises what `forecast` raises.
    """
    from gpuwise.plan.fit.fit import fit as find_fit

    asked = given(settings, DeviceSettings)
    strategy = strategy_of(asked)
    source = source_of(job, **sizes_of(asked))
    catalog = load_catalog()
    mesh = Mesh.parse(asked["mesh"]) if isinstance(asked.get("mesh"), str) else asked.get("mesh")
    device = device_of(on, catalog, mesh=mesh)
    if device.machines > 1:
        raise UnsupportedError("fit looks at one machine.", [f"--on {device.chip.id}:{device.count}"])
    check_techniques(strategy, source.step_facts(device.target))
    traces = source.traces(device.target)
    result = find_fit(
        StepPricer(traces, catalog=catalog),
        device.cluster,
        requested=strategy,
        precision=asked.get("precision"),
        micro_batch=asked.get("micro_batch"),
        recordable=None if every_technique else _recordable(source, traces),
    )
    if not result.fits or (result.largest_micro_batch or 0) < asked.get("micro_batch", 0):
        result = replace(result, answer=fitting_change_of(source, device, result.rows[0].strategy))
    return replace(result, assumption_notes=of_a_step([*device.spec.assumed, *result.assumption_notes]))


def compare(
    job: str | Job, *, on: str | Sequence[str], mode: str | None = None, **settings: Unpack[StepSettings]
) -> Comparison:
    """Forecasts of a job on several devices, with speed-ups over the slowest and the reason for each.

    Arguments: as for `forecast`; on: devices in a list or separated by commas. A device that cannot run the job stands
    there with the reason. Raises what `forecast` raises, UnsupportedError only where no device can run it.
    """
    from gpuwise.plan.compare import compare as compare_devices

    asked = given(settings, StepSettings)
    strategy = strategy_of({**asked, "mode": mode})
    catalog = load_catalog()
    devices = [spec_with_links(name, catalog) for name in _device_names(on)]
    source = source_of(job, **sizes_of(asked))
    check_techniques(strategy, source.step_facts())
    result = compare_devices(
        lambda chip: StepPricer(source.traces(target_of(chip)), catalog=catalog),
        devices,
        requested=strategy,
        micro_batch=asked.get("micro_batch"),
        precision=asked.get("precision"),
    )
    rows = [_with_answer(row, name, source, catalog) for row, name in zip(result.rows, _device_names(on), strict=True)]
    return replace(result, rows=tuple(rows), assumption_notes=of_a_step(result.assumption_notes))


def _with_answer(row: CompareRow, name: str, source: StepSource, catalog: Catalog) -> CompareRow:
    """Where the job does not fit a device, the reason says what would."""
    if row.forecast is None or row.forecast.memory.fits is not False:
        return row
    found = fitting_change_of(source, device_of(name, catalog), row.forecast.strategy)
    if not isinstance(found, FittingChange):
        return row
    return replace(row, reason=f"{row.reason}; it would with {found.words}: {found.command}")


def plan(
    job: str | Job,
    *,
    budget: float | str | None = None,
    deadline: float | str | None = None,
    on: str | Sequence[str] | None = None,
    own: str | Sequence[str] = (),
    spot: bool | None = None,
    global_batch: int | None = None,
    interruptions: float | None = None,
    electricity: float | None = None,
    stale: bool = False,
    xla: bool = False,
    limit: int | None = 12,
    **settings: Unpack[PlanSettings],
) -> PlanResult:
    """The cheapest ways to train a job inside a budget and a deadline, best first, with reasons.

    Arguments:
        samples, epochs, tokens: how much to train, one of them: 50_000 or "50k"; or samples an epoch, and epochs.
        budget: dollars or "20k". deadline: seconds or "3d".
        on: only these devices. own: machines at hand, ["rtx-4090:2"]. spot: True spot alone, False none, None both.
        global_batch: samples an optimizer step.
        micro_batch, accumulate, precision, recompute: pinned instead of searched.
        settings: the others hold in every plan: gpuwise.step_settings.PlanSettings.
        interruptions: of a spot machine a day. electricity: dollars a kWh.
        stale: rank offers whose price is over a year older than the newest in the catalog, too.
        xla: rank what `gpuwise train` cannot run (PyTorch/XLA, other vendors, several devices) by its price; else it stands
            behind what it can.
        limit: plans returned at most, None for all.

    Raises NoPlanError where nothing is inside budget and deadline, DoesNotFitError, and what `forecast` raises.
    """
    from gpuwise.hardware.detect import detect_machine
    from gpuwise.plan.economics.owned import USD_PER_KWH
    from gpuwise.plan.search import plan as search
    from gpuwise.plan.types import Request

    asked = given(settings, PlanSettings)
    techniques = strategy_of({**asked, "micro_batch": None, "accumulate": None})
    length = RunLength.of(asked, None)
    request = Request(
        samples=length.samples,
        epochs=length.epochs,
        tokens=length.tokens,
        budget_usd=None if budget is None else parse_usd(str(budget)),
        deadline_s=parse_duration(deadline) if isinstance(deadline, str) else deadline,
        on=None if on is None else tuple(_one_machine(name, "--on") for name in _device_names(on)),
        own=tuple(_owned(text) for text in (_device_names(own) if own else ())),
        spot=spot,
        global_batch=global_batch,
        interruptions_per_day=interruptions,
        stale=stale,
        xla=xla,
        limit=limit,
        usd_per_kwh=USD_PER_KWH if electricity is None else electricity,
        techniques=techniques,
        named=frozenset(asked),
        precision=asked.get("precision"),
        recompute=asked.get("recompute"),
        micro_batch=asked.get("micro_batch"),
        accumulation=asked.get("accumulate"),
        loader_samples_per_s=asked.get("loader_samples_per_s"),
    )
    strategy = strategy_of(asked)
    source = source_of(job, **sizes_of(asked))
    check_techniques(strategy, source.step_facts())
    if isinstance(source, PresetSource):
        source.search_recorded(techniques, precision=request.precision)
    catalog = load_catalog()
    request = replace(
        request,
        here=detect_machine(catalog),
        samples_per_epoch=source.samples_per_epoch,
        sizes=source.sizes,
        job_argument=source.argument,
    )
    here, price = request.here, None
    if here is not None and here.chip.kind == "cpu" and _names_here(on):
        price = own_price(source, here.chip, here.host_memory_bytes)
    return search(
        source.traces(),
        request,
        catalog.offers,
        catalog,
        own=price,
        compiler=has_compiler(),
        with_seq_len=at_other_lengths(source, "accelerator"),
    )


def _names_here(on: str | Sequence[str] | None) -> bool:
    """Whether plans are for this machine's CPU alone, or beside few others: its settings are then worth tracing for."""
    return on is not None and bool({name.partition(":")[0].strip().lower() for name in _device_names(on)} & {"here", "cpu"})


def doctor() -> Installation:
    """Versions, devices, catalog dates, configuration files and presets of this installation."""
    from gpuwise.api.installation import inspect_installation

    return inspect_installation(load_catalog())


def _recordable(source: StepSource, traces: StepTraces) -> Callable[[Strategy, Strategy], bool] | None:
    """Which variants of a job are looked at unasked: recorded ones, and full recomputation where tracing takes a moment."""
    if isinstance(source, SavedSource):
        return None

    def recorded(variant: Strategy) -> bool:
        return isinstance(source, PresetSource) and source.recorded(variant) is not None

    def worth_it(variant: Strategy, asked: Strategy) -> bool:
        if recorded(variant) or recorded(asked) or variant != asked.but(recompute="full"):
            return recorded(variant)
        return len(traces.family(asked).sequence) <= _TRACED_AGAIN

    return worth_it


def of_a_step(assumptions: Sequence[Note]) -> tuple[Note, ...]:
    """Without those about how much is trained, which move no number of a single step."""
    return tuple(dict.fromkeys(note for note in assumptions if note.flag != "--samples"))


def _device_names(on: str | Sequence[str]) -> list[str]:
    if not isinstance(on, str) and not (isinstance(on, Sequence) and all(isinstance(name, str) for name in on)):
        raise InputError(f"devices are named in a text or a list of texts, got {on!r}.", ['on="rtx-4090,h100-sxm:8"'])
    names = [name.strip() for name in (on.split(",") if isinstance(on, str) else on)]
    if not names or not all(names):
        raise InputError(f"cannot read the devices {on!r}.", ["write them like rtx-4090,h100-sxm:8"])
    return names


def _one_machine(text: str, flag: str) -> str:
    name, count, machines = split_device(text)
    if machines > 1:
        raise UnsupportedError(f"{text!r}: plans use one machine so far.", [f"{flag} {name}:{count}"])
    return text


def _owned(text: str) -> tuple[str, int]:
    name, count, _ = split_device(_one_machine(text, "--own"))
    if name.strip().lower() == "here":
        raise InputError(
            "this machine is always considered: --own is for others.", ["leave out --own here", "--on here considers it alone"]
        )
    parse_device(text)  # an unknown chip, or more of it than a machine holds, is refused before any work
    return name, count or 1
