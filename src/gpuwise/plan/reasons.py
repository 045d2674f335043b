"""Why a plan is where it is in the table, in sentences a person understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpuwise.cost.forecast import Forecast
from gpuwise.hardware.types import Chip
from gpuwise.plan.buying.candidates import Candidate, doubled_interruptions
from gpuwise.plan.buying.runnable import train_obstacle
from gpuwise.plan.economics import terms as economics
from gpuwise.plan.pricing import HEADROOM
from gpuwise.plan.selection import best_at_usual_price, money_times_time
from gpuwise.plan.types import Plan, Request, describe
from gpuwise.units import format_bytes, format_duration, format_usd

PEAK_OF = {"fp32": "fp32", "tf32": "tf32", "amp-bf16": "bf16", "bf16": "bf16", "amp-fp16": "fp16", "fp8": "fp8"}
_CPU_IS_ENOUGH_S = 3600.0
_SAVES = "gpuwise train saves checkpoints and goes on from them: keep its --run folder where the next machine finds it"
_MUST_SAVE = "your training must save checkpoints and resume: gpuwise train does so on one NVIDIA GPU or CPU"


def forecast_reasons(forecast: Forecast, candidate: Candidate) -> list[str]:
    """What the strategy does and why it fits."""
    strategy, memory = forecast.strategy, forecast.memory
    found = []
    if memory.capacity_bytes:
        tight = ", which is tight" if memory.device_bytes > HEADROOM * memory.capacity_bytes else ""
        used, there = format_bytes(memory.device_bytes), format_bytes(memory.capacity_bytes)
        each = " on each device" if strategy.mesh.devices > 1 else ""
        found.append(f"uses {used} of {there} of memory{each}{tight}")
    if strategy.mesh.dp_shard > 1:
        found.append(
            f"parameters, gradients and optimizer state are sharded over {strategy.mesh.dp_shard} devices: "
            "a full copy does not fit each, or leaves too little for the batch"
        )
    if strategy.recompute == "full":
        found.append("activations are computed again in backward, so that a larger micro-batch fits")
    if strategy.accumulation > 1:
        found.append(f"{strategy.accumulation} micro-batches of {strategy.micro_batch} are accumulated a step on each device")
    limit, share = max(forecast.bound.items(), key=lambda item: item[1])
    found.append(f"{share:.0%} of a step is limited by {_BOUND[limit]}")
    if strategy.precision == "bf16":
        found.append("pure bf16 because you asked for it: it changes what is trained, parameters are rounded every step")
    if obstacle := train_obstacle(candidate.chip, candidate.offer.devices):
        found.append(obstacle)
    if candidate.offer.count == 1 and candidate.chip.kind != "cpu" and strategy.mesh.devices == 1:
        found.append("one device is enough")
    return found


_BOUND = {
    "compute": "arithmetic",
    "memory": "memory bandwidth",
    "launch": "the launching of kernels",
    "communication": "the exchange between devices",
    "input": "waiting for the batch",
}


def offer_reasons(candidate: Candidate, outcome: economics.Outcome, request: Request, *, work_s: float) -> list[str]:
    """What the terms mean for time and money."""
    offer, bill, found = candidate.offer, outcome.bill, []
    if offer.stale:
        found.append(f"stale price: of {offer.as_of}, over a year older than the newest; check it before you rent")
    found += [f"price caveat: {caveat}" for caveat in offer.caveats.values()]
    if offer.terms == "spot" and bill.checkpoint_interval_s:
        twice = economics.bill(work_s, doubled_interruptions(candidate.terms))
        found.append(
            f"spot: {bill.interruptions:.2g} interruptions expected, a checkpoint every "
            f"{format_duration(bill.checkpoint_interval_s)}; with twice as many interruptions "
            f"{format_duration(twice.calendar_s)} and {format_usd(twice.usd)}"
        )
    several_sessions = offer.terms == "free" and bill.checkpoint_interval_s is not None
    if offer.terms == "spot" or several_sessions:
        found.append(_MUST_SAVE if train_obstacle(candidate.chip, offer.devices) else _SAVES)
    if offer.terms.startswith("reserved"):
        found.append(f"reserved: {format_usd(offer.usd_per_hour)}/h is paid for the whole term, used or not")
    if several_sessions:
        session = f"{offer.max_session_hours or 12:g} h"
        found.append(
            f"free: {format_duration(bill.machine_s)} of work in sessions of at most {session} takes "
            f"{format_duration(bill.calendar_s)}; resumed from a checkpoint each time"
        )
    if offer.terms == "owned":
        found.append("a machine at hand: its electricity is all it costs")
    if candidate.terms.setup_s > work_s:
        found.append(f"setting the machine up takes longer than the training itself, {format_duration(work_s)}")
    if request.deadline_s is not None and outcome.finish_probability < 0.9:
        found.append(f"{outcome.finish_probability:.0%} likely to finish in time")
    return found


def rank_reasons(plans: Sequence[Plan], chips: dict[str, Chip], *, inside: Sequence[Plan], request: Request) -> list[Plan]:
    """The plans of the table, best first, each with why it stands where it stands ahead of its other reasons.

    Arguments:
        inside: all plans inside budget and deadline.
    """
    first = plans[0]
    fastest = min(plans, key=lambda plan: plan.hours)
    value = min(plans, key=lambda plan: (bool(plan.train_obstacle), money_times_time(plan)))
    ranked = []
    for rank, plan in enumerate(plans, 1):
        why = []
        if rank == 1:
            why += _first_of(plan, inside, request)
            if plan.price_outlier:
                why.append(_price_outlier(plan, plans, inside))
        if plan is fastest and len(plans) > 1:
            why.append(f"fastest of {len(inside)}")
        if plan is value and rank > 1:
            why.append("best value: the least money × time")
        if chips[plan.device].kind == "cpu" and plan.hours * 3600 <= _CPU_IS_ENOUGH_S:
            why.append(f"a CPU is enough: {format_duration(plan.hours * 3600)}")
        if rank > 1:
            why.append(_against(plan, first))
        other = first if plan.device != first.device else next((p for p in plans if p.device != plan.device), None)
        if other is not None and (plan.hours < other.hours) == (plan.forecast.throughput > other.forecast.throughput):
            why.append(speed_reason(plan.forecast, chips[plan.device], other.forecast, chips[other.device]))
        ranked.append(replace(plan, rank=rank, reasons=(*why, *plan.reasons)))
    return ranked


def _first_of(first: Plan, inside: Sequence[Plan], request: Request) -> list[str]:
    """What the first of the table is the cheapest of, and what costs less but is not for `gpuwise train`."""
    limits = [f"inside {format_usd(request.budget_usd)}"] if request.budget_usd is not None else []
    limits += [f"in {format_duration(request.deadline_s)}"] if request.deadline_s is not None else []
    ends = f" that finish {' and '.join(limits)}" if limits else ""
    rivals, behind = inside, []
    if not (request.xla or first.train_obstacle):
        rivals = [plan for plan in inside if not plan.train_obstacle]
        behind = [plan for plan in inside if plan.train_obstacle and plan.usd.value < first.usd.value - 0.005]
    runs = " that gpuwise train runs" if len(rivals) < len(inside) else ""
    both = " and" if runs and ends else ""
    why = [f"cheapest of {len(rivals)} offers{runs}{both}{ends}"]
    if len(rivals) == 1:
        why = [f"the only offer{runs}{both}{ends.replace('finish', 'finishes')}"]
    if behind:
        least = min(behind, key=lambda plan: plan.usd.value)
        why.append(
            f"{len(behind)} offers cost less, from {format_usd(least.usd.value)} on {least.count:g} × {least.device}, "
            f"but gpuwise train cannot run them; --xla ranks them by their price"
        )
    return why


def _price_outlier(first: Plan, plans: Sequence[Plan], inside: Sequence[Plan]) -> str:
    """How far the first plan's price is from its chip's median, and what is first without such prices."""
    usual = best_at_usual_price(plans, inside)
    without = "nothing else is inside the limits" if usual is None else describe(usual)
    if usual in plans:
        without = f"plan {plans.index(usual) + 1}, {without}"
    return f"{price_words(first)}; without it: {without}"


def price_words(plan: Plan) -> str:
    """'$0.99 a device-hour is 13 % of the median of b300-288gb-sxm on demand, $7.89'."""
    assert plan.price_of_median
    each = plan.offer.usd_per_device_hour
    share = f"{100 * plan.price_of_median:.0f} %"
    return (
        f"{format_usd(each)} a device-hour is {share} of the median of {plan.device} on demand, "
        f"{format_usd(each / plan.price_of_median)}"
    )


def _against(plan: Plan, first: Plan) -> str:
    pace = plan.hours / first.hours
    speed = "as fast as"
    if pace < 0.95:
        speed = f"{_times(1 / pace)} faster than"
    elif pace > 1.05:
        speed = f"{_times(pace)} slower than"
    extra = plan.usd.value - first.usd.value
    if abs(extra) < 0.005:
        return f"{speed} plan 1, at the same price"
    return f"{speed} plan 1 and {format_usd(abs(extra))} {'dearer' if extra > 0 else 'cheaper'}"


def speed_reason(ours: Forecast, our_chip: Chip, theirs: Forecast, their_chip: Chip) -> str:
    """'1 × h100 trains this job 2.9× faster than 1 × a100: ...' with the figure that explains most of it."""
    ratio = ours.throughput / theirs.throughput
    head, other = f"{ours.count} × {ours.device}", f"{theirs.count} × {theirs.device}"
    if 1 / 1.05 < ratio < 1.05:
        return f"{head} trains this job as fast as {other}"
    if ratio > 1:
        why = why_faster(ours, our_chip, theirs, their_chip)
        return f"{head} trains this job {_times(ratio)} faster than {other}: {why}"
    why = why_faster(theirs, their_chip, ours, our_chip)
    return f"{head} trains this job {_times(1 / ratio)} slower than {other}: {why}"


def why_faster(fast: Forecast, fast_chip: Chip, slow: Forecast, slow_chip: Chip) -> str:
    """The figures behind a speed-up, of these two: arithmetic or bandwidth of all devices together, how much of the peak is
    used, kernel launches or exchange."""
    limit = max(slow.bound, key=lambda name: slow.bound[name])
    devices = fast.count / slow.count
    name_fast, name_slow = PEAK_OF[fast.strategy.precision], PEAK_OF[slow.strategy.precision]
    peaks = fast_chip.peak_flops_per_s.get(name_fast), slow_chip.peak_flops_per_s.get(name_slow)
    bandwidths = fast_chip.memory_bandwidth_bytes_per_s, slow_chip.memory_bandwidth_bytes_per_s
    head, other = f"{fast.count} × {fast.device} has", f"{slow.count} × {slow.device}"
    if limit == "compute" and peaks[0] and peaks[1] and devices * peaks[0] > peaks[1]:
        against = name_fast if name_fast == name_slow else f"{name_fast} against {name_slow}"
        share = _times(devices * peaks[0] / peaks[1])
        used = ""
        if fast.mfu and slow.mfu and fast.mfu > _USES_MORE * slow.mfu:
            used = f"; it uses {fast.mfu:.0%} of it, {other} {slow.mfu:.0%}"
        return f"{head} {share} the {against} peak, and arithmetic limits {other}{used}"
    if limit == "memory" and bandwidths[0] and bandwidths[1] and devices * bandwidths[0] > bandwidths[1]:
        ratio = devices * bandwidths[0] / bandwidths[1]
        return f"{head} {_times(ratio)} the memory bandwidth, which limits {other}"
    if slow.strategy.recompute != "none" and fast.strategy.recompute == "none":
        return f"its memory holds the activations, which {other} computes again in backward"
    loss = max(("launch", "communication", "input"), key=lambda name: slow.bound.get(name, 0) - fast.bound.get(name, 0))
    slow_share, fast_share = slow.bound.get(loss, 0), fast.bound.get(loss, 0)
    if slow_share - fast_share < _TELLING and fast.mfu and slow.mfu:
        return f"it uses {fast.mfu:.0%} of its {name_fast} peak, {other} {slow.mfu:.0%} of its {name_slow} peak"
    return f"{_BOUND[loss]} takes {slow_share:.0%} of a step of {other}, {fast_share:.0%} of {fast.count} × {fast.device}"


_USES_MORE = 1.25  # times the share of the peak from which on it is part of the reason
_TELLING = 0.02  # of a step: a smaller difference explains no speed-up


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
