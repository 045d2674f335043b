"""Notes on a plan: why it is what it is, and why it stands where it stands."""

from __future__ import annotations

import math

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_bytes, format_count, format_duration, format_usd


@kind_of_note()
def memory_used(*, device_bytes: int, capacity_bytes: int, devices: int, tight: bool) -> str:
    """How much of a device's memory the step takes."""
    each = " on each device" if devices > 1 else ""
    odd = ", which is tight" if tight else ""
    return f"uses {format_bytes(device_bytes)} of {format_bytes(capacity_bytes)} of memory{each}{odd}"


@kind_of_note(flag="--mesh")
def sharded(*, devices: int, shard: str = "parameters") -> str:
    """Why the model is sharded. shard: parameters, gradients or optimizer: what is, with all that follow it in this order."""
    what = {"gradients": "gradients and optimizer state are", "optimizer": "the optimizer state is"}
    return (
        f"{what.get(shard, 'parameters, gradients and optimizer state are')} sharded over {devices} devices: "
        "a full copy on each does not fit, leaves less for the batch, or is slower"
    )


@kind_of_note(flag="--offload")
def offloaded(*, offload: str, host_bytes: int) -> str:
    """Why state lives in host memory. offload: optimizer or parameters, as in Strategy; host_bytes: that the host needs."""
    visit = "" if offload == "optimizer" else ", and parameters visit the device"
    return (
        f"optimizer state and its update are in host memory{visit}: nothing fits the device without; "
        f"{format_bytes(host_bytes)} of host memory are needed"
    )


@kind_of_note(flag="--recompute")
def recomputed() -> str:
    """Why activations are recomputed."""
    return "activations are computed again in backward, so that a larger micro-batch fits"


@kind_of_note(flag="--accumulate")
def accumulated(*, micro_batches: int, micro_batch: int) -> str:
    """How many micro-batches make a step."""
    return f"{micro_batches} micro-batches of {micro_batch} are accumulated a step on each device"


@kind_of_note()
def bound_by(*, share: float, limit: str, words: str) -> str:
    """What limits the largest part of a step. limit: a key of Forecast.bound."""
    return f"{share:.0%} of a step is limited by {words}"


@kind_of_note(flag="--allow")
def changes_training(*, permission: str, words: str) -> str:
    """A technique of the plan changes what is trained, which the user allows."""
    return f"{words}: that changes what is trained, as --allow {permission} permits"


@kind_of_note(flag="--allow")
def allowed_but_not_tried(*, techniques: str, problem: str) -> str:
    """Techniques that the user allows could not be forecast."""
    return f"{techniques} not tried, though allowed: {problem}"


@kind_of_note(flag="--mesh")
def meshes_not_tried(*, problem: str) -> str:
    """Ways to share the model over devices were left out of the search, since they could not be forecast."""
    return f"not every mesh was tried: {problem}"


@kind_of_note(flag="--precision")
def pure_bf16() -> str:
    """The user wants a precision that changes what is trained."""
    return "pure bf16 because you asked for it: it changes what is trained, parameters are rounded every step"


@kind_of_note(flag="--xla")
def not_for_train(*, obstacle: str) -> str:
    """What keeps `gpuwise train` from running the plan."""
    return obstacle


@kind_of_note()
def one_device_is_enough() -> str:
    """The plan needs no second device."""
    return "one device is enough"


@kind_of_note(flag="--stale")
def stale_price(*, as_of: str) -> str:
    """The price is over a year old."""
    return f"stale price: of {as_of}, over a year old; check it before you rent"


@kind_of_note()
def price_caveat(*, caveat: str) -> str:
    """What the catalog knows against the price."""
    return f"price caveat: {caveat}"


@kind_of_note(flag="--interruptions")
def spot_interruptions(
    *,
    interruptions: float,
    checkpoint_interval_s: float,
    doubled_s: float,
    doubled_usd: float,
    halved_s: float,
    halved_usd: float,
    other_interval_share: float,
) -> str:
    """What interruptions of a spot machine do, and what twice and half as many would, or another time between checkpoints."""
    return (
        f"spot: {format_count(interruptions)} interruptions expected, a checkpoint every "
        f"{format_duration(checkpoint_interval_s)}; with twice as many interruptions "
        f"{format_duration(doubled_s)} and {format_usd(doubled_usd)}, with half {format_duration(halved_s)} and "
        f"{format_usd(halved_usd)}; saving twice or half as often adds up to {100 * other_interval_share:.1f} %"
    )


@kind_of_note()
def train_saves() -> str:
    """A run that is interrupted goes on from its checkpoints."""
    return "gpuwise train saves checkpoints and goes on from them: keep its --run folder where the next machine finds it"


@kind_of_note()
def must_save() -> str:
    """A run that is interrupted needs checkpoints that `gpuwise train` does not make there."""
    return "your training must save checkpoints and resume: gpuwise train does so on GPUs and CPUs"


@kind_of_note()
def reserved_term(*, usd_per_hour: float) -> str:
    """A reservation is paid whether it is used or not."""
    return f"reserved: {format_usd(usd_per_hour)}/h is paid for the whole term, used or not"


@kind_of_note()
def free_sessions(*, work_s: float, session_hours: float, calendar_s: float) -> str:
    """A free machine is used in several sessions."""
    return (
        f"free: {format_duration(work_s)} of work in sessions of at most {session_hours:g} h takes "
        f"{format_duration(calendar_s)}; resumed from a checkpoint each time"
    )


@kind_of_note()
def machine_at_hand() -> str:
    """The user has the machine."""
    return "a machine at hand: its electricity is all it costs"


@kind_of_note()
def setup_longer_than_training(*, work_s: float) -> str:
    """Most of the rent is paid for setting up."""
    return f"setting the machine up takes longer than the training itself, {format_duration(work_s)}"


@kind_of_note(flag="--confidence")
def may_miss(*, chance: float) -> str:
    """The chance to keep the deadline and the budget is below the requested confidence."""
    return f"may miss: {math.floor(100 * chance)} % likely to keep the limits"


@kind_of_note()
def cheapest(*, offers: int, runs: bool, limits: str) -> str:
    """The first plan is the cheapest. runs: of those that `gpuwise train` runs; limits: of budget and deadline, in words."""
    ends = f" that finish {limits}" if limits else ""
    each = " that gpuwise train runs" if runs else ""
    return f"cheapest of {offers} offers{each}{' and' if each and ends else ''}{ends}"


@kind_of_note(flag="--objective")
def first_by(*, best: str, offers: int, runs: bool, limits: str) -> str:
    """The first plan is the best in the objective. best: "fastest of"; runs, limits: as of the cheapest."""
    ends = f" that finish {limits}" if limits else ""
    each = " that gpuwise train runs" if runs else ""
    return f"{best} {offers} offers{each}{' and' if each and ends else ''}{ends}"


@kind_of_note(flag="--confidence")
def cheaper_but_may_miss(*, offers: int, usd: float, count: float, device: str, chance: float) -> str:
    """What costs less, and is less likely to keep the limits than requested."""
    return (
        f"{offers} offer{' costs' if offers == 1 else 's cost'} less, from {format_usd(usd)} on {count:g} × {device}, "
        f"but may miss the limits ({math.floor(100 * chance)} % likely to keep them); --confidence 0 ranks them too"
    )


@kind_of_note()
def only_offer(*, runs: bool, limits: str) -> str:
    """There is no other plan."""
    ends = f" that finishes {limits}" if limits else ""
    each = " that gpuwise train runs" if runs else ""
    return f"the only offer{each}{' and' if each and ends else ''}{ends}"


@kind_of_note(flag="--xla")
def cheaper_but_not_for_train(*, offers: int, usd: float, count: float, device: str) -> str:
    """What costs less, and `gpuwise train` cannot run."""
    return (
        f"{offers} offers cost less, from {format_usd(usd)} on {count:g} × {device}, "
        f"but gpuwise train cannot run them; --xla ranks them by their price"
    )


@kind_of_note()
def fastest(*, offers: int) -> str:
    """No other plan ends earlier."""
    return f"fastest of {offers}"


@kind_of_note()
def best_value() -> str:
    """The plan with the least product of money and time."""
    return "best value: the least money × time"


@kind_of_note()
def cpu_is_enough(*, calendar_s: float) -> str:
    """A CPU is done within the hour."""
    return f"a CPU is enough: {format_duration(calendar_s)}"


@kind_of_note()
def against_the_first(*, pace: float, extra_usd: float) -> str:
    """Time and money beside the first plan. pace: hours against its hours; extra_usd: beyond its dollars."""
    speed = "as fast as"
    if pace < 0.95:
        speed = f"{times(1 / pace)} faster than"
    elif pace > 1.05:
        speed = f"{times(pace)} slower than"
    if abs(extra_usd) < 0.005:
        return f"{speed} plan 1, at the same price"
    return f"{speed} plan 1 and {format_usd(abs(extra_usd))} {'dearer' if extra_usd > 0 else 'cheaper'}"


@kind_of_note()
def speed_beside(*, device: str, other: str, ratio: float, why: str = "") -> str:
    """The speed beside another device, and the figure that explains most of it. ratio: of samples a second; why: in words."""
    if not why:
        return f"{device} trains this job as fast as {other}"
    if ratio > 1:
        return f"{device} trains this job {times(ratio)} faster than {other}: {why}"
    return f"{device} trains this job {times(1 / ratio)} slower than {other}: {why}"


@kind_of_note()
def slowest_here() -> str:
    """Of several devices that are compared, the one that speed-ups are against."""
    return "the slowest here"


@kind_of_note()
def faster_than_the_slowest(*, why: str) -> str:
    """What a speed-up comes from."""
    return why


@kind_of_note()
def not_compared(*, problem: str) -> str:
    """Why a device has no forecast."""
    return problem


@kind_of_note()
def effect_of_technique(*, technique: str, effect: str) -> str:
    """What a change does that makes a job fit."""
    return f"{technique}: {effect}"


@kind_of_note(flag="--seq-len")
def shorter_samples(*, length: int, longest: int) -> str:
    """A job fits with shorter samples."""
    return f"sequence length {length:,}: samples are shorter than {longest:,} tokens"


@kind_of_note(flag="--offload")
def host_memory_needed(*, host_bytes: int) -> str:
    """A change that makes a job fit takes memory of the host."""
    return f"{format_bytes(host_bytes)} of host memory are needed"


def times(ratio: float) -> str:
    """'2.9×'"""
    return f"{ratio:,.0f}×" if ratio >= 10 else f"{ratio:.1f}×"
