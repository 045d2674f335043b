"""Notes on a whole run: how much is trained, on what terms a machine is rented or owned."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import counted, format_bytes, format_count, format_duration, format_usd


@kind_of_note(flag="--epochs")
def assumed_one_epoch() -> str:
    """The user does not say how much is trained."""
    return "assumed 1 epoch; --epochs changes it"


@kind_of_note(flag="--micro-batch")
def run_of_assumed_batch(*, samples: int) -> str:
    """A whole run is priced in steps whose size the user does not name. samples: in one optimizer step."""
    return (
        f"the whole run is of steps of {counted(samples, 'sample')}, as the micro-batch is assumed; larger steps usually make "
        "it shorter and cheaper: `gpuwise fit` finds the largest, `gpuwise plan` chooses one; --micro-batch changes it"
    )


@kind_of_note(flag="--seq-len")
def tokens_in_samples(*, tokens: int, tokens_per_sample: int) -> str:
    """How many tokens make a sample, where the user counts tokens."""
    return f"{format_count(tokens)} tokens in samples of {tokens_per_sample:,}; --seq-len changes it"


@kind_of_note()
def assumed_setup(*, setup_s: float) -> str:
    """A rented machine is paid while it is set up."""
    return f"assumed {format_duration(setup_s)} to set the machine up before the first step"


@kind_of_note(flag="--interruptions")
def assumed_interruptions(*, interruptions_per_day: float) -> str:
    """How often a spot machine is taken away."""
    times = "an interruption" if interruptions_per_day == 1 else f"{interruptions_per_day:g} interruptions"
    return f"assumed {times} a day of spot machines; --interruptions changes it"


@kind_of_note(flag="--interruptions")
def published_interruptions(*, interruptions_per_day: float, guess_per_day: float, label: str, source: str) -> str:
    """How often such spot machines were interrupted, as published. guess_per_day: what would count without that list."""
    return (
        f"{label} of such spot machines were interrupted in the last month ({source}): {interruptions_per_day:.2g} a day are "
        f"counted, where {guess_per_day:g} a day, a guess, would be assumed without that list; --interruptions changes it"
    )


@kind_of_note(flag="--interruptions")
def assumed_day_limit(*, interruptions_per_day: float) -> str:
    """How often a spot machine is taken away that lives at most 24 hours."""
    return (
        f"assumed spot machines that live at most 24 h, {interruptions_per_day:.2g} interruptions a day, as measured on "
        "Google's preemptible machines; --interruptions changes it"
    )


@kind_of_note()
def assumed_failures(*, failures_per_device_year: float) -> str:
    """How often a rented device fails."""
    return (
        f"assumed that a device fails every {1 / failures_per_device_year:.1f} years, as in the training of Llama 3 405B, and "
        "training goes on from a checkpoint"
    )


@kind_of_note()
def assumed_storage(*, checkpoints: int, storage_usd_per_gb_month: float, transfer_usd_per_gb: float) -> str:
    """What is stored at the provider and leaves it, and what that costs."""
    return (
        f"counted: {checkpoints} checkpoints stored at ${storage_usd_per_gb_month:g} a GB and month, the weights taken out at "
        f"${transfer_usd_per_gb:g} a GB; not the data set, nor taxes"
    )


@kind_of_note()
def assumed_checkpoints(*, saved_bytes: int, bytes_per_s: float, restart_s: float) -> str:
    """What a checkpoint and a restart on another spot machine take."""
    return (
        f"assumed checkpoints of {format_bytes(saved_bytes)} saved at {bytes_per_s / 1e9:.3g} GB/s and "
        f"{format_duration(restart_s)} until another spot machine trains"
    )


@kind_of_note()
def assumed_free_sessions() -> str:
    """How long a session of a free machine lasts."""
    return "assumed free sessions of 12 h"


@kind_of_note()
def assumed_free_quota() -> str:
    """How often a free machine can be used."""
    return "the provider publishes no weekly quota: assumed one session a day"


@kind_of_note()
def priced_as_one_socket(*, chip: str) -> str:
    """An instance of CPUs is priced as one socket."""
    return f"priced as one {chip} socket, whatever the instance has"


@kind_of_note()
def share_of_a_chip(*, share: float, chip: str) -> str:
    """An instance has a share of a chip."""
    return f"{share:g} of a {chip} is priced as that share of its memory and speed"


@kind_of_note(flag="--electricity")
def electricity_alone(
    *, chips_w: float, forecast: bool, host_w: float, psu_efficiency: float, pue: float, wall_w: float, usd_per_kwh: float
) -> str:
    """A machine of the user's costs its electricity. forecast: whether chips_w, of all chips, is of the job's energy."""
    chips = f"{chips_w:,.0f} W of the chips {'in this job' if forecast else '(a guess)'}"
    cooling = "" if pue == 1 else f", PUE {pue:g}"
    return (
        f"electricity is counted: {chips} and {host_w:,.0f} W of the host behind a power supply of {psu_efficiency:.0%}"
        f"{cooling}: {wall_w:,.0f} W at {format_usd(usd_per_kwh)}/kWh; --electricity and --costs change it"
    )


@kind_of_note(flag="--costs")
def purchase_counted(*, usd: float, resale_usd: float, lifetime_years: float, hours_a_week: float, usd_per_hour: float) -> str:
    """The loss of value of a machine of the user's, an hour of its work."""
    return (
        f"a purchase of {format_usd(usd)} less a resale of {format_usd(resale_usd)} after {lifetime_years:g} years is "
        f"{format_usd(usd_per_hour)} an hour, at {hours_a_week:g} hours of work a week; --costs changes it"
    )


@kind_of_note(flag="--purchase")
def purchase_not_counted(*, count: int, chip: str, usd: float) -> str:
    """What buying a machine would cost that the user says is owned."""
    return f"buying {count} × {chip} costs about {format_usd(usd)}; not counted, it is owned: --purchase counts it"


@kind_of_note(flag="--own")
def started_on_each_machine(*, machines: int, ranks: int) -> str:
    """How a plan on several machines is started. ranks: on each of them."""
    return (
        f"{machines} machines: `gpuwise launch` starts their ranks, or on each "
        f"torchrun --nnodes {machines} --nproc-per-node {ranks} -m -- gpuwise train"
    )


@kind_of_note(flag="--max-devices")
def rented_together(*, machines: int, devices: float, instance: str, provider: str, spot: bool, quota_raise: str) -> str:
    """Several machines are rented at the price of one each. quota_raise: how to request a larger quota; "" where unknown."""
    kind = "spot machines, all free" if spot else "machines, all"
    raising = f" ({quota_raise})" if quota_raise else ""
    return (
        f"assumed that {provider} rents {machines} × {instance} ({devices:,.0f} devices) as {kind} at once, near each other "
        f"and each at the price of one; ask for the quota first{raising}"
    )


@kind_of_note()
def more_than_the_quota(*, provider: str, quota: str, quota_raise: str) -> str:
    """The machine is beyond the default quota of the provider. quota_raise: how to request a larger one; "" where unknown."""
    raising = f"; a raise: {quota_raise}" if quota_raise else ""
    return f"beyond the default quota of {provider}: {quota}{raising}"


@kind_of_note(flag="--global-batch")
def assumed_global_batch(*, samples: int, tokens: int | None, why: str) -> str:
    """The user names no batch of an optimizer step. tokens: in it, where samples are sequences."""
    units = "" if tokens is None else f" ({format_count(tokens)} tokens)"
    return f"assumed a global batch of {samples:,} samples{units} an optimizer step, {why}; --global-batch changes it"


@kind_of_note(flag="--micro-batch")
def assumed_batch_of_run(*, samples: int, why: str) -> str:
    """The user of `train` names no batch."""
    return f"assumed a global batch of {samples:,} samples, {why}; --micro-batch and --accumulate change it"


@kind_of_note(flag="--global-batch")
def global_batch_here(*, samples: int, why: str) -> str:
    """The assumed batch is another on this device."""
    return f"the assumed global batch is {samples:,} samples here, {why}"


@kind_of_note(flag="--deadline")
def no_deadline() -> str:
    """Without a deadline a year is the limit."""
    return "no deadline given: what takes over a year is left out; --deadline changes it"
