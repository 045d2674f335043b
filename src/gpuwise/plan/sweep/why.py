"""Why the first plan of a sweep is the first: sharing, and one bigger machine against many small ones."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwise.plan.sweep.sharing import slowdown
from gpuwise.plan.sweep.types import SweepPlan
from gpuwise.units import counted, format_duration, format_usd


def why_first(plans: Sequence[SweepPlan]) -> tuple[str, ...]:
    """Sentences on the first plan."""
    best = plans[0]
    return tuple(text for text in (_sharing(best), _bigger_or_smaller(best, plans)) if text)


def _sharing(plan: SweepPlan) -> str:
    if plan.devices_per_run > 1:
        device_groups = plan.machines * (plan.devices_each // plan.devices_per_run)
        sentence = f"one {plan.device} does not hold a run, {plan.devices_per_run} do"
        return f"{sentence}: {counted(device_groups, 'run')} at once on these machines"
    busy = f"one run alone keeps a {plan.device} busy {100 * plan.busy:.0f} % of its step"
    if plan.copies == 1:
        return f"{busy}, so runs take turns: one at a time on each device"
    slower = slowdown(plan.copies, plan.busy)
    times = "" if f"{slower:.2g}" == "1" else f"{slower:.2g} times "
    text = (
        f"{busy}: {plan.copies} at once take {times}as long as one, so a device does "
        f"{plan.copies / slower:.2g} times as many runs an hour"
    )
    if plan.one_at_a_time_usd is not None and plan.one_at_a_time_hours is not None:
        text += (
            f"; one at a time, with the settings that are best for that, the same machines cost "
            f"{format_usd(plan.one_at_a_time_usd)} and take "
            f"{format_duration(plan.one_at_a_time_hours * 3600)}"
        )
    return text


def _bigger_or_smaller(best: SweepPlan, plans: Sequence[SweepPlan]) -> str:
    """The best plan against the best whose devices cost less an hour, or else more."""
    others = [p for p in plans[1:] if p.device != best.device and p.offer.terms != "owned" and not p.train_obstacle]
    smaller = [p for p in others if p.usd_per_device_hour < best.usd_per_device_hour]
    bigger = [p for p in others if p.usd_per_device_hour > best.usd_per_device_hour]
    if best.offer.terms == "owned" or not (smaller or bigger):
        return ""
    other = (smaller or bigger)[0]
    big, small = (best, other) if smaller else (other, best)
    dearer = big.usd_per_device_hour / small.usd_per_device_hour
    faster = big.runs_per_hour / small.runs_per_hour
    return (
        f"{'bigger' if smaller else 'smaller'} devices win: a {big.device} costs {dearer:.2g} times as much an hour as a "
        f"{small.device} and does {faster:.2g} times as many runs ({big.copies} against {small.copies} at once); all runs on "
        f"{other.device} cost {format_usd(other.usd.value)} instead of {format_usd(best.usd.value)}"
    )
