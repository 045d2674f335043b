"""Notes on serving models that answer in one forward pass, by `serve-plan`."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_duration


@kind_of_note()
def one_pass_a_request() -> str:
    """What a request is, of a model that answers in one forward pass."""
    return (
        "a request is one sample of one forward pass; what takes several passes is as many requests: each step of a diffusion "
        "model, each token that T5 or Whisper writes"
    )


@kind_of_note(flag="--seq-len")
def tokens_are_read_alone(*, tokens: int) -> str:
    """A request reads tokens, and writes none."""
    return (
        f"a request reads {tokens:,} tokens at once; to be planned as one that writes text, a job says Job(generate=...); "
        "--seq-len changes it"
    )


@kind_of_note(flag="--input")
def lengths_of_samples(*, tokens: float, variation: float, longest: int) -> str:
    """Samples of a forward pass differ in their tokens. variation: standard deviation over the mean."""
    return (
        f"a request reads {tokens:,.0f} tokens at once on average (--input); lengths are log-normal, their standard deviation "
        f"{variation:g} times that (--spread), and cut to {longest:,}"
    )


@kind_of_note(flag="--buckets")
def padded_to_the_longest() -> str:
    """Batches are of samples as they come."""
    return "samples of a batch are padded to the longest of them; --buckets 64,128,512 runs those of similar length together"


@kind_of_note(flag="--buckets")
def padded_to_buckets(*, buckets: str) -> str:
    """Batches are of samples of similar length. buckets: the most tokens of each."""
    return f"a batch is of samples of one bucket ({buckets} tokens), and padded to its end; the oldest request says of which"


@kind_of_note()
def plain_pytorch(*, passes: str) -> str:
    """What runs the forward passes. passes: eager or compiled."""
    return (
        f"plain PyTorch runs {passes} passes, one after the other; the server around it is your own, and what its sockets, "
        "tokenizers, decoded images and Python take is not counted: passes of less than a few milliseconds take longer than "
        "this. Engines that compile a model for one device, as TensorRT or OpenVINO, are faster"
    )


@kind_of_note(flag="--engine")
def graph_engine(*, engine: str, versions: str) -> str:
    """What runs the forward passes, where it is no plain PyTorch. versions: that its figures are of."""
    return (
        f"{engine} {versions} runs the exported graph in fp32 with a thread on each core, one pass after the other. Its "
        "figures are factors over kernels of plain PyTorch on the same processor, and of processors alone, so that without "
        "--on only this machine is looked at. Memory is taken to be as much. The server around it is your own, and what its "
        "sockets, tokenizers and decoded images take is not counted; --engine changes it"
    )


@kind_of_note()
def passes_are_compiled(*, chips: str) -> str:
    """Devices that run no eager passes."""
    return f"on {chips} passes run as graphs that the maker's compiler makes, one for each batch"


@kind_of_note(flag="--precision")
def fastest_precisions(*, precisions: str) -> str:
    """The precision of each device was not named."""
    return f"each device computes in the fastest precision that it and the model have ({precisions}); --precision changes it"


@kind_of_note(flag="--batch")
def batches_that_serve_most(*, most: int) -> str:
    """The most requests of a pass were not named."""
    return (
        f"of batches of 1, 2, 4 to {most} requests that fit, the smallest of those that serve most within the limits; "
        "--batch changes it"
    )


@kind_of_note(flag="--window")
def no_window() -> str:
    """How long an idle server waits was not named."""
    return "an idle server starts with the first request, a busy one takes all that have come; --window lets it wait for more"


@kind_of_note(flag="--servers")
def servers_share_a_processor(*, servers: str) -> str:
    """Several servers share a processor. servers: how many of each, and their threads."""
    return (
        f"servers on one processor are processes with a copy of the model each, which take from one line ({servers}). A pass "
        "is priced as if all ran: with its part of cores, caches, bandwidth and memory; --servers changes it"
    )


@kind_of_note()
def a_copy_on_each_device() -> str:
    """Several devices of a machine do not share a pass."""
    return "on several devices of a machine each has a copy of the model, and an equal share of the requests"


@kind_of_note(flag="--on")
def forward_catalog(*, considered: int, dearer: int) -> str:
    """Which kinds of machine were considered where the user names no devices."""
    left = f", of which {dearer} are dearer than those above" if dearer else ""
    return (
        f"considered this machine and {considered} kinds of machine with 1, 2, 4 or 8 devices that offers sell on "
        f"demand{left}; --on changes it"
    )


@kind_of_note(flag="--precision")
def forward_runs_nowhere(*, chips: str) -> str:
    """Chips of the catalog on which the forward pass has no forecast."""
    return f"left out, since the pass does not run there, or has no figures: {chips}"


@kind_of_note()
def pass_does_not_fit(*, chips: str) -> str:
    """Chips of the catalog whose memory does not hold the model and the named batch."""
    return f"left out, since the model and a batch do not fit: {chips}"


@kind_of_note(flag="--slo")
def pass_is_too_slow(*, chips: str) -> str:
    """Chips of the catalog on which a pass of one sample takes longer than the limit."""
    return f"left out, since a pass of one sample takes longer than the limit: {chips}"


@kind_of_note()
def machine_for_requests(
    *,
    verdict: str,
    kind: str,
    rate_per_s: float,
    highest_per_s: float,
    p99_s: float,
    low_s: float,
    high_s: float,
    servers: int = 1,
) -> str:
    """Whether this machine is enough for the requests, where it is among the devices.

    verdict: enough, uncertain (not with passes as slow as the 90 % interval reaches) or not-enough. kind: CPU or GPU.
    highest_per_s: the highest rate within the limits. p99_s: 99th percentile of latency, with its interval. servers: that
    share it.
    """
    rate, highest = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (rate_per_s, highest_per_s))
    words = f"your {kind} {_VERDICTS.get(verdict, verdict)} for {rate}/s: it serves at most {highest}/s"
    words += f" with {servers} servers on it" if servers > 1 else ""
    if verdict == "not-enough":
        return words
    seen = f"99 % of answers take at most {format_duration(p99_s)} ({format_duration(low_s)} to {format_duration(high_s)})"
    slow = "; with passes as slow as the interval reaches it would not be" if verdict == "uncertain" else ""
    return f"{words}, and {seen}{slow}"


@kind_of_note()
def machine_serves_no_request(*, kind: str, reason: str) -> str:
    """This machine is among the devices, and serves no rate within the limits. kind: CPU or GPU."""
    return f"your {kind} is not enough: {reason}"


# By the verdict of gpuwise.plan.cpu.enough.
_VERDICTS = {"enough": "is enough", "uncertain": "may be enough", "not-enough": "is not enough"}
