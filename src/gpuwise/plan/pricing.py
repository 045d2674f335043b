"""Strategies of one job priced on chips: memory first, time only for what can fit, each trace made once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuwise.cost.forecast import Forecast, MemoryForecast
from gpuwise.cost.memory import memory_forecast
from gpuwise.cost.parameters import parameters
from gpuwise.cost.price import price
from gpuwise.errors import GpuwiseError, MissingDependencyError, UnsupportedError
from gpuwise.hardware.types import Chip, Link
from gpuwise.plan import space
from gpuwise.plan.types import TraceSource
from gpuwise.strategy import Mesh, Strategy
from gpuwise.trace.family import TraceFamily
from gpuwise.trace.memory import live_bytes
from gpuwise.trace.sharded import Communication, data_parallel, recorded_as
from gpuwise.trace.trace import Header, Trace

MOST_MICRO_BATCH = 2**16
# Below this share of launches a step gains from a faster precision, so the slower ones need no pricing.
LAUNCH_BOUND = 0.2
HEADROOM = 0.95


@dataclass(frozen=True)
class Place:
    """Where a strategy would run: a chip (or its slice), how many, their link and the memory each offers."""

    chip: Chip
    count: int
    link: Link | None
    capacity_bytes: int | None


@dataclass(frozen=True)
class Wish:
    """What the user pinned, and the batch an optimizer step has to see."""

    global_batch: int
    precision: str | None = None
    recompute: str | None = None
    micro_batch: int | None = None
    optimizer: str | None = None


@dataclass(frozen=True)
class NoStrategy:
    """Why no strategy runs on a place. shortfall_bytes: memory missing on each device, to name the nearest."""

    reason: str
    detail: str = ""
    shortfall_bytes: float = 0.0


@dataclass
class Pricer:
    """Traces of one job, made once and kept. priced: forecasts made."""

    source: TraceSource
    sizes: Mapping[str, int] = field(default_factory=dict)
    optimizer: str | None = None
    mode: str = "train"
    priced: int = 0
    _families: dict[tuple[str, str], TraceFamily | GpuwiseError] = field(default_factory=dict)
    _traces: dict[tuple[str, str, int, int, Mesh], tuple[Trace, Communication]] = field(default_factory=dict)
    _peaks: dict[tuple[str, str, int, bool, Mesh], int] = field(default_factory=dict)

    def family(self, strategy: Strategy) -> TraceFamily:
        """The family a strategy is composed from. Raises what the source raised, UnsupportedError above all."""
        variant = recorded_as(strategy)
        key = (variant.recorded_precision, variant.recompute)
        if key not in self._families:
            wanted = Strategy(
                precision=variant.recorded_precision, recompute=variant.recompute, optimizer=self.optimizer, mode=self.mode
            )
            try:
                self._families[key] = self.source(wanted)
            except (UnsupportedError, MissingDependencyError) as error:
                self._families[key] = error
        found = self._families[key]
        if isinstance(found, GpuwiseError):
            raise found
        return found

    def header(self, precisions: Iterable[str]) -> Header:
        """The header of the first variant that can be had, at the sizes asked for. Raises the source's last error."""
        problem: GpuwiseError | None = None
        for precision in precisions:
            for recompute in ("none", "full"):
                try:
                    wanted = Strategy(precision=precision, recompute=recompute, mode=self.mode)
                    return self.family(wanted).at(**self.sizes).header
                except (UnsupportedError, MissingDependencyError) as error:
                    problem = problem or error
        raise problem or UnsupportedError("the job has no trace in any precision.")

    def trace(self, strategy: Strategy) -> tuple[Trace, Communication]:
        """What one rank does under a strategy, and what the ranks exchange."""
        key = (strategy.precision, strategy.recompute, strategy.micro_batch, strategy.accumulation, strategy.mesh)
        if key not in self._traces:
            self._traces[key] = self._make(strategy)
        return self._traces[key]

    def _make(self, strategy: Strategy) -> tuple[Trace, Communication]:
        family = self.family(strategy)
        trace = family.at(accumulation=strategy.accumulation, micro_batch=strategy.micro_batch, **self.sizes)
        return data_parallel(trace, strategy)

    def memory(self, strategy: Strategy, place: Place) -> MemoryForecast:
        """Memory alone, without pricing time. Its trace is not kept: `largest_micro_batch` asks for many."""
        return memory_forecast(self._make(strategy)[0], place.chip, devices=place.count,
                               capacity_bytes=place.capacity_bytes, parameters=parameters())  # fmt: skip

    def largest_micro_batch(self, strategy: Strategy, place: Place, *, most: int = MOST_MICRO_BATCH) -> int | None:
        """The largest micro-batch that fits a place, at most `most`; None where one sample does not fit.

        Live bytes at each position are linear in the batch, so their peak is convex: the line through two small
        batches lies below it, and where that line meets the capacity is an upper bound.
        """
        one = self.memory(strategy.but(micro_batch=1), place)
        if one.capacity_bytes is None:
            return most
        if not one.fits:
            return None
        if not self.family(strategy).covers({"micro_batch": 2}):
            return 1  # the program changes with the batch: it was recorded for one sample alone
        two = self.memory(strategy.but(micro_batch=2), place)
        slope = max(1, two.peak_allocated_bytes - one.peak_allocated_bytes)
        high = min(most, 2 + (one.capacity_bytes - one.peak_allocated_bytes) // slope) + 1
        low = 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.memory(strategy.but(micro_batch=middle), place).fits else (low, middle)
        return low

    def peak_bytes(self, strategy: Strategy) -> int:
        """Peak bytes of tensors on one device: what a device must have at the very least."""
        accumulates = strategy.accumulation > 1
        key = (strategy.recorded_precision, strategy.recompute, strategy.micro_batch, accumulates, strategy.mesh)
        if key not in self._peaks:
            self._peaks[key] = live_bytes(self.trace(strategy.but(accumulation=1 + accumulates))[0]).peak_bytes
        return self._peaks[key]

    def forecast(self, strategy: Strategy, place: Place) -> Forecast:
        """One strategy priced on one place."""
        self.priced += 1
        trace, communication = self.trace(strategy)
        return price(trace, communication, place.chip, count=place.count, link=place.link,
                     capacity_bytes=place.capacity_bytes, strategy=strategy)  # fmt: skip

    def largest(self, strategies: Sequence[Strategy], place: Place) -> Forecast | None:
        """The forecast of the last of `strategies` (ascending in memory) that fits the place; None where none does.

        What leaves some headroom goes first: a forecast of memory is a forecast, and a run that dies of it costs most.
        """
        fit = len(strategies)
        if place.capacity_bytes is not None and self.peak_bytes(strategies[-1]) > place.capacity_bytes:
            fit = bisect_right(strategies, place.capacity_bytes, key=self.peak_bytes)
        tight = None
        while fit > 0:
            forecast = self.forecast(strategies[fit - 1], place)
            if place.capacity_bytes is None or forecast.memory.device_bytes <= HEADROOM * place.capacity_bytes:
                return forecast
            if forecast.memory.fits:
                tight = forecast  # the smallest of those that only just fit: better than none
            fit -= 1
        return tight

    def best(self, place: Place, wish: Wish) -> Forecast | NoStrategy:
        """The fastest strategy that fits a place, or why there is none."""
        if wish.global_batch % place.count:
            return NoStrategy("global batch does not divide over the devices", f"{wish.global_batch} over {place.count}")
        micro_batches = space.micro_batches(wish.global_batch // place.count, wish.micro_batch)
        if not micro_batches:
            return NoStrategy("micro-batch does not divide the batch of a device")
        precisions = space.precisions_for(place.chip, wish.precision)
        if not precisions:
            return NoStrategy("precision unsupported", wish.precision or "")
        found: list[Forecast] = []
        problems: list[GpuwiseError] = []
        for precision in precisions:
            if found and min(f.bound.get("launch", 0.0) for f in found) < LAUNCH_BOUND:
                break
            try:
                found += self._best_in(precision, place, wish, micro_batches)
            except (UnsupportedError, MissingDependencyError) as error:
                problems.append(error)
        if found:
            return min(found, key=lambda f: (f.step_time_s.value, f.memory.device_bytes))
        if len(problems) == len(precisions):
            return NoStrategy("no trace in a precision of the chip", problems[0].what)
        return self._shortfall(precisions, place, wish, micro_batches[0])

    def _best_in(self, precision: str, place: Place, wish: Wish, micro_batches: list[int]) -> list[Forecast]:
        """The largest micro-batch of each mesh; recomputation and sharding only where memory limits what is had.

        Empty where nothing fits. Raises what the source raised where it has no variant to try at all.
        """
        found: list[Forecast] = []
        tried, problem = 0, None
        for mesh in space.meshes(place.count):
            for recompute in space.recomputes_for(wish.recompute):
                try:
                    ladder = self.ladder(precision, recompute, mesh, wish, micro_batches)
                    forecast = self.largest(ladder, place)
                except (UnsupportedError, MissingDependencyError) as error:
                    problem = problem or error
                    continue
                tried += 1
                if forecast is None:
                    continue
                found.append(forecast)
                if forecast.strategy.micro_batch == micro_batches[-1]:
                    break
            if found and not any(_crowded(f, micro_batches[-1]) for f in found):
                break
        if not tried and problem is not None:
            raise problem
        return found

    def ladder(self, precision: str, recompute: str, mesh: Mesh, wish: Wish, micro_batches: Sequence[int]) -> list[Strategy]:
        """Strategies of exactly the global batch, ascending in micro-batch, as far as the family knows them."""
        each = wish.global_batch // mesh.data_parallel
        whole = Strategy(precision=precision, recompute=recompute, mesh=mesh, optimizer=wish.optimizer, mode=self.mode)
        family = self.family(whole)
        known = [m for m in micro_batches if family.covers({**self.sizes, "micro_batch": m})]
        if not known:
            sizes = ", ".join(f"{name} {value}" for name, value in self.sizes.items())
            raise UnsupportedError(f"{family.header.job} has no trace at {sizes or 'these micro-batches'}.",
                                   ['install PyTorch to trace it: pip install "gpuwise[torch]"'])  # fmt: skip
        return [whole.but(micro_batch=m, accumulation=each // m) for m in known]

    def _shortfall(self, precisions: list[str], place: Place, wish: Wish, micro_batch: int) -> NoStrategy:
        least = None
        for precision in precisions:
            for recompute in space.recomputes_for(wish.recompute):
                mesh = space.meshes(place.count)[-1]
                try:
                    peak = self.peak_bytes(self.ladder(precision, recompute, mesh, wish, [micro_batch])[0])
                except (UnsupportedError, MissingDependencyError):
                    continue
                least = peak if least is None else min(least, peak)
        missing = max(0.0, float((least or 0) - (place.capacity_bytes or 0)))
        return NoStrategy("does not fit in memory", f"needs {(least or 0) / 2**30:.1f} GiB a device", missing)


def _crowded(forecast: Forecast, largest: int) -> bool:
    """Whether parameters, gradients and optimizer state take enough memory to hold the micro-batch down."""
    memory = forecast.memory
    state = sum(memory.by_category.get(name, 0) for name in ("parameter", "gradient", "optimizer_state"))
    crowded = memory.capacity_bytes is not None and state > space.CROWDED * memory.capacity_bytes
    return crowded and (forecast.strategy.micro_batch < largest or forecast.strategy.recompute != "none")
