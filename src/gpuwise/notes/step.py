"""Notes on the device and the price of one step."""

from __future__ import annotations

from collections.abc import Iterable

from gpuwise.notes.note import Note, kind_of_note
from gpuwise.units import format_bytes, format_duration


@kind_of_note()
def this_machine(*, machine: str) -> str:
    """What `here` stands for."""
    return f"`here` is {machine}"


@kind_of_note()
def threads_of_environment(*, threads: int, cores: int) -> str:
    """Why a step on this machine's CPU has a part of it."""
    return f"OMP_NUM_THREADS is {threads}: a step has {threads} of this machine's {cores} cores"


@kind_of_note()
def more_than_is_free(*, needed_bytes: int, free_bytes: int) -> str:
    """A step on this machine's CPU needs more memory than other programs leave it now."""
    return (
        f"the step needs {format_bytes(needed_bytes)}, and other programs leave {format_bytes(free_bytes)} of this machine's "
        "memory now: the system would end it"
    )


@kind_of_note()
def catalog_cpu(*, chip: str, cpu: str) -> str:
    """What `cpu` stands for."""
    return f"`cpu` is {chip}, the catalog's nearest to {cpu}"


@kind_of_note()
def part_of_a_package(*, chip: str, share: str, devices: int) -> str:
    """A device is a part of what is sold as one."""
    return f"{chip} is {share}: PyTorch sees each as {devices} devices"


@kind_of_note()
def several_machines(*, devices: int, chip: str, machines: int, per_machine: int) -> str:
    """More devices are named than one machine holds."""
    return (
        f"{chip}:{devices} is {machines:,} machines of {per_machine}, the most that one holds: {chip}:{per_machine}x{machines}"
    )


@kind_of_note()
def price_of_offer(*, offer: str, as_of: str, chip: str, share_of_median: float | None) -> str:
    """Which offer sets the price of an hour. share_of_median: only of a price that is an outlier."""
    odd = "" if share_of_median is None else f" at {100 * share_of_median:.0f} % of the chip's median price"
    return f"price of {offer} as of {as_of}, the cheapest on demand{odd}; `gpuwise offers {chip}` lists others"


@kind_of_note(flag="--micro-batch")
def assumed_micro_batch(*, samples: int) -> str:
    """The user names no micro-batch."""
    return f"assumed micro-batch {samples}; --micro-batch changes it"


@kind_of_note(flag="--precision")
def assumed_precision(*, precision: str, refused: str = "", reasons: str = "", device: str = "") -> str:
    """The user names no precision.

    Arguments:
        refused: why the job does not run in a faster one. reasons: why this one is the fastest, on a CPU.
        device: which one it is assumed for, among several.
    """
    why = f": {refused}" if refused else ""
    return "; ".join(
        [
            f"{f'{device}: ' if device else ''}assumed precision {precision}{why}",
            *filter(None, [reasons]),
            "--precision changes it",
        ]
    )


@kind_of_note(flag="--precision")
def assumed_for_device(*, device: str, settings: str) -> str:
    """Of several devices that are compared, what was assumed for one of them."""
    return f"{device}: assumed {settings}; --precision and --micro-batch change it"


@kind_of_note(flag="--precision")
def compared_in_another_precision(*, device: str, precision: str, instead: str) -> str:
    """A device does not compute in the precision that the user names."""
    return f"{device} does not compute in {precision}: compared in {instead}"


@kind_of_note(flag="--mesh")
def assumed_mesh(*, devices: int, axis: str, why: str) -> str:
    """The user does not say how several devices share the work."""
    return f"assumed data parallelism over {devices} devices, {axis}: {why}; --mesh changes it"


@kind_of_note()
def emulated_fp32(*, chip: str, passes: float, precision: str) -> str:
    """Products of float32 run as several passes in 16 bits."""
    return f"float32 products on {chip} are priced as {passes} {precision} passes"


@kind_of_note()
def int8_at_fp32_rate(*, chip: str) -> str:
    """A CPU's rate of whole numbers is not known."""
    return f"the int8 rate of {chip} is not known: int8 is priced at its fp32 rate"


@kind_of_note()
def fp16_at_fp32_rate(*, chip: str) -> str:
    """A GPU computes no faster in fp16."""
    return f"{chip} has no fast fp16 arithmetic: fp16 is priced at its fp32 rate"


@kind_of_note()
def assumed_batch_copy(*, copied_bytes: int, link: str, prefetched: bool) -> str:
    """The batch is copied to the device each step."""
    how = "from pinned memory while the step before computes" if prefetched else "from pageable memory while the step waits"
    return f"assumed that the batch is copied to the device {how}: {format_bytes(copied_bytes)} a step over {link}"


@kind_of_note(flag="--loader-samples-per-s")
def assumed_data_ready() -> str:
    """Loading and decoding of data are not priced."""
    return (
        "assumed that data are ready when the step takes them: loading and decoding are not priced; "
        "--loader-samples-per-s says what the data pipeline delivers"
    )


@kind_of_note()
def measured_bus_bandwidth(*, link: str) -> str:
    """Communication is priced by a measured bandwidth."""
    return f"{link}: measured all-reduce bus bandwidth"


@kind_of_note()
def known_technology(*, link: str, technology: str, source: str, low: float, high: float) -> str:
    """Communication is priced by what collectives over the link's technology take."""
    real = f"real times are {low:.2g} to {high:.2g} times the forecast's"
    return f"{link}: as measured collectives over {technology} ({source}); {real}"


@kind_of_note()
def assumed_link_efficiency(*, link: str, efficiency: float, source: str, low: float, high: float) -> str:
    """Communication is priced by assumed figures: nobody measured such a link."""
    return (
        f"{link}: nobody measured it; {efficiency:.0%} of its line rate assumed ({source}), so that the interval allows for "
        f"{low:.2g} to {high:.2g} times the forecast"
    )


@kind_of_note()
def energy_from_tdp(*, low: float, high: float) -> str:
    """How energy is estimated, its 90 % interval on a device that no fit saw, and what it leaves out."""
    return (
        "energy follows from the TDP, arithmetic and bandwidth of the step, by a law fitted to A100, H100 and B200 in serving: "
        f"{low:.2g} to {high:.2g} times that on other devices; host and cooling not counted"
    )


@kind_of_note()
def unverified_figures(*, where: str, figures: str) -> str:
    """Figures that the forecast rests on and that have no verified source."""
    return f"{where}: {figures}"


@kind_of_note(flag="--offload")
def offloading(*, moved_bytes: int, link: str, host_bytes_per_s: float) -> str:
    """What offloading moves each step, and how fast the host updates."""
    return (
        f"offloading: {format_bytes(moved_bytes)} a step over {link}, and assumed a host with "
        f"{host_bytes_per_s / 1e9:.0f} GB/s of memory bandwidth for the update"
    )


@kind_of_note(flag="--offload")
def offloading_not_priced() -> str:
    """Copies of offloading are not priced, because the link to the host is not known."""
    return "offloading: its host link is not known: copies are not priced"


@kind_of_note(flag="--compile")
def compiled_random_numbers(*, added_s: float) -> str:
    """Random numbers in compiled steps on a CPU lengthen the step."""
    return f"random numbers of compiled steps are drawn one by one: {format_duration(added_s)} a step"


@kind_of_note(flag="--compile")
def random_numbers_not_priced(*, problem: str) -> str:
    """Random numbers in compiled steps are not priced, because the eager step is not at hand."""
    return f"random numbers of compiled steps are not priced: {problem}"


@kind_of_note()
def measured_here(*, date: str, measured_s: float, steps: int, model_s: float, disturbed: bool) -> str:
    """The step's time is not forecast: `gpuwise validate` measured it on this machine."""
    odd = " (something else held the machine up meanwhile)" if disturbed else ""
    return (
        f"measured here on {date} by gpuwise validate: {format_duration(measured_s)} a step over {steps:,} "
        f"steps; the model says {format_duration(model_s)}{odd}"
    )


@kind_of_note()
def measured_on_busy_machine(*, date: str, measured_s: float) -> str:
    """`gpuwise validate` measured the step while others slowed it down, so the forecast stays the model's."""
    return (
        f"gpuwise validate measured {format_duration(measured_s)} a step here on {date}, while other programs used the "
        "machine: the time of a free machine stays the model's until validate runs on one"
    )


@kind_of_note(flag="--compile")
def interval_of_eager_steps() -> str:
    """The interval of a compiled step is that of eager ones."""
    return "torch.compile: the interval is that of eager steps; no spread of compiled ones is known for such a device"


@kind_of_note()
def recorded_with_cpu_kernels() -> str:
    """A recording with a CPU's kernels is priced on a GPU."""
    return "the trace was recorded with CPU kernels; a GPU takes others"


@kind_of_note()
def kernels_without_a_model(*, share: float, calls: int, names: str, more: int) -> str:
    """Kernels that are priced by their bytes and operations alone take part of the step."""
    others = f" and {more} more" if more else ""
    return (
        f"{100 * share:.0f} % of the device's time are {calls:,} calls of kernels without a model "
        f"of their own, priced by their bytes and operations: {names}{others}"
    )


@kind_of_note()
def decompositions_without_a_model(*, calls: int, names: str) -> str:
    """Decompositions of matrices are priced as if they read and wrote them once."""
    return (
        f"{calls:,} decompositions of matrices ({names}) are priced by their bytes alone: they take many times as long, "
        "and the interval does not cover it"
    )


@kind_of_note(flag="--on")
def memory_not_known() -> str:
    """Nothing limits the micro-batch, because the device's memory is not known."""
    return "the memory of this device is not known, so nothing limits the micro-batch; `--on here` knows it"


@kind_of_note(flag="--micro-batch")
def program_changes_with_batch(*, tried: str) -> str:
    """Each micro-batch is recorded by itself. tried: those that were."""
    return f"the program changes with the micro-batch, so each is recorded by itself; tried: {tried}"


def of_a_step(notes: Iterable[Note]) -> tuple[Note, ...]:
    """Without those on how much is trained, which change no number of a single step; each once."""
    return tuple(dict.fromkeys(note for note in notes if note.flag != "--samples"))
