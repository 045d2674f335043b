"""The reasons for a plan and for its rank in the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast, Interval
from gpuwise.hardware.prices import price_kind
from gpuwise.hardware.types import Chip
from gpuwise.notes import Note
from gpuwise.notes import plan as notes
from gpuwise.notes.plan import times
from gpuwise.notes.price import if_the_price_holds
from gpuwise.plan.buying.candidates import Candidate
from gpuwise.plan.economics.bill import Outcome
from gpuwise.plan.economics.bill import bill as bill_of
from gpuwise.plan.economics.likely_price import LikelyPrice
from gpuwise.plan.economics.rented import several_times
from gpuwise.plan.pricing.step import HEADROOM
from gpuwise.plan.request import Request
from gpuwise.plan.selection import may_miss, money_times_time
from gpuwise.plan.time_and_money import TimeAndMoney
from gpuwise.plan.types import Plan
from gpuwise.units import format_duration, format_usd

PEAK_OF = {"fp32": "fp32", "tf32": "tf32", "amp-bf16": "bf16", "bf16": "bf16", "amp-fp16": "fp16", "fp16": "fp16", "fp8": "fp8"}
_CPU_IS_ENOUGH_S = 3600.0
_BEST_IN = {
    "fastest": "fastest of",
    "samples-per-dollar": "most samples a dollar of",
    "least-memory": "least memory on all devices together of",
    "least-energy": "least energy of",
}


def forecast_reasons(forecast: Forecast, candidate: Candidate, *, train_obstacle: str) -> list[Note]:
    """The reasons for the strategy, and why it fits."""
    strategy, memory = forecast.strategy, forecast.memory
    reasons: list[Note] = []
    if memory.capacity_bytes:
        reasons.append(
            notes.memory_used(
                device_bytes=memory.device_bytes,
                capacity_bytes=memory.capacity_bytes,
                devices=strategy.mesh.devices,
                tight=memory.device_bytes > HEADROOM * memory.capacity_bytes,
            )
        )
    if strategy.mesh.dp_shard > 1:
        reasons.append(notes.sharded(devices=strategy.mesh.dp_shard, shard=strategy.parallelism.shard))
    if strategy.recompute == "full":
        reasons.append(notes.recomputed())
    if strategy.accumulation > 1:
        reasons.append(notes.accumulated(micro_batches=strategy.accumulation, micro_batch=strategy.micro_batch))
    limit, share = max(forecast.bound.items(), key=lambda item: item[1])
    reasons.append(notes.bound_by(share=share, limit=limit, words=_BOUND[limit]))
    if strategy.precision == "bf16":
        reasons.append(notes.pure_bf16())
    if train_obstacle:
        reasons.append(notes.not_for_train(obstacle=train_obstacle))
    if candidate.offer.count == 1 and candidate.chip.kind != "cpu" and strategy.mesh.devices == 1:
        reasons.append(notes.one_device_is_enough())
    return reasons


_BOUND = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "launch": "the launching of kernels",
    "communication": "the exchange between devices",
    "pipeline": "waiting for other stages of the pipeline",
    "input": "waiting for the batch",
}


def price_reasons(price: LikelyPrice, usd: Interval, *, listed_usd: float) -> list[Note]:
    """Why the listed price may not hold, and what the run costs if it does."""
    if price.note is None:
        return []
    return [price.note, if_the_price_holds(listed_usd=listed_usd, high_usd=usd.high)]


def offer_reasons(
    candidate: Candidate, outcome: Outcome, request: Request, *, work_s: float, train_obstacle: str
) -> list[Note]:
    """The effects of the offer's terms on time and money."""
    offer, bill = candidate.offer, outcome.bill
    reasons: list[Note] = []
    if offer.stale:
        reasons.append(notes.stale_price(as_of=offer.as_of))
    if price_kind(offer) != "from":  # its note says the same
        reasons += [notes.price_caveat(caveat=caveat) for caveat in offer.caveats.values()]
    if offer.terms == "spot" and bill.checkpoint_interval_s:
        twice, half = (bill_of(work_s, several_times(candidate.terms, factor)) for factor in (2.0, 0.5))
        other_s = [
            bill_of(work_s, candidate.terms, interval_s=factor * bill.checkpoint_interval_s).machine_s for factor in (0.5, 2.0)
        ]
        reasons.append(
            notes.spot_interruptions(
                interruptions=bill.interruptions,
                checkpoint_interval_s=bill.checkpoint_interval_s,
                doubled_s=twice.calendar_s,
                doubled_usd=twice.usd,
                halved_s=half.calendar_s,
                halved_usd=half.usd,
                other_interval_share=max(other_s) / bill.machine_s - 1,
            )
        )
    several_sessions = offer.terms == "free" and bill.checkpoint_interval_s is not None
    if offer.terms == "spot" or several_sessions:
        reasons.append(notes.must_save() if train_obstacle else notes.train_saves())
    if offer.terms.startswith("reserved"):
        reasons.append(notes.reserved_term(usd_per_hour=offer.usd_per_hour))
    if several_sessions:
        reasons.append(
            notes.free_sessions(work_s=bill.machine_s, session_hours=offer.max_session_hours or 12, calendar_s=bill.calendar_s)
        )
    if offer.terms == "owned":
        reasons.append(notes.machine_at_hand())
    if candidate.terms.setup_s > work_s:
        reasons.append(notes.setup_longer_than_training(work_s=work_s))
    return reasons


def rank_reasons(
    plans: Sequence[Plan], chips: dict[str, Chip], *, inside: Sequence[TimeAndMoney], request: Request
) -> list[Plan]:
    """The plans of the table, best first, each with the reason for its rank before its other reasons.

    Arguments:
        inside: all plans inside budget and deadline.
    """
    first = plans[0]
    fastest = min(plans, key=lambda plan: plan.hours)
    value = min(plans, key=lambda plan: (bool(plan.train_obstacle), money_times_time(plan)))
    ranked = []
    for rank, plan in enumerate(plans, 1):
        why: list[Note] = []
        if rank == 1:
            why += _first_of(plan, inside, request)
        if plan is fastest and len(plans) > 1:
            why.append(notes.fastest(offers=len(inside)))
        if plan is value and rank > 1:
            why.append(notes.best_value())
        if chips[plan.device].kind == "cpu" and plan.hours * 3600 <= _CPU_IS_ENOUGH_S:
            why.append(notes.cpu_is_enough(calendar_s=plan.hours * 3600))
        if may_miss(plan, request):
            why.append(notes.may_miss(chance=plan.chance))
        if rank > 1:
            pace, extra_usd = plan.hours / first.hours, plan.usd.value - first.usd.value
            why.append(notes.against_the_first(pace=pace, extra_usd=extra_usd))
        other = first if plan.device != first.device else next((p for p in plans if p.device != plan.device), None)
        if other is not None and (plan.hours < other.hours) == (plan.forecast.throughput > other.forecast.throughput):
            why.append(speed_reason(plan.forecast, chips[plan.device], other.forecast, chips[other.device]))
        ranked.append(replace(plan, rank=rank, reason_notes=(*why, *plan.reason_notes)))
    return ranked


def _first_of(first: Plan, inside: Sequence[TimeAndMoney], request: Request) -> list[Note]:
    """The reason why the first plan is first, with cheaper plans that `gpuwise train` cannot run."""
    limits = [f"inside {format_usd(request.budget_usd)}"] if request.budget_usd is not None else []
    limits += [f"in {format_duration(request.deadline_s)}"] if request.deadline_s is not None else []
    rivals: Sequence[TimeAndMoney] = inside
    behind: Sequence[TimeAndMoney] = []
    if not (request.xla or first.train_obstacle):
        rivals = [plan for plan in inside if not plan.train_obstacle]
        behind = [plan for plan in inside if plan.train_obstacle and plan.usd.value < first.usd.value - 0.005]
    runs, words = len(rivals) < len(inside), " and ".join(limits)
    risky = [plan for plan in rivals if may_miss(plan, request)]
    if risky and not may_miss(first, request):
        rivals = [plan for plan in rivals if not may_miss(plan, request)]
        words += f" with a chance of {request.confidence:.0%}".replace("%", " %")
    if request.objective == "cheapest":
        why = [notes.cheapest(offers=len(rivals), runs=runs, limits=words)]
    else:
        why = [notes.first_by(best=_BEST_IN[request.objective], offers=len(rivals), runs=runs, limits=words)]
    if len(rivals) == 1:
        why = [notes.only_offer(runs=runs, limits=words)]
    if behind:
        least = min(behind, key=lambda plan: plan.usd.value)
        why.append(
            notes.cheaper_but_not_for_train(offers=len(behind), usd=least.usd.value, count=least.count, device=least.device)
        )
    cheaper = [plan for plan in risky if plan.usd.value < first.usd.value - 0.005]
    if cheaper and not may_miss(first, request):
        least = min(cheaper, key=lambda plan: plan.usd.value)
        why.append(
            notes.cheaper_but_may_miss(
                offers=len(cheaper), usd=least.usd.value, count=least.count, device=least.device, chance=least.chance
            )
        )
    return why


def speed_reason(ours: Forecast, our_chip: Chip, theirs: Forecast, their_chip: Chip) -> Note:
    """'1 × h100 trains this job 2.9× faster than 1 × a100: ...' with the figure that explains most of it."""
    ratio = ours.throughput / theirs.throughput
    why = ""
    if not 1 / 1.05 < ratio < 1.05:
        why = why_faster(ours, our_chip, theirs, their_chip) if ratio > 1 else why_faster(theirs, their_chip, ours, our_chip)
    return notes.speed_beside(
        device=f"{ours.count} × {ours.device}", other=f"{theirs.count} × {theirs.device}", ratio=ratio, why=why
    )


def why_faster(fast: Forecast, fast_chip: Chip, slow: Forecast, slow_chip: Chip) -> str:
    """The figures of two forecasts that explain a speed-up.

    They are arithmetic or bandwidth of all devices together, the share of the peak in use, kernel launches, or communication.
    """
    limit = max(slow.bound, key=lambda name: slow.bound[name])
    devices = fast.count / slow.count
    name_fast, name_slow = PEAK_OF[fast.strategy.precision], PEAK_OF[slow.strategy.precision]
    peaks = fast_chip.peak_flops_per_s.get(name_fast), slow_chip.peak_flops_per_s.get(name_slow)
    bandwidths = fast_chip.memory_bandwidth_bytes_per_s, slow_chip.memory_bandwidth_bytes_per_s
    head, other = f"{fast.count} × {fast.device} has", f"{slow.count} × {slow.device}"
    if limit == "compute" and peaks[0] and peaks[1] and devices * peaks[0] > peaks[1]:
        against = name_fast if name_fast == name_slow else f"{name_fast} against {name_slow}"
        share = times(devices * peaks[0] / peaks[1])
        used = ""
        if fast.mfu and slow.mfu and fast.mfu > _USES_MORE * slow.mfu:
            used = f"; it uses {fast.mfu:.0%} of it, {other} {slow.mfu:.0%}"
        return f"{head} {share} the {against} peak, and arithmetic limits {other}{used}"
    if limit == "memory" and bandwidths[0] and bandwidths[1] and devices * bandwidths[0] > bandwidths[1]:
        ratio = devices * bandwidths[0] / bandwidths[1]
        return f"{head} {times(ratio)} the memory bandwidth, which limits {other}"
    if slow.strategy.recompute != "none" and fast.strategy.recompute == "none":
        return f"its memory holds the activations, which {other} computes again in backward"
    loss = max(
        ("launch", "communication", "pipeline", "input"), key=lambda name: slow.bound.get(name, 0) - fast.bound.get(name, 0)
    )
    slow_share, fast_share = slow.bound.get(loss, 0), fast.bound.get(loss, 0)
    if slow_share - fast_share < _TELLING and fast.mfu and slow.mfu:
        return f"it uses {fast.mfu:.0%} of its {name_fast} peak, {other} {slow.mfu:.0%} of its {name_slow} peak"
    return f"{_BOUND[loss]} takes {slow_share:.0%} of a step of {other}, {fast_share:.0%} of {fast.count} × {fast.device}"


_USES_MORE = 1.25  # ratio of shares of the peak that makes them part of the reason
_TELLING = 0.02  # share of a step; a smaller difference explains no speed-up
