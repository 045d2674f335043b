"""Notes on several devices: what a mesh costs, and what its forecast assumes."""

from __future__ import annotations

from gpuwise.notes.note import kind_of_note
from gpuwise.units import format_bytes, format_duration


@kind_of_note(flag="--mesh")
def waits_for_collectives(*, axes: str) -> str:
    """Collectives that computation is assumed not to hide."""
    return f"assumed that the step waits for every exchange along {axes}: nothing of it is hidden behind computation"


@kind_of_note(flag="--network")
def assumed_network(*, link: str, bytes_per_s: float, serves: str, of: str, source: str) -> str:
    """The network of an offer joins machines, because the user names none. of: the offer."""
    rate = f"{bytes_per_s / 1e9:,.3g} GB/s a {serves}"
    return f"assumed machines joined by {link}, {rate}, as those of {of} are ({source}); --network changes it"


@kind_of_note(flag="--network")
def named_network(*, link: str, bytes_per_s: float, serves: str, source: str, one_port: bool) -> str:
    """What the network that the user names was understood as.

    Arguments:
        serves: whose bandwidth it is, a machine's or a device's.
        one_port: whether a machine has a single port, where each device may have one.
    """
    more = ', one port: "a device" at the end of --network counts one for each device' if one_port else ""
    return f"machines are joined by {link}, {bytes_per_s / 1e9:,.3g} GB/s a {serves} ({source}){more}"


@kind_of_note(flag="--mesh")
def simulated_streams(*, slowdown: float) -> str:
    """Streams of a recorded rank are simulated. slowdown: of computation, a share of the time communication runs beside it."""
    beside = f"; computation beside it is assumed slower by {100 * slowdown:.0f} % of the time" if slowdown else ""
    return f"communication runs beside computation as the streams and waits of the recorded rank let it{beside}"


@kind_of_note(flag="--network")
def network_not_in_catalog(*, network: str, technology: str, latency_of: str) -> str:
    """The catalog has no link of the rate that the user names. latency_of: whose latency is taken; "" without any."""
    latency = f", with the latency of {latency_of}" if latency_of else ""
    return f"{network} is not in the catalog: collectives over it are priced as over {technology}{latency}"


@kind_of_note(flag="--mesh")
def model_parallel_across_machines(*, axis: str, degree: int, cost_s: float, share: float, link: str, mesh: str) -> str:
    """Tensor, context or expert parallelism spans machines, which costs time.

    Arguments:
        cost_s, share: what its exchange adds to a step, in seconds and as a share of it.
        link: between the machines.
        mesh: one that keeps it inside a machine.
    """
    return (
        f"{axis}={degree} spans machines: each step waits {format_duration(cost_s)}, {100 * share:.0f} % of it, for {axis} "
        f"over {link}; --mesh {mesh} would keep it inside a machine, where memory allows it"
    )


@kind_of_note()
def slow_machines(*, machines: int, chance: float, slower_by: float) -> str:
    """A machine of many may be slow, and all others wait for it: the interval allows for it, the value does not.

    Arguments:
        chance: that at least one is.
        slower_by: by which share its computation lasts longer.
    """
    return (
        f"of {machines:,} machines one is slow with a probability of {100 * chance:.0f} %: computation would take "
        f"{100 * slower_by:.0f} % longer (MegaScale, NSDI 2024), which the interval allows for"
    )


@kind_of_note(flag="--pipeline-schedule")
def pipeline_bubble(*, schedule: str, idle: float, micro_batches: int) -> str:
    """How long the slowest rank of a pipeline waits for others. idle: in micro-batches of its own."""
    return (
        f"pipeline {schedule}: the slowest rank idles for {idle:.3g} of {micro_batches + idle:.3g} micro-batches' time, "
        "by a simulation of its schedule with stages of their own lengths"
    )


@kind_of_note(flag="--mesh")
def worst_rank(*, rank: str, memory_bytes: int, slowest: str) -> str:
    """Which rank of several unequal ones the memory and the time are of."""
    needs = f"memory is that of the {rank} stage, which needs most ({format_bytes(memory_bytes)})"
    return f"{needs}; time is that of the {slowest} stage, the slowest"


@kind_of_note()
def tensor_parallel_plan(*, source: str, modules: str, remarks: str) -> str:
    """Which modules tensor parallelism splits, and how."""
    end = f". {remarks}" if remarks else ""
    return f"tensor parallelism, {source}: {modules}{end}"


@kind_of_note()
def whole_build(*, where: str, reason: str) -> str:
    """Ranks build the whole model where rank 0 alone should. where: in which memory."""
    return f"each rank builds the whole model {where} before it keeps its part: {reason}"


@kind_of_note()
def composed_rank(*, axes: str) -> str:
    """A rank's step is composed, not recorded."""
    return f"the step of a rank of {axes} is composed from the recording of a single device, by rules for its blocks"


@kind_of_note(flag="--mesh")
def autocast_without_shards(*, precision: str, axes: str) -> str:
    """Mixed precision of a mesh without data or context parallelism."""
    return (
        f"{precision} of {axes} is PyTorch's autocast, which casts weights in each forward pass and keeps what goes between "
        "blocks in fp32; with data parallelism beside it weights are cast once, and a step may be faster"
    )


@kind_of_note(flag="--mesh")
def ranks_share_cpu(*, ranks: int, cores: int, exchange_bytes_per_s: float, measured_between: int = 0) -> str:
    """Several ranks run on the CPU of this machine."""
    of = f" of {cores} cores" if cores else ""
    rough = "a rough figure of gloo, which `gpuwise measure` replaces"
    origin = f"from what {measured_between} processes reached in `gpuwise measure`" if measured_between else rough
    return (
        f"{ranks} ranks share this CPU{of}: each is priced as an equal part of it, "
        f"and their exchange at {exchange_bytes_per_s / 1e9:.2g} GB/s, {origin}"
    )


@kind_of_note(flag="--accumulate")
def assumed_micro_batches(*, micro_batches: int) -> str:
    """The user names no micro-batches for a pipeline."""
    return f"assumed {micro_batches} micro-batches a step, one for each rank of the pipeline; --accumulate changes it"
