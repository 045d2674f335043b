"""Whether this machine is enough for a classical job: its forecast time and memory against the limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuwise.cost.forecast import Interval
from gpuwise.hardware.catalog import Catalog
from gpuwise.hardware.types import Offer
from gpuwise.notes import Note
from gpuwise.notes import classical as notes
from gpuwise.plan.cpu.enough import ENOUGH, NOT_ENOUGH, UNCERTAIN, CpuEnough
from gpuwise.plan.cpu.growth import Growth
from gpuwise.units import format_bytes, format_duration

# Without a deadline, a fit that ends within a day is one to start and come back to.
USUAL_DEADLINE_S = 86400.0


@dataclass(frozen=True)
class FullFit:
    """The forecast of one fit on all rows.

    Attributes:
        samples: rows.
        time_s: seconds.
        memory_bytes: peak resident memory; None where unknown.
        growth: of the time.
        cores: processors that the fit keeps busy.
        measured: whether all rows were fitted.
    """

    samples: int
    time_s: Interval
    memory_bytes: Interval | None
    growth: Growth
    cores: float
    measured: bool


def judge(
    fit: FullFit, *, capacity_bytes: int | None, processors: int, deadline_s: float | None, catalog: Catalog
) -> CpuEnough:
    """Enough if time and memory end within the limits at the upper ends of their intervals, not enough if they do not at their
    likeliest values, else uncertain."""
    limit_s = USUAL_DEADLINE_S if deadline_s is None else deadline_s
    named = "the deadline" if deadline_s is not None else "a day"
    over = [_over(fit.time_s, limit_s, f"{named} is {format_duration(limit_s)}" if deadline_s else "that is over a day")]
    memory = fit.memory_bytes
    if memory is not None and capacity_bytes is not None:
        needs = f"its memory, {format_bytes(memory.value)} ({format_bytes(memory.low)} to {format_bytes(memory.high)}), "
        over.append(_over(memory, capacity_bytes, f"{needs}is more than {format_bytes(capacity_bytes)}"))
    level, limits = max(level for level, _ in over), [words for level, words in over if level]
    time = fit.time_s
    verdict = (notes.fit_is_enough, notes.fit_may_be_enough, notes.fit_is_not_enough)[level]
    first = verdict(samples=fit.samples, time_s=time.value, low_s=time.low, high_s=time.high, limit=" and ".join(limits))
    more: list[Note] = []
    if not fit.measured:
        more.append(notes.growth_of_time(growth=fit.growth.exponent_at(fit.samples)))
    if over[0][0]:
        rows = fit.growth.samples_within(limit_s, most=fit.samples)
        more += [notes.rows_in_time(samples=rows, limit_s=limit_s)] if rows else []
    if len(over) > 1 and over[1][0] and memory is not None:
        more += _with_memory(catalog.offers, catalog, memory.high)
    if level and fit.cores < 0.6 * processors:
        more.append(notes.one_core_busy(cores=fit.cores, processors=processors))
    return CpuEnough((ENOUGH, UNCERTAIN, NOT_ENOUGH)[level], (first, *more))


def _over(needed: Interval, limit: float, words: str) -> tuple[int, str]:
    """0 within the limit, 1 where the interval ends beyond it, 2 where its value does."""
    return (2 if needed.value > limit else 1 if needed.high > limit else 0), words


def _with_memory(offers: Iterable[Offer], catalog: Catalog, memory_bytes: float) -> list[Note]:
    """The cheapest rented CPU with so much memory, if there is one."""
    cpus = [
        offer
        for offer in offers
        if not offer.stale
        and (chip := catalog.chips.get(offer.chip_id)) is not None
        and chip.kind == "cpu"
        and (offer.host_memory_bytes or 0) >= memory_bytes
    ]
    if not cpus:
        return []
    best = min(cpus, key=lambda offer: offer.usd_per_hour)
    return [
        notes.machine_with_memory(
            provider=best.provider,
            instance=best.instance,
            memory_bytes=best.host_memory_bytes or 0,
            usd_per_hour=best.usd_per_hour,
        )
    ]
