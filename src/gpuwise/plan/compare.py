"""compare: one job on several devices side by side, with speed-ups and the reason for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwise.cost.forecast import Forecast
from gpuwise.cost.rates import check_can_run
from gpuwise.errors import GpuwiseError, InputError, MissingDependencyError, PrecisionError, UnsupportedError
from gpuwise.hardware.cluster import Cluster
from gpuwise.hardware.device import DeviceSpec
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note, sentences, to_dicts
from gpuwise.notes.plan import faster_than_the_slowest, not_compared, slowest_here
from gpuwise.notes.step import assumed_for_device, compared_in_another_precision
from gpuwise.plan.pricing.data_parallel import with_data_parallel
from gpuwise.plan.pricing.largest import largest_micro_batch
from gpuwise.plan.pricing.step import StepPricer
from gpuwise.plan.reasons import why_faster
from gpuwise.plan.space import legal
from gpuwise.printed import Printed
from gpuwise.strategy import Strategy

# Devices saturate well below this many samples; a larger micro-batch would only make the comparison harder to read.
_MOST_MICRO_BATCH = 256
_UNKNOWN_MEMORY_MICRO_BATCH = 8
_OF_SOME = ("assumed-network", "price-of-offer")  # kinds of notes whose sentence does not name the device


@dataclass(frozen=True)
class CompareRow:
    """One device of a comparison.

    `speedup` is the throughput over that of the slowest device with a forecast. `reason_note` explains the speed-up, or why
    there is no forecast.
    """

    device: str
    forecast: Forecast | None
    speedup: float | None
    reason_note: Note

    @property
    def reason(self) -> str:
        """The reason as a sentence."""
        return self.reason_note.text

    def to_dict(self) -> dict[str, object]:
        return {
            "device": self.device,
            "forecast": None if self.forecast is None else self.forecast.to_dict(),
            "speedup": self.speedup,
            "reason": self.reason,
            "reason_note": self.reason_note.to_dict(),
        }


@dataclass(frozen=True, repr=False)
class Comparison(Printed):
    """Rows in the requested order. `baseline` is the slowest device, the reference of speed-ups."""

    job: str
    baseline: str
    rows: tuple[CompareRow, ...]
    assumption_notes: tuple[Note, ...] = ()

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions as sentences."""
        return sentences(self.assumption_notes)

    def to_dict(self) -> dict[str, object]:
        """The JSON contract of `gpuwise compare --json`."""
        return {
            "job": self.job,
            "baseline": self.baseline,
            "rows": [row.to_dict() for row in self.rows],
            "assumptions": list(self.assumptions),
            "assumption_notes": to_dicts(self.assumption_notes),
        }


def compare(
    pricer_of: Callable[[Chip], StepPricer],
    devices: Sequence[DeviceSpec],
    *,
    requested: Strategy | None = None,
    micro_batch: int | None = None,
    precision: str | None = None,
) -> Comparison:
    """Forecasts a job on each device.

    Arguments:
        pricer_of: returns the job's pricer for a chip.
        requested: the strategy, without micro-batch and precision.
        micro_batch: micro-batch of each device; None takes the largest power of two (up to 256) that fits each.
        precision: None, or a precision that a device lacks, takes the device's best precision; the row says so.

        Raises UnsupportedError if no device can be priced, and InputError if there are no devices.
    """
    if not devices:
        raise InputError("no device to compare.", ["name some: --on rtx-4090,h100-sxm"])
    requested = requested or Strategy()
    assumptions = _of_devices(devices)
    results: dict[int, Forecast | GpuwiseError] = {}
    # Devices of unknown memory (catalog CPUs) come last and take the smallest micro-batch of the others.
    for i in sorted(range(len(devices)), key=lambda i: devices[i].cluster.capacity_bytes is None):
        others = [item.strategy.micro_batch for item in results.values() if isinstance(item, Forecast)]
        fallback = min(others, default=_UNKNOWN_MEMORY_MICRO_BATCH)
        try:
            results[i] = _forecast(
                pricer_of(devices[i].chip),
                devices[i],
                requested,
                precision=precision,
                micro_batch=micro_batch,
                fallback=fallback,
                assumptions=assumptions,
            )
        except (UnsupportedError, MissingDependencyError, InputError) as error:
            results[i] = error
    return _side_by_side(devices, [results[i] for i in range(len(devices))], assumptions)


def _side_by_side(devices: Sequence[DeviceSpec], priced: list[Forecast | GpuwiseError], assumptions: list[Note]) -> Comparison:
    forecasts = [item for item in priced if isinstance(item, Forecast)]
    if not forecasts:
        raise next(item for item in priced if isinstance(item, GpuwiseError))
    slowest = min(forecasts, key=lambda forecast: forecast.throughput)
    chips = {device.chip.id: device.chip for device in devices}
    rows, baseline = [], ""
    for device, item in zip(devices, priced, strict=True):
        cluster = device.cluster
        name = cluster.name
        if isinstance(item, GpuwiseError):
            rows.append(CompareRow(name, None, None, not_compared(problem=item.what)))
            continue
        if item is slowest:
            baseline, why = name, slowest_here()
        else:
            why = faster_than_the_slowest(why=why_faster(item, chips[item.device], slowest, chips[slowest.device]))
        if item.memory.fits is False:
            why = why.that_does_not_fit()
        rows.append(CompareRow(name, item, item.throughput / slowest.throughput, why))
    return Comparison(slowest.job, baseline, tuple(rows), (*_assumed(forecasts), *dict.fromkeys(assumptions)))


def _of_devices(devices: Sequence[DeviceSpec]) -> list[Note]:
    """What was assumed of the devices; a network and a price with the devices that have it."""
    names: dict[Note, list[str]] = {}
    for device in devices:
        for note in device.assumed:
            names.setdefault(note, []).append(device.cluster.name)
    return [note.of_devices(dict.fromkeys(on)) if note.kind in _OF_SOME else note for note, on in names.items()]


def _assumed(forecasts: Sequence[Forecast]) -> list[Note]:
    """The common assumptions once, and others with their devices, such as a price or a link."""
    devices: dict[Note, list[str]] = {}
    for forecast in forecasts:
        for note in forecast.assumption_notes:
            devices.setdefault(note, []).append(forecast.device)
    every = [note for note, names in devices.items() if len(names) == len(forecasts)]
    some = [note.of_devices(dict.fromkeys(names)) for note, names in devices.items() if len(names) < len(forecasts)]
    return [*every, *some]


def _forecast(
    pricer: StepPricer,
    device: DeviceSpec,
    requested: Strategy,
    *,
    precision: str | None,
    micro_batch: int | None,
    fallback: int,
    assumptions: list[Note],
) -> Forecast:
    cluster = device.cluster
    chip = cluster.chip
    check_can_run(chip, mode=requested.mode)
    choices = legal.precisions_for(chip, precision, mode=requested.mode)
    if not choices:
        choices = legal.precisions_for(chip, mode=requested.mode)
        if precision and choices:
            assumptions.append(compared_in_another_precision(device=chip.id, precision=precision, instead=choices[0]))
    if not choices:
        raise UnsupportedError(f"the catalog knows no rate of {chip.id} that a step could be priced with.")

    def recorded(precision: str, refused: PrecisionError | None) -> tuple[Strategy, PrecisionError | None]:
        strategy = requested.but(precision=precision)
        pricer.traces.family(strategy)
        return strategy, refused

    refusals = UnsupportedError, MissingDependencyError
    strategy, refused = next(legal.in_each_precision(choices, recorded, refusals=refusals))
    strategy, meshes = with_data_parallel(pricer, strategy, cluster)
    assumptions += [note.of_devices([cluster.name]) for note in meshes]
    chosen = micro_batch or _micro_batch(pricer, strategy, cluster, fallback)
    settings = (strategy.precision, precision), (f"micro-batch {chosen}", micro_batch)
    guessed = [text for text, named in settings if named is None]
    if refused is not None:
        assumptions.append(legal.assumed_precision(strategy.precision, refused, device=chip.id))
    if guessed:
        assumptions.append(assumed_for_device(device=chip.id, settings=", ".join(guessed)))
    return pricer.forecast(strategy.but(micro_batch=chosen), cluster, usd_per_hour=device.usd_per_hour)


def _micro_batch(pricer: StepPricer, strategy: Strategy, cluster: Cluster, fallback: int) -> int:
    """The largest power of two that fits, up to a limit; the fallback if memory is unknown."""
    if cluster.capacity_bytes is None:
        return fallback
    largest = largest_micro_batch(pricer, strategy, cluster, most=_MOST_MICRO_BATCH) or 1
    return 1 << (largest.bit_length() - 1)
