"""fit: the largest micro-batch on a device, and what each memory technique would free and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.rates import check_can_run, why_not
from gpuwise.errors import GpuwiseError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.links import link_inside
from gpuwise.hardware.types import Chip, Link
from gpuwise.plan import space
from gpuwise.plan.pricing import MOST_MICRO_BATCH, Place, Pricer
from gpuwise.plan.types import TraceSource
from gpuwise.strategy import Mesh, Strategy

_SHARDS = (2, 4, 8)
_NEAREST = 3


@dataclass(frozen=True)
class FitRow:
    """One memory technique on the device.

    strategy: at the micro-batch all rows share; devices: how many it takes. largest_micro_batch: None where not even
    one sample fits. memory: at the shared micro-batch. freed_bytes: against the first row, on each device.
    step_time_ratio: time of a sample and device against the first row (above 1: slower). unavailable: why there are no
    numbers.
    """

    technique: str
    devices: int
    strategy: Strategy
    largest_micro_batch: int | None = None
    memory: MemoryForecast | None = None
    freed_bytes: int | None = None
    step_time_ratio: float | None = None
    note: str = ""
    unavailable: str | None = None

    def to_dict(self) -> dict[str, Any]:
        memory = None if self.memory is None else asdict(self.memory) | {"fits": self.memory.fits}
        return {"technique": self.technique, "devices": self.devices, "strategy": self.strategy.to_dict(),
                "largest_micro_batch": self.largest_micro_batch, "memory": memory, "freed_bytes": self.freed_bytes,
                "step_time_ratio": self.step_time_ratio, "note": self.note,
                "unavailable": self.unavailable}  # fmt: skip


@dataclass(frozen=True)
class FitResult:
    """rows[0] is what was asked. micro_batch: the one all rows are compared at.

    nearest_chips: the smallest chips that hold what was asked, where the device does not; nearest_techniques: what
    makes it fit on the device. forecast: at the largest micro-batch, None where it does not fit.
    """

    job: str
    device: str
    count: int
    capacity_bytes: int | None
    micro_batch: int
    rows: tuple[FitRow, ...]
    forecast: Forecast | None
    nearest_chips: tuple[str, ...] = ()
    nearest_techniques: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = field(default=())

    @property
    def fits(self) -> bool:
        return self.rows[0].largest_micro_batch is not None

    @property
    def largest_micro_batch(self) -> int | None:
        return self.rows[0].largest_micro_batch

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract of `gpuwise fit --json`."""
        return {"job": self.job, "device": self.device, "count": self.count, "capacity_bytes": self.capacity_bytes,
                "fits": self.fits, "largest_micro_batch": self.largest_micro_batch, "micro_batch": self.micro_batch,
                "techniques": [row.to_dict() for row in self.rows],
                "forecast": None if self.forecast is None else self.forecast.to_dict(),
                "nearest_chips": list(self.nearest_chips), "nearest_techniques": list(self.nearest_techniques),
                "assumptions": list(self.assumptions)}  # fmt: skip


def fit(source: TraceSource, chip: Chip, *, catalog: Catalog, count: int = 1, link: Link | None = None,
        capacity_bytes: int | None = None, precision: str | None = None, recompute: str | None = None,
        micro_batch: int | None = None, optimizer: str | None = None, mode: str = "train",
        sizes: Mapping[str, int] | None = None) -> FitResult:  # fmt: skip
    """What fits a device, and what each memory technique changes.

    Arguments:
        chip, count, link: the device; each of count devices holds a full copy. capacity_bytes: memory of one, where it
            is not the chip's own (a CPU's). catalog: where nearer chips and the links of sharded rows come from.
        precision, recompute: what is asked; the chip's best precision and none where not given. micro_batch: the one to
            compare techniques at; the largest that fits where not given.
    Raises UnsupportedError where the chip cannot run the job in that precision, and what the source raises.
    """
    pricer = Pricer(source, sizes=sizes or {}, optimizer=optimizer, mode=mode)
    capacity = chip.usable_memory_bytes if capacity_bytes is None else capacity_bytes
    check_can_run(chip, mode=mode)
    asked_precision, assumptions = _precision(pricer, chip, precision)
    asked = Strategy(precision=asked_precision, recompute=recompute or "none", mesh=Mesh(dp_replicate=count),
                     optimizer=optimizer, mode=mode)  # fmt: skip
    place = Place(chip, count, link, capacity)
    largest = pricer.largest_micro_batch(asked, place)
    equal = micro_batch or largest or 1
    if capacity is None:
        equal = micro_batch or 1
        assumptions.append("the memory of this device is not known, so nothing limits the micro-batch; `--on here` knows it")
    base = pricer.forecast(asked.but(micro_batch=equal), place)
    rows = [FitRow("as asked", count, asked.but(micro_batch=equal), largest, base.memory, 0, 1.0)]
    for technique, strategy, note in _techniques(asked, chip):
        devices = strategy.mesh.devices
        inside = link if devices == count else link_inside(chip, devices, catalog=catalog)
        rows.append(
            _row(
                pricer,
                technique,
                strategy.but(micro_batch=equal),
                Place(chip, devices, inside, capacity),
                base,
                note=note,
            )
        )
    header = pricer.family(asked).at(micro_batch=equal, **pricer.sizes).header
    best = None
    if largest is not None:
        best = base if largest == equal or capacity is None else pricer.forecast(asked.but(micro_batch=largest), place)
    chips: tuple[str, ...] = ()
    techniques: tuple[str, ...] = ()
    if largest is None:
        chips = _nearest_chips(pricer, asked, catalog, count=count, capacity=capacity)
        techniques = tuple(row.technique for row in rows[1:] if row.largest_micro_batch)
    return FitResult(header.job, chip.id, count, capacity, equal, tuple(rows), best, chips, techniques,
                     (*header.assumptions, *assumptions))  # fmt: skip


def _precision(pricer: Pricer, chip: Chip, pinned: str | None) -> tuple[str, list[str]]:
    choices = space.precisions_for(chip, pinned)
    if not choices:
        what = f"in {pinned}" if pinned else "in any known precision"
        way = f"one of: {', '.join(space.precisions_for(chip))}" if pinned else "gpuwise chips lists others"
        raise UnsupportedError(f"{chip.id} does not compute {what}.", [way])
    problem: GpuwiseError | None = None
    for precision in choices:
        try:
            pricer.family(Strategy(precision=precision, mode=pricer.mode))
        except (UnsupportedError, MissingDependencyError) as error:
            problem = problem or error
        else:
            return precision, [] if pinned else [f"assumed precision {precision}; --precision changes it"]
    assert problem is not None
    raise problem


def _techniques(asked: Strategy, chip: Chip) -> Iterator[tuple[str, Strategy, str]]:
    """(name, strategy, note) of each technique that differs from what is asked."""
    others = [p for p in space.precisions_for(chip) if p != asked.precision]
    if asked.precision != "bf16" and space.precisions_for(chip, "bf16") and chip.kind != "cpu":
        others.append("bf16")
    for precision in others:
        note = "changes what is trained: parameters are rounded every step" if precision == "bf16" else ""
        yield f"precision {precision}", asked.but(precision=precision), note
    if asked.mode == "train":
        if asked.recompute == "none":
            kept = "activations are computed again in backward, except attention and every second matrix product"
            yield "selective recompute", asked.but(recompute="selective"), kept
        if asked.recompute != "full":
            yield "full recompute", asked.but(recompute="full"), "activations are computed again in backward"
        yield "gradient accumulation", asked.but(accumulation=2), "any global batch; an optimizer step serves more samples"
        for devices in _SHARDS:
            if devices > asked.mesh.devices:
                sharded = asked.but(mesh=Mesh(dp_shard=devices))
                yield f"sharded over {devices} devices", sharded, "parameters, gradients and optimizer state are split"
        most = _SHARDS[-1]
        if asked.recompute != "full" and most > asked.mesh.devices:
            both = asked.but(mesh=Mesh(dp_shard=most), recompute="full")
            yield f"sharded over {most} devices and full recompute", both, "both techniques together"


def _row(pricer: Pricer, technique: str, strategy: Strategy, place: Place, base: Forecast, *, note: str) -> FitRow:
    try:
        largest = pricer.largest_micro_batch(strategy, place)
        forecast = pricer.forecast(strategy, place)
    except (UnsupportedError, MissingDependencyError) as error:
        return FitRow(technique, place.count, strategy, note=note, unavailable=error.what)
    if place.capacity_bytes is None:
        largest = MOST_MICRO_BATCH
    ratio = (base.throughput / base.count) / (forecast.throughput / forecast.count)
    freed = base.memory.device_bytes - forecast.memory.device_bytes
    if strategy.accumulation > base.strategy.accumulation and freed < 0:
        note += "; adds one copy of the gradients, kept from one micro-batch to the next"
    return FitRow(technique, place.count, strategy, largest, forecast.memory, freed, ratio, note)


def _nearest_chips(pricer: Pricer, asked: Strategy, catalog: Catalog, *, count: int, capacity: int | None) -> tuple[str, ...]:
    """The smallest chips that hold one sample as asked."""
    found: list[str] = []
    chips = [c for c in catalog.chips.values() if (c.usable_memory_bytes or 0) > (capacity or 0)]
    for chip in sorted(chips, key=lambda c: (c.usable_memory_bytes or 0, c.id)):
        if why_not(chip, mode=asked.mode) or not space.precisions_for(chip, asked.precision):
            continue
        memory = pricer.memory(asked.but(micro_batch=1), Place(chip, count, None, chip.usable_memory_bytes))
        if memory.fits:
            found.append(chip.id)
        if len(found) == _NEAREST:
            break
    return tuple(found)
