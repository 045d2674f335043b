"""Notes on the load of `serve-plan`: how requests come, and how instances follow them."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration


@kind_of_note(flag="--arrivals")
def bursty_arrivals(*, variation: float) -> str:
    """Requests come in bursts. variation: standard deviation of gaps over their mean."""
    return (
        f"requests come in bursts: gaps are gamma distributed, their standard deviation {variation:g} times their mean "
        "(--arrivals changes it), and reach replicas in turn"
    )


@kind_of_note(flag="--concurrency")
def users_wait_for_answers(*, clients: int) -> str:
    """A closed loop: users send the next request when the last one is answered."""
    return (
        f"{clients:,} users each send the next request as soon as the last one is answered, and are shared equally by the "
        "replicas; latencies are those of the loop's middle"
    )


@kind_of_note(flag="--trace")
def replayed_requests(*, file: str, count: int, replayed: int, rate_per_s: float, days: float) -> str:
    """Requests of a file are replayed. rate_per_s: their mean rate in the file. days: its length."""
    part = "" if replayed == count else f", of which the {replayed:,} that come closest together are replayed"
    return f"{file}: {count:,} requests in {format_duration(86_400 * days)}, {rate_per_s:.3g} a second{part}"


@kind_of_note(flag="--trace")
def lengths_of_requests(*, file: str, count: int) -> str:
    """Users who wait send requests that are as long as those of a file."""
    return f"{file}: requests are as long as its {count:,}, in a random order; their times are not read, since users wait"


@kind_of_note(flag="--rate")
def scaled_requests(*, factor: float) -> str:
    """The gaps of a file are scaled to the rate that the user names. factor: rate over that of the file."""
    return f"its gaps are divided by {factor:.3g} to come to the rate that --rate names"


@kind_of_note(flag="--trace")
def unread_columns(*, file: str, columns: str) -> str:
    """Columns of a file of requests that are not read."""
    return f"{file}: columns that are not read: {columns}"


@kind_of_note(flag="--trace")
def failed_requests(*, file: str, count: int) -> str:
    """Requests of a file without tokens are left out."""
    return f"{file}: {count:,} requests without tokens, which failed, are left out"


@kind_of_note(flag="--trace")
def cut_requests(*, count: int, context_tokens: int) -> str:
    """Requests of a file that exceed the model's context."""
    return f"{count:,} of the replayed requests are cut to the model's context of {context_tokens:,} tokens"


@kind_of_note(flag="--spread")
def means_as_drawn(*, input_tokens: float, output_tokens: float, longest: int) -> str:
    """Means of requests that differ from those that the user names. longest: the model's context, 0 without a limit."""
    context = f" and at most the model's context of {longest:,} tokens" if longest else ""
    return (
        f"the requests drawn read {input_tokens:,.1f} tokens and write {output_tokens:,.1f} on average: lengths are "
        f"whole{context}, and few of a wide spread are very long; --spread 0 keeps the means"
    )


@kind_of_note(flag="--day")
def sized_for_the_peak(*, multiple: float, hour: int) -> str:
    """Instances are as many as the busiest hour takes. multiple: its rate over the mean."""
    return f"instances are those of the busiest hour, {hour}:00, with {multiple:.3g} times the mean rate; so are the latencies"


@kind_of_note(flag="--trace")
def sized_for_the_busiest_part(*, multiple: float) -> str:
    """Instances are as many as the busiest part of a file takes. multiple: its rate over the mean."""
    return f"instances are those of the file's busiest part, with {multiple:.3g} times its mean rate; so are the latencies"


@kind_of_note(flag="--autoscale")
def started_ahead() -> str:
    """Instances follow the hours of a day."""
    return "instances follow the hours: one starts a cold start before the hour that needs it, and both are paid"


@kind_of_note()
def cold_start_figures() -> str:
    """What a cold start leaves out."""
    return (
        "cold starts are vLLM's, from published reports, all terms one after the other; the machine itself may take minutes "
        "to come"
    )


@kind_of_note(flag="--idle")
def stops_when_idle(*, idle_s: float | None) -> str:
    """When an instance stops. idle_s: idle time before it; null for as long as a cold start takes."""
    after = "as long as it takes to start" if idle_s is None else format_duration(idle_s)
    return f"an instance stops after it was idle for {after} (--idle), and is paid by the second, at the same price"


@kind_of_note(flag="--spot")
def lost_spot_machines() -> str:
    """What is assumed of spot machines."""
    return (
        "spot machines are lost independently of each other, at the providers' usual rates, most of which are guesses; "
        "requests on them are sent again, since no notice is counted on"
    )
